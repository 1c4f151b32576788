package web_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
	"github.com/nstance-kit/nstance/services/internal/admin/serve/httpapi"
	"github.com/nstance-kit/nstance/services/internal/admin/serve/web"
	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
)

const (
	first  = "wrk06gx5zsg2nrrqcrz0000000000"
	second = "wrk06gx5zsg2nrrqcrz0000000008"
)

// shard returns a shard with a group of two instances. The first instance is healthy, and the second is silent.
func shard() *fleettest.Shard {
	now := timestamppb.New(fleettest.Now)
	return &fleettest.Shard{
		Config: &nstancev1.GetConfigStatusResponse{Etag: "e1", Generation: 1, ClusterId: "example", Term: 3,
			LeaderId: "server-1", LastModified: now},
		Status: &nstancev1.GetShardStatusResponse{ClusterId: "example", LeaderId: "server-1", Term: 3, ConfigEtag: "e1",
			HeirId: "server-2", StandbyIds: []string{"server-2"}, LeaseLeft: durationpb.New(8200 * time.Millisecond)},
		Groups: []*nstancev1.GroupStatus{{Group: "workers", IsStatic: true, Size: 7, ActualSize: 6, Healthy: 5,
			MergedJson: `{"template":"worker"}`, Kind: "wrk", Etag: "etag-1", BlockedReason: "no capacity for <big>",
			BlockedSince: timestamppb.New(fleettest.Now.Add(-time.Hour)),
			BlockedUntil: timestamppb.New(fleettest.Now.Add(time.Minute))}},
		Instances: []*nstancev1.InstanceStatus{
			{InstanceId: first, Group: "workers", State: "registered", Health: "healthy", CreatedAt: now},
			{InstanceId: second, Group: "workers", State: "registered", Health: "silent", CreatedAt: now},
		},
		Explanations: map[string]*nstancev1.ExplainGroupResponse{"workers": {PlannedAt: now, Term: 3, Desired: 7,
			BlockedReason: "no capacity for <big>",
			Actions: []*nstancev1.PlannedAction{{Kind: "mark_deleting", InstanceId: second,
				Reason: "it is silent", Cause: "silent"}},
			Instances: []*nstancev1.InstanceVerdict{{InstanceId: first, Rule: 12, RuleName: "healthy"},
				{InstanceId: second, Rule: 9, RuleName: "silent"}}}},
	}
}

// site is a page that shows the shards "a" and "b".
type site struct {
	page  http.Handler
	watch func(context.Context) error
	fleet *fleet.Fleet
	a, b  *fleettest.Shard
	log   *strings.Builder
}

func newSite(t testing.TB, tokens string) *site {
	t.Helper()
	return newSiteWith(t, nil, tokens)
}

func newSiteWith(t testing.TB, bucket web.Bucket, tokens string) *site {
	t.Helper()
	return newSiteKnowing(t, bucket, nil, tokens)
}

// newSiteKnowing returns a site that shows what `known` knows of shards without a leader.
func newSiteKnowing(t testing.TB, bucket web.Bucket, known fleet.LastKnown, tokens string) *site {
	t.Helper()
	c := fleettest.NewCluster(t, "example")
	s := &site{a: shard(), b: shard(), log: &strings.Builder{}}
	addrA, _ := c.Serve(t, "a", s.a)
	addrB, _ := c.Serve(t, "b", s.b)
	servers, err := endpoints.Parse("a=" + addrA + ",b=" + addrB)
	if err != nil {
		t.Fatal(err)
	}
	f := fleet.New(fleet.Options{Servers: servers, Timeout: time.Minute, Now: fleettest.Clock,
		IdentityDir: c.Identity(t, "default", fleettest.Now, 30*24*time.Hour), Rand: fleettest.Rand(1),
		LastKnown: known})
	t.Cleanup(f.Close)
	s.fleet = f
	var parsed httpapi.Tokens
	if tokens != "" {
		if parsed, err = httpapi.ParseTokens(tokens); err != nil {
			t.Fatal(err)
		}
	}
	s.page, s.watch = web.New(web.Options{Fleet: f, Bucket: bucket, Tokens: parsed, Version: "1.2.3",
		Timeout: time.Minute, Now: fleettest.Clock, Log: slog.New(slog.NewTextHandler(s.log, nil))})
	return s
}

// run starts the hub and ends it with the test.
func (s *site) run(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.watch(ctx) // it returns nil
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
}

// request describes one HTTP request of a test. The test sends a valid value for a field that is zero.
type request struct {
	method, path string
	form         url.Values
	header       map[string]string
	host         string
}

