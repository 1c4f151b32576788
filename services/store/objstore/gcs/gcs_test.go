package gcs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/api/option"

	"github.com/nstance-kit/nstance/services/store/googlecloud"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/gcs"
)

const bucket = "test-bucket"

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error = %v, want %v", what, err, want)
	}
}

// open opens the bucket at a test server. transport replaces the transport that adds credentials.
func open(t *testing.T, url string, transport http.RoundTripper) *gcs.Store {
	t.Helper()
	client := &http.Client{Transport: googlecloud.Record(transport)}
	s, err := gcs.New(t.Context(), bucket, option.WithHTTPClient(client), option.WithEndpoint(url+"/storage/v1/"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// scripted starts a server that gives the scripted answers in order, repeats the last one, and counts the requests.
func scripted(t *testing.T, answers ...http.HandlerFunc) (*gcs.Store, *atomic.Int64) {
	var n atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		answers[min(int(n.Add(1)), len(answers))-1](w, r)
	}))
	t.Cleanup(server.Close)
	return open(t, server.URL, http.DefaultTransport), &n
}

func status(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		fmt.Fprint(w, body)
	}
}

// refusal is an error answer of the API.
func refusal(code int, reason, message string) http.HandlerFunc {
	return status(code, fmt.Sprintf(
		`{"error": {"code": %d, "message": %q, "errors": [{"domain": "global", "reason": %q, "message": %q}]}}`, code,
		message, reason, message))
}

func hangUp(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// download is the answer to the download of an object.
func download(generation, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Goog-Generation", generation)
		fmt.Fprint(w, body)
	}
}

var stored = status(200, `{"generation": "7"}`)

func TestPutErrors(t *testing.T) {
	for _, test := range []struct {
		name   string
		answer http.HandlerFunc
		cond   objstore.Condition
		want   error // nil means none of the errors of objstore
	}{
		{"412", refusal(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold."),
			objstore.IfToken("1"), objstore.ErrConflict},
		{"412 without a body", status(412, ""), objstore.IfAbsent(), objstore.ErrConflict},
		{"409", refusal(409, "conflict", "x"), objstore.IfAbsent(), objstore.ErrConflict},
		{"404 of the bucket", refusal(404, "notFound", "The specified bucket does not exist."), objstore.IfToken("1"),
			nil},
		{"404 of something else", status(404, ""), objstore.IfToken("1"), nil},
		{"403", refusal(403, "forbidden", "no storage.objects.create access"), objstore.IfAbsent(), nil},
		{"400", refusal(400, "invalid", "x"), objstore.IfAbsent(), nil},
		{"401", refusal(401, "authError", "x"), objstore.IfAbsent(), nil},
		{"408", status(408, ""), objstore.IfAbsent(), objstore.ErrIndeterminate},
		{"429", refusal(429, "rateLimitExceeded", "x"), objstore.IfAbsent(), objstore.ErrIndeterminate},
		{"500", refusal(500, "backendError", "x"), objstore.IfAbsent(), objstore.ErrIndeterminate},
		{"503 from a proxy", status(503, ""), objstore.IfToken("1"), objstore.ErrIndeterminate},
		{"no answer", hangUp, objstore.IfToken("1"), objstore.ErrIndeterminate},
		{"no generation", status(200, "{}"), objstore.IfToken("1"), objstore.ErrIndeterminate},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, n := scripted(t, test.answer)
			_, err := s.Put(t.Context(), "some/key", []byte("x"), test.cond)
			if err == nil {
				t.Fatal("put succeeded")
			}
			for _, kind := range []error{objstore.ErrConflict, objstore.ErrIndeterminate, objstore.ErrNotFound,
				objstore.ErrInvalid} {
				if errors.Is(err, kind) != errors.Is(test.want, kind) {
					t.Errorf("error = %v, is %v: %v", err, kind, errors.Is(err, kind))
				}
			}
			if !strings.Contains(err.Error(), `"some/key"`) || !strings.HasPrefix(err.Error(), "gcs: ") {
				t.Errorf("error does not name key and back end: %v", err)
			}
			if n.Load() != 1 {
				t.Errorf("a conditional put was sent %d times", n.Load())
			}
		})
	}
}

