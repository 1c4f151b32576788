package shard

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/bucket"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/base"
)

// TestRemoveChecksAgain checks that remove deletes nothing if the configuration was changed while the shard was
// emptied. It also checks that remove keeps the lock of a server that took over meanwhile.
func TestRemoveChecksAgain(t *testing.T) {
	const name = "dev-1"
	ctx := t.Context()
	at := objstore.Location{Provider: "file", Bucket: t.TempDir()}
	r := &Resource{Resource: base.Resource{Bucket: bucket.New(bucket.Settings{Storage: &at})}}
	store, err := r.Bucket.Store(ctx)
	if err != nil {
		t.Fatal(err)
	}
	state, err := r.Bucket.Shard(ctx, "example", name)
	if err != nil {
		t.Fatal(err)
	}
	seen, err := state.WriteConfig(ctx, name, []byte("terminating"), "")
	if err != nil {
		t.Fatal(err)
	}
	leader := &leaderWatch{state: state, shard: name}
	if err := leader.readLock(ctx); err != nil || !leader.leaderless() {
		t.Fatal("there is a leader", err)
	}
	changed, err := state.WriteConfig(ctx, name, []byte("used again"), seen)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Put(ctx, keys.Applied(name), []byte("x"), objstore.IfAbsent()); err != nil {
		t.Fatal(err)
	}
	lock, err := record.EncodeLock(record.Lock{LeaderID: "server-2", Incarnation: "incarnation-2", Term: 2,
		LeaseMS: 4000,
		RenewMS: 1000, Revision: 1, RenewedAt: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Put(ctx, keys.Leader(name), lock, objstore.IfAbsent()); err != nil {
		t.Fatal(err)
	}
	left := func() (out []string) {
		entries, err := store.List(ctx, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			out = append(out, entry.Key)
		}
		return out
	}
	before := left()
	if err := r.remove(ctx, leader, seen); err == nil || !strings.Contains(err.Error(), "was changed meanwhile") {
		t.Errorf("a configuration that was changed: %v", err)
	}
	if got := left(); !slices.Equal(got, before) {
		t.Errorf("left: %v, want %v", got, before)
	}
	if err := r.remove(ctx, leader, changed); err != nil {
		t.Error(err)
	}
	if got := left(); !slices.Equal(got, []string{keys.Leader(name)}) {
		t.Errorf("left: %v, want only the lock of the server that took over", got)
	}
}