func (s *site) do(t testing.TB, r request) *http.Response {
	t.Helper()
	method := r.method
	if method == "" {
		method = http.MethodGet
	}
	req := httptest.NewRequestWithContext(t.Context(), method, r.path, strings.NewReader(r.form.Encode()))
	req.Host = "127.0.0.1:8080"
	if r.host != "" {
		req.Host = r.host
	}
	if r.form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for name, value := range r.header {
		req.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	s.page.ServeHTTP(w, req)
	return w.Result()
}

func (s *site) text(t testing.TB, path string, want int) string {
	t.Helper()
	resp := s.do(t, request{path: path})
	text, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != want {
		t.Fatalf("%s: status %d, want %d: %v\n%s", path, resp.StatusCode, want, err, text)
	}
	return string(text)
}

// TestPages checks that every page contains the values that the shards answer, escaped for HTML.
func TestPages(t *testing.T) {
	s := newSite(t, "")
	s.a.History = []*nstancev1.JournalEvent{
		{Position: "3-1", Kind: "instance_lost", Group: "workers", InstanceId: first,
			At: timestamppb.New(fleettest.Now.Add(-time.Minute)), Message: "gone <b>"},
		{Position: "3-2", Kind: "instance_creating", Group: "workers", InstanceId: second, Replaces: first,
			At: timestamppb.New(fleettest.Now.Add(-59 * time.Second))},
	}
	for _, test := range []struct {
		path   string
		status int
		want   []string
	}{
		{"/ui/", 200, []string{`id="s-a"`, "8.2 s", "lacks 1: no capacity for &lt;big&gt;",
			`id="s-b"`, "server-1", `<td class="id">server-2</td>`,
			`<td class="number middle">7</td><td class="number middle">6</td>` +
				`<td class="number middle">5</td>`}},
		{"/ui/shards/a", 200, []string{"Shard a",
			`<dt>Heir</dt><dd class="value good">server-2</dd>`, "lease left: 8.2 s",
			`href="/ui/shards/a/groups/workers"`, "no capacity for &lt;big&gt;"}},
		{"/ui/shards/c", 404, []string{"There are: a, b."}},
		{"/ui/shards/a/groups/workers", 200, []string{"1 healthy", "1 silent", "it is silent", "1 × rule 9 (silent)",
			"lacks 1: no capacity for &lt;big&gt;</li>", "Blocked: began <time",
			`title="2026-07-28 09:00:00 UTC">1 h ago`, "in 1 min</time>",
			`id="i-` + first}},
		{"/ui/shards/a/groups/workers?class=silent", 200, []string{`id="i-` + second}},
		{"/ui/shards/a/groups/nobody", 404, []string{"there is no group"}},
		{"/ui/shards/a/groups/No", 400, []string{"group:"}},
		{"/ui/shards/a/instances/" + second, 200, []string{"silent", "asked for", ">1 s<", "gone &lt;b&gt;",
			"Replaced", `href="/ui/shards/a/instances/` + first, "9 (silent)"}},
		{"/ui/shards/a/instances/nobody", 400, []string{"instance:"}},
		{"/ui/events", 200, []string{`title="instance_lost">lost<`, "gone &lt;b&gt;", `id="e-a-3-1"`}},
		{"/ui/events?period=never", 400, []string{"period:"}},
		{"/ui/events?since=never", 400, []string{"since:"}},
		{"/ui/events?shard=c", 400, []string{"shard:"}},
		{"/ui/events?instance=x", 400, []string{"instance:"}},
		{"/ui/config", 200, []string{`id="c-a"`, "<code>e1</code>"}},
		{"/ui/nothing", 404, []string{"no such page"}},
	} {
		text := s.text(t, test.path, test.status)
		for _, want := range test.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: there is no %q in\n%s", test.path, want, text)
			}
		}
	}
}

// TestWait checks that the page shows the leader's sentence with links and times, and the estimate of a rollout.
func TestWait(t *testing.T) {
	s := newSite(t, "")
	const id = "wrk06bgm7733st2576nx5jht4ecjw"
	s.a.Do(func() {
		s.a.Groups[0].Outdated = 1
		e := s.a.Explanations["workers"]
		e.Wait = &nstancev1.Wait{Text: "wrk…t4ecjw drains until 10:01:00", Parts: []*nstancev1.WaitPart{
			{Text: "wrk…t4ecjw", InstanceId: id}, {Text: " drains until "},
			{Text: "10:01:00", At: timestamppb.New(fleettest.Now.Add(time.Minute))}}}
		e.Rollout = &nstancev1.RolloutProgress{Since: timestamppb.New(fleettest.Now.Add(-time.Hour)), Replaced: 3,
			Left: durationpb.New(20 * time.Minute)}
	})
	text := s.text(t, "/ui/shards/a/groups/workers", 200)
	for _, want := range []string{id + `">wrk…t4ecjw</a> drains until `,
		`<span title="2026-07-28 10:01:00 UTC">10:01:00</span>.`, "About 20 min left: it began ", "has replaced 3."} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
}

