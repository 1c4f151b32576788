package server

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/journal"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// checkEndOfTerm checks that the journal says why a term ended.
func checkEndOfTerm(t *testing.T, store objstore.Store, term uint64, want string) {
	t.Helper()
	parts, err := journal.ListParts(t.Context(), store, "a", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range parts {
		events, err := journal.ReadPart(t.Context(), store, part)
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(events, func(e record.Event) bool {
			return e.Term == term && e.Kind == record.EventLeaderEnded && strings.Contains(e.Message, want)
		}) {
			return
		}
	}
	t.Errorf("the journal of term %d does not say that it ended because of %q", term, want)
}

// TestJournal checks that a term's events are in the bucket after a clean stop. They include the start and end of the
// leadership, the configuration, and the life of the instances.
func TestJournal(t *testing.T) {
	r := newTestShard(t)
	r.configure(nil)
	p := r.start(testKey)
	p.await("two VMs", func() bool { return r.running() == 2 })
	if err := p.end(); err != nil {
		t.Fatal(err)
	}
	parts, err := journal.ListParts(t.Context(), r.bucket, "a", time.Now())
	if err != nil || len(parts) != 1 {
		t.Fatalf("%d parts, %v, want one", len(parts), err)
	}
	events, err := journal.ReadPart(t.Context(), r.bucket, parts[0])
	if err != nil {
		t.Fatal(err)
	}
	count := map[record.EventKind]int{}
	for n, e := range events {
		count[e.Kind]++
		if e.Sequence != uint64(n+1) || e.Term != 1 {
			t.Errorf("event %d is %d-%d", n+1, e.Term, e.Sequence)
		}
	}
	for kind, want := range map[record.EventKind]int{record.EventLeaderStarted: 1, record.EventConfigApplied: 1,
		record.EventInstanceCreating: 2, record.EventLeaderEnded: 1} {
		if count[kind] != want {
			t.Errorf("%d events of kind %s, want %d, in %v", count[kind], kind, want, events)
		}
	}
	if !slices.ContainsFunc(events, func(e record.Event) bool {
		return e.Kind == record.EventInstanceCreating && e.Tenant != "" && e.Group != "" && e.Message != ""
	}) {
		t.Errorf("no create has its group and its reason: %v", events)
	}
}

// TestSizesAreRecordedWhenTheyChange checks that the journal gets the size of a group once, and again after a change.
func TestSizesAreRecordedWhenTheyChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := shardstate.New(shardstate.Options{Term: 1, Now: time.Now, Wake: func() {}})
		key := config.GroupKey{Tenant: ident.DefaultTenant, Group: "workers"}
		configure := func(size int) {
			state.Configure((&config.Shard{}).WithDefaults(),
				map[config.GroupKey]config.Group{key: {GroupKey: key, Kind: "wrk", Size: size, MaxSurge: 1}})
		}
		configure(3)
		ctx, cancel := context.WithCancel(t.Context())
		var events []record.Event
		go journalSizes(ctx, state, func(e record.Event) { events = append(events, e) })
		time.Sleep(3*sizeInterval + time.Second)
		configure(4)
		time.Sleep(3 * sizeInterval)
		cancel()
		synctest.Wait()
		if len(events) != 2 || events[0].Size.Desired != 3 || events[1].Size.Desired != 4 ||
			events[1].Group != "workers" || events[1].Message != "desired 4, actual 0, healthy 0" {
			t.Errorf("%+v", events)
		}
	})
}
