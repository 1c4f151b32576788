package autoscaling

import (
	"cmp"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// settings are what a group is told at its creation and can be told anew: the request's own parameters, which answers repeat.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_AutoScalingGroup.html
type settings struct {
	AvailabilityZoneDistribution     *zoneDistribution
	AvailabilityZoneImpairmentPolicy *impairmentPolicy
	AvailabilityZones                []string `xml:"AvailabilityZones>member"`
	CapacityRebalance                *bool
	CapacityReservationSpecification *reservationSpecification
	Context                          *string
	DefaultCooldown                  *int
	DefaultInstanceWarmup            *int
	DeletionProtection               *string
	DesiredCapacity                  *int
	DesiredCapacityType              *string
	HealthCheckGracePeriod           *int
	HealthCheckType                  *string
	InstanceLifecyclePolicy          *lifecyclePolicy
	InstanceMaintenancePolicy        *maintenancePolicy
	LaunchTemplate                   *templateSpec
	MaxInstanceLifetime              *int
	MaxSize                          *int
	MinSize                          *int
	MixedInstancesPolicy             *mixedPolicy
	NewInstancesProtectedFromScaleIn *bool
	PlacementGroup                   *string
	ServiceLinkedRoleARN             *string
	TerminationPolicies              []string `xml:"TerminationPolicies>member"`
	VPCZoneIdentifier                *string
}

type zoneDistribution struct{ CapacityDistributionStrategy *string }

type impairmentPolicy struct {
	ImpairedZoneHealthCheckBehavior *string
	ZonalShiftEnabled               *bool
}

type reservationSpecification struct {
	CapacityReservationPreference *string
	CapacityReservationTarget     *struct {
		CapacityReservationIds               []string `xml:"CapacityReservationIds>member"`
		CapacityReservationResourceGroupArns []string `xml:"CapacityReservationResourceGroupArns>member"`
	}
}

type lifecyclePolicy struct {
	RetentionTriggers *struct{ TerminateHookAbandon *string }
}

type maintenancePolicy struct {
	MaxHealthyPercentage *int
	MinHealthyPercentage *int
}

type templateSpec struct {
	LaunchTemplateId   *string
	LaunchTemplateName *string
	Version            *string
}

type mixedPolicy struct {
	InstancesDistribution *distribution
	LaunchTemplate        *mixedTemplate
}

type distribution struct {
	OnDemandAllocationStrategy          *string
	OnDemandBaseCapacity                *int
	OnDemandPercentageAboveBaseCapacity *int
	SpotAllocationStrategy              *string
	SpotInstancePools                   *int
	SpotMaxPrice                        *string
}

type mixedTemplate struct {
	LaunchTemplateSpecification *templateSpec
	Overrides                   []override `xml:"Overrides>member"`
}

type override struct {
	ImageId                     *string
	InstanceType                *string
	LaunchTemplateSpecification *templateSpec
	WeightedCapacity            *string
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
	suspended map[string]string
	hooks     []*hook
	metrics   []string
	refreshes []*refresh
	deleting  bool
	retryAt   time.Time // no launch before
}

type createInput struct {
	settings
	AutoScalingGroupName           string
	LaunchConfigurationName        *string
	InstanceId                     *string
	LoadBalancerNames              []string
	LifecycleHookSpecificationList []hookSpec
	Tags                           []tag
	TargetGroupARNs                []string
	TrafficSources                 []trafficSource
	SkipZonalShiftValidation       *bool
}

type trafficSource struct {
	Identifier string
	Type       string
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
		suspended: map[string]string{}, targets: in.TargetGroupARNs,
	}
	for _, source := range in.TrafficSources {
		if source.Type != "" && source.Type != "elbv2" {
			return nil, invalid("The traffic source type '%s' is not supported by the fake", source.Type)
		}
		g.targets = append(g.targets, source.Identifier)
	}
	if err := s.allowCreate(c, g, in.Tags); err != nil {
		return nil, err
	}
	if s.groups[g.name] != nil {
		return nil, wire.Errorf(http.StatusBadRequest, "AlreadyExists",
			"AutoScalingGroup by this name already exists - A group with the name %s already exists", g.name)
	}
	switch {
	case in.LaunchConfigurationName != nil || in.InstanceId != nil:
		return nil, invalid("Launch configurations are not available to this account: use a launch template")
	case len(in.LoadBalancerNames) > 0:
		return nil, invalid("Classic Load Balancers are not available to this account")
	case g.MinSize == nil || g.MaxSize == nil:
		return nil, invalid("Min and max size must be specified")
	}
	g.defaults()
	if err := s.checkTags(g, in.Tags); err != nil {
		return nil, err
	}
	g.setTags(in.Tags)
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

// allowCreate asks for permission to create a group with tags.
func (s *Service) allowCreate(c *wire.Call, g *group, tags []tag) error {
	conditions := requestTags(tags)
	for key, v := range g.conditions() {
		conditions[key] = v
	}
	return c.Authorize("autoscaling:CreateAutoScalingGroup", s.arn(g, ""), conditions)
}

// conditions are the keys that say what a request makes of a group.
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
	if t := g.template(); t != nil {
		c["autoscaling:LaunchTemplateVersionSpecified"] = []string{boolText(t.Version != nil)}
	}
	return c
}