// TestShardWithoutAnswer checks that a shard that does not answer keeps its row, with the reason why it does not
// answer. The rows of other shards stay.
func TestShardWithoutAnswer(t *testing.T) {
	s := newSite(t, "")
	s.a.Do(func() {
		s.a.Before = func(string) error { return fleettest.NotLeader("a", "", "") }
	})
	text := s.text(t, "/ui/", 200)
	if !strings.Contains(text, "the shard has no leader at the moment") || !strings.Contains(text, "server-1") {
		t.Error(text)
	}
	if text := s.text(t, "/ui/shards/a/groups/workers", 503); !strings.Contains(text, "does not lead") {
		t.Error(text)
	}
}

// TestRefusedConfiguration checks that the page shows the positions of the problems of a refused configuration.
func TestRefusedConfiguration(t *testing.T) {
	s := newSite(t, "")
	s.a.Config.RefusedEtag, s.a.Status.RefusedEtag = "e2", "e2"
	s.a.Config.Problems = []*nstancev1.ConfigProblem{{Path: "groups.workers.size", Line: 14, Column: 9,
		Message: "is negative"}}
	text := s.text(t, "/ui/config", 200)
	for _, want := range []string{"<code>e2</code>",
		"Line 14, column 9 <code>groups.workers.size</code>: is negative"} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
	if text := s.text(t, "/ui/", 200); !strings.Contains(text, "refused") {
		t.Error(text)
	}
}

// TestHeaders checks that the headers forbid inline scripts and styles, and that no page has any.
func TestHeaders(t *testing.T) {
	s := newSite(t, "")
	inline := regexp.MustCompile(`<style|<script[^>]*>[^<]|\sstyle=|\son[a-z]+=|javascript:`)
	for _, path := range []string{"/ui/", "/ui/shards/a", "/ui/shards/a/groups/workers", "/ui/events", "/ui/config",
		"/ui/shards/a/instances/" + first, "/ui/nothing"} {
		resp := s.do(t, request{path: path})
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		policy := resp.Header.Get("Content-Security-Policy")
		if !strings.Contains(policy, "default-src 'none'") || !strings.Contains(policy, "script-src 'self';") ||
			strings.Contains(policy, "unsafe") {
			t.Errorf("%s: policy %q", path, policy)
		}
		if found := inline.Find(text); found != nil {
			t.Errorf("%s: has %q", path, found)
		}
	}
}

// TestAssets checks that the style and the script are at the addresses to which the pages refer. A browser may cache
// them forever.
func TestAssets(t *testing.T) {
	s := newSite(t, "")
	found := regexp.MustCompile(`/ui/assets/[^"]+`).FindAllString(s.text(t, "/ui/", 200), -1)
	if len(found) != 3 {
		t.Fatal(found)
	}
	for _, path := range found {
		resp := s.do(t, request{path: path})
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK || !strings.Contains(resp.Header.Get("Cache-Control"), "immutable") {
			t.Errorf("%s: status %d, %q", path, resp.StatusCode, resp.Header.Get("Cache-Control"))
		}
	}
	s.text(t, "/ui/assets/x/", 404)
	s.text(t, "/ui/assets/x/nothing.js", 404)
}

// logins has the token of an operator and that of a viewer.
const logins = "olivia olivias-token-of-24-chars operator\nvictor victors-token-of-24-chars viewer"

// login logs in with the token and returns the cookie of the session.
func (s *site) login(t testing.TB, token string) *http.Cookie {
	t.Helper()
	resp := s.do(t, request{method: "POST", path: "/ui/login",
		form: url.Values{"token": {token}, "to": {"/ui/config"}}})
	resp.Body.Close()
	if resp.StatusCode != http.StatusSeeOther || resp.Header.Get("Location") != "/ui/config" ||
		len(resp.Cookies()) != 1 {
		t.Fatalf("login: %s, %v", resp.Status, resp.Header)
	}
	return resp.Cookies()[0]
}

