package s3_test

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

	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/s3"
)

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error = %v, want %v", what, err, want)
	}
}

// scripted starts a server that gives the scripted answers in order, repeats the last one, and counts the requests.
func scripted(t *testing.T, answers ...http.HandlerFunc) (*s3.Store, *atomic.Int64) {
	hermetic(t)
	var n atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		answers[min(int(n.Add(1)), len(answers))-1](w, r)
	}))
	t.Cleanup(server.Close)
	return open(t, server.URL), &n
}

func status(code int, name string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		if name != "" {
			fmt.Fprintf(w, "<Error><Code>%s</Code><Message>refused</Message></Error>", name)
		}
	}
}

func hangUp(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func etag(w http.ResponseWriter, _ *http.Request) { w.Header().Set("ETag", `"e"`) }

func TestPutErrors(t *testing.T) {
	for _, test := range []struct {
		name   string
		answer http.HandlerFunc
		cond   objstore.Condition
		want   error // nil means none of the errors of objstore
	}{
		{"412", status(412, "PreconditionFailed"), objstore.IfToken("t"), objstore.ErrConflict},
		{"412 without a body", status(412, ""), objstore.IfAbsent(), objstore.ErrConflict},
		{"409", status(409, "ConditionalRequestConflict"), objstore.IfAbsent(), objstore.ErrConflict},
		{"404 of the object", status(404, "NoSuchKey"), objstore.IfToken("t"), objstore.ErrConflict},
		{"404 of the bucket", status(404, "NoSuchBucket"), objstore.IfToken("t"), nil},
		{"404 of something else", status(404, ""), objstore.IfToken("t"), nil},
		{"403", status(403, "AccessDenied"), objstore.IfAbsent(), nil},
		{"400", status(400, "InvalidRequest"), objstore.IfAbsent(), nil},
		{"400 request time-out", status(400, "RequestTimeout"), objstore.IfAbsent(), objstore.ErrIndeterminate},
		{"408", status(408, "TimedOut"), objstore.IfAbsent(), objstore.ErrIndeterminate},
		{"301", status(301, "PermanentRedirect"), objstore.IfAbsent(), nil},
		{"429", status(429, "SlowDown"), objstore.IfAbsent(), objstore.ErrIndeterminate},
		{"500", status(500, "InternalError"), objstore.IfAbsent(), objstore.ErrIndeterminate},
		{"501", status(501, "NotImplemented"), objstore.IfAbsent(), objstore.ErrIndeterminate},
		{"503", status(503, "SlowDown"), objstore.IfToken("t"), objstore.ErrIndeterminate},
		{"503 from a proxy", status(503, ""), objstore.IfToken("t"), objstore.ErrIndeterminate},
		{"no answer", hangUp, objstore.IfToken("t"), objstore.ErrIndeterminate},
		{"no ETag", status(200, ""), objstore.IfToken("t"), objstore.ErrIndeterminate},
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
			if !strings.Contains(err.Error(), `"some/key"`) || !strings.HasPrefix(err.Error(), "s3: ") {
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
	s, n := scripted(t, etag, hangUp, etag)
	if _, err := s.Put(t.Context(), "k", []byte("x"), objstore.IfAbsent()); err != nil {
		t.Fatal(err)
	}
	_, err := s.Put(t.Context(), "k", []byte("y"), objstore.IfToken("e"))
	wantErr(t, "put on a connection that dies", err, objstore.ErrIndeterminate)
	if n.Load() != 2 {
		t.Errorf("%d requests, want 2", n.Load())
	}
}

func TestUnconditionalRequestsAreRepeated(t *testing.T) {
	s, n := scripted(t, status(500, "InternalError"), etag)
	if token, err := s.Put(t.Context(), "k", []byte("x"), objstore.Always()); err != nil || token != "e" {
		t.Errorf("put = %q, %v", token, err)
	}
	if n.Load() != 2 {
		t.Errorf("%d requests, want 2", n.Load())
	}
	// If the put has no condition, the answer "conflict" is a fault of the store.
	s, _ = scripted(t, status(409, "OperationAborted"))
	if _, err := s.Put(t.Context(), "k", []byte("x"), objstore.Always()); err == nil ||
		errors.Is(err, objstore.ErrConflict) {
		t.Errorf("put: %v", err)
	}
}

// TestPutWithoutAConnection checks that only a put with a condition, which has one attempt, counts as not sent.
func TestPutWithoutAConnection(t *testing.T) {
	hermetic(t)
	s := open(t, "http://127.0.0.1:1")
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

func TestNothingIsSentWithoutCredentials(t *testing.T) {
	hermetic(t)
	s, err := s3.New(t.Context(),
		objstore.Location{Bucket: bucket, Endpoint: "http://127.0.0.1:1", PathStyle: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Put(t.Context(), "k", nil, objstore.IfAbsent())
	if err == nil || errors.Is(err, objstore.ErrIndeterminate) || !strings.Contains(err.Error(), "credentials") {
		t.Errorf("put: %v", err)
	}
}

func TestGetErrors(t *testing.T) {
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		absent bool
	}{
		"no such key":    {status(404, "NoSuchKey"), true},
		"no such bucket": {status(404, "NoSuchBucket"), false},
		"some other 404": {status(404, ""), false},
		"a web page": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "<html>not here</html>", http.StatusNotFound)
		}, false},
		"access denied": {status(403, "AccessDenied"), false},
		"no ETag":       {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "body") }, false},
		"half of a body": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "9")
			etag(w, r)
		}, false},
		"not implemented": {status(501, "NotImplemented"), false},
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

