// Package secretstoretest is the conformance suite that every back end of secretstore must pass.
package secretstoretest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// Run checks one back end. The function open opens the same empty store twice, as two processes would do.
func Run(t *testing.T, open func(t *testing.T) (a, b secretstore.Store)) {
	for name, test := range map[string]func(t *testing.T, a, b secretstore.Store){
		"missing":         missing,
		"put and get":     putAndGet,
		"create once":     createOnce,
		"racing creators": racingCreators,
		"delete":          remove,
		"list":            list,
		"invalid":         invalid,
		"ended context":   endedContext,
		"memory":          memory,
	} {
		t.Run(name, func(t *testing.T) {
			a, b := open(t)
			test(t, a, b)
		})
	}
}

func put(t *testing.T, s secretstore.Store, name, content string, cond secretstore.Condition) {
	t.Helper()
	if err := s.Put(t.Context(), name, secretstore.NewValue([]byte(content)), cond); err != nil {
		t.Fatal(err)
	}
}

func want(t *testing.T, s secretstore.Store, name, content string) {
	t.Helper()
	secret, err := s.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(secret.Value.Reveal()); got != content || secret.Name != name {
		t.Errorf("secret %q is %q, want %q", secret.Name, got, content)
	}
}

func wantMissing(t *testing.T, s secretstore.Store, name string) {
	t.Helper()
	if secret, err := s.Get(t.Context(), name); !errors.Is(err, secretstore.ErrNotFound) || secret.Value.Len() != 0 {
		t.Errorf("secret %q: %v, %v, want ErrNotFound", name, secret, err)
	}
}

func missing(t *testing.T, a, b secretstore.Store) {
	wantMissing(t, a, "x")
	if names, err := a.List(t.Context()); err != nil || len(names) != 0 {
		t.Errorf("names %v, %v", names, err)
	}
	if err := a.Delete(t.Context(), "x"); err != nil {
		t.Error(err)
	}
}

func putAndGet(t *testing.T, a, b secretstore.Store) {
	binary := make([]byte, 256)
	for i := range binary {
		binary[i] = byte(i)
	}
	for name, content := range map[string]string{
		"text": "correct horse", "binary": string(binary), "latin": "gr\xfc\xdfe", "nul": "a\x00b",
		"line": "a\r\nb\n", "Dots.and-dashes_9": "x",
		"json":                   `{"a":"b"}`,
		strings.Repeat("n", 128): "long name", "large": strings.Repeat("x", 4000),
	} {
		put(t, a, name, content, secretstore.Any)
		want(t, a, name, content)
		want(t, b, name, content)
		put(t, b, name, content+"2", secretstore.Any)
		want(t, a, name, content+"2")
	}
	wantMissing(t, a, "Text") // names are case-sensitive
}

func createOnce(t *testing.T, a, b secretstore.Store) {
	put(t, a, "x", "first", secretstore.IfAbsent)
	if err := b.Put(t.Context(), "x", secretstore.NewValue([]byte("second")), secretstore.IfAbsent); !errors.Is(err,
		secretstore.ErrExists) {
		t.Errorf("second creation: %v", err)
	}
	// A second creation fails, even with the same content and by the same caller.
	if err := a.Put(t.Context(), "x", secretstore.NewValue([]byte("first")), secretstore.IfAbsent); !errors.Is(err,
		secretstore.ErrExists) {
		t.Errorf("the same creation again: %v", err)
	}
	want(t, b, "x", "first")
}

func racingCreators(t *testing.T, a, b secretstore.Store) {
	const racers = 8
	errs := make([]error, racers)
	var wg sync.WaitGroup
	for i := range racers {
		wg.Go(func() {
			errs[i] = []secretstore.Store{a, b}[i%2].Put(t.Context(), "x",
				secretstore.NewValue(fmt.Append(nil, "racer ", i)), secretstore.IfAbsent)
		})
	}
	wg.Wait()
	winner := slices.IndexFunc(errs, func(err error) bool { return err == nil })
	if winner < 0 {
		t.Fatal("no writer won:", errs)
	}
	for i, err := range errs {
		if i != winner && !errors.Is(err, secretstore.ErrExists) {
			t.Errorf("racer %d: %v (racer %d won)", i, err, winner)
		}
	}
	want(t, a, "x", fmt.Sprint("racer ", winner))
	want(t, b, "x", fmt.Sprint("racer ", winner))
}

