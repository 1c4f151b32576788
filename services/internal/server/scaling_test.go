package server

import (
	"errors"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/act/scale"
)

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
	if err := scale.Store(t.Context(), p.server.manager, key, 3, time.Now()); err != nil {
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
	if err := scale.Store(t.Context(), next.server.manager, key, 5, time.Now()); !errors.Is(err, scale.ErrHeld) {
		t.Errorf("a size that an operator pinned: %v", err)
	}
	gone := config.GroupKey{Tenant: "default", Group: "gone"}
	if err := scale.Store(t.Context(), next.server.manager, gone, 5, time.Now()); err == nil {
		t.Error("a group that does not exist was resized")
	}
	_ = next.end()
}
