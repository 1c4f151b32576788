package server

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// readCounter is a store that counts the reads of one object.
type readCounter struct {
	objstore.Store
	key   string
	reads atomic.Int32
}

func (s *readCounter) Get(ctx context.Context, key string) (objstore.Object, error) {
	if key == s.key {
		s.reads.Add(1)
	}
	return s.Store.Get(ctx, key)
}

// plannedGroups makes the leader plan all groups that are due. It returns the number of plans made so far.
func (p *run) plannedGroups() uint64 {
	p.testShard.t.Helper()
	p.server.leading.Load().leader.Loop.Pass(p.testShard.t.Context())
	var m dto.Metric
	if err := p.server.metrics.PlanDuration.Write(&m); err != nil {
		p.testShard.t.Fatal(err)
	}
	return m.GetHistogram().GetSampleCount()
}

// TestChangedGroupIsAppliedAlone changes one group. The leader must plan only this group, and must not read any boot
// script again.
func TestChangedGroupIsAppliedAlone(t *testing.T) {
	r := newTestShard(t)
	store := &readCounter{Store: r.bucket, key: keys.File("boot.sh")}
	r.bucket = store
	r.put(keys.File("boot.sh"), []byte("#!/bin/sh\n"))
	r.configure(func(doc map[string]any) {
		doc["defaults"] = map[string]any{"userdata": map[string]any{"source": "storage", "content": "files/boot.sh"}}
		groups := map[string]any{}
		for i := range 50 {
			groups[fmt.Sprintf("g%d", i)] = map[string]any{"template": "t", "size": 0}
		}
		doc["groups"] = map[string]any{"default": groups}
	})
	p := r.start(testKey)
	p.await("a leader", func() bool { return p.server.leading.Load() != nil })
	planned, reads := p.plannedGroups(), store.reads.Load()
	if planned < 50 || reads != 1 {
		t.Fatalf("the leader began with %d planned groups and %d reads of the boot script, want 50 and 1", planned,
			reads)
	}
	size := 0
	_, err := p.server.manager.Upsert(t.Context(), config.GroupKey{Tenant: "default", Group: "g7"}, "", config.Caller{},
		func(spec *config.GroupSpec, _ bool) error {
			spec.Vars, spec.Size = map[string]string{"v": "1"}, &size
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	if n := p.plannedGroups() - planned; n != 1 {
		t.Errorf("one group was changed, %d were planned", n)
	}
	_ = p.end() // waits for the background tasks of the change
	if n := store.reads.Load() - reads; n != 0 {
		t.Errorf("one group was changed, the boot script was read %d more times", n)
	}
}