// TestPutIsSentOnceOnAnOldConnection leaves a connection open after a first request, and breaks it during the second.
// net/http may repeat some requests in this case, but it must not repeat a put.
func TestPutIsSentOnceOnAnOldConnection(t *testing.T) {
	s, n := scripted(t, stored, hangUp, stored)
	if _, err := s.Put(t.Context(), "k", []byte("x"), objstore.IfAbsent()); err != nil {
		t.Fatal(err)
	}
	_, err := s.Put(t.Context(), "k", []byte("y"), objstore.IfToken("7"))
	wantErr(t, "put on a connection that dies", err, objstore.ErrIndeterminate)
	if n.Load() != 2 {
		t.Errorf("%d requests, want 2", n.Load())
	}
}

// TestUnconditionalRequestsAreRepeated checks that unconditional puts and lists are repeated after a temporary failure.
func TestUnconditionalRequestsAreRepeated(t *testing.T) {
	s, n := scripted(t, status(500, ""), stored)
	if token, err := s.Put(t.Context(), "k", []byte("x"), objstore.Always()); err != nil || token != "7" {
		t.Errorf("put = %q, %v", token, err)
	}
	if n.Load() != 2 {
		t.Errorf("%d requests, want 2", n.Load())
	}
	// If the put has no condition, the answer "conflict" is a fault of the store.
	s, _ = scripted(t, refusal(409, "conflict", "x"))
	if _, err := s.Put(t.Context(), "k", []byte("x"), objstore.Always()); err == nil ||
		errors.Is(err, objstore.ErrConflict) {
		t.Errorf("put: %v", err)
	}
	s, n = scripted(t, status(503, ""))
	if _, err := s.List(t.Context(), ""); err == nil || n.Load() != 3 {
		t.Errorf("list: %v after %d requests, want an error after 3", err, n.Load())
	}
}

func TestPutEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s, n := scripted(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	_, err := s.Put(ctx, "k", []byte("x"), objstore.IfAbsent())
	wantErr(t, "put that was under way", err, objstore.ErrIndeterminate)
	wantErr(t, "put that was under way", err, context.Canceled)
	if n.Load() != 1 {
		t.Errorf("%d requests", n.Load())
	}
}

// TestGetErrors checks that only the service's own answer proves that an object is missing.
func TestGetErrors(t *testing.T) {
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		absent bool
	}{
		"no object": {status(404, "No such object: test-bucket/k"), true},
		"no bucket": {refusal(404, "notFound", "The specified bucket does not exist."),
			false},
		"a web page":                            {status(404, "<html>not here</html>"), false},
		"access denied":                         {refusal(403, "forbidden", "x"), false},
		"no generation":                         {status(200, "body"), false},
		"generation 0":                          {download("0", "body"), false},
		"a generation that is too large":        {download("9223372036854775808", "body"), false},
		"an ETag":                               {download("abc", "body"), false},
		"400 with the text of a missing object": {refusal(400, "invalid", "No such object"), false},
		"half of a body": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Goog-Generation", "7")
			w.Header().Set("Content-Length", "9")
			fmt.Fprint(w, "half")
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := scripted(t, test.answer)
			obj, err := s.Get(t.Context(), "k")
			if err == nil || errors.Is(err, objstore.ErrNotFound) != test.absent {
				t.Errorf("get = %+v, %v", obj, err)
			}
		})
	}
}

