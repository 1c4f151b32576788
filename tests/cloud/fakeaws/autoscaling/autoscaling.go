// Package autoscaling is a fake of Amazon EC2 Auto Scaling. Its groups really launch, check and replace instances of
// the fake EC2.
//
// Invariant: a group's members are instances that it launched. A member stays until EC2 reports it as terminated.
// Between two passes of Reconcile, only calls change state. The service acts with its own permissions, like AWS's
// service-linked role. When a group is made or its template changes, the caller must have permission to launch the
// instances.
//
// Actions, errors and defaults follow the "Amazon EC2 Auto Scaling API Reference", version 2011-01-01.
package autoscaling

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Config configures the service and names the other services that it uses. EC2 and Lock are required.
type Config struct {
	Region, Account string
	Zones           []string
	EC2             *ec2.Service
	Targets         Targets          // nil: no target groups
	Now             func() time.Time // nil: time.Now
	Lock            *sync.Mutex      // the cloud's lock
	Log             *slog.Logger
	// Every is the time between two calls of Reconcile by Run. Zero means 200 ms.
	Every time.Duration
	// Retry is the time that a group waits after a failed launch. Zero means 5 s.
	Retry time.Duration
}

// Targets gives access to the load balancers' target groups. Its methods are called with the cloud's lock held.
type Targets interface {
	// Exists reports whether a target group exists.
	Exists(groupARN string) bool
	Register(groupARN, instanceID string) error
	Deregister(groupARN, instanceID string)
	// Health returns the state of a target: healthy, unhealthy, initial, draining, unused or unavailable. "" means that
	// the instance is not registered.
	Health(groupARN, instanceID string) string
}

// Service is the fake Auto Scaling. Its handlers run with the cloud's lock held. Reconcile and Run take the lock.
type Service struct {
	cfg        Config
	groups     map[string]*group // by name
	activities []*activity       // oldest first, including those of deleted groups
	order      int
}

// New returns a service without groups.
func New(cfg Config) *Service {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Every == 0 {
		cfg.Every = 200 * time.Millisecond
	}
	if cfg.Retry == 0 {
		cfg.Retry = 5 * time.Second
	}
	return &Service{cfg: cfg, groups: map[string]*group{}}
}

// Name returns the service's signing name.
func (s *Service) Name() string { return "autoscaling" }

// Operations returns the handlers by the name of the action.
func (s *Service) Operations() map[string]wire.Handler {
	all := map[string]wire.Handler{
		"AttachLoadBalancerTargetGroups":   s.attachTargets,
		"CancelInstanceRefresh":            s.cancelRefresh,
		"CompleteLifecycleAction":          s.completeAction,
		"CreateAutoScalingGroup":           s.createGroup,
		"DeleteAutoScalingGroup":           s.deleteGroup,
		"DeleteLifecycleHook":              s.deleteHook,
		"DescribeAutoScalingGroups":        s.describeGroups,
		"DescribeInstanceRefreshes":        s.describeRefreshes,
		"DescribeLifecycleHooks":           s.describeHooks,
		"DescribeLoadBalancerTargetGroups": s.describeTargets,
		"DescribeScalingActivities":        s.describeActivities,
		"DetachLoadBalancerTargetGroups":   s.detachTargets,
		"PutLifecycleHook":                 s.putHook,
		"SetInstanceHealth":                s.setInstanceHealth,
		"StartInstanceRefresh":             s.startRefresh,
		"UpdateAutoScalingGroup":           s.updateGroup,
	}
	for action, handler := range all {
		all[action] = func(c *wire.Call) (any, error) {
			s.reconcile() // apply what is due first
			return handler(c)
		}
	}
	return all
}

// Run calls Reconcile at regular intervals until the context ends.
func (s *Service) Run(ctx context.Context) {
	ticker := time.NewTicker(s.cfg.Every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.Reconcile()
		}
	}
}

// Reconcile makes one pass over all groups. It first applies state changes that are due in EC2, and then updates
// members, health, capacity and refreshes. It takes the cloud's lock.
func (s *Service) Reconcile() {
	s.cfg.EC2.Settle()
	s.cfg.Lock.Lock()
	defer s.cfg.Lock.Unlock()
	s.reconcile()
}

func (s *Service) now() time.Time { return s.cfg.Now() }

// arn returns the ARN of a group. If g is nil, the ARN contains the given name, and * as the group's ID.
func (s *Service) arn(g *group, name string) string {
	id := "*"
	if g != nil {
		id, name = g.uid, g.name
	}
	return "arn:aws:autoscaling:" + s.cfg.Region + ":" + s.cfg.Account + ":autoScalingGroup:" + id +
		":autoScalingGroupName/" + name
}

// allow returns an error unless the caller may perform the call's action on a group.
// https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2autoscaling.html
func (s *Service) allow(c *wire.Call, g *group, conditions policy.Context) error {
	all := policy.Context{}
	for _, t := range g.tags {
		all["aws:ResourceTag/"+t.Key] = []string{t.Value}
		all["autoscaling:ResourceTag/"+t.Key] = []string{t.Value}
	}
	maps.Copy(all, conditions)
	return c.Authorize("autoscaling:"+c.Action, s.arn(g, ""), all)
}

// allowAny returns an error unless the caller may perform the call's action. It is for actions that policies cannot
// limit to a resource.
func allowAny(c *wire.Call) error { return c.Authorize("autoscaling:"+c.Action, "*", nil) }

// group returns the group with a name.
func (s *Service) group(name string) (*group, error) {
	if name == "" {
		return nil,
			invalid(
				"1 validation error detected: Value null at 'autoScalingGroupName' failed to satisfy constraint: " +
					"Member must not be null")
	}
	if g := s.groups[name]; g != nil {
		return g, nil
	}
	return nil, invalid("AutoScalingGroup name not found - AutoScalingGroup '%s' not found", name)
}

// groupFor returns a group if the caller may perform the call's action on it.
func (s *Service) groupFor(c *wire.Call, name string) (*group, error) {
	g, err := s.group(name)
	if err != nil {
		if denied := c.Authorize("autoscaling:"+c.Action, s.arn(nil, name), nil); denied != nil {
			return nil, denied
		}
		return nil, err
	}
	return g, s.allow(c, g, nil)
}

// sorted returns the groups in the order of their creation.
func (s *Service) sorted() []*group {
	return slices.SortedFunc(maps.Values(s.groups), func(a, b *group) int { return a.order - b.order })
}

// invalid returns ValidationError, the service's code for almost every client error.
func invalid(format string, args ...any) error {
	return wire.Errorf(http.StatusBadRequest, "ValidationError", format, args...)
}

// page returns one page of a list. The operations of Auto Scaling accept pages of 1 to 100 records; the default is 50.
func page[T any](items []T, size *int, token string) ([]T, string, error) {
	n := 50
	if size != nil {
		n = *size
	}
	if n < 1 || n > 100 {
		return nil, "",
			invalid(
				"1 validation error detected: Value '%d' at 'maxRecords' failed to satisfy constraint: Member must "+
					"have value between 1 and 100", n)
	}
	out, next, err := wire.Page(items, n, token)
	if err != nil {
		return nil, "", wire.Errorf(http.StatusBadRequest, "InvalidNextToken", "The NextToken value is not valid.")
	}
	return out, next, nil
}

func newID() string { return uuid.NewString() }

func ptr[T any](v T) *T { return &v }

func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

func orElse[T any](p *T, other T) T {
	if p == nil {
		return other
	}
	return *p
}
