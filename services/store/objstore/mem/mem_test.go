package mem_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
	"github.com/nstance-kit/nstance/services/store/objstore/objstoretest"
)

func TestConformance(t *testing.T) {
	objstoretest.Run(t, func(*testing.T) objstore.Store { return mem.New() })
}

// script maps the number of a request to the fault that this request gets.
type script map[uint64]mem.Fault

func (s script) inject(_ context.Context, req mem.Request) mem.Fault { return s[req.Seq] }

func get(t *testing.T, s *mem.Store, key string) string {
	t.Helper()
	obj, err := s.Get(t.Context(), key)
	if errors.Is(err, objstore.ErrNotFound) {
		return "(none)"
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(obj.Body)
}

func TestLostResponse(t *testing.T) {
	s := mem.New(mem.Options{Inject: script{1: {Lost: true}, 3: {Lost: true}}.inject})
	if _, err := s.Put(t.Context(), "k", []byte("x"), objstore.IfAbsent()); !errors.Is(err, objstore.ErrIndeterminate) {
		t.Errorf("put: %v", err)
	}
	if got := get(t, s, "k"); got != "x" {
		t.Errorf("after a lost response: %s", got)
	}
	if err := s.Delete(t.Context(), "k"); err == nil {
		t.Error("delete with a lost response succeeded")
	}
	if got := get(t, s, "k"); got != "(none)" {
		t.Errorf("after a lost response to delete: %s", got)
	}
}

func TestErrorsHaveNoEffect(t *testing.T) {
	boom := errors.New("boom")
	s := mem.New(mem.Options{Inject: script{1: {Err: boom}, 2: {Err: objstore.ErrIndeterminate}}.inject})
	for _, want := range []error{boom, objstore.ErrIndeterminate} {
		if _, err := s.Put(t.Context(), "k", []byte("x"), objstore.Always()); !errors.Is(err, want) {
			t.Errorf("put: %v, want %v", err, want)
		}
	}
	if got := get(t, s, "k"); got != "(none)" {
		t.Errorf("a failed put wrote %s", got)
	}
}

func TestLateWrites(t *testing.T) {
	put := func(s *mem.Store, body string, cond objstore.Condition) error {
		_, err := s.Put(t.Context(), "k", []byte(body), cond)
		return err
	}
	t.Run("lands after so many requests", func(t *testing.T) {
		s := mem.New(mem.Options{Inject: script{1: {Late: 2}}.inject})
		if err := put(s, "late", objstore.IfAbsent()); !errors.Is(err, objstore.ErrIndeterminate) {
			t.Fatalf("put: %v", err)
		}
		got := []string{get(t, s, "k"), get(t, s, "k"), get(t, s, "k")}
		if diff := cmp.Diff([]string{"(none)", "(none)", "late"}, got); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("write completes when released", func(t *testing.T) {
		s := mem.New(mem.Options{Inject: script{1: {Late: mem.Held}}.inject})
		if err := put(s, "late", objstore.Always()); !errors.Is(err, objstore.ErrIndeterminate) {
			t.Fatalf("put: %v", err)
		}
		if got := get(t, s, "k"); got != "(none)" || s.Pending() != 1 {
			t.Errorf("before: %s, %d pending", got, s.Pending())
		}
		if n := s.Land(); n != 1 || s.Pending() != 0 {
			t.Errorf("landed %d, %d pending", n, s.Pending())
		}
		if got := get(t, s, "k"); got != "late" {
			t.Errorf("after: %s", got)
		}
	})
	t.Run("does not land against its condition", func(t *testing.T) {
		s := mem.New(mem.Options{Inject: script{1: {Late: mem.Held}}.inject})
		if err := put(s, "late", objstore.IfAbsent()); !errors.Is(err, objstore.ErrIndeterminate) {
			t.Fatalf("put: %v", err)
		}
		if err := put(s, "other", objstore.IfAbsent()); err != nil {
			t.Fatal(err)
		}
		if n := s.Land(); n != 0 {
			t.Errorf("landed %d", n)
		}
		if got := get(t, s, "k"); got != "other" {
			t.Errorf("after: %s", got)
		}
	})
	t.Run("a delete lands late", func(t *testing.T) {
		s := mem.New(mem.Options{Inject: script{2: {Late: 1}}.inject})
		if err := put(s, "x", objstore.IfAbsent()); err != nil {
			t.Fatal(err)
		}
		if err := s.Delete(t.Context(), "k"); err == nil {
			t.Error("a late delete succeeded")
		}
		if got := []string{get(t, s, "k"), get(t, s, "k")}; got[0] != "x" || got[1] != "(none)" {
			t.Errorf("%q", got)
		}
	})
}

func TestStaleLists(t *testing.T) {
	stale := 0
	s := mem.New(mem.Options{Inject: func(context.Context, mem.Request) mem.Fault { return mem.Fault{Stale: stale} }})
	list := func(behind int) map[string]int64 {
		stale = behind
		entries, err := s.List(t.Context(), "p/")
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]int64{}
		for i, e := range entries {
			got[e.Key] = e.Size
			if i > 0 && entries[i-1].Key >= e.Key {
				t.Errorf("not sorted: %v", entries)
			}
		}
		return got
	}
	states := []map[string]int64{{}}
	write := func(key, body string) {
		if body == "" {
			if err := s.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		} else if _, err := s.Put(t.Context(), key, []byte(body), objstore.Always()); err != nil {
			t.Fatal(err)
		}
		states = append(states, list(0))
	}
	write("p/b", "1")
	write("p/a", "1")
	write("p/b", "22")
	write("q/x", "333")
	write("p/a", "")
	write("p/b", "")
	write("p/a", "4444")
	write("q/x", "4")
	for i := range states {
		behind := len(states) - 1 - i
		if i == 0 {
			behind = 256 // more than there are
		}
		if diff := cmp.Diff(states[i], list(behind)); diff != "" {
			t.Errorf("%d writes ago (-want +got):\n%s", behind, diff)
		}
	}
}

func TestInjectedWaits(t *testing.T) {
	var slept []time.Duration
	ended := errors.New("ended")
	s := mem.New(mem.Options{
		Inject: script{1: {Before: 1, After: 2}, 2: {Before: 3, After: 4}, 4: {Before: 4}}.inject,
		Sleep: func(_ context.Context, d time.Duration) error {
			slept = append(slept, d)
			if d == 4 {
				return ended
			}
			return nil
		},
	})
	put := func(body string) error {
		_, err := s.Put(t.Context(), "k", []byte(body), objstore.Always())
		return err
	}
	if err := put("one"); err != nil {
		t.Error(err)
	}
	if err := put("two"); !errors.Is(err, objstore.ErrIndeterminate) || !errors.Is(err, ended) {
		t.Errorf("put that ended after its effect: %v", err)
	}
	if got := get(t, s, "k"); got != "two" {
		t.Errorf("after: %s", got)
	}
	if err := put("three"); !errors.Is(err, objstore.ErrIndeterminate) {
		t.Errorf("put that ended before its effect: %v", err)
	}
	if got := get(t, s, "k"); got != "two" {
		t.Errorf("after: %s", got)
	}
	if diff := cmp.Diff([]time.Duration{1, 2, 3, 4, 4}, slept); diff != "" {
		t.Error(diff)
	}
}

func TestClock(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := mem.New(mem.Options{Now: func() time.Time { return at }})
	if _, err := s.Put(t.Context(), "k", nil, objstore.Always()); err != nil {
		t.Fatal(err)
	}
	entries, err := s.List(t.Context(), "")
	if err != nil || len(entries) != 1 || !entries[0].Modified.Equal(at) {
		t.Errorf("list = %v, %v", entries, err)
	}
}