// TestListIsCompleteOrFails checks that a list has all pages, in order, or is an error.
func TestListIsCompleteOrFails(t *testing.T) {
	item := func(name string) string {
		return fmt.Sprintf(`{"name": %q, "generation": "7", "size": "1", "updated": "2026-01-02T03:04:05.678Z"}`, name)
	}
	more := status(200, `{"items": [`+item("p/b")+`], "nextPageToken": "next"}`)
	s, n := scripted(t, more, status(200, `{"items": [`+item("p/a")+`,`+item("p/")+`]}`))
	entries, err := s.List(t.Context(), "p/")
	if err != nil || n.Load() != 2 || len(entries) != 2 {
		t.Fatalf("list = %v, %v after %d requests", entries, err, n.Load())
	}
	if entries[0].Key != "p/a" || entries[0].Token != "7" || entries[0].Size != 1 || entries[1].Key != "p/b" {
		t.Errorf("list = %+v", entries)
	}
	for name, answers := range map[string][]http.HandlerFunc{
		"the second page fails":         {more, refusal(403, "forbidden", "x")},
		"an entry without a generation": {status(200, `{"items": [{"name": "p/c", "updated": "2026-01-02T03:04:05Z"}]}`)},
		"an entry without a time":       {status(200, `{"items": [{"name": "p/c", "generation": "7"}]}`)},
	} {
		s, _ := scripted(t, answers...)
		if entries, err := s.List(t.Context(), "p/"); err == nil || entries != nil {
			t.Errorf("%s: list = %v, %v", name, entries, err)
		}
	}
}

// TestNewFails checks the errors of a store that cannot be opened.
func TestNewFails(t *testing.T) {
	if _, err := gcs.New(t.Context(), ""); err == nil {
		t.Error("opened no bucket")
	}
	s, _ := scripted(t, stored)
	_, err := s.Put(t.Context(), "k", nil, objstore.IfToken("an-etag"))
	wantErr(t, "a token of another store", err, objstore.ErrConflict)
}

// TestConditionsAreSent checks the condition in the request of each kind of put.
func TestConditionsAreSent(t *testing.T) {
	for name, test := range map[string]struct {
		cond objstore.Condition
		want string
	}{
		"always": {objstore.Always(), ""}, "absent": {objstore.IfAbsent(), "0"},
		"token": {objstore.IfToken("42"), "42"},
	} {
		got := "no request"
		s, _ := scripted(t, func(w http.ResponseWriter, r *http.Request) {
			got = r.URL.Query().Get("ifGenerationMatch")
			stored(w, r)
		})
		if token, err := s.Put(t.Context(), "k", nil, test.cond); err != nil || token != "7" || got != test.want {
			t.Errorf("%s: the request has ifGenerationMatch %q, want %q; token %q, %v", name, got, test.want, token,
				err)
		}
	}
}

// TestPutWithoutAConnection checks that only a put with a condition, which has one attempt, counts as not sent.
func TestPutWithoutAConnection(t *testing.T) {
	s := open(t, "http://127.0.0.1:1", http.DefaultTransport)
	for name, test := range map[string]struct {
		cond    objstore.Condition
		notSent bool
	}{"conditional": {objstore.IfAbsent(), true}, "always": {objstore.Always(), false}} {
		if _, err := s.Put(t.Context(), "k", nil, test.cond); !errors.Is(err, objstore.ErrIndeterminate) ||
			errors.Is(err, objstore.ErrNotSent) != test.notSent {
			t.Errorf("%s: %v, want ErrNotSent: %v", name, err, test.notSent)
		}
	}
}

// TestGetAndDelete reads an object, and deletes objects that are missing, in a missing bucket and forbidden.
func TestGetAndDelete(t *testing.T) {
	s, _ := scripted(t, download("7", "body"))
	if obj, err := s.Get(t.Context(), "k"); err != nil || string(obj.Body) != "body" || obj.Token != "7" ||
		obj.Key != "k" {
		t.Errorf("get = %+v, %v", obj, err)
	}
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		want   string // "" means success
	}{
		"deleted":   {status(204, ""), ""},
		"missing":   {refusal(404, "notFound", "No such object: test-bucket/k"), ""},
		"no bucket": {refusal(404, "notFound", "The specified bucket does not exist."), "there is no bucket"},
		"some 404":  {refusal(404, "notFound", "x"), "in bucket"},
		"forbidden": {refusal(403, "forbidden", "x"), "in bucket"},
	} {
		s, _ := scripted(t, test.answer)
		err := s.Delete(t.Context(), "k")
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: delete: %v, want %q", name, err, test.want)
		}
	}
}
