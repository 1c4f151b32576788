package elbv2

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// key identifies a target of a group. One instance can be a target on several ports.
type key struct {
	id   string
	port int
}

// target is a registered target.
type target struct {
	key
	draining  time.Time // Time of deregistration; zero before.
	good, bad int       // Consecutive health checks that succeeded or failed.
	verdict   string    // healthy, unhealthy; "" before the first threshold.
}

// TargetDescription names a target in requests and answers.
type TargetDescription struct {
	Id   string
	Port int `xml:",omitempty"`
}

type targetsRequest struct {
	TargetGroupArn string
	Targets        []TargetDescription
}

func (s *Service) registerTargets(c *wire.Call) (any, error) {
	var in targetsRequest
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	g, err := s.changeGroup(c, in.TargetGroupArn)
	if err != nil {
		return nil, err
	}
	if len(in.Targets) == 0 {
		return nil, invalid("At least one target must be specified")
	}
	for i, t := range in.Targets {
		if t.Port == 0 {
			in.Targets[i].Port = g.port
		}
		if err := s.checkTarget(g, in.Targets[i]); err != nil {
			return nil, err
		}
	}
	for _, t := range in.Targets {
		g.register(t)
	}
	return nil, nil
}

// register adds a target that checkTarget has accepted. If the group has a draining target with the same instance and
// port, the new target replaces it. If the group has such a target that is not draining, register does nothing.
func (g *group) register(t TargetDescription) {
	k := key{t.Id, t.Port}
	if old, ok := g.targets[k]; ok && old.draining.IsZero() {
		return
	}
	g.targets[k] = &target{key: k}
}

// checkTarget returns AWS's error if the instance cannot be a target of the group.
func (s *Service) checkTarget(g *group, t TargetDescription) error {
	if t.Port < 1 || t.Port > 65535 {
		return invalid("Port '%d' must be between 1 and 65535", t.Port)
	}
	instance, ok := s.cfg.Network.Instance(t.Id)
	switch {
	case !strings.HasPrefix(t.Id, "i-"):
		return invalid("Instance ID '%s' is not valid", t.Id)
	case !ok:
		return wire.Errorf(400, "InvalidTarget", "The following targets are not valid instances: '%s'", t.Id)
	case instance.VPC != g.vpc:
		return wire.Errorf(400, "InvalidTarget", "The following targets are not in the target group VPC '%s': '%s'",
			g.vpc, t.Id)
	case instance.State != "running":
		return wire.Errorf(400, "InvalidTarget",
			"The following targets are not in a running state and cannot be registered: '%s'", t.Id)
	}
	return nil
}

func (s *Service) deregisterTargets(c *wire.Call) (any, error) {
	var in targetsRequest
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	g, err := s.changeGroup(c, in.TargetGroupArn)
	if err != nil {
		return nil, err
	}
	if len(in.Targets) == 0 {
		return nil, invalid("At least one target must be specified")
	}
	for _, t := range in.Targets {
		s.deregister(g, t.Id, t.Port)
	}
	return nil, nil
}

// deregister starts to drain a target, or removes it if it receives no traffic. Port 0 means all ports of the instance.
// A target that does not exist is no error.
//
// https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_DeregisterTargets.html
func (s *Service) deregister(g *group, id string, port int) {
	s.prune(g)
	for k, t := range g.targets {
		if k.id != id || port != 0 && k.port != port || !t.draining.IsZero() {
			continue
		}
		if state, _ := s.health(g, t); g.drainDelay() > 0 && state != "unused" {
			t.draining = s.cfg.Now()
		} else {
			delete(g.targets, k)
		}
	}
}

// drainDelay returns the group's deregistration delay.
func (g *group) drainDelay() time.Duration {
	seconds, err := strconv.Atoi(g.attributes["deregistration_delay.timeout_seconds"])
	if err != nil {
		seconds = 300 // The default. setAttributes accepts only numbers.
	}
	return time.Duration(seconds) * time.Second
}

// prune removes targets whose deregistration delay has passed, and targets whose instance no longer exists in EC2.
func (s *Service) prune(g *group) {
	now := s.cfg.Now()
	for k, t := range g.targets {
		_, known := s.cfg.Network.Instance(t.id)
		if !known || !t.draining.IsZero() && now.Sub(t.draining) >= g.drainDelay() {
			delete(g.targets, k)
		}
	}
}

type targetHealth struct {
	State       string
	Reason      string `xml:",omitempty"`
	Description string `xml:",omitempty"`
}

type targetHealthDescription struct {
	Target          TargetDescription
	HealthCheckPort string
	TargetHealth    targetHealth
}

func (s *Service) describeTargetHealth(c *wire.Call) (any, error) {
	var in struct {
		targetsRequest
		Include []string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "*", nil); err != nil {
		return nil, err
	}
	g, err := s.group(in.TargetGroupArn)
	if err != nil {
		return nil, err
	}
	s.prune(g)
	var out struct {
		TargetHealthDescriptions []targetHealthDescription `xml:"TargetHealthDescriptions>member"`
	}
	add := func(t *target, state, reason string) {
		d := targetHealthDescription{Target: TargetDescription{Id: t.id, Port: t.port},
			HealthCheckPort: g.checkPort(t)}
		d.TargetHealth = targetHealth{state, reason, descriptions[reason]}
		out.TargetHealthDescriptions = append(out.TargetHealthDescriptions, d)
	}
	for _, asked := range in.Targets {
		k := key{asked.Id, asked.Port}
		if k.port == 0 {
			k.port = g.port
		}
		if t, ok := g.targets[k]; ok {
			state, reason := s.health(g, t)
			add(t, state, reason)
		} else {
			add(&target{key: k}, "unused", "Target.NotRegistered")
		}
	}
	if len(in.Targets) == 0 {
		for _, t := range g.sorted() {
			state, reason := s.health(g, t)
			add(t, state, reason)
		}
	}
	return out, nil
}

func (g *group) sorted() []*target {
	all := make([]*target, 0, len(g.targets))
	for _, t := range g.targets {
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b *target) int {
		if c := strings.Compare(a.id, b.id); c != 0 {
			return c
		}
		return a.port - b.port
	})
	return all
}

func (g *group) checkPort(t *target) string {
	if g.check.port == "traffic-port" {
		return strconv.Itoa(t.port)
	}
	return g.check.port
}

// Exists reports whether the target group exists.
func (s *Service) Exists(targetGroup string) bool {
	_, err := s.group(targetGroup)
	return err == nil
}

// Register registers an instance with a target group, on the group's port. Auto Scaling calls it. The errors have AWS's
// codes.
func (s *Service) Register(targetGroup, instance string) error {
	g, err := s.group(targetGroup)
	if err != nil {
		return err
	}
	t := TargetDescription{Id: instance, Port: g.port}
	if err := s.checkTarget(g, t); err != nil {
		return err
	}
	g.register(t)
	return nil
}

// Deregister deregisters all ports of an instance from a target group.
func (s *Service) Deregister(targetGroup, instance string) error {
	g, err := s.group(targetGroup)
	if err != nil {
		return err
	}
	s.deregister(g, instance, 0)
	return nil
}
