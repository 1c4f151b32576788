package elbv2

import (
	"context"
	"strconv"
	"sync"
	"time"
)

// Target describes one health check.
type Target struct {
	Group   string // ARN
	ID      string // Instance ID.
	VPC     string
	Address string // to connect to
	Port    int    // of the check
	// Protocol is TCP, HTTP or HTTPS. Path and Codes are set for HTTP and HTTPS only. Codes is a list such as "200-399"
	// or "200,302".
	Protocol, Path, Codes string
	Timeout               time.Duration
}

// Probe runs one health check and reports whether it succeeds. It may run until its context ends.
type Probe func(context.Context, Target) bool

// descriptions maps reason codes to AWS's explanations.
//
// https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_TargetHealth.html
var descriptions = map[string]string{
	"Elb.InitialHealthChecking":       "Initial health checks in progress",
	"Target.FailedHealthChecks":       "Health checks failed",
	"Target.NotRegistered":            "Target is not registered to the target group",
	"Target.NotInUse":                 "Target group is not configured to receive traffic from the load balancer",
	"Target.InvalidState":             "Target is in the stopped or terminated state",
	"Target.DeregistrationInProgress": "Target deregistration is in progress",
}

// health returns the state of a target and the reason code. The code of a healthy target is "".
func (s *Service) health(g *group, t *target) (state, reason string) {
	b := s.balancerOf(g)
	instance, ok := s.cfg.Network.Instance(t.id)
	switch {
	case !t.draining.IsZero():
		return "draining", "Target.DeregistrationInProgress"
	case b == nil:
		return "unused", "Target.NotInUse"
	case !ok || instance.State != "running":
		return "unused", "Target.InvalidState"
	case !b.covers(instance.Zone):
		return "unused", "Target.NotInUse"
	case s.cfg.Probe == nil:
		return "healthy", ""
	case t.verdict == "":
		return "initial", "Elb.InitialHealthChecking"
	case t.verdict == "unhealthy":
		return "unhealthy", "Target.FailedHealthChecks"
	}
	return "healthy", ""
}

// covers reports whether the load balancer has a node in the zone.
func (b *balancer) covers(zone string) bool {
	for _, z := range b.zones {
		if z.zone == zone {
			return true
		}
	}
	return false
}

// Health returns the state of an instance in a target group: initial, healthy, unhealthy, draining or unused. It
// returns "" for an instance that is not registered. An instance with several ports is healthy if all of them are.
func (s *Service) Health(targetGroup, instance string) string {
	g, ok := s.groups[targetGroup]
	if !ok {
		return ""
	}
	s.prune(g)
	worst := ""
	for _, t := range g.sorted() {
		if t.id != instance {
			continue
		}
		if state, _ := s.health(g, t); worst == "" || worst == "healthy" {
			worst = state
		}
	}
	return worst
}

// Check runs one round of health checks. It probes every target of every group that a load balancer uses, all at the
// same time. It does not hold the cloud's lock during probes, because a probe may call the fake AWS.
func (s *Service) Check(ctx context.Context) {
	type probed struct {
		group  *group
		target *target
		check  Target
		ok     bool
	}
	s.cfg.Lock.Lock()
	probe := s.cfg.Probe
	var all []*probed
	for _, g := range s.groups {
		if s.balancerOf(g) == nil || probe == nil {
			continue
		}
		for _, t := range g.sorted() {
			if check, ok := s.describeCheck(g, t); ok {
				all = append(all, &probed{group: g, target: t, check: check})
			}
		}
	}
	s.cfg.Lock.Unlock()

	var running sync.WaitGroup
	for _, p := range all {
		running.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, p.check.Timeout)
			defer cancel()
			p.ok = probe(ctx, p.check)
		})
	}
	running.Wait()
	if ctx.Err() != nil {
		return // The results of canceled probes do not count.
	}

	s.cfg.Lock.Lock()
	defer s.cfg.Lock.Unlock()
	for _, p := range all {
		p.target.recordCheck(p.ok, p.group.check)
	}
}

// describeCheck returns the health check of a target. If the instance does not run, describeCheck resets the counts and
// returns false.
func (s *Service) describeCheck(g *group, t *target) (Target, bool) {
	port, err := strconv.Atoi(g.checkPort(t))
	if err != nil {
		return Target{}, false
	}
	instance, ok := s.cfg.Network.Instance(t.id)
	if !ok || instance.State != "running" {
		t.good, t.bad, t.verdict = 0, 0, ""
		return Target{}, false
	}
	return Target{
		Group: g.arn, ID: t.id, VPC: g.vpc, Address: instance.Address, Port: port, Protocol: g.check.protocol,
		Path: g.check.path, Codes: g.check.codes, Timeout: time.Duration(g.check.timeout) * time.Second,
	}, true
}

// recordCheck counts the result of one check. A target becomes healthy after c.healthy successes in a row, and
// unhealthy after c.unhealthy failures in a row. This also holds for a new target.
func (t *target) recordCheck(ok bool, c check) {
	if ok {
		t.good, t.bad = t.good+1, 0
	} else {
		t.good, t.bad = 0, t.bad+1
	}
	if t.good >= c.healthy {
		t.verdict = "healthy"
	}
	if t.bad >= c.unhealthy {
		t.verdict = "unhealthy"
	}
}

// Run runs rounds of health checks until the context ends. The first round starts immediately. All groups are checked
// at the given interval. The intervals in their settings have no effect.
func (s *Service) Run(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		s.Check(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}
