package httpapi_test

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
	"github.com/nstance-kit/nstance/services/internal/admin/serve/httpapi"
	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
)

const (
	alice = "alices-token-of-24-chars"
	ci    = "another-token-of-24-char"
	first = "wrk06gx5zsg2nrrqcrz0000000000"
)

func shard() *fleettest.Shard {
	return &fleettest.Shard{
		Config: &nstancev1.GetConfigStatusResponse{Etag: "e1", Generation: 1, ClusterId: "example", Term: 3,
			LastModified: timestamppb.New(fleettest.Now)},
		Status:  &nstancev1.GetShardStatusResponse{ClusterId: "example", LeaderId: "one", Term: 3, HeirId: "heir"},
		Orphans: []*nstancev1.Orphan{{ProviderId: "vm-1", Group: "workers", State: "running"}},
		Refresh: &nstancev1.RefreshConfigResponse{Result: nstancev1.RefreshResult_REFRESH_RESULT_UNCHANGED, Etag: "e1"},
		Groups: []*nstancev1.GroupStatus{{Group: "workers", IsStatic: true, Size: 2, Kind: "wrk",
			Etag: "etag-1", MergedJson: `{"template": "worker", "size": 2, "args": {"a": [1]}}`}},
		Instances: []*nstancev1.InstanceStatus{
			{InstanceId: first, Group: "workers", State: "registered",
				CreatedAt: timestamppb.New(fleettest.Now), Metrics: &nstancev1.Metrics{Cpu: 0.5}},
			{InstanceId: "wrk06gx5zsg2nrrqcrz0000000008", Group: "other", State: "created"},
		},
		Explanations: map[string]*nstancev1.ExplainGroupResponse{"workers": {Desired: 2,
			Instances: []*nstancev1.InstanceVerdict{{InstanceId: first, Rule: 17, RuleName: "well"}}}},
	}
}

// api is an HTTP API for two fake shards.
type api struct {
	handler http.Handler
	a, b    *fleettest.Shard
	log     *bytes.Buffer
	ended   chan struct{}
}

func newAPI(t testing.TB, tokens string) *api {
	t.Helper()
	c := fleettest.NewCluster(t, "example")
	x := &api{a: shard(), b: shard(), log: &bytes.Buffer{}, ended: make(chan struct{})}
	addrA, _ := c.Serve(t, "a", x.a)
	addrB, _ := c.Serve(t, "b", x.b)
	servers, err := endpoints.Parse("a=" + addrA + ",b=" + addrB)
	if err != nil {
		t.Fatal(err)
	}
	f := fleet.New(fleet.Options{
		Servers: servers, IdentityDir: c.Identity(t, "default", fleettest.Now, 30*24*time.Hour),
		Timeout: 10 * time.Second, Now: fleettest.Clock, Rand: fleettest.Rand(1),
	})
	t.Cleanup(f.Close)
	options := httpapi.Options{Fleet: f, Version: "1.2.3", Timeout: 20 * time.Second, Ended: x.ended,
		Log: slog.New(slog.NewTextHandler(x.log, nil))}
	if tokens != "" {
		if options.Tokens, err = httpapi.ParseTokens(tokens); err != nil {
			t.Fatal(err)
		}
	}
	x.handler = httpapi.New(options)
	return x
}

// request describes one HTTP request of a test. The test sends a valid value for a field that is empty.
type request struct {
	method, path, body string
	header             map[string]string
	host               string
}

func (x *api) do(t testing.TB, r request) (int, string, http.Header) {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), r.method, r.path, strings.NewReader(r.body))
	req.Host = "127.0.0.1:8080"
	if r.host != "" {
		req.Host = r.host
	}
	if r.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, value := range r.header {
		req.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	x.handler.ServeHTTP(w, req)
	return w.Code, w.Body.String(), w.Header()
}

