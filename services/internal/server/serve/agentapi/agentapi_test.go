package agentapi_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/serve/agentapi"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

func TestAgentActsOnlyForItsInstance(t *testing.T) {
	w := newTestLeader(t)
	other := w.agent(t)
	for _, named := range []string{other.id.String(), "", "nonsense"} {
		for rpc, err := range w.agent(t).each(t, named) {
			wants(t, rpc, err, codes.PermissionDenied, "instance_id: is not the one")
		}
	}
	if view, _ := w.State.Instance(other.id); !view.Plan.LastReport.IsZero() {
		t.Error("the report of another instance was accepted")
	}
}

func TestRefusedConnections(t *testing.T) {
	w := newTestLeader(t)
	key := transporttest.NewKey(t)
	stranger := w.NewID(t, "knd")
	created := w.Created(t)
	deleted, deletedKey, deletedCert := w.registered(t)
	w.Delete(t, deleted, true)
	registered, registeredKey, _ := w.registered(t)
	foreign := w.Agent(registered)
	foreign.Tenant = "dev"
	for _, test := range []struct {
		name    string
		c       *client
		code    codes.Code
		message string
	}{
		{"no such instance", w.connect(t, stranger, key, w.Certificate(t, w.Agent(stranger), key)), codes.NotFound,
			"there is no instance"},
		{"not registered", w.connect(t, created, key, w.Certificate(t, w.Agent(created), key)),
			codes.PermissionDenied, "is not registered"},
		{"deleted", w.connect(t, deleted, deletedKey, deletedCert), codes.NotFound, "is deleted"},
		{"another key", w.connect(t, registered, key, w.Certificate(t, w.Agent(registered), key)),
			codes.PermissionDenied, "registered with another key"},
		{"another tenant", w.connect(t, registered, registeredKey, w.Certificate(t, foreign, registeredKey)),
			codes.PermissionDenied, "is not of tenant dev"},
	} {
		for rpc, err := range test.c.each(t, test.c.id.String()) {
			wants(t, test.name+": "+rpc, err, test.code, test.message)
		}
	}
}

// TestRefusalIsKnown checks that the leader, and not only the agent's console, tells why it refuses an agent.
func TestRefusalIsKnown(t *testing.T) {
	w := newTestLeader(t)
	id, _, cert := w.registered(t)
	other := transporttest.NewKey(t)
	for range w.connect(t, id, other, w.Certificate(t, w.Agent(id), other)).each(t, id.String()) { // each is refused
	}
	const why = "is registered with another key, from 127.0.0.1"
	view, _ := w.State.Instance(id)
	if !strings.HasSuffix(view.Plan.Refused, why) {
		t.Errorf("the leader knows the refusal as %q", view.Plan.Refused)
	}
	w.connect(t, id, nil, cert).reports().send(nil)
	if view, _ = w.State.Instance(id); view.Plan.Refused != "" {
		t.Errorf("an agent that reports counts as refused: %s", view.Plan.Refused)
	}
}

// TestOldRecommendation checks that the notice by which earlier agents report a recommendation is no interruption, and
// that their reports say nothing of maintenance.
func TestOldRecommendation(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	c.reports().send(func(m *nstancev1.ReportHealthRequest) {
		m.Termination = &nstancev1.TerminationNotice{Kind: "rebalance"}
	})
	if view, _ := w.State.Instance(c.id); view.Plan.Notice || !view.Plan.Recommended || view.Report.Maintenance != nil {
		t.Errorf("%+v", view.Plan)
	}
}

