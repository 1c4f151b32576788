package autoscaling

import (
	"fmt"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Lifecycle states. https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-lifecycle.html
const (
	pending         = "Pending"
	pendingWait     = "Pending:Wait"
	inService       = "InService"
	terminating     = "Terminating"
	terminatingWait = "Terminating:Wait"
)

// member is an instance of a group.
type member struct {
	id, zone, image, kind string
	template              *templateSpec // with the number of its version
	state                 string
	unhealthy             bool // SetInstanceHealth said so, or a check did
	protected             bool
	launched              time.Time
	since                 time.Time // in service
	wait                  time.Time // when the hook's time is up
	hook                  *hook     // it waits for
	registered            []string  // target groups
	activity              *activity // of its launch or end
	replaced              bool      // another was launched in its stead before its end
}

// counts tells whether a member counts towards the desired capacity.
func (m *member) counts() bool {
	return m.state == pending || m.state == pendingWait || m.state == inService
}

// activity is a scaling activity. https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_Activity.html
type activity struct {
	ID            string `xml:"ActivityId"`
	Group         string `xml:"AutoScalingGroupName"`
	GroupARN      string `xml:"AutoScalingGroupARN"`
	GroupState    string `xml:"AutoScalingGroupState,omitempty"`
	Cause         string
	Description   string
	Details       string
	StartTime     wire.Time
	EndTime       *wire.Time
	Progress      int
	StatusCode    string
	StatusMessage string `xml:",omitempty"`
}

func (s *Service) begin(g *group, description, cause string) *activity {
	a := &activity{
		ID: newID(), Group: g.name, GroupARN: s.arn(g, ""), Cause: cause, Description: description,
		Details:   fmt.Sprintf(`{"Availability Zones":%q}`, g.AvailabilityZones),
		StartTime: wire.Time{Time: s.now()}, Progress: 50, StatusCode: "InProgress",
	}
	s.activities = append(s.activities, a)
	return a
}

func (s *Service) finish(a *activity, failure error) {
	if a == nil || a.EndTime != nil {
		return
	}
	a.EndTime, a.Progress, a.StatusCode = &wire.Time{Time: s.now()}, 100, "Successful"
	if failure != nil {
		a.StatusCode, a.StatusMessage = "Failed", message(failure)+" Launching EC2 instance failed."
	}
}

func (s *Service) memberOperations() map[string]wire.Handler {
	return map[string]wire.Handler{
		"DescribeAutoScalingInstances":        s.describeInstances,
		"TerminateInstanceInAutoScalingGroup": s.terminateInstance,
		"SetInstanceHealth":                   s.setInstanceHealth,
		"SetInstanceProtection":               s.setInstanceProtection,
	}
}

// member finds the group of an instance.
func (s *Service) member(id string) (*group, *member, error) {
	for _, g := range s.groups {
		for _, m := range g.members {
			if m.id == id {
				return g, m, nil
			}
		}
	}
	return nil, nil, invalid("Instance Id not found - No managed instance found for instance ID: %s", id)
}

// memberFor finds a member and asks for permission on its group.
func (s *Service) memberFor(c *wire.Call, id string) (*group, *member, error) {
	g, m, err := s.member(id)
	if err != nil {
		return nil, nil, s.unknown(c, "*", err)
	}
	return g, m, s.allow(c, g, nil)
}

type memberXML struct {
	AutoScalingGroupName string `xml:",omitempty"`
	AvailabilityZone     string
	HealthStatus         string
	ImageId              string `xml:",omitempty"`
	InstanceId           string
	InstanceType         string
	LaunchTemplate       *templateSpec
	LifecycleState       string
	ProtectedFromScaleIn bool
}

func (m *member) xml() memberXML {
	health := "Healthy"
	if m.unhealthy {
		health = "Unhealthy"
	}
	return memberXML{
		AvailabilityZone: m.zone, HealthStatus: health, ImageId: m.image, InstanceId: m.id, InstanceType: m.kind,
		LaunchTemplate: m.template, LifecycleState: m.state,
		ProtectedFromScaleIn: m.protected,
	}
}

func (s *Service) describeInstances(c *wire.Call) (any, error) {
	var in struct {
		InstanceIds []string
		MaxRecords  *int
		NextToken   string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := allowAny(c); err != nil {
		return nil, err
	}
	var all []memberXML
	for _, g := range s.sorted() {
		for _, m := range g.members {
			if len(in.InstanceIds) > 0 && !slices.Contains(in.InstanceIds, m.id) {
				continue
			}
			x := m.xml()
			x.AutoScalingGroupName = g.name
			if m.unhealthy { // this operation writes it in capitals
				x.HealthStatus = "UNHEALTHY"
			} else {
				x.HealthStatus = "HEALTHY"
			}
			all = append(all, x)
		}
	}
	items, next, err := page(all, in.MaxRecords, in.NextToken)
	if err != nil {
		return nil, err
	}
	return struct {
		Items     []memberXML `xml:"AutoScalingInstances>member"`
		NextToken string      `xml:",omitempty"`
	}{items, next}, nil
}

func (s *Service) terminateInstance(c *wire.Call) (any, error) {
	var in struct {
		InstanceId                     string
		ShouldDecrementDesiredCapacity *bool
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	g, m, err := s.memberFor(c, in.InstanceId)
	if err != nil {
		return nil, err
	}
	switch {
	case in.ShouldDecrementDesiredCapacity == nil:
		return nil,
			invalid(
				"1 validation error detected: Value null at 'shouldDecrementDesiredCapacity' failed to satisfy " +
					"constraint: Member must not be null")
	case *in.ShouldDecrementDesiredCapacity && *g.DesiredCapacity-1 < *g.MinSize:
		return nil,
			invalid(
				"Currently, desiredSize equals minSize (%d). Terminating instance without replacement will violate "+
					"group's min size constraint. Either set "+
					"shouldDecrementDesiredCapacity flag to false or lower group's min size.", *g.MinSize)
	}
	how := "without replacement"
	if *in.ShouldDecrementDesiredCapacity {
		n := *g.DesiredCapacity - 1
		g.DesiredCapacity = &n
	} else {
		how = "with replacement"
	}
	if m.counts() {
		s.retire(g, m, "instance was taken out of service in response to a user request, "+how+".")
	}
	a := m.activity
	s.reconcile()
	return struct{ Activity *activity }{a}, nil
}

func (s *Service) setInstanceHealth(c *wire.Call) (any, error) {
	var in struct {
		HealthStatus             string
		InstanceId               string
		ShouldRespectGracePeriod *bool
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	g, m, err := s.memberFor(c, in.InstanceId)
	if err != nil {
		return nil, err
	}
	switch in.HealthStatus {
	case "Healthy":
		m.unhealthy = false
	case "Unhealthy":
		if orElse(in.ShouldRespectGracePeriod, true) && s.inGrace(g, m) {
			return nil, nil
		}
		m.unhealthy = true
	default:
		return nil, invalid("Valid instance health states are: [Healthy, Unhealthy].")
	}
	s.reconcile()
	return nil, nil
}

func (s *Service) setInstanceProtection(c *wire.Call) (any, error) {
	var in struct {
		AutoScalingGroupName string
		InstanceIds          []string
		ProtectedFromScaleIn *bool
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	g, err := s.groupFor(c, in.AutoScalingGroupName)
	if err != nil {
		return nil, err
	}
	if in.ProtectedFromScaleIn == nil || len(in.InstanceIds) == 0 {
		return nil, invalid("instanceIds and protectedFromScaleIn must be specified")
	}
	for _, id := range in.InstanceIds {
		owner, _, err := s.member(id)
		if err != nil || owner != g {
			return nil, invalid("The instance %s is not part of Auto Scaling group %s.", id, g.name)
		}
	}
	for _, m := range g.members {
		if slices.Contains(in.InstanceIds, m.id) {
			m.protected = *in.ProtectedFromScaleIn
		}
	}
	return nil, nil
}
