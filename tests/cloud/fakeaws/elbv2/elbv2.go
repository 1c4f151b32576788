// Package elbv2 fakes Elastic Load Balancing v2: load balancers, target groups, listeners, rules, registered targets
// and their health, as records. No traffic flows through them.
//
// Invariant: what refers to something else refers to something that exists. A target group that a listener names cannot
// be deleted, a load balancer holds a network interface in each of its subnets until it is deleted, and every ARN in an
// answer can be asked for.
//
// Actions, errors, defaults and limits are those of the "Elastic Load Balancing API Reference", version 2015-12-01;
// ARNs and condition keys those of "Actions, resources, and condition keys for AWS Elastic Load Balancing V2" in the
// Service Authorization Reference.
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

// Config says where the service is and what it stands on.
type Config struct {
	Region, Account string
	Network         Network
	Now             func() time.Time // nil: time.Now
	// Lock is the cloud's: handlers run with it held, Check and Run take it themselves. nil: one of its own.
	Lock *sync.Mutex
	// Probe answers one health check. nil: an instance that runs is healthy at once, and so is any IP address. It is
	// called without the lock, by Check and Run only.
	Probe Probe
	// Registration is how long a target is "initial" after it was registered, whatever probes say. At AWS it is up to
	// some minutes.
	Registration time.Duration
}

// Service is the fake. Its exported methods other than Check and Run want the cloud's lock held.
type Service struct {
	cfg       Config
	balancers map[string]*balancer // by ARN, as all of these
	groups    map[string]*group
	listeners map[string]*listener
	rules     map[string]*rule
	tags      map[string]map[string]string
}

// New returns a service without any load balancer.
func New(cfg Config) *Service {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Lock == nil {
		cfg.Lock = new(sync.Mutex)
	}
	return &Service{
		cfg: cfg, balancers: map[string]*balancer{}, groups: map[string]*group{}, listeners: map[string]*listener{},
		rules: map[string]*rule{},
		tags:  map[string]map[string]string{},
	}
}

// SetProbe changes what decides about health; counts of earlier checks are kept.
func (s *Service) SetProbe(probe Probe) { s.cfg.Probe = probe }

// Name implements wire.Service: the name in the scope of signatures.
func (s *Service) Name() string { return "elasticloadbalancing" }

// Operations implements wire.Service.
func (s *Service) Operations() map[string]wire.Handler {
	all := map[string]wire.Handler{
		"DescribeAccountLimits": s.describeAccountLimits,
		"DescribeSSLPolicies":   s.describeSSLPolicies,
		"AddTags":               s.addTags,
		"RemoveTags":            s.removeTags,
		"DescribeTags":          s.describeTags,
	}
	maps.Copy(all, s.balancerOperations())
	maps.Copy(all, s.groupOperations())
	maps.Copy(all, s.targetOperations())
	maps.Copy(all, s.listenerOperations())
	maps.Copy(all, s.ruleOperations())
	return all
}

// arn makes the ARN of a resource: kind is "loadbalancer/net", "targetgroup" ….
func (s *Service) arn(kind string, parts ...string) string {
	return "arn:aws:elasticloadbalancing:" + s.cfg.Region + ":" + s.cfg.Account + ":" + kind + "/" +
		strings.Join(parts, "/")
}

// newID is the last part of an ARN.
func newID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// allow evaluates the caller's policies for the call's own action on one resource, or on "*".
func (s *Service) allow(c *wire.Call, resource string, conditions policy.Context) error {
	all := policy.Context{}
	maps.Copy(all, conditions)
	for k, v := range s.tags[resource] {
		all["aws:ResourceTag/"+k] = []string{v}
		all["elasticloadbalancing:ResourceTag/"+k] = []string{v}
	}
	return c.Authorize("elasticloadbalancing:"+c.Action, resource, all)
}

// allowCreate evaluates the policies for making something with tags: tagging is an action of its own, which may be
// allowed for creation only.
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

func notFound(kind, arn string) *wire.Error {
	words := map[string]string{"LoadBalancer": "Load balancer", "TargetGroup": "Target group", "Listener": "Listener",
		"Rule": "Rule"}
	if words[kind] == "Load balancer" || kind == "TargetGroup" {
		return wire.Errorf(400, kind+"NotFound", "One or more %s not found", strings.ToLower(words[kind])+"s")
	}
	return wire.Errorf(400, kind+"NotFound", "%s '%s' not found", words[kind], arn)
}

// checkARN refuses what cannot be the ARN of the kind: AWS tells a malformed ARN from one that does not exist.
func (s *Service) checkARN(arn, kind string) error {
	if !strings.HasPrefix(arn, s.arn(kind)) {
		return invalid("'%s' is not a valid %s ARN", arn, map[string]string{
			"loadbalancer": "load balancer", "targetgroup": "target group", "listener": "listener",
			"listener-rule": "rule",
		}[kind])
	}
	return nil
}

// balancer, group … find one resource, or say with AWS's code that it does not exist.
func (s *Service) balancer(arn string) (*balancer, error) {
	if err := s.checkARN(arn, "loadbalancer"); err != nil {
		return nil, err
	}
	if b, ok := s.balancers[arn]; ok {
		return b, nil
	}
	return nil, notFound("LoadBalancer", arn)
}

func (s *Service) group(arn string) (*group, error) {
	if err := s.checkARN(arn, "targetgroup"); err != nil {
		return nil, err
	}
	if g, ok := s.groups[arn]; ok {
		return g, nil
	}
	return nil, notFound("TargetGroup", arn)
}

func (s *Service) listener(arn string) (*listener, error) {
	if err := s.checkARN(arn, "listener"); err != nil {
		return nil, err
	}
	if l, ok := s.listeners[arn]; ok {
		return l, nil
	}
	return nil, notFound("Listener", arn)
}

func (s *Service) rule(arn string) (*rule, error) {
	if err := s.checkARN(arn, "listener-rule"); err != nil {
		return nil, err
	}
	if r, ok := s.rules[arn]; ok {
		return r, nil
	}
	return nil, notFound("Rule", arn)
}

// inOrder lists resources as they were made, oldest first: what paging needs is that the order does not change.
func inOrder[T any](all map[string]T, made func(T) (time.Time, string)) []T {
	return slices.SortedFunc(maps.Values(all), func(a, b T) int {
		at, an := made(a)
		bt, bn := made(b)
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

// page cuts a list by the parameters Marker and PageSize (1 to 400, by default 400).
func page[T any](items []T, size int, marker string) ([]T, string, error) {
	if size == 0 {
		size = 400
	}
	if size < 1 || size > 400 {
		return nil, "", invalid("Page size must be between 1 and 400")
	}
	return wire.Page(items, size, marker)
}
