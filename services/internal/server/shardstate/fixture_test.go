package shardstate_test

import (
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

var (
	owner           = infra.Owner{Cluster: "c", Shard: "s"}
	workers, others = config.GroupKey{Tenant: "default", Group: "workers"},
		config.GroupKey{Tenant: "default", Group: "others"}
)

// picture is a State with a manual clock. It records the events that the State publishes, and counts the calls of Wake.
type picture struct {
	*shardstate.State
	now       time.Time
	wakes     int
	instances []shardstate.InstanceEvent
	groups    []config.GroupKey
	errors    []shardstate.ErrorEvent
	shard     *config.Shard
	merged    map[config.GroupKey]config.Group
	revision  uint64
	ids       byte
}

func (p *picture) Instance(e shardstate.InstanceEvent) { p.instances = append(p.instances, e) }
func (p *picture) Group(key config.GroupKey)           { p.groups = append(p.groups, key) }
func (p *picture) Error(e shardstate.ErrorEvent)       { p.errors = append(p.errors, e) }

// newPicture returns a State with two groups, neither of which is dirty.
func newPicture(t *testing.T) *picture {
	p := &picture{now: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)}
	p.State = shardstate.New(shardstate.Options{Term: 7,
		Now: func() time.Time {
			return p.now
		},
		Wake: func() { p.wakes++ }, Events: p})
	p.shard = (&config.Shard{}).WithDefaults()
	p.merged = map[config.GroupKey]config.Group{}
	for _, key := range []config.GroupKey{workers, others} {
		p.merged[key] = config.Group{GroupKey: key, Static: true, Kind: "wrk", Template: "t", Size: 3, MaxSurge: 1,
			RuntimeHash: "r1", InfraHash: "i1"}
	}
	p.Configure(p.shard, p.merged)
	p.forget()
	return p
}

// forget clears the dirty marks and the recorded events.
func (p *picture) forget() {
	p.TakeDirty()
	p.GarbageCollectionDue()
	p.wakes, p.instances, p.groups, p.errors = 0, nil, nil, nil
}

func (p *picture) newID(t *testing.T) ident.ID {
	t.Helper()
	p.ids++
	id, err := ident.NewID("wrk", p.now, constant(p.ids))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// put stores a record with the given state for an instance of the group.
func (p *picture) put(id ident.ID, key config.GroupKey, state record.State) record.Instance {
	p.revision++
	rec := record.Instance{ID: id, State: state, Revision: p.revision, Tenant: key.Tenant, Group: key.Group,
		Template: "t", Kind: "wrk", CreatedAt: p.now,
		ProviderID: "vm-" + id.String()}
	switch state {
	case record.Reserved:
		rec.ProviderID = ""
	case record.Registered:
		rec.RegisteredAt = p.now
	case record.Deleting:
		rec.DeletingAt, rec.DeleteReason, rec.DeleteDeadline = p.now, "test", p.now
	case record.Deleted:
		rec.DeletedAt = p.now
	}
	p.PutRecord(rec, objstore.Token(id.String()))
	return rec
}

// serving adds a registered instance to the group workers.
func (p *picture) serving(t *testing.T) ident.ID {
	t.Helper()
	id := p.newID(t)
	p.put(id, workers, record.Registered)
	return id
}

// vm returns the provider's description of an instance's VM.
func (p *picture) vm(id ident.ID, state infra.State) infra.VM {
	return infra.VM{ProviderID: "vm-" + id.String(), State: state, LaunchedAt: p.now,
		Tags: infra.Tags{Owner: owner, Tenant: workers.Tenant, Group: workers.Group, Instance: id}}
}

// planned returns the planner's view of an instance.
func (p *picture) planned(t *testing.T, id ident.ID) plan.Instance {
	t.Helper()
	for _, key := range []config.GroupKey{workers, others} {
		s, _ := p.Snapshot(key, nil)
		for _, i := range s.Instances {
			if i.ID == id {
				return i
			}
		}
	}
	t.Fatalf("%s is in no group", id)
	return plan.Instance{}
}

// wantDirty checks which groups are dirty, and that the planner was woken for them.
func (p *picture) wantDirty(t *testing.T, what string, want ...config.GroupKey) {
	t.Helper()
	got := p.TakeDirty()
	if len(got) != len(want) {
		t.Errorf("%s: %v are dirty, want %v", what, got, want)
		return
	}
	for n := range got {
		if got[n] != want[n] {
			t.Errorf("%s: %v are dirty, want %v", what, got, want)
		}
	}
	if len(want) > 0 && p.wakes == 0 {
		t.Errorf("%s: the loop is not woken", what)
	}
	p.wakes = 0
}

// wantEvents checks which instance events were published.
func (p *picture) wantEvents(t *testing.T, what string, want ...shardstate.InstanceEventType) {
	t.Helper()
	var got []shardstate.InstanceEventType
	for _, e := range p.instances {
		got = append(got, e.Type)
	}
	p.instances = nil
	if len(got) != len(want) {
		t.Errorf("%s: told %v, want %v", what, got, want)
		return
	}
	for n := range got {
		if got[n] != want[n] {
			t.Errorf("%s: told %v, want %v", what, got, want)
		}
	}
}

// beginStray begins work on a stray. It returns false if the stray is unknown or busy.
func (p *picture) beginStray(providerID string) bool {
	_, ok := p.BeginStray(providerID)
	return ok
}

func (p *picture) lastReport(id ident.ID) shardstate.Report {
	view, _ := p.State.Instance(id)
	return view.Report
}
