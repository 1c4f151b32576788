package fleet_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
)

const month = 30 * 24 * time.Hour

// groupsOf lists the groups of the shard a.
func groupsOf(t *testing.T, f *fleet.Fleet) []fleet.Answer[*nstancev1.ListGroupsResponse] {
	t.Helper()
	return fleet.Call(t.Context(), f, []string{"a"}, fleet.Client.ListGroups, &nstancev1.ListGroupsRequest{})
}

func newFleet(t *testing.T, dir string, servers ...string) *fleet.Fleet {
	t.Helper()
	parsed, err := endpoints.Parse(strings.Join(servers, ","))
	if err != nil {
		t.Fatal(err)
	}
	f := fleet.New(fleet.Options{Servers: parsed, IdentityDir: dir, Timeout: 10 * time.Second, Now: fleettest.Clock,
		Rand: fleettest.Rand(9)})
	t.Cleanup(f.Close)
	return f
}

func workers() *fleettest.Shard {
	return &fleettest.Shard{
		Config: &nstancev1.GetConfigStatusResponse{Etag: "e1", Generation: 1},
		Groups: []*nstancev1.GroupStatus{{Group: "workers", IsStatic: true, Size: 2, Kind: "wrk",
			MergedJson: `{"template":"worker","vars":{"a":"b"}}`, Etag: "etag-1"}},
	}
}

// If a standby says which server leads, the client calls that server. The client's next call goes directly to that
// server. The same applies when the standby becomes the leader.
func TestFollowsLeader(t *testing.T) {
	c := fleettest.NewCluster(t, "example")
	leader, standby := workers(), workers()
	leaderAddr, _ := c.Serve(t, "a", leader)
	standbyAddr, _ := c.Serve(t, "a", standby)
	standby.Before = func(string) error { return fleettest.NotLeader("a", "leader-1", leaderAddr) }
	f := newFleet(t, c.Identity(t, "prod", fleettest.Now, month), "a="+standbyAddr)

	for range 2 {
		if failed := fleet.Failed(groupsOf(t, f)); failed != nil {
			t.Fatal(failed)
		}
	}
	if diff := cmp.Diff([]string{"ListGroups"}, standby.Calls); diff != "" {
		t.Error("calls of the standby:", diff)
	}
	if diff := cmp.Diff([]string{"prod"}, leader.Tenants); diff != "" {
		t.Error("tenants:", diff)
	}

	leader.Do(func() {
		leader.Before = func(string) error { return fleettest.NotLeader("a", "leader-2", standbyAddr) }
	})
	standby.Do(func() { standby.Before = nil })
	if failed := fleet.Failed(groupsOf(t, f)); failed != nil {
		t.Fatal(failed)
	}

	// During one call, the client goes only once to a server that another server names as the leader. Two servers that
	// name each other as the leader cause an error.
	standby.Do(func() {
		standby.Before = func(string) error { return fleettest.NotLeader("a", "leader-1", leaderAddr) }
	})
	failed := fleet.Failed(groupsOf(t, f))
	if len(failed) != 1 || failed[0].Code != codes.Unavailable || !strings.Contains(failed[0].Message,
		"does not lead") {
		t.Error(failed)
	}
	// The shard has no leader.
	standby.Do(func() { standby.Before = func(string) error { return fleettest.NotLeader("a", "", "") } })
	leader.Do(func() { leader.Before = standby.Before })
	failed = fleet.Failed(groupsOf(t, f))
	if len(failed) != 1 || !strings.Contains(failed[0].Hint, "no leader at the moment") {
		t.Error(failed)
	}
}

// The client uses the first address that works. When that address fails, the client uses the next one.
func TestSeveralAddresses(t *testing.T) {
	c := fleettest.NewCluster(t, "example")
	one, stopOne := c.Serve(t, "a", workers())
	two, _ := c.Serve(t, "a", workers())
	f := newFleet(t, c.Identity(t, "prod", fleettest.Now, month), "a="+one, "a="+two)
	if failed := fleet.Failed(groupsOf(t, f)); failed != nil {
		t.Fatal(failed)
	}
	stopOne()
	if failed := fleet.Failed(groupsOf(t, f)); failed != nil {
		t.Fatal(failed)
	}
}

