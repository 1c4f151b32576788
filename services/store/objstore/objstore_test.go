package objstore_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
	"github.com/nstance-kit/nstance/services/store/objstore/objstoretest"
)

func TestConditionHolds(t *testing.T) {
	for _, test := range []struct {
		cond                    objstore.Condition
		absent, current, other  bool
		conditional, wantAbsent bool
	}{
		{cond: objstore.Condition{}, conditional: true},
		{cond: objstore.Always(), absent: true, current: true, other: true},
		{cond: objstore.IfAbsent(), absent: true, conditional: true, wantAbsent: true},
		{cond: objstore.IfToken("t"), current: true, conditional: true},
		{cond: objstore.IfToken(""), conditional: true},
	} {
		got := []bool{
			test.cond.Holds("", false), test.cond.Holds("t", true), test.cond.Holds("u", true), test.cond.Conditional(),
			test.cond.Absent(),
		}
		want := []bool{test.absent, test.current, test.other, test.conditional, test.wantAbsent}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: absent, current, other, conditional, absent (-want +got):\n%s", test.cond, diff)
		}
	}
	if token, ok := objstore.IfToken("t").Token(); token != "t" || !ok {
		t.Errorf("Token() = %q, %v", token, ok)
	}
	if _, ok := objstore.IfAbsent().Token(); ok {
		t.Error("IfAbsent has a token")
	}
}

// liar changes conditions before they reach a store.
type liar struct {
	objstore.Store
	change func(key string, cond objstore.Condition) objstore.Condition
}

func (l liar) Put(ctx context.Context, key string, body []byte, cond objstore.Condition) (objstore.Token, error) {
	return l.Store.Put(ctx, key, body, l.change(key, cond))
}

// firstToken keeps the token of the object that Put creates.
type firstToken struct {
	objstore.Store
	token atomic.Value
}

func (f *firstToken) Put(ctx context.Context, key string, body []byte, cond objstore.Condition) (objstore.Token,
	error) {
	token, err := f.Store.Put(ctx, key, body, cond)
	if err == nil && cond.Absent() {
		f.token.Store(token)
	}
	return token, err
}

func TestProbeRejects(t *testing.T) {
	var store *firstToken
	for name, change := range map[string]func(string, objstore.Condition) objstore.Condition{
		"ignores all conditions": func(string, objstore.Condition) objstore.Condition { return objstore.Always() },
		"ignores if absent": func(_ string, c objstore.Condition) objstore.Condition {
			if c.Absent() {
				return objstore.Always()
			}
			return c
		},
		"ignores if token": func(_ string, c objstore.Condition) objstore.Condition {
			if !c.Absent() {
				return objstore.Always()
			}
			return c
		},
		"refuses every token": func(_ string, c objstore.Condition) objstore.Condition {
			if !c.Absent() {
				return objstore.IfToken("never")
			}
			return c
		},
		"refuses to create an object again": func(_ string, c objstore.Condition) objstore.Condition {
			if c.Absent() && store.token.Load() != nil {
				return objstore.IfToken("never")
			}
			return c
		},
		"takes a token that was current once": func(_ string, c objstore.Condition) objstore.Condition {
			token, _ := c.Token()
			if store.token.Load() == token {
				return objstore.Always()
			}
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			store = &firstToken{Store: mem.New()}
			err := objstore.Probe(t.Context(), liar{Store: store, change: change}, "probe/n")
			if !errors.Is(err, objstore.ErrUnconditional) {
				t.Fatalf("error = %v", err)
			}
			if text := err.Error(); !strings.Contains(text, "use a store with conditional writes") ||
				strings.Contains(text, "%!") {
				t.Errorf("the message does not say what to do: %v", err)
			}
			if entries, err := store.List(t.Context(), ""); err != nil || len(entries) != 0 {
				t.Errorf("left behind: %v, %v", entries, err)
			}
		})
	}
}

// creator is a store whose Put ignores the condition if there is no object.
type creator struct{ objstore.Store }

func (c creator) Put(ctx context.Context, key string, body []byte, cond objstore.Condition) (objstore.Token, error) {
	if _, err := c.Get(ctx, key); errors.Is(err, objstore.ErrNotFound) {
		cond = objstore.Always()
	}
	return c.Store.Put(ctx, key, body, cond)
}

// forgetful acknowledges replacements but does not store them.
type forgetful struct{ objstore.Store }

func (f forgetful) Put(ctx context.Context, key string, body []byte, cond objstore.Condition) (objstore.Token, error) {
	obj, err := f.Get(ctx, key)
	if err == nil && cond.Holds(obj.Token, true) {
		return "acknowledged", nil
	}
	return f.Store.Put(ctx, key, body, cond)
}

// mislabelling replaces objects, but its Put returns a wrong token. A condition with that token never holds.
type mislabelling struct{ objstore.Store }

func (m mislabelling) Put(ctx context.Context, key string, body []byte, cond objstore.Condition) (objstore.Token,
	error) {
	token, err := m.Store.Put(ctx, key, body, cond)
	if err == nil && !cond.Absent() {
		token += "-1"
	}
	return token, err
}

