package scale

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/journal/localdb"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// scalingStage plays a group whose agents report numbers to a scaler.
type scalingStage struct {
	*Scaler
	t       *testing.T
	clock   time.Time
	group   config.Group
	streams map[ident.ID]uint64
	ids     byte
	resized []int
	refuse  error
	events  []record.Event
	points  []localdb.ScalingPoint
}

func newScalingStage(t *testing.T, size int) *scalingStage {
	t.Helper()
	least, down := 1, config.Duration(5*time.Minute)
	stage := &scalingStage{t: t, clock: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC), streams: map[ident.ID]uint64{}}
	now := func() time.Time { return stage.clock }
	state := shardstate.New(shardstate.Options{Term: 1, Now: now, Wake: func() {}})
	stage.group = config.Group{GroupKey: config.GroupKey{Tenant: "default", Group: "g"}, Static: true, Kind: "wrk",
		Template: "t", Size: size, MaxSurge: 1, Scaling: &config.Scaling{Min: &least, Max: 20, Tolerance: "10%",
			Metrics: []config.ScalingMetric{{CPU: &config.ScalingShare{Target: "50%"}}},
			Up:      config.ScaleUp{MaxStep: "100%"}, Down: config.ScaleDown{Stabilization: &down, MaxStep: "25%"}}}
	stage.Scaler = &Scaler{State: state, Log: slog.New(slog.DiscardHandler), Env: tasks.Env{Now: now},
		Record: func(e record.Event) { stage.events = append(stage.events, e) },
		Keep: func(_ context.Context, point localdb.ScalingPoint) error {
			stage.points = append(stage.points, point)
			return nil
		},
		Resize: func(_ context.Context, _ config.GroupKey, size int) error {
			if stage.refuse != nil {
				return stage.refuse
			}
			stage.resized = append(stage.resized, size)
			stage.group.Size = size
			stage.configure()
			return nil
		}}
	state.Configure((&config.Shard{}).WithDefaults(),
		map[config.GroupKey]config.Group{stage.group.GroupKey: stage.group})
	for range size {
		stage.add()
	}
	return stage
}

func (s *scalingStage) configure() {
	s.State.ConfigureGroups(map[config.GroupKey]config.Group{s.group.GroupKey: s.group},
		[]config.GroupKey{s.group.GroupKey})
}

// add adds an instance that has registered.
func (s *scalingStage) add() {
	s.t.Helper()
	s.ids++
	id, err := ident.NewID("wrk", s.clock, strings.NewReader(strings.Repeat(string(rune('a'+s.ids)), 64)))
	if err != nil {
		s.t.Fatal(err)
	}
	s.State.PutRecord(record.Instance{ID: id, State: record.Registered, Revision: 1, Tenant: "default", Group: "g",
		Template: "t", Kind: "wrk", CreatedAt: s.clock, RegisteredAt: s.clock, ProviderID: "vm"}, "token")
	stream, ok := s.State.Connected(id)
	if !ok {
		s.t.Fatal("the instance does not exist")
	}
	s.streams[id] = stream
}

// report lets all agents report a share of their processors.
func (s *scalingStage) report(cpu float32) {
	for id, stream := range s.streams {
		s.State.Reported(id, stream, shardstate.Report{Healthy: true, Metrics: shardstate.Metrics{CPU: cpu,
			MemoryTotal: 1}})
	}
}

// play lets the scaler run for a time in which the agents report every interval.
func (s *scalingStage) play(cpu float32, d time.Duration) {
	for end := s.clock.Add(d); s.clock.Before(end); {
		s.report(cpu)
		s.clock = s.clock.Add(plan.ScalingEvery)
		s.pass(s.t.Context())
	}
}

func (s *scalingStage) alerts() int { return s.State.Alerts()[plan.AlertScaling] }

// TestScaler checks what a scaler makes of the reports, and what it does with the decisions.
func TestScaler(t *testing.T) {
	s := newScalingStage(t, 4)
	s.play(1, plan.ScalingEvery)
	if len(s.resized) != 1 || s.group.Size != 8 {
		t.Fatalf("at 100 %% of 50 %%: sizes %v", s.resized)
	}
	if e := s.events; len(e) != 1 || e[0].Kind != record.EventGroupChanged || e[0].Actor != "leader" ||
		!strings.HasPrefix(e[0].Message,
			"size 8 instead of 4: cpu is at 100 %, with a target of 50 %, which asks for 8") {
		t.Errorf("%+v", e)
	}
	s.play(1, time.Minute) // the four new ones boot
	for range 4 {
		s.add()
	}
	s.play(1, plan.ScalingEvery) // they are healthy, but what the others report is older
	if len(s.resized) != 1 {
		t.Fatalf("while the new ones boot: sizes %v", s.resized)
	}
	s.play(0.5, 10*time.Minute)
	if len(s.resized) != 1 {
		t.Fatalf("at the target: sizes %v", s.resized)
	}
	if view, ok := s.State.GroupView(s.group.GroupKey); !ok || view.Scaled == nil || view.Scaled.Wanted != 8 {
		t.Errorf("%+v", view.Scaled)
	}

	s.clock = s.clock.Add(time.Hour) // nobody reports
	s.pass(t.Context())
	if s.alerts() != 1 || len(s.resized) != 1 {
		t.Errorf("without reports: %d alerts, sizes %v", s.alerts(), s.resized)
	}
	s.play(0.5, plan.ScalingEvery)
	if s.alerts() != 0 {
		t.Error("the alert did not end")
	}

	s.refuse = errors.New("the bucket is slow")
	s.play(0.1, 10*time.Minute)
	s.refuse = nil
	s.play(0.1, plan.ScalingEvery)
	if len(s.resized) != 2 || s.group.Size != 6 {
		t.Errorf("after a failed write: sizes %v", s.resized)
	}
	s.group.SizeHeld = true
	s.configure()
	s.play(1, time.Minute)
	if len(s.resized) != 2 {
		t.Errorf("although an operator holds the size: sizes %v", s.resized)
	}
	s.clock = s.clock.Add(time.Hour)
	s.pass(t.Context())
	s.group.Scaling = nil
	s.configure()
	s.pass(t.Context())
	if s.alerts() != 0 {
		t.Error("the alert of a group without scaling stays")
	}
}

