// Package objstoretest owns the conformance suite of object stores. Every back end must pass it.
package objstoretest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// Run runs the suite. open returns an empty store each time it is called, and registers its cleanup with t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) objstore.Store) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, objstore.Store)
	}{
		{"CRUD", testCRUD},
		{"EmptyBody", testEmptyBody},
		{"LargeBody", testLargeBody},
		{"Bytes", testBytesAreCopied},
		{"DeleteIsIdempotent", testDelete},
		{"Conditions", testConditions},
		{"InvalidRequests", testInvalid},
		{"EndedContext", testEndedContext},
		{"List", testList},
		{"Paging", testPaging},
		{"Layout", testLayout},
		{"RaceAbsent", testRaceAbsent},
		{"RaceToken", testRaceToken},
		{"ReadersSeeWholeObjects", testReaders},
		{"Settle", testSettle},
		{"Probe", testProbe},
		{"Prefix", testPrefix},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
	}
}

func put(t *testing.T, s objstore.Store, key, body string, cond objstore.Condition) objstore.Token {
	t.Helper()
	token, err := s.Put(t.Context(), key, []byte(body), cond)
	if err != nil {
		t.Fatalf("put %q %s: %v", key, cond, err)
	}
	if token == "" {
		t.Fatalf("put %q %s: no token", key, cond)
	}
	return token
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error = %v, want %v", what, err, want)
	}
}

// wantObject checks body and token of an object, in Get and in List.
func wantObject(t *testing.T, s objstore.Store, key, body string, token objstore.Token) {
	t.Helper()
	obj, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatalf("get %q: %v", key, err)
	}
	if obj.Key != key || string(obj.Body) != body || obj.Token != token {
		t.Errorf("get %q = %q, %.60q, token %q; want %.60q, token %q", key, obj.Key, obj.Body, obj.Token, body, token)
	}
	entries, err := s.List(t.Context(), key)
	if err != nil {
		t.Fatalf("list %q: %v", key, err)
	}
	at := slices.IndexFunc(entries, func(e objstore.Entry) bool { return e.Key == key })
	if at < 0 {
		t.Fatalf("list %q does not hold it: %v", key, entries)
	}
	if e := entries[at]; e.Token != token || e.Size != int64(len(body)) {
		t.Errorf("list %q: token %q, size %d; want %q, %d", key, e.Token, e.Size, token, len(body))
	}
	if age := time.Since(entries[at].Modified); age < -time.Minute || age > time.Hour {
		t.Errorf("list %q: modified %s ago", key, age)
	}
}

func testCRUD(t *testing.T, s objstore.Store) {
	ctx := t.Context()
	_, err := s.Get(ctx, "a/b.json")
	wantErr(t, "get of nothing", err, objstore.ErrNotFound)
	first := put(t, s, "a/b.json", "one", objstore.Always())
	wantObject(t, s, "a/b.json", "one", first)
	second := put(t, s, "a/b.json", "two", objstore.Always())
	wantObject(t, s, "a/b.json", "two", second)
	if first == second {
		t.Errorf("different bytes have the same token %q", first)
	}
	if err := s.Delete(ctx, "a/b.json"); err != nil {
		t.Fatal(err)
	}
	_, err = s.Get(ctx, "a/b.json")
	wantErr(t, "get after delete", err, objstore.ErrNotFound)
	if !strings.Contains(err.Error(), "a/b.json") {
		t.Errorf("error does not name the key: %v", err)
	}
	wantKeys(t, s, "")
}

func testEmptyBody(t *testing.T, s objstore.Store) {
	token := put(t, s, "empty", "", objstore.IfAbsent())
	wantObject(t, s, "empty", "", token)
	token = put(t, s, "empty", "no more", objstore.IfToken(token))
	token = put(t, s, "empty", "", objstore.IfToken(token))
	wantObject(t, s, "empty", "", token)
}

func testLargeBody(t *testing.T, s objstore.Store) {
	body := strings.Repeat("0123456789abcdef", 3<<20/16) // larger than the size at which SDKs switch to other requests
	token := put(t, s, "large", body, objstore.IfAbsent())
	wantObject(t, s, "large", body, token)
}

