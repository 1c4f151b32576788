package autoscaling

import (
	"fmt"
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
	unhealthy             bool // set by SetInstanceHealth or a health check
	launched              time.Time
	since                 time.Time // start of its time in service
	wait                  time.Time // end of the hook's wait
	hook                  *hook     // the hook that it waits for
	registered            []string  // target groups
	activity              *activity // of its launch or termination
}

// counts reports whether a member is part of the desired capacity.
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

// member returns an instance's group and member.
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

// memberFor returns an instance's group and member if the caller may perform the call's action on the group.
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
	}
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
