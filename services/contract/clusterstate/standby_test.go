package clusterstate_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/clusterstate"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/objstore/mem"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// seen is one record as it was handed out.
type seen struct {
	ID       ident.ID
	Revision uint64
	Token    objstore.Token
}

// standbyShard is a bucket with records, a leader that writes them and a standby that copies them.
type standbyShard struct {
	t       *testing.T
	inject  func(mem.Request) mem.Fault
	counted *objstore.Counted
	leader  *clusterstate.State
	standby *clusterstate.Standby
	records map[int]record.Instance
	tokens  map[int]objstore.Token
	taken   int // how often it was taken over while it copied
}

func newStandbyShard(t *testing.T, n int) *standbyShard {
	s := &standbyShard{t: t, records: map[int]record.Instance{}, tokens: map[int]objstore.Token{}}
	bucket := mem.New(mem.Options{Inject: func(_ context.Context, r mem.Request) mem.Fault {
		if s.inject != nil {
			return s.inject(r)
		}
		return mem.Fault{}
	}})
	s.leader = open(t, bucket, 1)
	s.counted = objstore.NewCounted(bucket)
	s.standby = clusterstate.NewStandby(open(t, s.counted, 2))
	for i := range n {
		s.add(i)
	}
	return s
}

func (s *standbyShard) add(n int) {
	s.t.Helper()
	rec := reserved(s.t, n)
	s.write(n, rec, "")
}

func (s *standbyShard) write(n int, rec record.Instance, token objstore.Token) {
	s.t.Helper()
	token, err := s.leader.PutInstance(s.t.Context(), rec, token)
	if err != nil {
		s.t.Fatal(err)
	}
	s.records[n], s.tokens[n] = rec, token
}

func (s *standbyShard) create(n int) {
	s.t.Helper()
	s.write(n, created(s.t, s.records[n], 4, "w2"), s.tokens[n])
}

func (s *standbyShard) remove(n int) {
	s.t.Helper()
	if err := s.leader.DeleteInstance(s.t.Context(), s.records[n].Tenant, s.records[n].ID); err != nil {
		s.t.Fatal(err)
	}
	delete(s.records, n)
}

func (s *standbyShard) refresh() {
	s.t.Helper()
	before := s.counted.Counts().Get
	changed, err := s.standby.Refresh(s.t.Context(), 8)
	if err != nil {
		s.t.Fatal(err)
	}
	if n := int(s.counted.Counts().Get - before); s.inject == nil && s.taken == 0 && changed != n {
		s.t.Errorf("%d said to have changed, %d read", changed, n)
	}
}

// gets counts the records that do reads.
func (s *standbyShard) gets(do func()) uint64 {
	before := s.counted.Counts().Get
	do()
	return s.counted.Counts().Get - before
}

// load takes over, which must show what anybody else sees.
func (s *standbyShard) load() (spared int) {
	s.t.Helper()
	var want, got []seen
	collect := func(to *[]seen) func(record.Instance, objstore.Token) {
		return func(rec record.Instance, token objstore.Token) { *to = append(*to, seen{rec.ID, rec.Revision, token}) }
	}
	if err := s.leader.LoadInstances(s.t.Context(), collect(&want)); err != nil {
		s.t.Fatal(err)
	}
	spared, err := s.standby.LoadInstances(s.t.Context(), collect(&got))
	if err != nil {
		s.t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, sameID); diff != "" {
		s.t.Fatalf("the copy shows something else (-bucket +copy):\n%s", diff)
	}
	return spared
}

// Of a hundred records those that have changed since they were copied are read, and nothing else.
func TestStandby(t *testing.T) {
	s := newStandbyShard(t, 100)
	if n := s.gets(s.refresh); n != 100 {
		t.Errorf("the first copy took %d reads", n)
	}
	if n := s.gets(s.refresh); n != 0 {
		t.Errorf("a copy of what is known took %d reads", n)
	}
	s.create(3)
	s.create(4)
	s.remove(5)
	s.add(100)
	spared := 0
	if n := s.gets(func() { spared = s.load() }); n != 3 || spared != 97 {
		t.Errorf("%d reads, %d spared; want 3 and 97", n, spared)
	}
	// Who leads knows better than any copy.
	lists := s.counted.Counts().List
	if n := s.gets(s.refresh); n != 0 || s.counted.Counts().List != lists {
		t.Errorf("a copy beside the leader's own picture: %d reads, %d lists", n, s.counted.Counts().List-lists)
	}
	if n := s.gets(func() { spared = s.load() }); n != 100 || spared != 0 {
		t.Errorf("%d reads, %d spared: the copy was given up", n, spared)
	}
	s.standby.Reopen()
	if n := s.gets(s.refresh); n != 100 {
		t.Errorf("%d reads for a new copy", n)
	}
	s.create(7)
	if n := s.gets(s.refresh); n != 1 {
		t.Errorf("%d reads for what has changed", n)
	}
	if n := s.gets(func() { s.load() }); n != 0 {
		t.Errorf("%d reads although nothing has changed", n)
	}
}