func testBytesAreCopied(t *testing.T, s objstore.Store) {
	body := []byte("mine")
	if _, err := s.Put(t.Context(), "k", body, objstore.Always()); err != nil {
		t.Fatal(err)
	}
	copy(body, "your")
	for range 2 {
		obj, err := s.Get(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if string(obj.Body) != "mine" {
			t.Fatalf("stored bytes changed to %q", obj.Body)
		}
		copy(obj.Body, "their")
	}
}

func testDelete(t *testing.T, s objstore.Store) {
	ctx := t.Context()
	if err := s.Delete(ctx, "never/was"); err != nil {
		t.Errorf("delete of nothing: %v", err)
	}
	put(t, s, "dir/one", "1", objstore.Always())
	put(t, s, "dir/two", "2", objstore.Always())
	for range 2 {
		if err := s.Delete(ctx, "dir/one"); err != nil {
			t.Errorf("delete: %v", err)
		}
	}
	wantKeys(t, s, "dir/", "dir/two")
	if err := s.Delete(ctx, "dir/two"); err != nil {
		t.Errorf("delete: %v", err)
	}
	put(t, s, "dir", "no directory is left behind", objstore.IfAbsent())
}

func testConditions(t *testing.T, s objstore.Store) {
	ctx := t.Context()
	conflict := func(key, body string, cond objstore.Condition) {
		t.Helper()
		if token, err := s.Put(ctx, key, []byte(body), cond); !errors.Is(err, objstore.ErrConflict) || token != "" {
			t.Errorf("put %q %s = %q, %v; want a conflict", key, cond, token, err)
		} else if errors.Is(err, objstore.ErrIndeterminate) {
			t.Errorf("put %q %s: a conflict that is indeterminate too: %v", key, cond, err)
		}
	}
	other := put(t, s, "other", "other", objstore.Always())
	conflict("doc", "x", objstore.IfToken(other)) // the object does not exist
	first := put(t, s, "doc", "1", objstore.IfAbsent())
	conflict("doc", "2", objstore.IfAbsent())
	conflict("doc", "1", objstore.IfAbsent()) // the same bytes must conflict too
	conflict("doc", "2", objstore.IfToken(other))
	wantObject(t, s, "doc", "1", first)
	second := put(t, s, "doc", "2", objstore.IfToken(first))
	conflict("doc", "3", objstore.IfToken(first))
	wantObject(t, s, "doc", "2", second)
	if err := s.Delete(ctx, "doc"); err != nil {
		t.Fatal(err)
	}
	conflict("doc", "3", objstore.IfToken(second))
	wantKeys(t, s, "doc")
	third := put(t, s, "doc", "3", objstore.IfAbsent())
	wantObject(t, s, "doc", "3", third)
}

func testInvalid(t *testing.T, s objstore.Store) {
	ctx := t.Context()
	for _, key := range []string{
		"", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "../a", "./a", "a\x00b", "a\nb", "a\x7fb", "a\\b", "\xff",
		strings.Repeat("a", 201), strings.Repeat("a/", 512) + "a",
	} {
		_, err := s.Put(ctx, key, nil, objstore.Always())
		wantErr(t, fmt.Sprintf("put %.20q", key), err, objstore.ErrInvalid)
		_, err = s.Get(ctx, key)
		wantErr(t, fmt.Sprintf("get %.20q", key), err, objstore.ErrInvalid)
		wantErr(t, fmt.Sprintf("delete %.20q", key), s.Delete(ctx, key), objstore.ErrInvalid)
	}
	_, err := s.Put(ctx, "k", nil, objstore.Condition{})
	wantErr(t, "put with a forgotten condition", err, objstore.ErrInvalid)
	_, err = s.Put(ctx, "k", nil, objstore.IfToken(""))
	wantErr(t, "put with an empty token", err, objstore.ErrInvalid)
	wantKeys(t, s, "")
}

func testEndedContext(t *testing.T, s objstore.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Put(ctx, "k", []byte("x"), objstore.IfAbsent())
	wantErr(t, "put", err, context.Canceled)
	if errors.Is(err, objstore.ErrIndeterminate) {
		t.Errorf("a put that never went out is indeterminate: %v", err)
	}
	_, err = s.Get(ctx, "k")
	wantErr(t, "get", err, context.Canceled)
	_, err = s.List(ctx, "")
	wantErr(t, "list", err, context.Canceled)
	wantErr(t, "delete", s.Delete(ctx, "k"), context.Canceled)
	wantKeys(t, s, "")
}

func wantKeys(t *testing.T, s objstore.Store, prefix string, want ...string) {
	t.Helper()
	entries, err := s.List(t.Context(), prefix)
	if err != nil {
		t.Fatalf("list %q: %v", prefix, err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Key)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("list %q (-want +got):\n%s", prefix, diff)
	}
}

func testList(t *testing.T, s objstore.Store) {
	wantKeys(t, s, "")
	for _, key := range []string{"b/2", "a.json", "a/1", "a/10", "a/1-x/y", "ab", "b/1/z", "B"} {
		put(t, s, key, key, objstore.Always())
	}
	wantKeys(t, s, "", "B", "a.json", "a/1", "a/1-x/y", "a/10", "ab", "b/1/z", "b/2")
	wantKeys(t, s, "a", "a.json", "a/1", "a/1-x/y", "a/10", "ab")
	wantKeys(t, s, "a/", "a/1", "a/1-x/y", "a/10")
	wantKeys(t, s, "a/1", "a/1", "a/1-x/y", "a/10")
	wantKeys(t, s, "a/1-x/", "a/1-x/y")
	wantKeys(t, s, "b/1/z", "b/1/z")
	wantKeys(t, s, "c")
	wantKeys(t, s, "a/1/")
	wantKeys(t, s, "b/1/zz/")
	wantKeys(t, s, "../")
}

func testPaging(t *testing.T, s objstore.Store) {
	const n = 1100 // a page of S3 holds 1,000 keys
	var want []string
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(64)
	for i := range n {
		key := fmt.Sprintf("page/%05d.json", i)
		want = append(want, key)
		group.Go(func() error {
			_, err := s.Put(ctx, key, []byte(key), objstore.IfAbsent())
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	put(t, s, "pagf", "", objstore.Always())
	put(t, s, "pag", "", objstore.Always())
	wantKeys(t, s, "page/", want...)
}

func testLayout(t *testing.T, s objstore.Store) {
	const id, operator = "01970a1c-e31e-7422-9cd5-e9651d11cc97-acc", "01970a1c-e31e-7422-9cd5-e9651d11cc97-opr"
	made := []string{
		keys.ClusterCA(), keys.ClusterSecret("ca.key"), keys.ClusterSecret("My_secret.v2"),
		keys.ClusterOperator("acme", operator), keys.AgentKey(make([]byte, 32)), keys.Config("dev-1"),
		keys.Groups("dev-1"), keys.File("etc/my file+%20 & <ü>.conf"), keys.Leader("dev-1"), keys.Applied("dev-1"),
		keys.Instance("dev-1", "acme", id),
		keys.CertLog("dev-1", "acme", time.Unix(1_800_000_000, 1), id), keys.Probe("dev-1", "0-a"),
	}
	slices.Sort(made)
	for _, key := range made {
		token := put(t, s, key, "body of "+key, objstore.IfAbsent())
		wantObject(t, s, key, "body of "+key, token)
		put(t, s, key, "body of "+key+" again", objstore.IfToken(token))
	}
	wantKeys(t, s, "", made...)
	for _, key := range made {
		if err := s.Delete(t.Context(), key); err != nil {
			t.Errorf("delete %q: %v", key, err)
		}
	}
	wantKeys(t, s, "")
}

const writers = 50

// race makes several writers put the same key at the same time under the condition `cond`. Only one of them may win.
// race returns the token of its object.
func race(t *testing.T, s objstore.Store, key string, round int, cond objstore.Condition) objstore.Token {
	t.Helper()
	start := make(chan struct{})
	var group errgroup.Group
	tokens := make([]objstore.Token, writers)
	errs := make([]error, writers)
	body := func(w int) string { return fmt.Sprintf("round %d, writer %d", round, w) }
	for w := range writers {
		group.Go(func() error {
			<-start
			tokens[w], errs[w] = s.Put(t.Context(), key, []byte(body(w)), cond)
			return nil
		})
	}
	close(start)
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	winner := -1
	for w, err := range errs {
		switch {
		case err == nil && winner >= 0:
			t.Fatalf("round %d: writers %d and %d both won", round, winner, w)
		case err == nil:
			winner = w
		case !errors.Is(err, objstore.ErrConflict):
			t.Fatalf("round %d: writer %d: %v", round, w, err)
		}
	}
	if winner < 0 {
		t.Fatalf("round %d: no writer won", round)
	}
	wantObject(t, s, key, body(winner), tokens[winner])
	return tokens[winner]
}

func testRaceAbsent(t *testing.T, s objstore.Store) {
	for round := range 10 {
		race(t, s, fmt.Sprintf("race/%d", round), round, objstore.IfAbsent())
	}
}

func testRaceToken(t *testing.T, s objstore.Store) {
	token := put(t, s, "race", "start", objstore.IfAbsent())
	for round := range 10 {
		token = race(t, s, "race", round, objstore.IfToken(token))
	}
}

// testReaders reads and lists while an object is being replaced. The object must always exist, must be complete, and
// must never return to an earlier version.
func testReaders(t *testing.T, s objstore.Store) {
	const writes = 60
	body := func(i int) []byte { return bytes.Repeat([]byte{byte('0' + i)}, 1000+100*i) }
	if _, err := s.Put(t.Context(), "dir/doc", body(0), objstore.IfAbsent()); err != nil {
		t.Fatal(err)
	}
	group, ctx := errgroup.WithContext(t.Context())
	done := make(chan struct{})
	group.Go(func() error {
		defer close(done)
		for i := 1; i < writes; i++ {
			if _, err := s.Put(ctx, "dir/doc", body(i), objstore.Always()); err != nil {
				return err
			}
		}
		return nil
	})
	for reader := range 3 {
		group.Go(func() error {
			for last := 0; ; {
				select {
				case <-done:
					return nil
				default:
				}
				obj, err := s.Get(ctx, "dir/doc")
				if err != nil {
					return err
				}
				at := int(obj.Body[0] - '0')
				if !bytes.Equal(obj.Body, body(at)) {
					return fmt.Errorf("torn read of write %d: %d bytes", at, len(obj.Body))
				}
				if at < last {
					return fmt.Errorf("read write %d after write %d", at, last)
				}
				last = at
				if reader > 0 {
					continue // a list may wait for the writer, so the other readers read as often as they can
				}
				entries, err := s.List(ctx, "dir/")
				if err != nil {
					return err
				}
				if len(entries) != 1 || entries[0].Key != "dir/doc" {
					return fmt.Errorf("list = %v", entries)
				}
			}
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

func testSettle(t *testing.T, s objstore.Store) {
	ctx := t.Context()
	sleep := func(context.Context, time.Duration) error { return errors.New("nothing here is ambiguous") }
	first, err := objstore.Settle(ctx, s, "lock", []byte("term 1"), objstore.IfAbsent(), sleep)
	if err != nil {
		t.Fatal(err)
	}
	_, err = objstore.Settle(ctx, s, "lock", []byte("term 1, too"), objstore.IfAbsent(), sleep)
	wantErr(t, "settle a lost race", err, objstore.ErrConflict)
	second, err := objstore.Settle(ctx, s, "lock", []byte("term 2"), objstore.IfToken(first), sleep)
	if err != nil {
		t.Fatal(err)
	}
	wantObject(t, s, "lock", "term 2", second)
}

func testProbe(t *testing.T, s objstore.Store) {
	key := keys.Probe("dev-1", "nonce")
	for range 2 { // the probe cleans up, so it can run again
		if err := objstore.Probe(t.Context(), s, key); err != nil {
			t.Fatal(err)
		}
	}
	wantKeys(t, s, "")
}

func testPrefix(t *testing.T, s objstore.Store) {
	view := objstore.WithPrefix(s, "/team/one/")
	token := put(t, view, "a/b", "x", objstore.IfAbsent())
	put(t, s, "team/one-more", "not below the prefix", objstore.IfAbsent())
	wantObject(t, view, "a/b", "x", token)
	wantObject(t, s, "team/one/a/b", "x", token)
	wantKeys(t, view, "", "a/b")
	wantKeys(t, s, "", "team/one-more", "team/one/a/b")
	wantErr(t, "delete of an empty key", view.Delete(t.Context(), ""), objstore.ErrInvalid)
	if err := view.Delete(t.Context(), "a/b"); err != nil {
		t.Fatal(err)
	}
	wantKeys(t, view, "")
}