func TestReports(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	r := c.reports()
	deadline := w.Clock.Now().Add(2 * time.Minute)
	entries := uint64(7)
	r.send(func(m *nstancev1.ReportHealthRequest) {
		m.AgentVersion, m.RuntimeHash, m.Ipv4, m.Hostname = "v1", "r0", "10.0.0.9", "node-9"
		m.Metrics = &nstancev1.Metrics{Cpu: 0.5, MemoryUsedBytes: 1, MemoryTotalBytes: 2, ConntrackEntries: &entries}
		m.Termination = &nstancev1.TerminationNotice{Kind: "spot", Deadline: timestamppb.New(deadline)}
		m.Recommendation = &nstancev1.Recommendation{Replace: true}
		m.Maintenance = &nstancev1.Maintenance{Kind: "system-reboot", Begins: timestamppb.New(deadline)}
		m.Files = []*nstancev1.FileState{{Name: "a", Error: "disk full"}}
		m.Keys = []*nstancev1.KeyState{{Name: "a.pub", Sha256: strings.Repeat("0", 64)}}
	})
	want := shardstate.Report{Healthy: true, Message: "1ns", Version: "v1", RuntimeHash: "r0", IPv4: "10.0.0.9",
		Hostname: "node-9",
		Files:    []shardstate.FileState{{Name: "a", Error: "disk full"}},
		Keys:     []shardstate.KeyState{{Name: "a.pub", SHA256: strings.Repeat("0", 64)}},
		Notice:   true, NoticeDeadline: deadline,
		Recommendation: new(true), Maintenance: &plan.Maintenance{Kind: "system-reboot", Begins: deadline},
		Metrics: shardstate.Metrics{CPU: 0.5, MemoryUsed: 1, MemoryTotal: 2, ReceiveRate: -1, TransmitRate: -1,
			ConntrackEntries: 7, ConntrackMax: -1}}
	got, _ := w.State.Instance(c.id)
	if diff := cmp.Diff(want, got.Report); diff != "" || !got.Plan.Connected {
		t.Errorf("connected: %t, the report: %s", got.Plan.Connected, diff)
	}
	// The next report is marked as unchanged, so the server keeps the file states of the previous report. The report
	// also announces that the agent stops.
	r.send(func(m *nstancev1.ReportHealthRequest) {
		m.Unchanged, m.Stopping = true, nstancev1.StoppingReason_STOPPING_REASON_POWER_OFF
	})
	if got, _ = w.State.Instance(c.id); len(got.Report.Files) != 1 || got.Report.Stopping != plan.PowerOff {
		t.Errorf("%+v", got.Report)
	}
	// When the agent closes a stream, the server answers only after it has processed all reports on the stream.
	if _, err := r.CloseAndRecv(); err != nil {
		t.Error(err)
	}
	w.AwaitEvent(t, c.id, shardstate.EventLost, 1)
	view, _ := w.State.Instance(c.id)
	if view.Plan.Connected || view.Plan.PowerOffAt.IsZero() {
		t.Errorf("%+v", view.Plan)
	}
}

func TestConnectionLost(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	c.reports()
	c.conn.Close()
	w.AwaitEvent(t, c.id, shardstate.EventLost, 1)
}

// TestLeadershipEnds checks that the end of a leadership, which ends all streams, does not count as the loss of VMs.
func TestLeadershipEnds(t *testing.T) {
	w := newTestLeader(t)
	next, leader := w.leader.Load(), *w.leader.Load()
	var end context.CancelFunc
	leader.Context, end = context.WithCancel(w.Context)
	w.leader.Store(&leader)
	var streams []*reports
	for range 20 {
		streams = append(streams, w.agent(t).reports())
	}
	w.leader.Store(next)
	end()
	for _, r := range streams {
		wants(t, "reports", r.RecvMsg(&nstancev1.ReportHealthResponse{}), codes.Unavailable, "leadership changed")
	}
	w.agent(t).reports().send(nil) // meanwhile the server notices the end of the other streams
	for _, r := range streams {
		if n := w.Events(r.c.id, shardstate.EventLost); n != 0 {
			t.Errorf("instance %s was lost %d times", r.c.id, n)
		}
	}
}

