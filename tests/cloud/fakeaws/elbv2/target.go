package elbv2

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// key tells targets of a group apart: one instance may serve on many ports.
type key struct {
	id   string
	port int
}

// target is one registered target.
type target struct {
	key
	zone       string // as given: "all" or a zone, for addresses
	registered time.Time
	draining   time.Time // when it was deregistered, zero before
	// What health checks said in a row, and the verdict that stands since: "" before there is one.
	good, bad int
	verdict   string
}

// TargetDescription names a target in a request and in answers.
type TargetDescription struct {
	Id               string
	Port             int    `xml:",omitempty"`
	AvailabilityZone string `xml:",omitempty"`
}

func (s *Service) targetOperations() map[string]wire.Handler {
	return map[string]wire.Handler{
		"RegisterTargets":      s.registerTargets,
		"DeregisterTargets":    s.deregisterTargets,
		"DescribeTargetHealth": s.describeTargetHealth,
	}
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
		s.register(g, t)
	}
	return nil, nil
}

// register adds a target that was checked. One that drains is registered anew; one that is there stays as it is.
func (s *Service) register(g *group, t TargetDescription) {
	k := key{t.Id, t.Port}
	if old, ok := g.targets[k]; ok && old.draining.IsZero() {
		return
	}
	g.targets[k] = &target{key: k, zone: t.AvailabilityZone, registered: s.cfg.Now()}
}

// checkTarget says with AWS's codes why something cannot be a target of the group.
func (s *Service) checkTarget(g *group, t TargetDescription) error {
	if t.Port < 1 || t.Port > 65535 {
		return invalid("Port '%d' must be between 1 and 65535", t.Port)
	}
	if g.kind == "ip" {
		return s.checkAddress(g, t)
	}
	instance, ok := s.cfg.Network.Instance(t.Id)
	switch {
	case t.AvailabilityZone != "":
		return invalid("You cannot specify an Availability Zone for a target of type instance")
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

// carrierNAT is the block of RFC 6598: with those of RFC 1918, what targets outside of the VPC may have.
var carrierNAT = netip.MustParsePrefix("100.64.0.0/10")

func (s *Service) checkAddress(g *group, t TargetDescription) error {
	a, err := netip.ParseAddr(t.Id)
	switch {
	case err != nil || a.Zone() != "":
		return invalid("The IP address '%s' is not a valid IP address", t.Id)
	case a.Is4() != (g.addresses == "ipv4"):
		return invalid("The IP address '%s' is not a valid %s address", t.Id, g.addresses)
	case a.Is4() && !a.IsPrivate() && !carrierNAT.Contains(a):
		return invalid("The IP address '%s' must be from the subnets of the VPC or a private range", t.Id)
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

// deregister lets a target drain, when the group has traffic to drain. Without a port it is all of the target's ports.
// "If the specified target does not exist, the action returns successfully."
func (s *Service) deregister(g *group, id string, port int) {
	s.prune(g)
	for k, t := range g.targets {
		if k.id != id || port != 0 && k.port != port || !t.draining.IsZero() {
			continue
		}
		if state, _ := s.health(g, t); g.drainFor() > 0 && state != "unused" {
			t.draining = s.cfg.Now()
		} else {
			delete(g.targets, k)
		}
	}
}

// drainFor is the group's deregistration delay.
func (g *group) drainFor() time.Duration {
	seconds, err := strconv.Atoi(g.attributes["deregistration_delay.timeout_seconds"])
	if err != nil {
		seconds = 300 // not set: setAttributes lets numbers only through
	}
	return time.Duration(seconds) * time.Second
}

// prune forgets targets that have drained, and instances that EC2 has forgotten.
func (s *Service) prune(g *group) {
	now := s.cfg.Now()
	for k, t := range g.targets {
		_, known := s.cfg.Network.Instance(t.id)
		if g.kind == "instance" && !known || !t.draining.IsZero() && now.Sub(t.draining) >= g.drainFor() {
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
		d := targetHealthDescription{Target: TargetDescription{Id: t.id, Port: t.port, AvailabilityZone: t.zone},
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

// Exists tells whether there is such a target group.
func (s *Service) Exists(targetGroup string) bool {
	_, err := s.group(targetGroup)
	return err == nil
}

// Register makes an instance a target of a group, as Auto Scaling does for the groups of an Auto Scaling group; the
// error is AWS's.
func (s *Service) Register(targetGroup, instance string) error {
	g, err := s.group(targetGroup)
	if err != nil {
		return err
	}
	t := TargetDescription{Id: instance, Port: g.port}
	if err := s.checkTarget(g, t); err != nil {
		return err
	}
	s.register(g, t)
	return nil
}

// Deregister is the opposite of Register, for all ports of the instance.
func (s *Service) Deregister(targetGroup, instance string) error {
	g, err := s.group(targetGroup)
	if err != nil {
		return err
	}
	s.deregister(g, instance, 0)
	return nil
}
