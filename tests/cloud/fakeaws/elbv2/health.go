package elbv2

import (
	"context"
	"strconv"
	"sync"
	"time"
)

// Target is what one health check is about.
type Target struct {
	Group   string // ARN
	ID      string // instance or IP address
	VPC     string
	Address string // to connect to
	Port    int    // of the check
	// Protocol is that of the check: TCP, HTTP or HTTPS; Path and Codes ("200-399", "200,302") are for the latter two.
	Protocol, Path, Codes string
	Timeout               time.Duration
}

// Probe answers whether one health check succeeds. It may take until its context ends.
type Probe func(context.Context, Target) bool

// descriptions are AWS's words for reasons. Source: "Troubleshoot your Network Load Balancer" and API reference,
// TargetHealth.
var descriptions = map[string]string{
	"Elb.RegistrationInProgress":      "Target registration is in progress",
	"Elb.InitialHealthChecking":       "Initial health checks in progress",
	"Target.FailedHealthChecks":       "Health checks failed",
	"Target.NotRegistered":            "Target is not registered to the target group",
	"Target.NotInUse":                 "Target group is not configured to receive traffic from the load balancer",
	"Target.InvalidState":             "Target is in the stopped or terminated state",
	"Target.DeregistrationInProgress": "Target deregistration is in progress",
}

// health is the state of a target and the reason for it, "" when it is healthy.
func (s *Service) health(g *group, t *target) (state, reason string) {
	b := s.balancerOf(g)
	switch {
	case !t.draining.IsZero():
		return "draining", "Target.DeregistrationInProgress"
	case b == nil:
		return "unused", "Target.NotInUse"
	}
	if g.kind == "instance" {
		instance, ok := s.cfg.Network.Instance(t.id)
		if !ok || instance.State != "running" {
			return "unused", "Target.InvalidState"
		}
		if !b.covers(instance.Zone) {
			return "unused", "Target.NotInUse"
		}
	}
	switch {
	case s.cfg.Now().Sub(t.registered) < s.cfg.Registration:
		return "initial", "Elb.RegistrationInProgress"
	case s.cfg.Probe == nil:
		return "healthy", ""
	case t.verdict == "":
		return "initial", "Elb.InitialHealthChecking"
	case t.verdict == "unhealthy":
		return "unhealthy", "Target.FailedHealthChecks"
	}
	return "healthy", ""
}

// covers says whether traffic for targets in the zone can come through the load balancer.
func (b *balancer) covers(zone string) bool {
	for _, z := range b.zones {
		if z.zone == zone {
			return true
		}
	}
	return false
}

// Health is the state of an instance in a target group: initial, healthy, unhealthy, draining, unused; "" when it is no
// target of it. Of several ports the worst counts.
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

// Check makes one round of health checks: each target of a group in use is probed once, side by side. It returns when
// all have answered. It takes the lock while it reads and writes state only, so a probe may call the cloud.
func (s *Service) Check(ctx context.Context) {
	type probed struct {
		group  *group
		target *target
		about  Target
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
			if about, ok := s.about(g, t); ok {
				all = append(all, &probed{group: g, target: t, about: about})
			}
		}
	}
	s.cfg.Lock.Unlock()

	var running sync.WaitGroup
	for _, p := range all {
		running.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, p.about.Timeout)
			defer cancel()
			p.ok = probe(ctx, p.about)
		})
	}
	running.Wait()
	if ctx.Err() != nil {
		return // what probes said when they were stopped means nothing
	}

	s.cfg.Lock.Lock()
	defer s.cfg.Lock.Unlock()
	for _, p := range all {
		p.target.count(p.ok, p.group.check)
	}
}

// about says what to probe; not ok means that the target cannot be probed now, and its counts begin anew when it can.
func (s *Service) about(g *group, t *target) (Target, bool) {
	port, err := strconv.Atoi(g.checkPort(t))
	if err != nil {
		return Target{}, false
	}
	about := Target{
		Group: g.arn, ID: t.id, VPC: g.vpc, Address: t.id, Port: port, Protocol: g.check.protocol, Path: g.check.path,
		Codes:   g.check.codes,
		Timeout: time.Duration(g.check.timeout) * time.Second,
	}
	if g.kind == "instance" {
		instance, ok := s.cfg.Network.Instance(t.id)
		if !ok || instance.State != "running" {
			t.good, t.bad, t.verdict = 0, 0, ""
			return Target{}, false
		}
		about.Address = instance.Address
	}
	return about, true
}

// count takes in the result of one check. The first verdict of a target needs no more than the threshold of either
// kind, as later ones.
func (t *target) count(ok bool, c check) {
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

// Run makes rounds of health checks until the context ends: one at once, the next each interval after the last has
// ended. The interval stands for every group's own, so that a threshold of 5 takes five of these.
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