func TestDeleteErrors(t *testing.T) {
	s, _ := scripted(t, status(404, "NoSuchKey"))
	if err := s.Delete(t.Context(), "k"); err != nil {
		t.Errorf("delete of nothing: %v", err)
	}
	s, _ = scripted(t, status(404, "NoSuchBucket"))
	if err := s.Delete(t.Context(), "k"); err == nil || !strings.Contains(err.Error(), "there is no bucket") {
		t.Errorf("delete without a bucket: %v", err)
	}
	s, _ = scripted(t, status(403, "AccessDenied"))
	if err := s.Delete(t.Context(), "k"); err == nil || strings.Contains(err.Error(), "there is no bucket") {
		t.Errorf("delete without the right: %v", err)
	}
}

func page(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "<ListBucketResult>%s</ListBucketResult>", body)
	}
}

func TestListIsCompleteOrFails(t *testing.T) {
	const one = "<Contents><Key>p/b</Key><ETag>&quot;e&quot;</ETag><Size>1</Size></Contents>"
	const two = "<Contents><Key>p/a</Key><ETag>f</ETag><Size>2</Size></Contents>" +
		"<Contents><Key>p/</Key><ETag>d</ETag></Contents>"
	more := page(one + "<IsTruncated>true</IsTruncated><NextContinuationToken>next</NextContinuationToken>")
	s, n := scripted(t, more, page(two))
	entries, err := s.List(t.Context(), "p/")
	if err != nil || n.Load() != 2 || len(entries) != 2 {
		t.Fatalf("list = %v, %v after %d requests", entries, err, n.Load())
	}
	if entries[0].Key != "p/a" || entries[0].Token != "f" || entries[0].Size != 2 || entries[1].Key != "p/b" ||
		entries[1].Token != "e" {
		t.Errorf("list = %+v", entries)
	}
	for name, answers := range map[string][]http.HandlerFunc{
		"the second page fails":     {more, status(403, "AccessDenied")},
		"no way to the second page": {page(one + "<IsTruncated>true</IsTruncated>")},
		"an entry without ETag":     {page("<Contents><Key>p/c</Key></Contents>")},
	} {
		s, _ := scripted(t, answers...)
		if entries, err := s.List(t.Context(), "p/"); err == nil || entries != nil {
			t.Errorf("%s: list = %v, %v", name, entries, err)
		}
	}
}