// The client accepts only a server of the same cluster and of the given shard with a matching host name. The server
// must accept the client.
func TestPeers(t *testing.T) {
	c := fleettest.NewCluster(t, "example")
	other := fleettest.NewCluster(t, "other")
	foreign := fleettest.NewCluster(t, "foreign")
	foreign.CA = c.CA // the servers' certificates are from the client's CA
	serve := func(c *fleettest.Cluster, shard string, hosts ...string) (string, *fleettest.Shard) {
		api := workers()
		addr, _ := c.Serve(t, shard, api, hosts...)
		return addr, api
	}
	good := c.Identity(t, "prod", fleettest.Now, month)
	agentID, err := ident.NewID("wrk", fleettest.Now, fleettest.Rand(3))
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		identity      string
		server        *fleettest.Cluster
		shard         string
		hosts         []string
		message, hint string
	}{
		"another shard":   {good, c, "b", nil, "a server of shard b, want shard a", "check --servers"},
		"another cluster": {good, other, "a", nil, "is not from the CA", "right cluster"},
		"cluster of our CA": {good, foreign, "a", nil, "a server of cluster foreign, want cluster example",
			"check --servers"},
		"another name": {good, c, "a", []string{"10.0.0.1"}, "certificate is valid for 10.0.0.1, not 127.0.0.1",
			"advertises"},
		"our end": {c.Identity(t, "prod", fleettest.Now.Add(-2*month), month), c, "a", nil,
			"ended at 2026-06-28T10:00:00Z", "register-operator"},
		"no identity": {t.TempDir(), c, "a", nil, "no identity: ca.crt is missing", "register-operator"},
		"an agent's identity": {c.Write(t, authority.Identity{Role: authority.RoleAgent, Cluster: "example",
			Tenant: "prod", ID: agentID}, fleettest.Now, month), c, "a", nil, "of role agent, want operator", ""},
	} {
		t.Run(name, func(t *testing.T) {
			addr, api := serve(test.server, test.shard, test.hosts...)
			failed := fleet.Failed(groupsOf(t, newFleet(t, test.identity, "a="+addr)))
			if len(failed) != 1 || !strings.Contains(failed[0].Message, test.message) ||
				!strings.Contains(failed[0].Hint, test.hint) {
				t.Errorf("%v", failed)
				if len(failed) > 0 {
					t.Error(failed[0].Hint)
				}
			}
			if len(api.Calls) > 0 {
				t.Error("it was called:", api.Calls)
			}
		})
	}
}

// TestUnreachable checks that advice about a server without an answer names the cause that was seen.
func TestUnreachable(t *testing.T) {
	c := fleettest.NewCluster(t, "example")
	identity := c.Identity(t, "prod", fleettest.Now, month)
	api := workers()
	addr, stop := c.Serve(t, "a", api)
	api.Before = func(string) error {
		return status.Error(codes.Unimplemented, "unknown service nstance.v1.OperatorService")
	}
	hintAt := func(addr string) string {
		failed := fleet.Failed(groupsOf(t, newFleet(t, identity, "a="+addr)))
		if len(failed) != 1 {
			t.Fatalf("%s: %v", addr, failed)
		}
		return failed[0].Hint
	}
	if hint := hintAt(addr); !strings.Contains(hint, "another port") {
		t.Errorf("port of another service: %q", hint)
	}
	stop()
	if hint := hintAt(addr); !strings.Contains(hint, "is a server running there") {
		t.Errorf("nothing listens: %q", hint)
	}
	if hint := hintAt("leader.invalid:8993"); !strings.Contains(hint, "correct the host name in --servers") {
		t.Errorf("unknown host: %q", hint)
	}
}

