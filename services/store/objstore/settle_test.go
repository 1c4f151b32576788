package objstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

var errBoom = errors.New("boom")

// TestSettle runs one sequence of requests per case. The requests are numbered from 1. The requests that set up the
// object have no numbers.
func TestSettle(t *testing.T) {
	lost, unclear, late := mem.Fault{Lost: true}, mem.Fault{Err: objstore.ErrIndeterminate}, mem.Fault{Late: mem.Held}
	for _, test := range []struct {
		name   string
		absent bool // no object at first; put if absent
		always bool
		faults map[uint64]mem.Fault
		rival  uint64 // number of the request before which another writer's put takes effect
		remove uint64 // number of the request before which another client deletes the object
		land   uint64 // number of the request before which delayed writes take effect
		sleeps int
		want   string // final content
		err    error
	}{
		{name: "no trouble", want: "ours"},
		{name: "no trouble, absent", absent: true, want: "ours"},
		{name: "the first attempt's conflict is a conflict", rival: 1, want: "rival", err: objstore.ErrConflict},
		{name: "the first attempt's definite error is final", faults: map[uint64]mem.Fault{1: {Err: errBoom}},
			want: "old", err: errBoom},
		{name: "lost response", faults: map[uint64]mem.Fault{1: lost}, want: "ours"},
		{name: "lost response, absent", absent: true, faults: map[uint64]mem.Fault{1: lost}, want: "ours"},
		{name: "lost response, always", always: true, faults: map[uint64]mem.Fault{1: lost}, want: "ours"},
		{name: "lost request", faults: map[uint64]mem.Fault{1: unclear}, sleeps: 1, want: "ours"},
		{name: "lost request, absent", absent: true, faults: map[uint64]mem.Fault{1: unclear}, sleeps: 1, want: "ours"},
		{name: "lost request, always", always: true, faults: map[uint64]mem.Fault{1: unclear}, sleeps: 1, want: "ours"},
		{name: "lost response, then a rival who saw it", faults: map[uint64]mem.Fault{1: lost}, rival: 2, want: "rival",
			err: objstore.ErrConflict},
		{name: "lost request, then a rival", faults: map[uint64]mem.Fault{1: unclear}, rival: 2, want: "rival",
			err: objstore.ErrConflict},
		{name: "a rival between the attempts", faults: map[uint64]mem.Fault{1: unclear}, rival: 3, sleeps: 1,
			want: "rival", err: objstore.ErrConflict},
		{name: "lost request, then the object goes", faults: map[uint64]mem.Fault{1: unclear}, remove: 2, want: "",
			err: objstore.ErrConflict},
		{name: "the write lands after the look", faults: map[uint64]mem.Fault{1: late}, land: 3, sleeps: 1,
			want: "ours"},
		{name: "the write lands before the look", faults: map[uint64]mem.Fault{1: late}, land: 2, want: "ours"},
		{name: "the write lands after the look, absent", absent: true, faults: map[uint64]mem.Fault{1: late}, land: 3,
			sleeps: 1, want: "ours"},
		{name: "reads fail for a while", faults: map[uint64]mem.Fault{1: lost, 2: {Err: errBoom}, 4: {Err: errBoom}},
			sleeps: 2, want: "ours"},
		{name: "later definite errors decide nothing", faults: map[uint64]mem.Fault{1: unclear, 3: {Err: errBoom},
			5: {Err: errBoom}}, sleeps: 3, want: "ours"},
		{name: "everything gets lost", faults: map[uint64]mem.Fault{1: unclear, 3: lost}, sleeps: 1, want: "ours"},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, steps := context.Background(), func(uint64) {}
			store := mem.New(mem.Options{Inject: func(_ context.Context, r mem.Request) mem.Fault {
				steps(r.Seq)
				return test.faults[r.Seq-1]
			}})
			cond := objstore.IfAbsent()
			if test.absent {
				if _, err := store.Get(ctx, "k"); !errors.Is(err, objstore.ErrNotFound) {
					t.Fatal(err)
				}
			} else {
				token, err := store.Put(ctx, "k", []byte("old"), cond)
				if err != nil {
					t.Fatal(err)
				}
				cond = objstore.IfToken(token)
			}
			if test.always {
				cond = objstore.Always()
			}
			nested := false
			steps = func(seq uint64) {
				if nested {
					return
				}
				nested = true
				defer func() { nested = false }()
				switch seq - 1 {
				case test.rival:
					if _, err := store.Put(ctx, "k", []byte("rival"), objstore.Always()); err != nil {
						t.Error(err)
					}
				case test.remove:
					if err := store.Delete(ctx, "k"); err != nil {
						t.Error(err)
					}
				case test.land:
					if n := store.Land(); n != 1 {
						t.Errorf("%d writes landed", n)
					}
				}
			}
			var slept []time.Duration
			token, err := objstore.Settle(ctx, store, "k", []byte("ours"), cond,
				func(_ context.Context, d time.Duration) error {
					slept = append(slept, d)
					return nil
				})
			steps = func(uint64) {}
			if !errors.Is(err, test.err) || err != nil && test.err == nil {
				t.Errorf("error = %v, want %v", err, test.err)
			}
			if len(slept) != test.sleeps {
				t.Errorf("slept %v, want %d times", slept, test.sleeps)
			}
			obj, gerr := store.Get(ctx, "k")
			if gerr != nil && !errors.Is(gerr, objstore.ErrNotFound) {
				t.Fatal(gerr)
			}
			if string(obj.Body) != test.want {
				t.Errorf("object holds %q, want %q", obj.Body, test.want)
			}
			if err == nil && token != obj.Token {
				t.Errorf("token = %q, the object has %q", token, obj.Token)
			}
			// Let the writes that are still in progress take effect. They must not change the result.
			store.Land()
			if after, _ := store.Get(ctx, "k"); string(after.Body) != test.want {
				t.Errorf("after late writes: %q, want %q", after.Body, test.want)
			}
		})
	}
}