// TestScalingIsKept checks that the history of a group has a point when the size changes, and otherwise once in an
// interval. A number that is unknown has no value.
func TestScalingIsKept(t *testing.T) {
	s := newScalingStage(t, 4)
	s.play(1, plan.ScalingEvery)
	s.play(0.5, 11*time.Minute)
	var at []string
	for _, p := range s.points {
		at = append(at, fmt.Sprint(p.At.Sub(s.points[0].At), " ", p.Size))
	}
	if have := strings.Join(at, ", "); have != "0s 8, 5m0s 8, 10m0s 8" {
		t.Errorf("points: %s", have)
	}
	p := s.points[0]
	if len(p.Metrics) != 1 || p.Wanted != 8 || p.Group != "g" {
		t.Fatalf("%+v", p)
	}
	if m := p.Metrics[0]; m.Name != "cpu" || m.Value == nil || *m.Value != 100 || m.Target != 50 || m.Wanted != 8 {
		t.Errorf("%+v", m)
	}
	s.clock = s.clock.Add(time.Hour) // nobody reports
	s.pass(t.Context())
	if p := s.points[len(s.points)-1]; p.Size != 8 || p.Metrics[0].Value != nil {
		t.Errorf("without reports: %+v", p)
	}
}

// TestUnknownNumbers checks that agents have some time to read a number for the first time, and that the decision says
// why most of the values are unknown.
func TestUnknownNumbers(t *testing.T) {
	s := newScalingStage(t, 4)
	vm := &config.ScalingVM{Name: "inflight", Port: 9100, Path: "/metrics", Metric: "inflight", Target: 100}
	s.group.Scaling.Metrics = []config.ScalingMetric{{VM: vm}}
	s.configure()
	// play lets each agent report a number for a time, in the order of the IDs, and returns what the scaler says.
	play := func(d time.Duration, numbers ...shardstate.VMNumber) string {
		t.Helper()
		ids := slices.SortedFunc(maps.Keys(s.streams), ident.ID.Compare)
		for end := s.clock.Add(d); s.clock.Before(end); {
			for i, n := range numbers {
				n.ID = vm.ID()
				s.State.Reported(ids[i], s.streams[ids[i]], shardstate.Report{Healthy: true,
					Metrics: shardstate.Metrics{VM: []shardstate.VMNumber{n}}})
			}
			s.clock = s.clock.Add(plan.ScalingEvery)
			s.pass(t.Context())
		}
		view, _ := s.State.GroupView(s.group.GroupKey)
		return view.Scaled.Why
	}
	unread, refused, absent := shardstate.VMNumber{Pending: true}, shardstate.VMNumber{Problem: "connection refused"},
		shardstate.VMNumber{Problem: "no metric inflight"}
	known := shardstate.VMNumber{Value: 99}
	for _, test := range []struct {
		after   time.Duration
		numbers []shardstate.VMNumber
		want    string
		alerts  int
	}{
		{plan.ScalingEvery, []shardstate.VMNumber{unread, unread, unread, unread},
			"no instance is ready to tell its inflight, so that the size stays (rule 76)", 0},
		{plan.ScalingEvery, []shardstate.VMNumber{refused, unread, unread, unread},
			"the inflight of 1 of 1 instances is unknown: connection refused, so that the size stays (rule 76)", 1},
		{plan.ScalingEvery, []shardstate.VMNumber{known, unread, unread, unread},
			"inflight is at 99, with a target of 100, which asks for 4 (rule 73)", 0},
		{4 * time.Minute, []shardstate.VMNumber{known, unread, unread, unread}, "the inflight of 3 of 4 instances is " +
			"unknown: its agent has not read it yet, so that the size stays (rule 76)", 1},
		{plan.ScalingEvery, []shardstate.VMNumber{known, refused, absent, refused},
			"the inflight of 3 of 4 instances is unknown: connection refused, so that the size stays (rule 76)", 1},
		{plan.ScalingEvery, []shardstate.VMNumber{known, known, absent, refused},
			"inflight is at 99, with a target of 100, which asks for 4 (rule 73)", 0},
		{5 * time.Minute, []shardstate.VMNumber{known}, // the others report nothing
			"the inflight of 3 of 4 instances is unknown: its agent is silent, so that the size stays (rule 76)", 1},
	} {
		if got := play(test.after, test.numbers...); got != test.want || s.alerts() != test.alerts {
			t.Errorf("%v: %q with %d alerts, want %q with %d", test.numbers, got, s.alerts(), test.want, test.alerts)
		}
	}
}