func TestBadReports(t *testing.T) {
	w := newTestLeader(t)
	long := strings.Repeat("x", 2000)
	for message, change := range map[string]func(*nstancev1.ReportHealthRequest){
		"sequence: 0 after 0":       func(m *nstancev1.ReportHealthRequest) { m.Sequence = 0 },
		"message: 2000 bytes":       func(m *nstancev1.ReportHealthRequest) { m.Message = long },
		"agent_version: 2000 bytes": func(m *nstancev1.ReportHealthRequest) { m.AgentVersion = long },
		"runtime_hash: 2000 bytes":  func(m *nstancev1.ReportHealthRequest) { m.RuntimeHash = long },
		"ipv4: is not an address":   func(m *nstancev1.ReportHealthRequest) { m.Ipv4 = "x" },
		"stopping: reason 99":       func(m *nstancev1.ReportHealthRequest) { m.Stopping = 99 },
		"files[1].name: ": func(m *nstancev1.ReportHealthRequest) {
			m.Files = []*nstancev1.FileState{{Name: "a", Error: "x"}, {Error: "x"}}
		},
		"files[0].sha256: is empty": func(m *nstancev1.ReportHealthRequest) {
			m.Files = []*nstancev1.FileState{{Name: "a"}}
		},
		"files[0].sha256: want": func(m *nstancev1.ReportHealthRequest) {
			m.Files = []*nstancev1.FileState{{Name: "a", Sha256: "A"}}
		},
		"files[0].not_after: is not": func(m *nstancev1.ReportHealthRequest) {
			m.Files = []*nstancev1.FileState{{Name: "a", Error: "x", NotAfter: &timestamppb.Timestamp{Nanos: -1}}}
		},
		"keys[0].error: ": func(m *nstancev1.ReportHealthRequest) {
			m.Keys = []*nstancev1.KeyState{{Name: "a", Error: long}}
		},
		"files, keys: 513 and 0 of them": func(m *nstancev1.ReportHealthRequest) {
			m.Files = make([]*nstancev1.FileState, 513)
		},
		"maintenance.kind: 65 bytes": func(m *nstancev1.ReportHealthRequest) {
			m.Maintenance = &nstancev1.Maintenance{Kind: strings.Repeat("k", 65)}
		},
		"maintenance.kind: has a control character": func(m *nstancev1.ReportHealthRequest) {
			m.Maintenance = &nstancev1.Maintenance{Kind: "a\nb"}
		},
		"maintenance.begins: is not a ": func(m *nstancev1.ReportHealthRequest) {
			m.Maintenance = &nstancev1.Maintenance{Kind: "a", Begins: &timestamppb.Timestamp{Nanos: -1}}
		},
		"termination.deadline: is not a ": func(m *nstancev1.ReportHealthRequest) {
			m.Termination = &nstancev1.TerminationNotice{Deadline: &timestamppb.Timestamp{Nanos: -1}}
		},
	} {
		c := w.agent(t)
		stream := c.reports()
		report := &nstancev1.ReportHealthRequest{InstanceId: c.id.String(), Sequence: 1}
		change(report)
		for i, f := range report.GetFiles() {
			if f == nil {
				report.Files[i] = &nstancev1.FileState{Name: "a", Error: "x"}
			}
		}
		if err := stream.Send(report); err != nil {
			t.Fatal(err)
		}
		wants(t, message, stream.RecvMsg(&nstancev1.ReportHealthResponse{}), codes.InvalidArgument, message)
		if view, _ := w.State.Instance(c.id); !view.Plan.LastReport.IsZero() {
			t.Errorf("%s: the report was taken", message)
		}
	}
}

func TestNewConnectionReplacesTheOld(t *testing.T) {
	w := newTestLeader(t)
	old := w.agent(t)
	oldReports, oldFiles, oldKeys := old.reports(), old.files(), old.keyRequests()
	if _, err := oldKeys.Recv(); err != nil { // the stream is open
		t.Fatal(err)
	}
	newer := old.again()
	r := newer.reports()
	wants(t, "old reports", oldReports.RecvMsg(&nstancev1.ReportHealthResponse{}), codes.Aborted, "replaced")
	_, err := oldFiles.Recv()
	wants(t, "old files", err, codes.Aborted, "replaced")
	_, err = oldKeys.Recv()
	wants(t, "old keys", err, codes.Aborted, "replaced")
	r.send(nil)

	// Streams on the old connection do not replace those on the new one.
	for rpc, err := range old.each(t, old.id.String()) {
		if rpc == "ReceiveFiles" || rpc == "KeyGenRequests" || rpc == "ReportHealth" {
			wants(t, rpc, err, codes.Aborted, "replaced")
		}
	}
	r.send(nil)
	view, _ := w.State.Instance(old.id)
	if !view.Plan.Connected || w.Events(old.id, shardstate.EventLost) != 0 {
		t.Errorf("connected %v, lost %d times", view.Plan.Connected, w.Events(old.id, shardstate.EventLost))
	}
	// A second health stream on the same connection replaces the first one.
	newer.reports().send(nil)
	wants(t, "first stream", r.RecvMsg(&nstancev1.ReportHealthResponse{}), codes.Aborted, "replaced")
	if w.Events(old.id, shardstate.EventLost) != 0 {
		t.Error("a replaced stream counts as lost")
	}
}