func TestTimeout(t *testing.T) {
	c := fleettest.NewCluster(t, "example")
	api, release := workers(), make(chan struct{})
	addr, _ := c.Serve(t, "a", api)
	api.Before = func(string) error {
		<-release
		return nil
	}
	defer close(release)
	servers, err := endpoints.Parse("a=" + addr)
	if err != nil {
		t.Fatal(err)
	}
	f := fleet.New(fleet.Options{Servers: servers, IdentityDir: c.Identity(t, "prod", fleettest.Now, month),
		Timeout: 50 * time.Millisecond, Now: fleettest.Clock, Rand: fleettest.Rand(1)})
	defer f.Close()
	failed := fleet.Failed(groupsOf(t, f))
	if len(failed) != 1 || failed[0].Code != codes.DeadlineExceeded || !strings.Contains(failed[0].Hint,
		"--request-timeout") {
		t.Error(failed)
	}
}

// A scaling changes only the group's size. If another client changes other fields at the same time, these changes
// remain.
func TestScaleIsSafe(t *testing.T) {
	c := fleettest.NewCluster(t, "example")
	api := workers()
	addr, _ := c.Serve(t, "a", api)
	api.Before = func(method string) error {
		if method == "UpsertGroup" {
			api.Groups[0].Etag, api.Groups[0].MergedJson = "other", `{"vars":{"set":"by another"}}`
		}
		return nil
	}
	f := newFleet(t, c.Identity(t, "prod", fleettest.Now, month), "a="+addr)
	answers := f.Edit(t.Context(), []string{"a"}, fleet.Scaling{Group: "workers", Size: 5})
	if failed := fleet.Failed(answers); failed != nil {
		t.Fatal(failed)
	}
	if got := answers[0]; got.Before.GetSize() != 2 || got.Message.GetGroup().GetSize() != 5 ||
		config.ReadSettings(got.Message.GetGroup().GetMergedJson()).Vars["set"] != "by another" {
		t.Errorf("%+v", got.Message)
	}
	if diff := cmp.Diff(&nstancev1.UpsertGroupRequest{Group: "workers", Patch: `{"size":5}`,
		MustExist: true, Pin: new(bool)}, api.Upserts[0], protocmp.Transform()); diff != "" {
		t.Error("it asked for more than a size:", diff)
	}
	if failed := fleet.Failed(f.Edit(t.Context(), []string{"a"},
		fleet.Scaling{Group: "nobody", Size: 6})); len(failed) != 1 ||
		failed[0].Code != codes.NotFound {
		t.Error(failed)
	}
	api.Do(func() { api.Groups[0].Deleting = true })
	if failed := fleet.Failed(f.Edit(t.Context(), []string{"a"},
		fleet.Scaling{Group: "workers", Size: 6})); len(failed) != 1 ||
		failed[0].Code != codes.FailedPrecondition {
		t.Error(failed)
	}
}

// If CreateInstance gets no answer, its error names the requested instance ID. A second call with this ID creates no
// second instance.
func TestCreateInstance(t *testing.T) {
	c := fleettest.NewCluster(t, "example")
	api := workers()
	addr, _ := c.Serve(t, "a", api)
	f := newFleet(t, c.Identity(t, "prod", fleettest.Now, month), "a="+addr)
	api.Before = func(method string) error {
		if method == "CreateInstance" {
			return status.Error(codes.Unavailable, "lost")
		}
		return nil
	}
	create := func(id string) []fleet.Answer[*nstancev1.CreateInstanceResponse] {
		return fleet.Call(t.Context(), f, []string{"a"}, fleet.Client.CreateInstance,
			&nstancev1.CreateInstanceRequest{Group: "workers", InstanceId: id, InstanceType: "big"})
	}
	failed := fleet.Failed(create(""))
	if len(failed) != 1 {
		t.Fatal(failed)
	}
	_, text, ok := strings.Cut(failed[0].Hint, "--instance-id ")
	if !ok {
		t.Fatal(failed[0].Hint)
	}
	id, err := ident.ParseID(strings.Fields(text)[0])
	if err != nil || id.Prefix() != "wrk" {
		t.Fatal(text, err)
	}
	api.Do(func() { api.Before = nil })
	for range 2 {
		answers := create(id.String())
		if answers[0].Err != nil || answers[0].Message.GetInstance().GetInstanceId() != id.String() {
			t.Errorf("%+v", answers[0])
		}
	}
	if len(api.Instances) != 1 {
		t.Error(len(api.Instances), "instances")
	}
}