// TestSettleTakesAFirstConflict checks that a first conflict is final even if nothing has changed. Some stores report a
// conflict for overlapping writes.
func TestSettleTakesAFirstConflict(t *testing.T) {
	requests := 0
	store := mem.New(mem.Options{Inject: func(context.Context, mem.Request) mem.Fault {
		requests++
		return mem.Fault{Err: objstore.ErrConflict}
	}})
	_, err := objstore.Settle(t.Context(), store, "k", []byte("x"), objstore.IfAbsent(), nil)
	if !errors.Is(err, objstore.ErrConflict) || requests != 1 {
		t.Errorf("error = %v after %d requests", err, requests)
	}
}

func TestSettleEndsWithContext(t *testing.T) {
	for _, name := range []string{"while it sleeps", "behind the back of sleep"} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			store := mem.New(mem.Options{Inject: func(_ context.Context, r mem.Request) mem.Fault {
				if r.Seq == 5 {
					return mem.Fault{Err: errBoom} // the last error is definite, but the result is still unknown
				}
				return mem.Fault{Err: objstore.ErrIndeterminate}
			}})
			var slept []time.Duration
			_, err := objstore.Settle(ctx, store, "k", []byte("x"), objstore.IfAbsent(),
				func(ctx context.Context, d time.Duration) error {
					slept = append(slept, d)
					if len(slept) < 8 {
						return nil
					}
					cancel()
					if name == "while it sleeps" {
						return ctx.Err()
					}
					return nil
				})
			if !errors.Is(err, objstore.ErrIndeterminate) || !errors.Is(err, context.Canceled) {
				t.Errorf("error = %v", err)
			}
			want := []time.Duration{50e6, 100e6, 200e6, 400e6, 800e6, 1600e6, 2000e6, 2000e6}
			if diff := cmp.Diff(want, slept); diff != "" {
				t.Errorf("waits (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("with a definite error last", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		store := mem.New(mem.Options{Inject: func(_ context.Context, r mem.Request) mem.Fault {
			if r.Seq == 1 {
				return mem.Fault{Err: objstore.ErrIndeterminate}
			}
			return mem.Fault{Err: errBoom}
		}})
		waits := 0
		_, err := objstore.Settle(ctx, store, "k", []byte("x"), objstore.IfAbsent(),
			func(context.Context, time.Duration) error {
				if waits++; waits == 3 {
					cancel()
				}
				return nil
			})
		if !errors.Is(err, objstore.ErrIndeterminate) || !errors.Is(err, errBoom) {
			t.Errorf("error = %v", err)
		}
	})
}

// TestSettleIsExclusive lets writers with lost and late answers compete for one object, in every combination of three
// faults. The results of Settle must agree with the chain of versions that existed.
func TestSettleIsExclusive(t *testing.T) {
	faults := []mem.Fault{{}, {Lost: true}, {Err: objstore.ErrIndeterminate}, {Late: 1}, {Late: 2}, {Late: 5},
		{Late: mem.Held}}
	n := len(faults)
	for combination := range n * n * n {
		plan := []mem.Fault{faults[combination%n], faults[combination/n%n], faults[combination/n/n]}
		puts := 0
		store := mem.New(mem.Options{Inject: func(_ context.Context, r mem.Request) mem.Fault {
			if r.Op != mem.Put || puts >= len(plan) {
				return mem.Fault{}
			}
			puts++
			return plan[puts-1]
		}})
		ctx := t.Context()
		sleep := func(context.Context, time.Duration) error { return nil }
		won, token := "", objstore.Token("")
		for _, writer := range []string{"a", "b"} { // b does not know about a
			got, err := objstore.Settle(ctx, store, "k", []byte(writer), objstore.IfAbsent(), sleep)
			switch {
			case err == nil && won != "":
				t.Fatalf("plan %+v: %s and %s both created the object", plan, won, writer)
			case err == nil:
				won, token = writer, got
			case !errors.Is(err, objstore.ErrConflict):
				t.Fatalf("plan %+v: %s: %v", plan, writer, err)
			}
		}
		if won != "a" {
			t.Fatalf("plan %+v: %q won", plan, won)
		}
		if _, err := objstore.Settle(ctx, store, "k", []byte("c"), objstore.IfToken(token), sleep); err != nil {
			t.Fatalf("plan %+v: the owner cannot go on: %v", plan, err)
		}
		store.Land()
		if obj, err := store.Get(ctx, "k"); err != nil || string(obj.Body) != "c" {
			t.Fatalf("plan %+v: the object holds %q, %v", plan, obj.Body, err)
		}
	}
}

func TestSettleOnTheRealClock(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	store := mem.New(mem.Options{Inject: func(_ context.Context, r mem.Request) mem.Fault {
		if r.Seq > 2 {
			cancel()
		}
		return mem.Fault{Err: objstore.ErrIndeterminate}
	}})
	if _, err := objstore.Settle(ctx, store, "k", []byte("x"), objstore.IfAbsent(), nil); !errors.Is(err,
		context.Canceled) {
		t.Errorf("error = %v", err)
	}
	if store.Pending() != 0 {
		t.Error("pending writes")
	}
}