func TestStandbyWithoutCopy(t *testing.T) {
	s := newStandbyShard(t, 3)
	if spared := s.load(); spared != 0 {
		t.Errorf("%d spared", spared)
	}
}

var errStandby = errors.New("told so")

// A load that fails keeps what is known for the next try; one record that cannot be read does not keep the others from being copied.
func TestStandbyAfterErrors(t *testing.T) {
	s := newStandbyShard(t, 10)
	bad := keys.Instance(shard, "prod", s.records[4].ID.Storage())
	s.inject = func(r mem.Request) mem.Fault {
		if r.Op == mem.Get && r.Key == bad {
			return mem.Fault{Err: errStandby}
		}
		return mem.Fault{}
	}
	if _, err := s.standby.Refresh(t.Context(), 8); !errors.Is(err, errStandby) {
		t.Errorf("refresh: %v", err)
	}
	if _, err := s.standby.LoadInstances(t.Context(), func(record.Instance, objstore.Token) { t.Error("took from an incomplete picture") }); !errors.Is(err, errStandby) {
		t.Errorf("load: %v", err)
	}
	s.inject = func(r mem.Request) mem.Fault {
		if r.Op == mem.List {
			return mem.Fault{Err: errStandby}
		}
		return mem.Fault{}
	}
	if _, err := s.standby.LoadInstances(t.Context(), func(record.Instance, objstore.Token) { t.Error("took from nothing") }); !errors.Is(err, errStandby) {
		t.Errorf("load without list: %v", err)
	}
	s.standby.Reopen()
	if _, err := s.standby.Refresh(t.Context(), 8); !errors.Is(err, errStandby) || !strings.Contains(err.Error(), "copy instances") {
		t.Errorf("refresh without list: %v", err)
	}
	s.inject = nil
	if n := s.gets(func() { s.load() }); n != 1 {
		t.Errorf("%d reads, want the one that had failed", n)
	}
}

// A server that becomes leader while it copies goes on with what it has, and the copying ends.
func TestStandbyTakenWhileItCopies(t *testing.T) {
	s := newStandbyShard(t, 20)
	read, spared := 0, 0
	s.inject = func(r mem.Request) mem.Fault {
		if r.Op == mem.Get {
			if read++; read == 6 {
				s.inject = nil
				s.taken++
				spared = s.load()
			}
		}
		return mem.Fault{}
	}
	if n := s.gets(s.refresh); n != 6+15 || spared != 5 {
		t.Errorf("%d reads, %d spared; want 6 of the copy, 15 of the leader, and 5", n, spared)
	}
	s.standby.Reopen()
	if n := s.gets(s.refresh); n != 20 {
		t.Errorf("%d reads for a new copy", n)
	}
}

// Whatever is written and removed between copies that are as old and as incomplete as it comes: in the end the copy shows what is there.
func TestStandbyShowsWhatIsThere(t *testing.T) {
	for seed := range uint64(40) {
		dice := rand.New(rand.NewPCG(seed, 1))
		s := newStandbyShard(t, 10)
		next := 10
		for range 200 {
			live := slices.Sorted(func(yield func(int) bool) {
				for n := range s.records {
					if !yield(n) {
						return
					}
				}
			})
			switch p := dice.IntN(20); {
			case p < 5:
				s.add(next)
				next++
			case p < 9 && len(live) > 0:
				if n := live[dice.IntN(len(live))]; s.records[n].State == record.Reserved {
					s.create(n)
				}
			case p < 11 && len(live) > 0:
				s.remove(live[dice.IntN(len(live))])
			case p < 14:
				stale, failing := dice.IntN(30), dice.IntN(3) == 0
				s.inject = func(r mem.Request) mem.Fault {
					if r.Op == mem.Get && failing && dice.IntN(4) == 0 {
						return mem.Fault{Err: errStandby}
					}
					return mem.Fault{Stale: stale}
				}
				_, _ = s.standby.Refresh(t.Context(), 8)
				s.inject = nil
			case p < 16:
				s.load()
			case p < 18:
				s.standby.Reopen()
			}
		}
		s.load()
	}
}