// A message is written with all its fields, with JSON texts as JSON and with 64-bit numbers as numbers, always in the
// same form.
func TestJSON(t *testing.T) {
	id := nstancev1.InstanceStatus{InstanceId: "wrk1", Term: 1<<53 + 1, Group: "<&>",
		Metrics: &nstancev1.Metrics{Cpu: 0.5, MemoryUsedBytes: 3}, LastReportAt: timestamppb.New(fleettest.Now),
		HealthChecks: []*nstancev1.HealthCheckState{{Name: "x_json",
			Status: nstancev1.HealthCheckState_STATUS_PASSING}}}
	group := nstancev1.GroupStatus{Group: "workers",
		MergedJson: `{"template": "x", "vars": {"a_json": "1"}}`, InstanceIds: []string{"wrk1"}}
	broken := nstancev1.GroupStatus{MergedJson: "{"}
	for _, test := range []struct {
		of   any
		want string
	}{
		{fleet.Answer[*nstancev1.GetInstanceStatusResponse]{Outcome: fleet.Outcome{Shard: "a"},
			Message: &nstancev1.GetInstanceStatusResponse{Instance: &id}}, `{"shard":"a","instance":{"instance_id":"wrk1","group":"<&>","template":"","kind":"",` +
			`"on_demand":false,"state":"","provider_state":"","provider_id":"","health":"","health_message":"",` +
			`"ipv4":"","ipv6":"","hostname":"","instance_type":"","subnet_id":"","last_report_at":` +
			`"2026-07-28T10:00:00Z","infra_drift":false,"runtime_drift":false,"delete_reason":"","image":"",` +
			`"term":9007199254740993,"agent_version":"","zone":"","region":"","metrics":{"cpu":0.5,` +
			`"memory_used_bytes":3,"memory_total_bytes":0},"health_checks":[{"name":"x_json",` +
			`"status":"STATUS_PASSING","reason":""}],"protected":false,"preserve_reason":"","scaling":[],"spare":false}}`},
		{fleet.Answer[*nstancev1.ListGroupsResponse]{Outcome: fleet.Outcome{Shard: "a"},
			Message: &nstancev1.ListGroupsResponse{}},
			`{"shard":"a","groups":[]}`},
		{fleet.Answer[*nstancev1.GetConfigStatusResponse]{Outcome: fleet.Outcome{Shard: "a",
			Err: &fleet.Error{Code: codes.NotFound}}},
			`{"shard":"a","error":{"code":"not_found","message":""}}`},
		{fleet.Changed{Answer: fleet.Answer[*nstancev1.UpsertGroupResponse]{
			Message: &nstancev1.UpsertGroupResponse{}},
			Before: &nstancev1.GroupStatus{Size: 2}}, `{"shard":"","previous_size":2}`},
		{fleet.Event{Shard: "a", Error: fleet.Message[*nstancev1.ErrorEvent]{Of: &nstancev1.ErrorEvent{Kind: "x"}}},
			`{"shard":"a","snapshot":false,"error_event":{"kind":"x","group":"","instance_id":"","message":"",` +
				`"resolved":false}}`},
		{fleet.Message[*nstancev1.GroupStatus]{Of: &group}, `{"group":"workers","is_static":false,"overridden":false,` +
			`"deleting":false,"size":0,"actual_size":0,"healthy":0,"etag":"","provider_ids":[],"blocked_reason":"","runtime_hash":"",` +
			`"infra_hash":"","kind":"","arch":"","instance_ids":["wrk1"],"spec":null,"paused":false,` +
			`"rollout_waits":"","outdated":0,"merged":{"template":"x","vars":{"a_json":"1"}},"preserved":0,"defaults":[],"overrides":[]}`},
		{fleet.Message[*nstancev1.GroupStatus]{Of: &broken}, `"merged":"{"`},
	} {
		var got bytes.Buffer
		enc := json.NewEncoder(&got)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(test.of); err != nil {
			t.Fatal(err)
		}
		if text := strings.TrimSpace(got.String()); text != test.want && !(test.want[0] == '"' &&
			strings.Contains(text, test.want)) {
			t.Errorf("%s\nwant %s", text, test.want)
		}
	}
}

