package server

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// scalingStage plays a group whose agents report numbers to a scaler.
type scalingStage struct {
	*scaler
	t       *testing.T
	clock   time.Time
	group   config.Group
	streams map[ident.ID]uint64
	ids     byte
	resized []int
	refuse  error
	events  []record.Event
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
	stage.scaler = &scaler{state: state, log: slog.New(slog.DiscardHandler), now: now,
		record: func(e record.Event) { stage.events = append(stage.events, e) },
		resize: func(_ context.Context, _ config.GroupKey, size int) error {
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
	s.state.ConfigureGroups(map[config.GroupKey]config.Group{s.group.GroupKey: s.group},
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
	s.state.PutRecord(record.Instance{ID: id, State: record.Registered, Revision: 1, Tenant: "default", Group: "g",
		Template: "t", Kind: "wrk", CreatedAt: s.clock, RegisteredAt: s.clock, ProviderID: "vm"}, "token")
	stream, ok := s.state.Connected(id)
	if !ok {
		s.t.Fatal("the instance does not exist")
	}
	s.streams[id] = stream
}

// report lets all agents report a share of their processors.
func (s *scalingStage) report(cpu float32) {
	for id, stream := range s.streams {
		s.state.Reported(id, stream, shardstate.Report{Healthy: true, Metrics: shardstate.Metrics{CPU: cpu,
			MemoryTotal: 1}})
	}
}

// pass lets the scaler run for a time in which the agents report every interval.
func (s *scalingStage) pass(cpu float32, d time.Duration) {
	for end := s.clock.Add(d); s.clock.Before(end); {
		s.report(cpu)
		s.clock = s.clock.Add(plan.ScalingEvery)
		s.scaler.pass(s.t.Context())
	}
}

func (s *scalingStage) alerts() int { return s.state.Alerts()[plan.AlertScaling] }

// TestScaler checks what a scaler makes of the reports, and what it does with the decisions.
func TestScaler(t *testing.T) {
	s := newScalingStage(t, 4)
	s.pass(1, plan.ScalingEvery)
	if len(s.resized) != 1 || s.group.Size != 8 {
		t.Fatalf("at 100 %% of 50 %%: sizes %v", s.resized)
	}
	if e := s.events; len(e) != 1 || e[0].Kind != record.EventGroupChanged || e[0].Actor != "leader" ||
		!strings.HasPrefix(e[0].Message,
			"size 8 instead of 4: cpu is at 100 %, with a target of 50 %, which asks for 8") {
		t.Errorf("%+v", e)
	}
	s.pass(1, time.Minute) // the four new ones boot
	for range 4 {
		s.add()
	}
	s.pass(1, plan.ScalingEvery) // they are healthy, but what the others report is older
	if len(s.resized) != 1 {
		t.Fatalf("while the new ones boot: sizes %v", s.resized)
	}
	s.pass(0.5, 10*time.Minute)
	if len(s.resized) != 1 {
		t.Fatalf("at the target: sizes %v", s.resized)
	}
	if view, ok := s.state.GroupView(s.group.GroupKey); !ok || view.Scaled == nil || view.Scaled.Wanted != 8 {
		t.Errorf("%+v", view.Scaled)
	}

	s.clock = s.clock.Add(time.Hour) // nobody reports
	s.scaler.pass(t.Context())
	if s.alerts() != 1 || len(s.resized) != 1 {
		t.Errorf("without reports: %d alerts, sizes %v", s.alerts(), s.resized)
	}
	s.pass(0.5, plan.ScalingEvery)
	if s.alerts() != 0 {
		t.Error("the alert did not end")
	}

	s.refuse = errors.New("the bucket is slow")
	s.pass(0.1, 10*time.Minute)
	s.refuse = nil
	s.pass(0.1, plan.ScalingEvery)
	if len(s.resized) != 2 || s.group.Size != 6 {
		t.Errorf("after a failed write: sizes %v", s.resized)
	}
	s.group.SizeHeld = true
	s.configure()
	s.pass(1, time.Minute)
	if len(s.resized) != 2 {
		t.Errorf("although an operator holds the size: sizes %v", s.resized)
	}
	s.clock = s.clock.Add(time.Hour)
	s.scaler.pass(t.Context())
	s.group.Scaling = nil
	s.configure()
	s.scaler.pass(t.Context())
	if s.alerts() != 0 {
		t.Error("the alert of a group without scaling stays")
	}
}

// TestScaledSizeIsStored checks that the next leader goes on from the size that a leader has chosen, and that an
// operator can hold the size.
func TestScaledSizeIsStored(t *testing.T) {
	r := newTestShard(t)
	r.configure(func(doc map[string]any) {
		doc["groups"] = map[string]any{"default": map[string]any{"g": map[string]any{"template": "t", "size": 1,
			"scaling": map[string]any{"max": 5,
				"metrics": []any{map[string]any{"cpu": map[string]any{"target": "50%"}}}}}}}
	})
	key := config.GroupKey{Tenant: "default", Group: "g"}
	p := r.start(testKey)
	p.await("a VM", func() bool { return r.running() == 1 })
	if err := p.server.resize(t.Context(), key, 3); err != nil {
		t.Fatal(err)
	}
	p.await("three VMs", func() bool { return r.running() == 3 })
	_ = p.end()

	next := r.start(testKey)
	next.await("a leader", func() bool { return next.server.leading.Load() != nil })
	if g := next.server.manager.Groups()[key]; g.Size != 3 || g.SizeHeld {
		t.Errorf("the next leader has the size %d, held %t", g.Size, g.SizeHeld)
	}
	two := 2
	_, err := next.server.manager.Upsert(t.Context(), key, "", config.Caller{Name: "alice", Pinned: true,
		Sets: []string{"size"}}, func(spec *config.GroupSpec, _ bool) error { spec.Size = &two; return nil })
	if err != nil {
		t.Fatal(err)
	}
	if err := next.server.resize(t.Context(), key, 5); !errors.Is(err, errHeld) {
		t.Errorf("a size that an operator pinned: %v", err)
	}
	if err := next.server.resize(t.Context(), config.GroupKey{Tenant: "default", Group: "gone"}, 5); err == nil {
		t.Error("a group that does not exist was resized")
	}
	_ = next.end()
}