func remove(t *testing.T, a, b secretstore.Store) {
	put(t, a, "x", "1", secretstore.Any)
	put(t, a, "x.y", "2", secretstore.Any)
	for range 2 {
		if err := b.Delete(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
		wantMissing(t, a, "x")
	}
	want(t, a, "x.y", "2")
	put(t, a, "x", "3", secretstore.IfAbsent)
	want(t, b, "x", "3")
}

func list(t *testing.T, a, b secretstore.Store) {
	var names []string
	for i := range 25 {
		name := fmt.Sprintf("n%d.key", (i*7)%25)
		names = append(names, name)
		put(t, []secretstore.Store{a, b}[i%2], name, "x", secretstore.Any)
	}
	slices.Sort(names)
	if got, err := a.List(t.Context()); err != nil || !slices.Equal(got, names) {
		t.Errorf("names %q, %v, want %q", got, err, names)
	}
}

// Prefixes checks that a store lists only its own secrets. open opens a store with a prefix in the same empty service
// each time it is called.
func Prefixes(t *testing.T, open func(prefix string) secretstore.Store) {
	stores := map[string]secretstore.Store{"x": open("a/"), "y": open("a/b/"), "z": open("")}
	for name, store := range stores {
		put(t, store, name, "of "+name, secretstore.IfAbsent)
	}
	for name, store := range stores {
		if names, err := store.List(t.Context()); err != nil || !slices.Equal(names, []string{name}) {
			t.Errorf("names %q, %v, want %q", names, err, name)
		}
	}
}

func invalid(t *testing.T, a, b secretstore.Store) {
	value := secretstore.NewValue([]byte("x"))
	for _, name := range []string{"", "a/b", "../x", ".x", "x.", "a b", "ä", strings.Repeat("n", 129)} {
		if err := a.Put(t.Context(), name, value, secretstore.Any); !errors.Is(err, secretstore.ErrInvalid) {
			t.Errorf("put %q: %v", name, err)
		}
		if _, err := a.Get(t.Context(), name); !errors.Is(err, secretstore.ErrInvalid) {
			t.Errorf("get %q: %v", name, err)
		}
		if err := a.Delete(t.Context(), name); !errors.Is(err, secretstore.ErrInvalid) {
			t.Errorf("delete %q: %v", name, err)
		}
	}
	for name, err := range map[string]error{
		"no condition": a.Put(t.Context(), "x", value, 0),
		"no value":     a.Put(t.Context(), "x", secretstore.Value{}, secretstore.Any),
		"empty":        a.Put(t.Context(), "x", secretstore.NewValue(nil), secretstore.Any),
		"too large": a.Put(t.Context(), "x", secretstore.NewValue(make([]byte, secretstore.MaxValue+1)),
			secretstore.Any),
	} {
		if !errors.Is(err, secretstore.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if names, err := a.List(t.Context()); err != nil || len(names) != 0 {
		t.Errorf("something was stored: %q, %v", names, err)
	}
}

func endedContext(t *testing.T, a, b secretstore.Store) {
	put(t, a, "x", "1", secretstore.Any)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Get(ctx, "y"); err == nil || errors.Is(err, secretstore.ErrNotFound) {
		t.Errorf("get: %v: nothing was asked, so nothing is known", err)
	}
	if err := a.Put(ctx, "x", secretstore.NewValue([]byte("2")), secretstore.Any); err == nil {
		t.Error("put under an ended context")
	}
	if err := a.Put(ctx, "x", secretstore.NewValue([]byte("2")), secretstore.IfAbsent); err == nil {
		t.Error("creation under an ended context")
	}
	if err := a.Delete(ctx, "x"); err == nil {
		t.Error("delete under an ended context")
	}
	if _, err := a.List(ctx); err == nil {
		t.Error("list under an ended context")
	}
	want(t, b, "x", "1")
}

func memory(t *testing.T, a, b secretstore.Store) {
	content := []byte("original")
	value := secretstore.NewValue(content)
	copy(content, "changed!")
	if err := a.Put(t.Context(), "x", value, secretstore.Any); err != nil {
		t.Fatal(err)
	}
	secret, err := a.Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if got := secret.Value.Reveal(); !bytes.Equal(got, []byte("original")) {
		t.Errorf("stored %q", got)
	} else {
		copy(got, "changed!")
	}
	want(t, a, "x", "original")
}
