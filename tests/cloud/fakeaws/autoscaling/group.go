package autoscaling

import (
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// settings holds the common parameters of CreateAutoScalingGroup and UpdateAutoScalingGroup. Answers contain them, too.
//
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_AutoScalingGroup.html
type settings struct {
	AvailabilityZoneDistribution     *zoneDistribution
	AvailabilityZones                []string `xml:"AvailabilityZones>member"`
	DefaultCooldown                  *int
	DefaultInstanceWarmup            *int
	DesiredCapacity                  *int
	HealthCheckGracePeriod           *int
	HealthCheckType                  *string
	LaunchTemplate                   *templateSpec
	MaxSize                          *int
	MinSize                          *int
	NewInstancesProtectedFromScaleIn *bool
	ServiceLinkedRoleARN             *string
	TerminationPolicies              []string `xml:"TerminationPolicies>member"`
	VPCZoneIdentifier                *string
}

type zoneDistribution struct{ CapacityDistributionStrategy *string }

type templateSpec struct {
	LaunchTemplateId   *string
	LaunchTemplateName *string
	Version            *string
}

// group is an Auto Scaling group.
type group struct {
	settings
	name, uid string
	order     int
	created   time.Time
	tags      []tag
	members   []*member
	targets   []string // ARNs of target groups
	hooks     []*hook
	refreshes []*refresh
	deleting  bool
	retryAt   time.Time // no launch before this time
}

type createInput struct {
	settings
	AutoScalingGroupName           string
	LifecycleHookSpecificationList []hookSpec
	Tags                           []tag
	TargetGroupARNs                []string
}

func (s *Service) createGroup(c *wire.Call) (any, error) {
	var in createInput
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if n := in.AutoScalingGroupName; n == "" || len(n) > 255 || strings.ContainsAny(n, ":") {
		return nil,
			invalid("1 validation error detected: Value '%s' at 'autoScalingGroupName' failed to satisfy constraint", n)
	}
	g := &group{
		settings: in.settings, name: in.AutoScalingGroupName, uid: newID(), created: c.Now,
		targets: in.TargetGroupARNs,
	}
	if err := s.allowCreate(c, g, in.Tags); err != nil {
		return nil, err
	}
	if s.groups[g.name] != nil {
		return nil, wire.Errorf(http.StatusBadRequest, "AlreadyExists",
			"AutoScalingGroup by this name already exists - A group with the name %s already exists", g.name)
	}
	if g.MinSize == nil || g.MaxSize == nil {
		return nil, invalid("Min and max size must be specified")
	}
	g.setDefaults()
	if err := s.checkTags(g, in.Tags); err != nil {
		return nil, err
	}
	g.tags = slices.SortedFunc(slices.Values(in.Tags), func(a, b tag) int { return strings.Compare(a.Key, b.Key) })
	if err := s.check(c, g, true); err != nil {
		return nil, err
	}
	for _, spec := range in.LifecycleHookSpecificationList {
		h, err := spec.hook()
		if err != nil {
			return nil, err
		}
		g.hooks = append(g.hooks, h)
	}
	s.order++
	g.order = s.order
	s.groups[g.name] = g
	s.reconcile()
	return nil, nil
}

// allowCreate returns an error unless the caller may create a group with these tags.
func (s *Service) allowCreate(c *wire.Call, g *group, tags []tag) error {
	conditions := requestTags(tags)
	for key, v := range g.conditions() {
		conditions[key] = v
	}
	return c.Authorize("autoscaling:CreateAutoScalingGroup", s.arn(g, ""), conditions)
}

// conditions returns the condition keys for the group settings in a request.
func (g *group) conditions() policy.Context {
	c := policy.Context{}
	if g.MinSize != nil {
		c["autoscaling:MinSize"] = []string{itoa(*g.MinSize)}
	}
	if g.MaxSize != nil {
		c["autoscaling:MaxSize"] = []string{itoa(*g.MaxSize)}
	}
	if g.VPCZoneIdentifier != nil {
		c["autoscaling:VPCZoneIdentifiers"] = g.subnets()
	}
	if len(g.targets) > 0 {
		c["autoscaling:TargetGroupARNs"] = g.targets
	}
	if t := g.LaunchTemplate; t != nil {
		c["autoscaling:LaunchTemplateVersionSpecified"] = []string{boolText(t.Version != nil)}
	}
	return c
}

// setDefaults sets the documented defaults of settings that the request omits.
func (g *group) setDefaults() {
	set := func(p **int, n int) {
		if *p == nil {
			*p = &n
		}
	}
	set(&g.DesiredCapacity, *g.MinSize)
	set(&g.DefaultCooldown, 300)
	set(&g.HealthCheckGracePeriod, 0)
	if g.HealthCheckType == nil {
		g.HealthCheckType = ptr("EC2")
	}
	if g.NewInstancesProtectedFromScaleIn == nil {
		g.NewInstancesProtectedFromScaleIn = new(bool)
	}
	if len(g.TerminationPolicies) == 0 {
		g.TerminationPolicies = []string{"Default"}
	}
}

// subnets returns the subnets in VPCZoneIdentifier.
func (g *group) subnets() []string {
	var out []string
	for id := range strings.SplitSeq(value(g.VPCZoneIdentifier), ",") {
		if id = strings.TrimSpace(id); id != "" {
			out = append(out, id)
		}
	}
	return out
}

type updateInput struct {
	settings
	AutoScalingGroupName string
}

func (s *Service) updateGroup(c *wire.Call) (any, error) {
	var in updateInput
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	g, err := s.group(in.AutoScalingGroupName)
	if err != nil {
		return nil, s.unknown(c, in.AutoScalingGroupName, err)
	}
	if err := s.allow(c, g, (&group{settings: in.settings}).conditions()); err != nil {
		return nil, err
	}
	if g.deleting {
		return nil, wire.Errorf(http.StatusBadRequest, "ScalingActivityInProgress",
			"AutoScalingGroup by name %s is being deleted", g.name)
	}
	next := *g
	next.settings = merged(g.settings, in.settings)
	if in.DesiredCapacity == nil { // clamp the size to new bounds
		n := min(max(*next.DesiredCapacity, *next.MinSize), *next.MaxSize)
		next.DesiredCapacity = &n
	}
	next.setDefaults()
	if err := s.check(c, &next, in.LaunchTemplate != nil); err != nil {
		return nil, err
	}
	if *next.DesiredCapacity != *g.DesiredCapacity || in.LaunchTemplate != nil {
		next.retryAt = time.Time{}
	}
	*g = next
	s.reconcile()
	return nil, nil
}

// unknown returns err, the error for a group that does not exist. If the caller has no permission for the call's
// action, unknown returns the denial instead.
func (s *Service) unknown(c *wire.Call, name string, err error) error {
	if denied := c.Authorize("autoscaling:"+c.Action, s.arn(nil, name), nil); denied != nil {
		return denied
	}
	return err
}

// merged returns a copy of the old settings, overwritten with those that are present in changes.
func merged(old, changes settings) settings {
	into, from := reflect.ValueOf(&old).Elem(), reflect.ValueOf(changes)
	for i := range into.NumField() {
		if !from.Field(i).IsZero() {
			into.Field(i).Set(from.Field(i))
		}
	}
	return old
}

func (s *Service) deleteGroup(c *wire.Call) (any, error) {
	var in struct {
		AutoScalingGroupName string
		ForceDelete          bool
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	g, err := s.groupFor(c, in.AutoScalingGroupName)
	if err != nil {
		return nil, err
	}
	switch {
	case g.deleting:
		return nil, nil
	case len(g.members) > 0 && !in.ForceDelete:
		if slices.ContainsFunc(g.members, func(m *member) bool { return m.state != inService }) {
			return nil, wire.Errorf(http.StatusBadRequest, "ScalingActivityInProgress",
				"You cannot delete an AutoScalingGroup while there are scaling activities in progress for that group.")
		}
		return nil, wire.Errorf(http.StatusBadRequest, "ResourceInUse",
			"You cannot delete an AutoScalingGroup while there are instances or pending Spot instance request(s) "+
				"still in the group.")
	}
	g.deleting = true
	zero := 0
	g.DesiredCapacity, g.MinSize, g.MaxSize = &zero, &zero, &zero
	s.reconcile()
	return nil, nil
}