// TestLogin checks that a page needs a login or a token, which a proxy may add. Scripts and other sites cannot use the
// login's cookie. A changed cookie is refused.
func TestLogin(t *testing.T) {
	s := newSite(t, logins)
	resp := s.do(t, request{path: "/ui/events?group=workers"})
	resp.Body.Close()
	if resp.StatusCode != http.StatusSeeOther ||
		resp.Header.Get("Location") != "/ui/login?to=%2Fui%2Fevents%3Fgroup%3Dworkers" {
		t.Error(resp.Status, resp.Header)
	}
	resp = s.do(t, request{method: "POST", path: "/ui/login", form: url.Values{"token": {"wrong"}}})
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized || len(resp.Cookies()) > 0 {
		t.Error(resp.Status, resp.Cookies())
	}
	cookie := s.login(t, "victors-token-of-24-chars")
	if !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode || cookie.Path != "/ui/" ||
		strings.Contains(cookie.Value, "victors-token") {
		t.Errorf("%+v", cookie)
	}
	for _, test := range []struct {
		name, header, value string
		status              int
	}{
		{"cookie", "Cookie", cookie.Name + "=" + cookie.Value, 200},
		{"changed cookie", "Cookie", cookie.Name + "=x" + cookie.Value, 303},
		{"changed end", "Cookie", cookie.Name + "=" + cookie.Value[:len(cookie.Value)-2] + "==", 303},
		{"half a cookie", "Cookie", cookie.Name + "=" + cookie.Value[:len(cookie.Value)/2], 303},
		{"proxy", "Authorization", "Bearer victors-token-of-24-chars", 200},
		{"wrong token", "Authorization", "Bearer wrong", 303},
	} {
		resp := s.do(t, request{path: "/ui/", header: map[string]string{test.header: test.value}})
		resp.Body.Close()
		if resp.StatusCode != test.status {
			t.Errorf("%s: %s", test.name, resp.Status)
		}
	}
	resp = s.do(t, request{path: "/ui/live"})
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Error("the changes without a login:", resp.Status)
	}
	resp = s.do(t, request{method: "POST", path: "/ui/login", header: map[string]string{"X-Forwarded-Proto": "https"},
		form: url.Values{"token": {"victors-token-of-24-chars"}, "to": {"//evil.example/"}}})
	resp.Body.Close()
	if resp.Header.Get("Location") != "/ui/" || !resp.Cookies()[0].Secure {
		t.Error(resp.Header)
	}
}

// TestLogout checks that the cookie of a session that ended is of no more use, and that other sessions go on.
func TestLogout(t *testing.T) {
	s := newSite(t, logins)
	stolen, other := s.login(t, "victors-token-of-24-chars"), s.login(t, "victors-token-of-24-chars")
	status := func(c *http.Cookie) int {
		resp := s.do(t, request{path: "/ui/", header: map[string]string{"Cookie": c.Name + "=" + c.Value}})
		resp.Body.Close()
		return resp.StatusCode
	}
	if got := status(stolen); got != 200 {
		t.Fatal(got)
	}
	resp := s.do(t, request{method: "POST", path: "/ui/logout",
		header: map[string]string{"Cookie": stolen.Name + "=" + stolen.Value}})
	resp.Body.Close()
	if a, b := status(stolen), status(other); a != 303 || b != 200 {
		t.Errorf("after the logout, the cookie gets %d, want 303; that of the other session gets %d, want 200", a, b)
	}
}

// TestSlowLogins checks that clients that send the form slowly do not close the page to others.
func TestSlowLogins(t *testing.T) {
	s := newSite(t, logins)
	server := httptest.NewServer(s.page)
	defer server.CloseClientConnections()
	for range 80 {
		body, writer := io.Pipe()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/ui/login", body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		go func() {
			if resp, err := http.DefaultTransport.RoundTrip(req); err == nil {
				resp.Body.Close()
			}
		}()
		if _, err := writer.Write([]byte("token=")); err != nil { // the server has the request
			t.Fatal(err)
		}
	}
	time.Sleep(200 * time.Millisecond)
	resp := s.do(t, request{path: "/ui/login"})
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("with 80 slow logins, the page answers %s", resp.Status)
	}
}

// TestLocalOnly checks that a page that is configured without logins answers only requests for host names of this
// machine.
func TestLocalOnly(t *testing.T) {
	s := newSite(t, "")
	resp := s.do(t, request{path: "/ui/", host: "evil.example:8080"})
	resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Error(resp.Status)
	}
}