func TestAnswers(t *testing.T) {
	refuse := func(code codes.Code) func(*api) {
		return func(x *api) { x.a.Before = func(string) error { return status.Error(code, "no") } }
	}
	for _, test := range []struct {
		method, path, body string
		prepare            func(*api)
		status             int
		contains           []string
	}{
		{"GET", "/health", "", nil, 200, []string{`"ok"`, `"1.2.3"`}},
		{"GET", "/groups?shard=a", "", nil, 200, []string{`"group": "workers"`, `"shard": "a"`}},
		{"GET", "/groups?all_shards=true", "", nil, 200, []string{`"shard": "a"`, `"shard": "b"`}},
		{"GET", "/groups?all_shards=true", "", refuse(codes.Unavailable), 502,
			[]string{`"code": "unavailable"`, `"shard": "b"`, `"group": "workers"`}},
		{"GET", "/groups", "", nil, 400, []string{"which shard?"}},
		{"GET", "/groups?all_shards=yes", "", nil, 400, []string{"want true or false"}},
		{"GET", "/groups?shard=a&all_shards=true", "", nil, 400, []string{"exclude each other"}},
		{"GET", "/groups?shard=a&shard=b", "", nil, 400, []string{"2 times"}},
		{"GET", "/groups?shard=c", "", nil, 404, []string{"there are: a, b"}},
		{"GET", "/groups?shrad=a", "", nil, 400, []string{`\"shrad\" is not known`}},
		{"GET", "/instances?shard=a", "", nil, 200, []string{"0000000000", "0000000008"}},
		{"GET", "/instances?shard=a&group=other", "", nil, 200, []string{"0000000008"}},
		{"GET", "/instances?shard=a&group=No", "", nil, 400, []string{"group"}},
		{"GET", "/config/status?all_shards=true", "", nil, 200, []string{`"etag": "e1"`}},
		{"POST", "/config/refresh?all_shards=true", "", nil, 200, []string{`"result": "REFRESH_RESULT_UNCHANGED"`}},
		{"POST", "/config/refresh?shard=a", "{}", nil, 200, []string{`"result": "REFRESH_RESULT_UNCHANGED"`}},
		{"POST", "/config/refresh?shard=a", `{"x": 1}`, nil, 400, []string{"unknown field"}},
		{"POST", "/config/refresh?shard=a", "", func(x *api) {
			x.a.Refresh = &nstancev1.RefreshConfigResponse{Result: nstancev1.RefreshResult_REFRESH_RESULT_INVALID,
				Problems: []*nstancev1.ConfigProblem{{Path: "cluster.id", Line: 4, Message: "bad"}}}
		}, 400, []string{`"line": 4`, `"REFRESH_RESULT_INVALID"`}},
		{"POST", "/group?shard=a&group=workers&must_exist=true", `{"size": 5}`, nil, 200, []string{`"size": 5`}},
		{"POST", "/group?shard=a&group=workers&must_exist=yes", `{"size": 5}`, nil, 400, []string{"must_exist"}},
		{"GET", "/status?shard=a", "", nil, 200, []string{`"heir_id": "heir"`}},
		{"GET", "/orphans?shard=a", "", nil, 200, []string{`"provider_id": "vm-1"`}},
		{"POST", "/orphans/confirm?shard=a", `{"provider_ids": ["vm-1"]}`, nil, 200, []string{`"confirmed": 1`}},
		{"POST", "/orphans/confirm?shard=a", `{"provider_ids": []}`, nil, 409, []string{"list them again"}},
		{"POST", "/orphans/confirm?all_shards=true", `{"provider_ids": []}`, nil, 400, []string{"one shard at a time"}},
		{"POST", "/orphans/confirm?shard=a", `{"provider_ids": [1]}`, nil, 400, []string{"invalid value"}},
		{"POST", "/server/step-down?shard=a", "", nil, 200, []string{`"leader_id": "one"`}},
		{"POST", "/server/step-down?shard=a", `{"x": 1}`, nil, 400, []string{"unknown field"}},
		{"POST", "/group/pause?shard=a", `{"group": "workers"}`, nil, 200, []string{`"paused": true`}},
		{"POST", "/group/resume?shard=a", `{"group": "workers"}`, nil, 200, []string{`"paused": false`}},
		{"POST", "/group/roll?shard=a", `{"group": "nobody"}`, nil, 404, []string{`"not_found"`}},
		{"POST", "/group/roll?shard=a", `{"group": "Workers"}`, nil, 400, []string{"group"}},
		{"POST", "/group?shard=a&group=nobody&must_exist=true", `{"size": 5}`, nil, 404, []string{`"not_found"`}},
		{"POST", "/group?all_shards=true&group=workers&must_exist=true", `{"size": 0}`, func(x *api) {
			x.b.Groups = nil
		}, 502, []string{`"size": 0`, `"not_found"`}},
		{"GET", "/groups?shard=a&group=workers", "", nil, 200, []string{`"template": "worker"`}},
		{"GET", "/groups?shard=a&group=nobody", "", nil, 404, []string{`"not_found"`}},
		{"GET", "/group/explain?shard=a&group=workers", "", nil, 200,
			[]string{`"rule_name": "well"`, `"desired": 2`, `"group": "workers"`}},
		{"POST", "/group?shard=a&must_exist=true&group=workers&dry_run=true", `{"size": 3}`, func(x *api) {
			t.Cleanup(func() {
				if n := len(x.a.Upserts); n > 0 {
					t.Errorf("%d changes of a group in a dry run", n)
				}
			})
		}, 200, []string{`"before": {`, `"after": {`, `"size": 3`, `"desired": 2`}},
		{"POST", "/instance/delete?all_shards=true&dry_run=true", `{"instance_id": "` + first + `"}`,
			func(x *api) { x.b.Instances = nil }, 200, []string{`"plan": {`, `"shard": "a"`}},
		{"POST", "/group/roll?shard=a&dry_run=true", `{"group": "nobody"}`, nil, 404, []string{`"not_found"`}},
		{"POST", "/group/roll?shard=a&dry_run=yes", `{"group": "workers"}`, nil, 400, []string{"want true or false"}},
		{"POST", "/instance/create?shard=a&dry_run=true", `{"group": "workers"}`, nil, 400, []string{"dry_run"}},
		{"GET", "/group/explain?shard=a&group=workers&size=3", "", nil, 400, []string{"size"}},
		{"POST", "/group?shard=a&must_create=true&group=web", `{"template": "worker", "size": 1}`, nil, 200,
			[]string{`"size": 1`}},
		{"POST", "/group?shard=a&must_create=true&group=workers", `{"template": "worker"}`, nil, 409,
			[]string{"exists"}},
		{"POST", "/group?shard=a&must_create=true&group=web", `{"template": "t", "drain_timeout": "soon"}`, nil, 400,
			[]string{"drain_timeout"}},
		{"POST", "/group?shard=a&must_create=true&group=web", `{"template": "t", "max_unhealth": "3"}`, nil, 400,
			[]string{`max_unhealth: there is no such field (did you mean \"max_unhealthy\"?)`}},
		{"POST", "/group?shard=a&must_create=true&group=web", `{"template": "t", "size": 4294967295}`, nil, 400,
			[]string{"size"}},
		{"POST", "/group?shard=a&must_exist=true&group=workers", `{"vars": {"a": "b"}, "rollout": {"paused": true}}`,
			nil, 200, []string{`"group": "workers"`}},
		{"POST", "/group?shard=a&must_exist=true&group=workers", `{"rollout": {"canry": 1}}`, nil, 400,
			[]string{`rollout.canry: there is no such field (did you mean \"canary\"?)`}},
		{"POST", "/group?shard=a&must_exist=true&group=nobody", `{"size": 1}`, nil, 404, []string{`"not_found"`}},
		{"POST", "/group/delete?shard=a", `{"group": "nobody"}`, nil, 404, []string{`"not_found"`}},
		{"POST", "/group/delete?shard=a", `{"group": "No"}`, nil, 400, []string{"group"}},
		{"GET", "/instance?all_shards=true&instance_id=" + first, "", func(x *api) { x.b.Instances = nil }, 200,
			[]string{`"cpu": 0.5`, `"shard": "a"`}},
		{"GET", "/instance?shard=a&instance_id=i-1", "", nil, 404, []string{"instance_id"}},
		{"GET", "/instance?shard=a&instance_id=wrk06gx5zsg2nrrqcrz000000000g", "", nil, 404, []string{`"not_found"`}},
		{"GET", "/group/explain?shard=a&instance_id=" + first, "", nil, 200, []string{`"rule": 17`}},
		{"POST", "/instance/create?shard=a", `{"group": "workers"}`, nil, 200, []string{`"on_demand": true`}},
		{"POST", "/instance/create?all_shards=true", `{"group": "workers", "instance_id": "` + first + `"}`, nil, 400,
			[]string{"one shard at a time"}},
		{"POST", "/instance/create?shard=a", `{"group": "workers", "instance_id": "i-1"}`, nil, 400,
			[]string{"instance_id"}},
		{"POST", "/instance/delete?all_shards=true", `{"instance_id": "` + first + `", "decrement": true}`,
			func(x *api) { x.b.Instances = nil }, 200, []string{`"deleting"`, `"size": 1`, "over HTTP by local"}},
		{"POST", "/instance/protect?all_shards=true", `{"instance_id": "` + first + `"}`,
			func(x *api) { x.b.Instances = nil }, 200, []string{`"protected": true`}},
		{"POST", "/instance/protect?shard=a", `{"instance_id": "i-1"}`, nil, 404, []string{"instance_id"}},
		{"POST", "/instance/release?shard=b", `{"instance_id": "` + first + `"}`, func(x *api) {
			x.b.Instances[0].PreservedAt = timestamppb.Now()
		}, 200, []string{`"deleting"`, `"released"`}},
		{"POST", "/instance/release?shard=a", `{"instance_id": "` + first + `"}`, nil, 409,
			[]string{"is not preserved"}},
		{"GET", "/instances?shard=a&preserved=true", "", nil, 200, []string{`"instances": []`}},
		{"POST", "/instance/delete?shard=a", `{"instance_id": "i-1"}`, nil, 404, []string{"instance_id"}},
		{"POST", "/group?shard=a&group=workers", `{"size": 4294967295}`, nil, 400, []string{"size"}},
		{"POST", "/group?shard=a&group=workers", "", nil, 400, []string{"body"}},
		{"POST", "/group?shard=a&group=Workers", `{"size": 1}`, nil, 400, []string{"group"}},
		{"POST", "/group/pause?shard=a", `{"group": "workers", "sizes": 2}`, nil, 400, []string{"unknown field"}},
		{"POST", "/group/pause?shard=a", `{"group": "workers"} {}`, nil, 400, []string{"unexpected token"}},
		{"POST", "/group/pause?shard=a", `{"group": "` + strings.Repeat("a", 70000) + `"}`, nil, 413,
			[]string{"65536 bytes"}},
		{"GET", "/events?shard=a&since=1h", "", nil, 400, []string{"query: since", "Timestamp"}},
		{"GET", "/events?shard=a&since=2026-01-02T15:04:05Z&kinds=a&kinds=b&group=g", "", nil, 200,
			[]string{`"events": []`}},
		{"GET", "/config/status?shard=a", "", refuse(codes.InvalidArgument), 400, nil},
		{"GET", "/config/status?shard=a", "", refuse(codes.ResourceExhausted), 429, nil},
		{"GET", "/config/status?shard=a", "", refuse(codes.Unavailable), 503, nil},
		{"GET", "/config/status?shard=a", "", refuse(codes.DeadlineExceeded), 504, nil},
		{"GET", "/config/status?shard=a", "", refuse(codes.PermissionDenied), 403, nil},
		{"GET", "/group/pause", "", nil, 405, []string{"POST only"}},
		{"DELETE", "/groups", "", nil, 405, []string{"GET only"}},
		{"GET", "/", "", nil, 404, []string{"openapi.json"}},
	} {
		name := test.method + " " + test.path + " " + test.body[:min(len(test.body), 40)]
		x := newAPI(t, "")
		if test.prepare != nil {
			test.prepare(x)
		}
		got, body, header := x.do(t, request{method: test.method, path: test.path, body: test.body})
		if got != test.status || !json.Valid([]byte(body)) || header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d, want %d: %s", name, got, test.status, body)
		}
		for _, want := range test.contains {
			if !strings.Contains(body, want) {
				t.Errorf("%s: %q is not in %s", name, want, body)
			}
		}
	}
}