func TestLeadershipLost(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	r, files, keys := c.reports(), c.files(), c.keyRequests()
	if _, err := keys.Recv(); err != nil {
		t.Fatal(err)
	}
	w.Lose()
	_, filesErr := files.Recv()
	_, keysErr := keys.Recv()
	errs := c.again().each(t, c.id.String())
	errs["open reports"], errs["open files"], errs["open keys"] = r.RecvMsg(&nstancev1.ReportHealthResponse{}),
		filesErr, keysErr
	for rpc, err := range errs {
		wants(t, rpc, err, codes.Unavailable, "another server leads")
		if details := status.Convert(err).Details(); len(details) != 1 ||
			details[0].(*nstancev1.NotLeader).GetLeaderId() != "two" {
			t.Errorf("%s: details %v", rpc, details)
		}
	}
	if err := c.push(); err == nil {
		t.Error("pushed without a leadership")
	}
}

func TestDeletedInstance(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	r, files := c.reports(), c.files()
	if err := c.submit("node.pub", pkixOf(t, transporttest.NewKey(t))); err != nil {
		t.Fatal(err)
	}
	// Reports of an instance that is being deleted are still accepted, because it may drain for hours.
	w.Delete(t, c.id, false)
	r.send(nil)
	w.Delete(t, c.id, true)
	w.service.Deleted(t.Context(), c.id)
	wants(t, "reports", r.RecvMsg(&nstancev1.ReportHealthResponse{}), codes.NotFound, "is deleted")
	for {
		if _, err := files.Recv(); err != nil {
			wants(t, "files", err, codes.NotFound, "is deleted")
			break
		}
	}
	if keys, err := w.cache.Keys(t.Context(), c.id); err != nil || len(keys) != 0 {
		t.Errorf("keys %v, error %v", keys, err)
	}
}

func TestReportIntervalChanges(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	r := c.reports()
	w.service.Configured() // nothing has changed
	r.send(nil)
	w.interval.Store(int64(10 * time.Second))
	w.service.Configured()
	wants(t, "reports", r.RecvMsg(&nstancev1.ReportHealthResponse{}), codes.Aborted, "interval has changed")
	c.reports().send(nil)
	if w.Events(c.id, shardstate.EventLost) != 0 {
		t.Error("counted as lost")
	}
}

func TestLeaderAddressesChange(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	r := c.reports()
	r.send(nil)
	w.endpoints.Store("10.0.0.9:8994,10.0.0.10:8994")
	w.service.Configured()
	wants(t, "reports", r.RecvMsg(&nstancev1.ReportHealthResponse{}), codes.Aborted, "addresses have changed")
	if n := w.service.Outdated(); n != 1 {
		t.Errorf("%d agents have not been told the addresses, want 1", n)
	}
	r = c.reports()
	header, err := r.Header()
	if got := header.Get(agentapi.EndpointsHeader); err != nil ||
		!slices.Equal(got, []string{"10.0.0.9:8994,10.0.0.10:8994"}) {
		t.Errorf("the agent was told %v, %v", got, err)
	}
	r.send(nil)
	if n := w.service.Outdated(); n != 0 {
		t.Errorf("%d agents have not been told the addresses, want none", n)
	}
	w.service.Configured() // nothing has changed
	r.send(nil)
}

// Reports come from many agents in turn, because package transport limits the rate of a single agent.
func BenchmarkReport(b *testing.B) {
	const agents = 400
	w := newTestLeader(b)
	var streams [agents]grpc.ClientStreamingClient[nstancev1.ReportHealthRequest, nstancev1.ReportHealthResponse]
	var reports [agents]*nstancev1.ReportHealthRequest
	for n := range agents {
		c := w.agent(b)
		streams[n] = c.reports()
		reports[n] = &nstancev1.ReportHealthRequest{InstanceId: c.id.String(), Unchanged: true, Healthy: true,
			RuntimeHash: "r1", AgentVersion: "v1.2.3",
			Metrics: &nstancev1.Metrics{Cpu: 0.1, MemoryUsedBytes: 1 << 30, MemoryTotalBytes: 1 << 32},
			Ipv4:    "10.0.0.1", Hostname: "node-1", Role: nstancev1.InstanceRole_INSTANCE_ROLE_MEMBER}
	}
	b.ReportAllocs()
	for n := 0; b.Loop(); n = (n + 1) % agents {
		reports[n].Sequence++
		if err := streams[n].Send(reports[n]); err != nil {
			b.Fatal(err)
		}
	}
	for _, stream := range streams {
		if _, err := stream.CloseAndRecv(); err != nil {
			b.Fatal(err)
		}
	}
}
