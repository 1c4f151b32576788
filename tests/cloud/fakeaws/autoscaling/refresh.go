package autoscaling

import (
	"net/http"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// refresh is an instance refresh: it replaces every member that does not match the desired configuration, a few at a
// time.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/instance-refresh-overview.html
type refresh struct {
	id          string
	status      string // Pending, InProgress, Successful, Cancelling, Cancelled
	reason      string
	started     time.Time
	ended       time.Time
	preferences preferences
	desired     *desiredConfiguration
	todo        []string // IDs of members to replace
	total       int
}

type preferences struct {
	AutoRollback              *bool
	BakeTime                  *int
	CheckpointDelay           *int
	CheckpointPercentages     []int `xml:"CheckpointPercentages>member"`
	InstanceWarmup            *int
	MaxHealthyPercentage      *int
	MinHealthyPercentage      *int
	ScaleInProtectedInstances *string
	SkipMatching              *bool
	StandbyInstances          *string
}

type desiredConfiguration struct {
	LaunchTemplate *templateSpec
}

func (r *refresh) active() bool {
	return r.status == "Pending" || r.status == "InProgress" || r.status == "Cancelling"
}

// refreshing returns the group's active refresh, or nil if it has none.
func (g *group) refreshing() *refresh {
	if n := len(g.refreshes); n > 0 && g.refreshes[n-1].active() {
		return g.refreshes[n-1]
	}
	return nil
}

func (s *Service) startRefresh(c *wire.Call) (any, error) {
	var in struct {
		AutoScalingGroupName string
		DesiredConfiguration *desiredConfiguration
		Preferences          *preferences
		Strategy             string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	g, err := s.groupFor(c, in.AutoScalingGroupName)
	if err != nil {
		return nil, err
	}
	p := value(in.Preferences)
	lowest, highest := orElse(p.MinHealthyPercentage, 90), orElse(p.MaxHealthyPercentage, 100)
	switch {
	case in.Strategy != "" && in.Strategy != "Rolling":
		return nil, invalid("The fake knows the strategy Rolling only")
	case g.refreshing() != nil:
		return nil, wire.Errorf(http.StatusBadRequest, "InstanceRefreshInProgress",
			"An Instance Refresh is already in progress and blocks the execution of this Instance Refresh.")
	case value(p.AutoRollback) && in.DesiredConfiguration == nil:
		return nil,
			invalid("The AutoRollback parameter cannot be set to true when the DesiredConfiguration parameter is " +
				"empty. Set AutoRollback to false or specify a desired configuration and try again.")
	case len(p.CheckpointPercentages) > 0 || value(p.AutoRollback) || value(p.BakeTime) != 0:
		return nil, invalid("The fake knows no checkpoints, bake time or rollback")
	case lowest < 0 || lowest > 100 || highest < 100 || highest > 200 || highest-lowest > 100:
		return nil, invalid("The healthy percentages do not fit together: %d and %d", lowest, highest)
	}
	if d := in.DesiredConfiguration; d != nil {
		next := *g
		if d.LaunchTemplate != nil {
			next.LaunchTemplate = d.LaunchTemplate
		}
		if err := s.check(c, &next, true); err != nil {
			return nil, err
		}
		*g = next
	}
	r := &refresh{id: newID(), status: "Pending", started: s.now(), preferences: p, desired: in.DesiredConfiguration}
	current, err := s.cfg.EC2.Template(g.LaunchTemplate.ref())
	if err != nil {
		return nil, invalid("%s", message(err))
	}
	for _, m := range g.members {
		matches := *m.template.LaunchTemplateId == current.ID && *m.template.Version == current.Version
		if m.counts() && (!value(p.SkipMatching) || !matches) {
			r.todo = append(r.todo, m.id)
		}
	}
	r.total = len(r.todo)
	g.refreshes = append(g.refreshes, r)
	s.reconcile()
	return struct{ InstanceRefreshId string }{r.id}, nil
}

func (s *Service) cancelRefresh(c *wire.Call) (any, error) {
	var in struct {
		AutoScalingGroupName          string
		WaitForTransitioningInstances *bool
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	g, err := s.groupFor(c, in.AutoScalingGroupName)
	if err != nil {
		return nil, err
	}
	r := g.refreshing()
	if r == nil {
		return nil, wire.Errorf(http.StatusBadRequest, "ActiveInstanceRefreshNotFound",
			"No in progress or pending Instance Refresh found for Auto Scaling group %s", g.name)
	}
	r.status, r.reason = "Cancelling", "Cancelled due to user request."
	s.reconcile()
	return struct{ InstanceRefreshId string }{r.id}, nil
}

// advance performs one step of a group's refresh.
func (s *Service) advance(g *group) {
	r := g.refreshing()
	if r == nil {
		return
	}
	var left []*member
	busy, warm := false, 0
	warmup := time.Duration(orElse(r.preferences.InstanceWarmup, orElse(g.DefaultInstanceWarmup,
		*g.HealthCheckGracePeriod))) * time.Second
	for _, m := range g.members {
		switch {
		case slices.Contains(r.todo, m.id) && m.counts():
			left = append(left, m)
		case m.state != inService || s.now().Sub(m.since) < warmup:
			busy = true
		}
		if m.state == inService && (slices.Contains(r.todo, m.id) || s.now().Sub(m.since) >= warmup) {
			warm++
		}
	}
	if r.status == "Cancelling" {
		if !busy {
			r.status, r.ended = "Cancelled", s.now()
		}
		return
	}
	r.status = "InProgress"
	desired := *g.DesiredCapacity
	if len(left) == 0 {
		if !busy && warm >= desired {
			r.status, r.ended = "Successful", s.now()
		}
		return
	}
	// If the minimum is below 100 %, at least one member may be terminated before its replacement runs, even if the
	// number of permitted terminations rounds down to 0. AWS rounds in the same way.
	lowest := orElse(r.preferences.MinHealthyPercentage, 90)
	room := desired - (desired*lowest+99)/100
	if lowest < 100 && desired > 0 {
		room = max(room, 1)
	}
	missing := desired - warm
	for _, m := range left {
		if missing >= room && warm <= desired {
			return
		}
		s.retire(g, m, "instance was taken out of service in response to an instance refresh.")
		missing++
		warm--
	}
}

// surge returns the number of members that a group may temporarily have beyond its size. It is 1 while a refresh must
// launch a replacement before it terminates a member. While a refresh is being cancelled, it is the number of members
// beyond the size that are still launching. Otherwise it is 0.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_CancelInstanceRefresh.html
func (g *group) surge() int {
	r := g.refreshing()
	if r == nil {
		return 0
	}
	if r.status == "Cancelling" {
		count, launching := 0, 0
		for _, m := range g.members {
			if m.counts() {
				count++
			}
			if m.state == pending || m.state == pendingWait {
				launching++
			}
		}
		return min(launching, max(count-*g.DesiredCapacity, 0))
	}
	lowest := orElse(r.preferences.MinHealthyPercentage, 90)
	left := slices.ContainsFunc(g.members, func(m *member) bool { return m.counts() && slices.Contains(r.todo, m.id) })
	if lowest == 100 && left {
		return 1
	}
	return 0
}

type refreshXML struct {
	AutoScalingGroupName string
	DesiredConfiguration *desiredConfiguration
	EndTime              *wire.Time
	InstanceRefreshId    string
	InstancesToUpdate    int
	PercentageComplete   int
	Preferences          preferences
	StartTime            wire.Time
	Status               string
	StatusReason         string `xml:",omitempty"`
	Strategy             string
}

func (s *Service) describeRefreshes(c *wire.Call) (any, error) {
	var in struct {
		AutoScalingGroupName string
		InstanceRefreshIds   []string
		MaxRecords           *int
		NextToken            string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := allowAny(c); err != nil {
		return nil, err
	}
	g, err := s.group(in.AutoScalingGroupName)
	if err != nil {
		return nil, err
	}
	var found []refreshXML
	for _, r := range slices.Backward(g.refreshes) {
		if len(in.InstanceRefreshIds) > 0 && !slices.Contains(in.InstanceRefreshIds, r.id) {
			continue
		}
		left := 0
		for _, m := range g.members {
			if m.counts() && slices.Contains(r.todo, m.id) {
				left++
			}
		}
		x := refreshXML{
			AutoScalingGroupName: g.name, DesiredConfiguration: r.desired, InstanceRefreshId: r.id,
			InstancesToUpdate: left, PercentageComplete: 100, Preferences: r.preferences,
			StartTime: wire.Time{Time: r.started}, Status: r.status, StatusReason: r.reason, Strategy: "Rolling",
		}
		if r.total > 0 {
			x.PercentageComplete = 100 * (r.total - left) / r.total
		}
		if !r.ended.IsZero() {
			x.EndTime = &wire.Time{Time: r.ended}
		}
		found = append(found, x)
	}
	items, next, err := page(found, in.MaxRecords, in.NextToken)
	if err != nil {
		return nil, err
	}
	return struct {
		Items     []refreshXML `xml:"InstanceRefreshes>member"`
		NextToken string       `xml:",omitempty"`
	}{items, next}, nil
}