// defaults fills in what AWS answers for what was not said.
func (g *group) defaults() {
	set := func(p **int, n int) {
		if *p == nil {
			*p = &n
		}
	}
	text := func(p **string, t string) {
		if *p == nil {
			*p = &t
		}
	}
	flag := func(p **bool) {
		if *p == nil {
			*p = new(bool)
		}
	}
	set(&g.DesiredCapacity, *g.MinSize)
	set(&g.DefaultCooldown, 300)
	set(&g.HealthCheckGracePeriod, 0)
	text(&g.HealthCheckType, "EC2")
	flag(&g.NewInstancesProtectedFromScaleIn)
	if len(g.TerminationPolicies) == 0 {
		g.TerminationPolicies = []string{"Default"}
	}
	if m := g.MixedInstancesPolicy; m != nil {
		if m.InstancesDistribution == nil {
			m.InstancesDistribution = &distribution{}
		}
		d := m.InstancesDistribution
		text(&d.OnDemandAllocationStrategy, "prioritized")
		set(&d.OnDemandBaseCapacity, 0)
		set(&d.OnDemandPercentageAboveBaseCapacity, 100)
		text(&d.SpotAllocationStrategy, "lowest-price")
		if *d.SpotAllocationStrategy == "lowest-price" {
			set(&d.SpotInstancePools, 2)
		}
	}
}

// template is the launch template of a group, however it is said.
func (g *group) template() *templateSpec {
	if g.MixedInstancesPolicy != nil && g.MixedInstancesPolicy.LaunchTemplate != nil {
		return g.MixedInstancesPolicy.LaunchTemplate.LaunchTemplateSpecification
	}
	return g.LaunchTemplate
}

// subnets are those of VPCZoneIdentifier.
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
	AutoScalingGroupName     string
	LaunchConfigurationName  *string
	SkipZonalShiftValidation *bool
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
	if in.LaunchConfigurationName != nil {
		return nil, invalid("Launch configurations are not available to this account: use a launch template")
	}
	if g.deleting {
		return nil, wire.Errorf(http.StatusBadRequest, "ScalingActivityInProgress",
			"AutoScalingGroup by name %s is being deleted", g.name)
	}
	next := *g
	next.settings = merged(g.settings, in.settings)
	if in.LaunchTemplate != nil {
		next.MixedInstancesPolicy = nil
	}
	if in.MixedInstancesPolicy != nil {
		next.LaunchTemplate = nil
	}
	if in.DesiredCapacity == nil { // the size follows new bounds
		n := min(max(*next.DesiredCapacity, *next.MinSize), *next.MaxSize)
		next.DesiredCapacity = &n
	}
	next.defaults()
	if err := s.check(c, &next, in.LaunchTemplate != nil || in.MixedInstancesPolicy != nil); err != nil {
		return nil, err
	}
	if *next.DesiredCapacity != *g.DesiredCapacity || in.LaunchTemplate != nil || in.MixedInstancesPolicy != nil {
		next.retryAt = time.Time{}
	}
	if *next.DesiredCapacity != *g.DesiredCapacity {
		s.cfg.Log.Debug("desired capacity changed", "group", g.name, "from", *g.DesiredCapacity, "to",
			*next.DesiredCapacity)
	}
	*g = next
	s.reconcile()
	return nil, nil
}

// unknown is the error of an operation on a group that is not there: who may not do it anyway is told that instead.
func (s *Service) unknown(c *wire.Call, name string, err error) error {
	if denied := c.Authorize("autoscaling:"+c.Action, s.arn(nil, name), nil); denied != nil {
		return denied
	}
	return err
}

// merged takes each setting that was said from the new ones, the others from the old.
func merged(old, said settings) settings {
	into, from := reflect.ValueOf(&old).Elem(), reflect.ValueOf(said)
	for i := range into.NumField() {
		if !from.Field(i).IsZero() {
			into.Field(i).Set(from.Field(i))
		}
	}
	return old
}

func (s *Service) setDesiredCapacity(c *wire.Call) (any, error) {
	var in struct {
		AutoScalingGroupName string
		DesiredCapacity      *int
		HonorCooldown        bool
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	g, err := s.groupFor(c, in.AutoScalingGroupName)
	if err != nil {
		return nil, err
	}
	switch {
	case in.DesiredCapacity == nil:
		return nil,
			invalid(
				"1 validation error detected: Value null at 'desiredCapacity' failed to satisfy constraint: Member " +
					"must not be null")
	case *in.DesiredCapacity > *g.MaxSize:
		return nil, invalid("New SetDesiredCapacity value %d is above max value %d for the AutoScalingGroup.",
			*in.DesiredCapacity, *g.MaxSize)
	case *in.DesiredCapacity < *g.MinSize:
		return nil, invalid("New SetDesiredCapacity value %d is below min value %d for the AutoScalingGroup.",
			*in.DesiredCapacity, *g.MinSize)
	}
	g.DesiredCapacity, g.retryAt = in.DesiredCapacity, time.Time{}
	s.reconcile()
	return nil, nil
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
	protection := cmp.Or(value(g.DeletionProtection), "none")
	switch {
	case protection == "prevent-all-deletion" || protection == "prevent-force-deletion" && in.ForceDelete:
		return nil, wire.Errorf(http.StatusBadRequest, "ResourceInUse", "The group is protected from deletion: %s",
			protection)
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