// TestManyInstances shows that the list of a large group is split into pages, and that each page stays small.
func TestManyInstances(t *testing.T) {
	s := newSite(t, "")
	s.a.Instances = manyInstances(5000)
	start := time.Now()
	text := s.text(t, "/ui/shards/a/groups/workers?page=2", 200)
	t.Logf("%d bytes in %v", len(text), time.Since(start))
	if len(text) > 300<<10 {
		t.Errorf("the page has %d bytes", len(text))
	}
	if got := strings.Count(text, `<tr id="i-`); got != 50 {
		t.Error(got, "instances on the page")
	}
	for _, want := range []string{"4999 healthy", "1 silent", "Page 2 of 100, 5000 instances",
		`href="?page=3#instances"`} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q", want)
		}
	}
	if text := s.text(t, "/ui/shards/a/groups/workers", 200); strings.Index(text, "0000004999") >
		strings.Index(text, "0000000000\"") {
		t.Error("the silent instance is not the first")
	}
}

func manyInstances(n int) []*nstancev1.InstanceStatus {
	var instances []*nstancev1.InstanceStatus
	for i := range n {
		instances = append(instances, &nstancev1.InstanceStatus{
			InstanceId: fmt.Sprintf("wrk06gx5zsg2nrrqcrz%010d", i), Group: "workers", State: "registered",
			Health: "healthy", InstanceType: "m5.large", Ipv4: fmt.Sprintf("10.0.%d.%d", i/250, i%250),
			CreatedAt: timestamppb.New(fleettest.Now)})
	}
	instances[n-1].Health = "silent"
	return instances
}

// TestUnavailableShard checks that a group's page shows the error of a shard that does not answer.
func TestUnavailableShard(t *testing.T) {
	s := newSite(t, "")
	s.a.Do(func() {
		s.a.Before = func(string) error { return status.Error(codes.PermissionDenied, "the operator was removed") }
	})
	if text := s.text(t, "/ui/shards/a/groups/workers", 403); !strings.Contains(text, "the operator was removed") {
		t.Error(text)
	}
}

// TestFiguresAreThoseOfTheAPI checks that the page shows the same numbers of instances as the HTTP API.
func TestFiguresAreThoseOfTheAPI(t *testing.T) {
	s := newSite(t, "")
	s.b.Groups = append(s.b.Groups, &nstancev1.GroupStatus{Group: "other", Size: 40, ActualSize: 30, Healthy: 20})
	api := httpapi.New(httpapi.Options{Fleet: s.fleet, Timeout: time.Minute, Log: slog.New(slog.DiscardHandler)})
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/groups?all_shards=true", nil)
	req.Host = "127.0.0.1:8080"
	w := httptest.NewRecorder()
	api.ServeHTTP(w, req)
	var answers fleet.Answers[struct {
		Shard  string
		Groups []struct {
			Group   string
			Size    int
			Actual  int `json:"actual_size"`
			Healthy int
		}
	}]
	if err := json.Unmarshal(w.Body.Bytes(), &answers); err != nil || len(answers.Shards) != 2 {
		t.Fatal(err, w.Body)
	}
	all := s.text(t, "/ui/", 200)
	for _, answer := range answers.Shards {
		var desired, actual, healthy int
		text := s.text(t, "/ui/shards/"+answer.Shard, 200)
		for _, g := range answer.Groups {
			desired, actual, healthy = desired+g.Size, actual+g.Actual, healthy+g.Healthy
			got := numbers(t, text, "g-"+answer.Shard+"-"+g.Group)
			if !slices.Equal(got[:3], []int{g.Size, g.Actual, g.Healthy}) {
				t.Errorf("group %s of shard %s: %v, the API has %+v", g.Group, answer.Shard, got, g)
			}
		}
		if got := numbers(t, all, "s-"+answer.Shard); !slices.Equal(got[1:], []int{desired, actual, healthy}) {
			t.Errorf("shard %s: %v, the API has %d, %d and %d", answer.Shard, got, desired, actual, healthy)
		}
	}
}

// numbers returns the numbers in a row of a table.
func numbers(t testing.TB, page, id string) (found []int) {
	t.Helper()
	_, row, ok := strings.Cut(page, `<tr id="`+id+`">`)
	row, _, end := strings.Cut(row, "</tr>")
	if !ok || !end {
		t.Fatalf("there is no row %s in\n%s", id, page)
	}
	for _, match := range regexp.MustCompile(`<td class="number[a-z ]*">(\d+)</td>`).FindAllStringSubmatch(row, -1) {
		n, err := strconv.Atoi(match[1])
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, n)
	}
	return found
}