// The log names the client of every change. Clients without a token are rejected.
func TestTokens(t *testing.T) {
	x := newAPI(t, "# who may\nalice "+alice+"\n\nci   "+ci+"\n")
	scale := request{method: "POST", path: "/group?shard=a&group=workers&must_exist=true", body: `{"size": 5}`,
		host: "admin.example.com"}
	for _, header := range []string{"", "Bearer ", "Bearer " + alice[1:], "Basic " + alice, alice, "Bearer " + alice +
		ci} {
		scale.header = map[string]string{"Authorization": header}
		got, body, answer := x.do(t, scale)
		if got != 401 || answer.Get("WWW-Authenticate") == "" || strings.Contains(body, "token-of") {
			t.Errorf("%q: %d %s", header, got, body)
		}
	}
	if len(x.a.Calls) > 0 {
		t.Error("it was done all the same:", x.a.Calls)
	}
	for name, token := range map[string]string{"alice": alice, "ci": ci} {
		scale.header = map[string]string{"Authorization": "Bearer " + token}
		if got, body, _ := x.do(t, scale); got != 200 {
			t.Error(got, body)
		}
		if log := x.log.String(); !strings.Contains(log, "who="+name) ||
			!strings.Contains(log, `UpsertGroup group=workers must_exist=true patch=size {\"size\":5}`) ||
			strings.Contains(log, token) {
			t.Error(log)
		}
	}
	if got, _, _ := x.do(t, request{method: "GET", path: "/groups?shard=a", host: "admin.example.com"}); got != 401 {
		t.Error("a read needs none:", got)
	}
	for _, open := range []string{"/health", "/openapi.json"} {
		if got, _, _ := x.do(t, request{method: "GET", path: open, host: "admin.example.com"}); got != 200 {
			t.Error(open, got)
		}
	}
	x.a.Do(func() { x.a.Before = func(string) error { return status.Error(codes.Internal, "no") } })
	x.log.Reset()
	if got, _, _ := x.do(t, scale); got != 502 || !strings.Contains(x.log.String(), "change failed") {
		t.Error(got, x.log.String())
	}
}