// garbling stores other bytes than it got, but with the token that it returns.
type garbling struct{ objstore.Store }

func (g garbling) Put(ctx context.Context, key string, body []byte, cond objstore.Condition) (objstore.Token, error) {
	return g.Store.Put(ctx, key, append(body, '!'), cond)
}

func TestProbeRejectsOddStores(t *testing.T) {
	for _, store := range []objstore.Store{creator{mem.New()}, forgetful{mem.New()}, mislabelling{mem.New()},
		garbling{mem.New()}} {
		if err := objstore.Probe(t.Context(), store, "probe/n"); !errors.Is(err, objstore.ErrUnconditional) {
			t.Errorf("%T: error = %v", store, err)
		}
		if entries, err := store.List(t.Context(), ""); err != nil || len(entries) != 0 {
			t.Errorf("%T left behind: %v, %v", store, entries, err)
		}
	}
}

// hasty is a store that checks conditions before it writes, so concurrent puts can all pass the check.
type hasty struct {
	objstore.Store
	absent bool // only creations are hasty; otherwise only replacements

	mu      sync.Mutex
	waiting int
	pass    chan struct{}
}

// hurry is the number of concurrent puts that hasty lets pass the check together.
const hurry = 2

func (h *hasty) Put(ctx context.Context, key string, body []byte, cond objstore.Condition) (objstore.Token, error) {
	obj, err := h.Get(ctx, key)
	if cond.Absent() != h.absent || !bytes.Contains(body, []byte("in a race")) || !cond.Holds(obj.Token, err == nil) {
		return h.Store.Put(ctx, key, body, cond)
	}
	h.mu.Lock()
	h.waiting++
	if h.waiting == hurry {
		close(h.pass)
	}
	h.mu.Unlock()
	<-h.pass
	return h.Store.Put(ctx, key, body, objstore.Always())
}

// TestProbeRaces checks that a store is refused if it honors the condition of a single put, but not the conditions of
// concurrent puts.
func TestProbeRaces(t *testing.T) {
	for _, absent := range []bool{true, false} {
		store := &hasty{Store: mem.New(), absent: absent, pass: make(chan struct{})}
		err := objstore.Probe(t.Context(), store, "probe/n")
		if !errors.Is(err, objstore.ErrUnconditional) || !strings.Contains(err.Error(), "concurrent puts succeeded") {
			t.Errorf("absent %v: error = %v", absent, err)
		}
		if entries, err := store.List(t.Context(), ""); err != nil || len(entries) != 0 {
			t.Errorf("absent %v: left behind: %v, %v", absent, entries, err)
		}
	}
}

// TestProbeReportsTrouble checks that an error at any step proves nothing about the bucket. Probe ignores the error of
// a concurrent put, and returns any other error unchanged.
func TestProbeReportsTrouble(t *testing.T) {
	var steps atomic.Uint64
	count := mem.New(mem.Options{Inject: func(context.Context, mem.Request) mem.Fault {
		steps.Add(1)
		return mem.Fault{}
	}})
	if err := objstore.Probe(t.Context(), count, "probe/n"); err != nil {
		t.Fatal(err)
	}
	for step := uint64(1); step <= steps.Load(); step++ {
		var racing atomic.Bool
		store := mem.New(mem.Options{Inject: func(_ context.Context, r mem.Request) mem.Fault {
			if r.Seq != step {
				return mem.Fault{}
			}
			racing.Store(bytes.Contains(r.Body, []byte("in a race")))
			return mem.Fault{Err: errBoom}
		}})
		err := objstore.Probe(t.Context(), store, "probe/n")
		if !errors.Is(err, errBoom) && (err != nil || !racing.Load()) || errors.Is(err, objstore.ErrUnconditional) {
			t.Errorf("step %d of %d: error = %v", step, steps.Load(), err)
		}
	}
}

// TestProbeReportsFailedRaces fails all concurrent puts of a race. Without a put that must succeed and does not, that
// proves nothing about the bucket.
func TestProbeReportsFailedRaces(t *testing.T) {
	for name, test := range map[string]struct {
		race, alone error // of the concurrent puts, and of the put after them
		rival       bool  // writes during the race
		want        string
	}{
		"no put reaches the store":              {errBoom, nil, false, "boom"},
		"each put conflicts with another":       {objstore.ErrConflict, nil, false, "none of 32"},
		"another writer is faster":              {objstore.ErrConflict, nil, true, "none of 32"},
		"the put after the conflicts is lost":   {objstore.ErrConflict, objstore.ErrIndeterminate, false, "none of 32"},
		"the put after the conflicts is barred": {objstore.ErrConflict, errBoom, false, "none of 32"},
	} {
		var store *mem.Store
		var rival sync.Once
		store = mem.New(mem.Options{Inject: func(ctx context.Context, r mem.Request) mem.Fault {
			switch {
			case bytes.Contains(r.Body, []byte("in a race")):
				if test.rival {
					rival.Do(func() { _, _ = store.Put(ctx, r.Key, []byte("rival"), objstore.Always()) })
				}
				return mem.Fault{Err: test.race}
			case bytes.Contains(r.Body, []byte("alone")):
				return mem.Fault{Err: test.alone}
			}
			return mem.Fault{}
		}})
		err := objstore.Probe(t.Context(), store, "probe/n")
		if err == nil || errors.Is(err, objstore.ErrUnconditional) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error = %v, want %q", name, err, test.want)
		}
	}
}