func TestOptions(t *testing.T) {
	env := map[string]string{}
	getenv := func(name string) string { return env[name] }
	got, err := s3.WithEnv(objstore.Location{Bucket: "b"}, getenv)
	if err != nil || got != (objstore.Location{Bucket: "b"}) {
		t.Errorf("empty environment: %+v, %v", got, err)
	}
	env["AWS_ENDPOINT_URL"], env["AWS_S3_USE_PATH_STYLE"] = "http://all", "true"
	got, err = s3.WithEnv(objstore.Location{}, getenv)
	if err != nil || got != (objstore.Location{Endpoint: "http://all", PathStyle: true}) {
		t.Errorf("environment: %+v, %v", got, err)
	}
	env["AWS_ENDPOINT_URL_S3"], env["AWS_S3_USE_PATH_STYLE"] = "http://s3", "false"
	got, err = s3.WithEnv(objstore.Location{}, getenv)
	if err != nil || got != (objstore.Location{Endpoint: "http://s3"}) {
		t.Errorf("environment of S3: %+v, %v", got, err)
	}
	got, err = s3.WithEnv(objstore.Location{Endpoint: "http://set", PathStyle: true}, getenv)
	if err != nil || got != (objstore.Location{Endpoint: "http://set", PathStyle: true}) {
		t.Errorf("what is set wins: %+v, %v", got, err)
	}
	env["AWS_S3_USE_PATH_STYLE"] = "maybe"
	if _, err = s3.WithEnv(objstore.Location{}, getenv); err == nil || !strings.Contains(err.Error(), "maybe") {
		t.Errorf("error = %v", err)
	}
}

// TestRequestsSuitOtherServers checks what S3 servers other than AWS may not support: checksums, and the bucket in the
// host name. It also checks the region, with which a request is signed.
func TestRequestsSuitOtherServers(t *testing.T) {
	for region, want := range map[string]string{"": "us-east-1", "eu-central-1": "eu-central-1"} {
		hermetic(t)
		var requests []*http.Request
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests = append(requests, r)
			etag(w, r)
		}))
		defer server.Close()
		s, err := s3.New(t.Context(), objstore.Location{Bucket: bucket, Region: region, PathStyle: true,
			Endpoint: strings.Replace(server.URL, "127.0.0.1", "localhost", 1)}, testKeys)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Put(t.Context(), "k", []byte("x"), objstore.IfAbsent()); err != nil {
			t.Error(err)
		}
		if _, err := s.Get(t.Context(), "k"); err != nil {
			t.Error(err)
		}
		for _, r := range requests {
			if r.URL.Path != "/"+bucket+"/k" || !strings.HasPrefix(r.Host, "localhost:") ||
				!strings.Contains(r.Header.Get("Authorization"), "/"+want+"/s3/") {
				t.Errorf("region %q: the request goes to %s%s, and is signed as %q", region, r.Host, r.URL.Path,
					r.Header.Get("Authorization"))
			}
			for name := range r.Header {
				if strings.Contains(name, "Checksum") || name == "Content-Encoding" || name == "X-Amz-Trailer" {
					t.Errorf("the request has %s: %s", name, r.Header.Get(name))
				}
			}
		}
		if len(requests) != 2 {
			t.Errorf("%d requests, want 2", len(requests))
		}
	}
}

func TestNewFails(t *testing.T) {
	hermetic(t)
	if _, err := s3.New(t.Context(), objstore.Location{}, nil); err == nil {
		t.Error("opened no bucket")
	}
	if _, err := s3.New(t.Context(), objstore.Location{Bucket: "b"}, nil); err == nil ||
		!strings.Contains(err.Error(), "AWS_REGION") {
		t.Errorf("without a region: %v", err)
	}
	t.Setenv("AWS_REGION", "eu-central-1")
	if _, err := s3.New(t.Context(), objstore.Location{Bucket: "b"}, nil); err != nil {
		t.Error(err)
	}
}