func TestParseTokens(t *testing.T) {
	windows, err := httpapi.ParseTokens("\ufeff" + alice + "\r\n")
	if _, ok := windows.Find(alice); err != nil || !ok {
		t.Errorf("a file of Windows: %v, %v", windows, err)
	}
	for text, want := range map[string]string{
		"":                               "no token",
		"# only a comment\n":             "no token",
		"short":                          "line 1: the token has 5 characters",
		alice + "\na b c " + alice:       "line 2: want a token",
		alice + "\na " + alice + " boss": "line 2: the third word is the role",
	} {
		_, err := httpapi.ParseTokens(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), alice) ||
			strings.Contains(err.Error(), "short") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestAdminRole checks that only a token with the role admin may make calls that affect a whole shard, such as a
// step-down.
func TestAdminRole(t *testing.T) {
	x := newAPI(t, "root "+alice+" admin\nci "+ci+" operator\n")
	for token, status := range map[string]int{alice: 200, ci: 403} {
		header := map[string]string{"Authorization": "Bearer " + token}
		for _, r := range []request{{method: "GET", path: "/orphans?shard=a", header: header},
			{method: "POST", path: "/server/step-down?shard=a", header: header}} {
			if got, text, _ := x.do(t, r); got != status {
				t.Errorf("%s %s: status %d, want %d: %s", r.method, r.path, got, status, text)
			}
		}
	}
}

// TestRoles checks that a viewer's token can read but not change anything. A token with another role, or without a
// role, can also make changes.
func TestRoles(t *testing.T) {
	x := newAPI(t, "victor "+alice+" viewer\nci "+ci+" operator\nold token-without-a-role\n")
	for token, status := range map[string]int{alice: 403, ci: 200, "token-without-a-role": 200} {
		header := map[string]string{"Authorization": "Bearer " + token}
		if got, text, _ := x.do(t, request{method: "GET", path: "/groups?shard=a", header: header}); got != 200 {
			t.Error(got, text)
		}
		scale := request{method: "POST", path: "/group?shard=a&group=workers&must_exist=true", body: `{"size": 5}`,
			header: header}
		if got, text, _ := x.do(t, scale); got != status {
			t.Errorf("%s: status %d, want %d: %s", token, got, status, text)
		}
	}
	if log := x.log.String(); !strings.Contains(log, "who=victor") || !strings.Contains(log, "the role is viewer") {
		t.Error(log)
	}
}

func FuzzParseTokens(f *testing.F) {
	f.Add(alice)
	f.Add("# x\r\nname " + alice + "\n")
	f.Add("a b c")
	f.Fuzz(func(t *testing.T, text string) {
		tokens, err := httpapi.ParseTokens(text)
		if (err == nil) != (len(tokens) > 0) {
			t.Error(len(tokens), err)
		}
	})
}

// Without tokens, the API answers only requests whose host name is this machine's. It also refuses a request that
// another site's page sends through a browser on this machine.
func TestBrowsers(t *testing.T) {
	x := newAPI(t, "")
	refresh := request{method: "POST", path: "/config/refresh?shard=a"}
	for _, host := range []string{"evil.example.com", "evil.example.com:8080", "10.0.0.1:8080", ""} {
		r := refresh
		r.host = host
		want := 403
		if host == "" {
			want = 200
		}
		if got, _, _ := x.do(t, r); got != want {
			t.Errorf("host %q: %d", host, got)
		}
	}
	for _, host := range []string{"localhost:8080", "[::1]:8080", "127.0.0.1", "localhost"} {
		if got, _, _ := x.do(t, request{method: "GET", path: "/groups?shard=a", host: host}); got != 200 {
			t.Errorf("host %q: %d", host, got)
		}
	}
	for _, header := range []map[string]string{{"Sec-Fetch-Site": "cross-site"},
		{"Origin": "https://evil.example.com"}} {
		r := refresh
		r.header = header
		if got, _, _ := x.do(t, r); got != 403 {
			t.Error(header, got)
		}
	}
	if got, _, _ := x.do(t, request{method: "POST", path: "/group/pause?shard=a",
		body: `{"group": "workers"}`, header: map[string]string{"Content-Type": "text/plain"}}); got != 415 {
		t.Error("a form's content type:", got)
	}
	if diff := cmp.Diff([]string{"RefreshConfig", "ListGroups", "ListGroups", "ListGroups", "ListGroups"},
		x.a.Calls); diff != "" {
		t.Error(diff)
	}
}

// Requests beyond the limit are rejected.
func TestTooManyRequestsAreRejected(t *testing.T) {
	x := newAPI(t, "")
	release := make(chan struct{})
	x.a.Before = func(string) error {
		<-release
		return nil
	}
	server := httptest.NewServer(x.handler)
	defer server.Close()
	get := func() (int, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/groups?shard=a", nil)
		if err != nil {
			return 0, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode, err
	}
	// The test sends one request more than the limit. Exactly one request is rejected.
	results := make(chan int, 65)
	for range 65 {
		go func() {
			status, err := get()
			if err != nil {
				t.Error(err)
			}
			results <- status
		}()
	}
	if status := <-results; status != http.StatusServiceUnavailable {
		t.Error(status)
	}
	close(release)
	for range 64 {
		if status := <-results; status != http.StatusOK {
			t.Error(status)
		}
	}
}