// Events arrive in order, and those of the initial state have Snapshot set. The client opens a lost connection again. A
// permanent error ends the watch.
func TestFollow(t *testing.T) {
	c := fleettest.NewCluster(t, "example")
	api := workers()
	fresh := func() {
		api.GroupEvents = make(chan *nstancev1.GroupEvent, 10)
		api.InstanceEvents = make(chan *nstancev1.InstanceEvent, 10)
		api.ErrorEvents = make(chan *nstancev1.ErrorEvent, 10)
		api.GroupEvents <- &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_UPSERT, Status: api.Groups[0]}
		api.GroupEvents <- &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_SNAPSHOT_END}
		api.GroupEvents <- &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_DELETE, Group: "gone"}
	}
	fresh()
	entered := make(chan string, 100)
	api.Before = func(method string) error {
		entered <- method
		return nil
	}
	addr, _ := c.Serve(t, "a", api)
	f := newFleet(t, c.Identity(t, "prod", fleettest.Now, month), "a="+addr)

	seen := make(chan string, 100)
	go func() {
		defer close(seen)
		failed := f.FollowShards(t.Context(), []string{"a"}, fleet.Watcher{
			Event: func(e fleet.Event) {
				group, _ := e.Subject()
				seen <- fmt.Sprintf("%s %s %v", e.Group.Of.GetType(), group, e.Snapshot)
			},
			Lost:  func(err *fleet.Error, _ time.Duration) { seen <- "lost " + err.Code.String() },
			Found: func(shard string) { seen <- "found " + shard },
		})
		for _, err := range failed {
			seen <- "failed " + err.Code.String()
		}
	}()
	want := func(lines ...string) {
		t.Helper()
		for _, line := range lines {
			if got := <-seen; got != line {
				t.Fatalf("%q, want %q", got, line)
			}
		}
	}
	snapshot := []string{"TYPE_UPSERT workers true", "TYPE_SNAPSHOT_END  true", "TYPE_DELETE gone false"}
	// watching waits until the server has all three watch streams of a session.
	watching := func() {
		for range 3 {
			<-entered
		}
	}
	want(snapshot...)
	watching()
	var old chan *nstancev1.GroupEvent
	api.Do(func() { old = api.GroupEvents; fresh() })
	close(old) // the server ends the watch
	want(append([]string{"lost Unavailable", "found a"}, snapshot...)...)
	watching()
	api.Do(func() {
		old = api.GroupEvents
		api.Before = func(string) error { return status.Error(codes.PermissionDenied, "the operator was removed") }
	})
	close(old)
	want("lost Unavailable", "lost PermissionDenied", "failed PermissionDenied")
	if _, open := <-seen; open {
		t.Error("there is more")
	}
}

func TestFollowEndsWithContext(t *testing.T) {
	c := fleettest.NewCluster(t, "example")
	api := workers()
	api.ErrorEvents = make(chan *nstancev1.ErrorEvent, 1)
	api.ErrorEvents <- &nstancev1.ErrorEvent{Kind: "capacity", Resolved: true}
	addr, _ := c.Serve(t, "a", api)
	f := newFleet(t, c.Identity(t, "prod", fleettest.Now, month), "a="+addr)
	ctx, cancel := context.WithCancel(t.Context())
	failed := f.FollowShards(ctx, []string{"a"}, fleet.Watcher{Event: func(e fleet.Event) {
		if !e.Error.Of.GetResolved() || e.Error.Of.GetKind() != "capacity" {
			t.Errorf("%+v", e)
		}
		cancel()
	}})
	if failed != nil {
		t.Error(failed)
	}
}