// undeletable is a store that deletes nothing.
type undeletable struct{ objstore.Store }

func (undeletable) Delete(context.Context, string) error { return errBoom }

// TestProbeReportsTheCause checks that a failed removal of the object does not hide that the store is unconditional.
func TestProbeReportsTheCause(t *testing.T) {
	store := undeletable{forgetful{mem.New()}}
	if err := objstore.Probe(t.Context(), store, "probe/n"); !errors.Is(err, objstore.ErrUnconditional) {
		t.Errorf("error = %v", err)
	}
}

func TestWithPrefixConformance(t *testing.T) {
	objstoretest.Run(t, func(*testing.T) objstore.Store { return objstore.WithPrefix(mem.New(), "some/where") })
	if store := mem.New(); objstore.WithPrefix(store, "/") != objstore.Store(store) {
		t.Error("an empty prefix wraps")
	}
}

func TestWithTimeout(t *testing.T) {
	var left []time.Duration
	now := time.Now()
	store := objstore.WithTimeout(mem.New(mem.Options{
		Inject: func(ctx context.Context, _ mem.Request) mem.Fault {
			deadline, _ := ctx.Deadline()
			left = append(left, deadline.Sub(now).Round(time.Hour))
			return mem.Fault{Before: 1}
		},
		Sleep: func(context.Context, time.Duration) error { return context.DeadlineExceeded },
	}), time.Hour, 2*time.Hour)
	_, gerr := store.Get(t.Context(), "k")
	_, perr := store.Put(t.Context(), "k", nil, objstore.IfAbsent())
	derr := store.Delete(t.Context(), "k")
	_, lerr := store.List(t.Context(), "")
	for _, err := range []error{gerr, perr, derr, lerr} {
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error = %v", err)
		}
	}
	if !errors.Is(perr, objstore.ErrIndeterminate) {
		t.Errorf("put that timed out: %v", perr)
	}
	if diff := cmp.Diff([]time.Duration{time.Hour, time.Hour, time.Hour, 2 * time.Hour}, left); diff != "" {
		t.Error(diff)
	}
}

func TestWithTimeoutConformance(t *testing.T) {
	objstoretest.Run(t, func(*testing.T) objstore.Store {
		return objstore.WithTimeout(mem.New(), time.Hour, time.Hour)
	})
}

func TestCounted(t *testing.T) {
	ctx := t.Context()
	store := objstoretest.NewCounted(mem.New(mem.Options{Inject: func(_ context.Context, r mem.Request) mem.Fault {
		if r.Key == "bad" {
			return mem.Fault{Err: errBoom}
		}
		return mem.Fault{}
	}}))
	for range 3 {
		_, _ = store.Put(ctx, "k", nil, objstore.IfAbsent()) // the first succeeds, the others conflict
	}
	before := store.Counts()
	if diff := cmp.Diff(objstoretest.Counts{Put: 3}, before); diff != "" {
		t.Error(diff)
	}
	_, _ = store.Get(ctx, "k")
	_, _ = store.Get(ctx, "none")
	_, _ = store.Get(ctx, "bad")
	_, _ = store.Get(ctx, "bad")
	_, _ = store.Put(ctx, "bad", nil, objstore.Always())
	_ = store.Delete(ctx, "k")
	_ = store.Delete(ctx, "bad")
	_, _ = store.List(ctx, "")
	_, _ = store.List(ctx, "bad")
	got := store.Counts().Sub(before)
	if diff := cmp.Diff(objstoretest.Counts{Get: 4, Put: 1, Delete: 2, List: 2, Failed: 5}, got); diff != "" {
		t.Error(diff)
	}
	if _, err := store.Get(ctx, "bad"); err == nil {
		t.Error("the error of the store is dropped")
	}
	if got.Total() != 9 {
		t.Errorf("total = %d", got.Total())
	}
}

// TestValidatePut checks the longest keys and segments, and the first ones that are too long.
func TestValidatePut(t *testing.T) {
	long := strings.Repeat("s", 200)
	longest := strings.Repeat(long+"/", 5) + "0123456789abcdefghi"
	for key, valid := range map[string]bool{long: true, long + "s": false, longest: true, longest + "j": false,
		"": false} {
		if err := objstore.ValidatePut(key, objstore.Always()); errors.Is(err, objstore.ErrInvalid) == valid {
			t.Errorf("key of %d bytes: %v, want valid %v", len(key), err, valid)
		}
	}
}

func FuzzValidateKey(f *testing.F) {
	for _, key := range []string{"", "a", "a/b", "../a", "a//b", "a\x00", "\xff", "cluster/ca.crt"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if objstore.ValidateKey(key) != nil {
			return
		}
		for segment := range strings.SplitSeq(key, "/") {
			if segment == "" || segment == "." || segment == ".." {
				t.Errorf("%q is accepted", key)
			}
		}
	})
}
