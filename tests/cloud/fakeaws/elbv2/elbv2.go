// Package elbv2 fakes Elastic Load Balancing v2: network load balancers, target groups of instances, listeners,
// registered targets and their health. No traffic flows through the load balancers.
//
// Invariant: references point to resources that exist.
//   - A target group that a listener uses cannot be deleted.
//   - A load balancer has a network interface in each of its subnets until it is deleted.
//   - Every ARN in an answer can be described.
//
// Actions, errors, defaults and limits follow the API reference, version 2015-12-01. ARNs and condition keys follow the
// service authorization reference.
//
// https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/
// https://docs.aws.amazon.com/service-authorization/latest/reference/list_awselasticloadbalancingv2.html
package elbv2

import (
	"crypto/rand"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Config configures a Service.
type Config struct {
	Region, Account string
	Network         Network
	Now             func() time.Time // nil: time.Now
	// Lock is the cloud's lock. Handlers are called with it held. Check and Run lock it. If Lock is nil, New makes one.
	Lock *sync.Mutex
	// Probe runs one health check. If it is nil, a running instance is healthy immediately. Only Check and Run call
	// Probe. They do not hold the lock during the call.
	Probe Probe
}

// Service is the fake. The caller must hold the cloud's lock for all exported methods except Check and Run.
type Service struct {
	cfg       Config
	balancers map[string]*balancer         // by ARN
	groups    map[string]*group            // by ARN
	listeners map[string]*listener         // by ARN
	tags      map[string]map[string]string // by ARN
}

// New returns a service without load balancers.
func New(cfg Config) *Service {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Lock == nil {
		cfg.Lock = new(sync.Mutex)
	}
	return &Service{
		cfg: cfg, balancers: map[string]*balancer{}, groups: map[string]*group{}, listeners: map[string]*listener{},
		tags: map[string]map[string]string{},
	}
}

// SetProbe replaces the probe. Counts of earlier checks are kept.
func (s *Service) SetProbe(probe Probe) { s.cfg.Probe = probe }

// Name returns the service's name in the credential scope of a signature.
func (s *Service) Name() string { return "elasticloadbalancing" }

// Operations implements wire.Service.
func (s *Service) Operations() map[string]wire.Handler {
	return map[string]wire.Handler{
		"CreateListener":                 s.createListener,
		"CreateLoadBalancer":             s.createLoadBalancer,
		"CreateTargetGroup":              s.createTargetGroup,
		"DeleteListener":                 s.deleteListener,
		"DeleteLoadBalancer":             s.deleteLoadBalancer,
		"DeleteTargetGroup":              s.deleteTargetGroup,
		"DeregisterTargets":              s.deregisterTargets,
		"DescribeCapacityReservation":    s.describeCapacityReservation,
		"DescribeListenerAttributes":     s.describeListenerAttributes,
		"DescribeListeners":              s.describeListeners,
		"DescribeLoadBalancerAttributes": s.describeLoadBalancerAttributes,
		"DescribeLoadBalancers":          s.describeLoadBalancers,
		"DescribeTags":                   s.describeTags,
		"DescribeTargetGroupAttributes":  s.describeTargetGroupAttributes,
		"DescribeTargetGroups":           s.describeTargetGroups,
		"DescribeTargetHealth":           s.describeTargetHealth,
		"ModifyLoadBalancerAttributes":   s.modifyLoadBalancerAttributes,
		"ModifyTargetGroupAttributes":    s.modifyTargetGroupAttributes,
		"RegisterTargets":                s.registerTargets,
	}
}

// arn returns the ARN of a resource. kind is "loadbalancer/net" or "targetgroup".
func (s *Service) arn(kind string, parts ...string) string {
	return "arn:aws:elasticloadbalancing:" + s.cfg.Region + ":" + s.cfg.Account + ":" + kind + "/" +
		strings.Join(parts, "/")
}

// newID returns a random ID, the last part of an ARN.
func newID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // Never fails (crypto/rand).
	return hex.EncodeToString(b[:])
}

// allow evaluates the caller's policies for the call's action on one resource, or on "*".
func (s *Service) allow(c *wire.Call, resource string, conditions policy.Context) error {
	all := policy.Context{}
	maps.Copy(all, conditions)
	for k, v := range s.tags[resource] {
		all["aws:ResourceTag/"+k] = []string{v}
		all["elasticloadbalancing:ResourceTag/"+k] = []string{v}
	}
	return c.Authorize("elasticloadbalancing:"+c.Action, resource, all)
}

// allowCreate checks that the caller may create a resource. Tags need the separate action AddTags, which a policy can
// allow for creation only.
func (s *Service) allowCreate(c *wire.Call, resource, arn string, tags []Tag, conditions policy.Context) error {
	all := requestTags(tags)
	maps.Copy(all, conditions)
	if err := s.allow(c, resource, all); err != nil || len(tags) == 0 {
		return err
	}
	all = requestTags(tags)
	all["elasticloadbalancing:CreateAction"] = []string{c.Action}
	return c.Authorize("elasticloadbalancing:AddTags", arn, all)
}

func invalid(format string, args ...any) *wire.Error {
	return wire.Errorf(400, "ValidationError", format, args...)
}

// checkARN refuses a malformed ARN. AWS has different errors for a malformed ARN and for a resource that does not
// exist.
func (s *Service) checkARN(arn, kind string) error {
	if !strings.HasPrefix(arn, s.arn(kind)) {
		return invalid("'%s' is not a valid %s ARN", arn, map[string]string{
			"loadbalancer": "load balancer", "targetgroup": "target group", "listener": "listener",
		}[kind])
	}
	return nil
}

func (s *Service) balancer(arn string) (*balancer, error) {
	if err := s.checkARN(arn, "loadbalancer"); err != nil {
		return nil, err
	}
	if b, ok := s.balancers[arn]; ok {
		return b, nil
	}
	return nil, wire.Errorf(400, "LoadBalancerNotFound", "One or more load balancers not found")
}

func (s *Service) group(arn string) (*group, error) {
	if err := s.checkARN(arn, "targetgroup"); err != nil {
		return nil, err
	}
	if g, ok := s.groups[arn]; ok {
		return g, nil
	}
	return nil, wire.Errorf(400, "TargetGroupNotFound", "One or more target groups not found")
}

func (s *Service) listener(arn string) (*listener, error) {
	if err := s.checkARN(arn, "listener"); err != nil {
		return nil, err
	}
	if l, ok := s.listeners[arn]; ok {
		return l, nil
	}
	return nil, wire.Errorf(400, "ListenerNotFound", "Listener '%s' not found", arn)
}

// inOrder returns resources sorted by creation time, oldest first. So all pages of a list use the same order.
func inOrder[T any](all map[string]T, key func(T) (time.Time, string)) []T {
	return slices.SortedFunc(maps.Values(all), func(a, b T) int {
		at, an := key(a)
		bt, bn := key(b)
		if c := at.Compare(bt); c != 0 {
			return c
		}
		return strings.Compare(an, bn)
	})
}

// checkName checks the name of a load balancer or target group.
func checkName(what, name string) error {
	bad := func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-')
	}
	switch {
	case name == "" || len(name) > 32:
		return invalid("The %s name '%s' must be between 1 and 32 characters", what, name)
	case strings.ContainsFunc(name, bad):
		return invalid("The %s name '%s' can only contain characters that are alphanumeric characters and hyphens(-)",
			what, name)
	case strings.HasPrefix(name, "-") || strings.HasSuffix(name, "-"):
		return invalid("The %s name '%s' cannot begin or end with a hyphen(-)", what, name)
	case strings.HasPrefix(name, "internal-"):
		return invalid("The %s name '%s' cannot begin with 'internal-'", what, name)
	}
	return nil
}

// page returns one page of a list and the marker of the next page. size is 1 to 400; 0 means 400.
func page[T any](items []T, size int, marker string) ([]T, string, error) {
	if size == 0 {
		size = 400
	}
	if size < 1 || size > 400 {
		return nil, "", invalid("Page size must be between 1 and 400")
	}
	return wire.Page(items, size, marker)
}
