package agentapi_test

import (
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/serve/registerapi/leadertest"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
)

// In these tests, the agent's VM belongs to an attacker who is root there. The attacker has the certificate and the key
// of one instance, and calls the real port with mutual TLS.

// newHostileTest returns a leader and the log of its service. The instances of the leader's group drain for five
// minutes.
func newHostileTest(t *testing.T) (*testLeader, *transporttest.Logs) {
	t.Helper()
	w, logs := newTestLeader(t), &transporttest.Logs{}
	w.service.Log = logs.Logger()
	w.group.DrainTimeout = config.Duration(5 * time.Minute)
	w.Configure(w.group)
	return w, logs
}

// wantsLine fails the test unless one line of the log has all of the texts.
func wantsLine(t *testing.T, logs *transporttest.Logs, texts ...string) {
	t.Helper()
	eventually(t, "the log has a line with "+strings.Join(texts, ", "), func() bool {
		return len(logs.Lines(texts...)) > 0
	})
}

func refusalOf(id ident.ID, rpc, message string) []string {
	return []string{"level=WARN", `msg="agent refused"`, "instance=" + id.String(), "source=127.0.0.1", "call=" + rpc,
		message}
}

// planned returns the actions of the next plan of the group.
func (l *testLeader) planned(t *testing.T) []plan.Action {
	t.Helper()
	s, ok := l.State.Snapshot(leadertest.Group, nil)
	if !ok {
		t.Fatal("there is no group")
	}
	return plan.Next(s).Actions
}

func countKind(actions []plan.Action, kind plan.Kind) (n int) {
	for _, a := range actions {
		if a.Kind == kind {
			n++
		}
	}
	return n
}

func TestHostileNoticeDeadlines(t *testing.T) {
	for name, c := range map[string]struct {
		deadline  time.Time
		remaining *durationpb.Duration
		want      time.Duration // from now until the drain ends
	}{
		"far ahead":   {time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC), nil, 5 * time.Minute},
		"in the past": {time.Date(1960, 1, 1, 0, 0, 0, 0, time.UTC), nil, 0},
		"far ahead on the agent's clock": {time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC),
			durationpb.New(30 * time.Second), 30 * time.Second},
		"in the past on the agent's clock": {time.Date(1960, 1, 1, 0, 0, 0, 0, time.UTC),
			durationpb.New(30 * time.Second), 30 * time.Second},
		"nothing remains": {time.Date(1960, 1, 1, 0, 0, 0, 0, time.UTC), durationpb.New(-time.Hour), 0},
		"much remains": {time.Date(1960, 1, 1, 0, 0, 0, 0, time.UTC),
			&durationpb.Duration{Seconds: 315_576_000_000}, 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			w, logs := newHostileTest(t)
			c1 := w.agent(t)
			c1.reports().send(func(m *nstancev1.ReportHealthRequest) {
				m.Termination = &nstancev1.TerminationNotice{Deadline: timestamppb.New(c.deadline),
					Remaining: c.remaining}
			})
			known := c.deadline.Format("2006-01-02")
			if c.remaining != nil {
				known = "" // counted from the present time
			}
			wantsLine(t, logs, "level=INFO", `msg="termination notice"`, "instance="+c1.id.String(),
				"source=127.0.0.1", "deadline="+known)
			for _, action := range w.planned(t) {
				if action.Kind == plan.Mark {
					w.Executor.Do(t.Context(), leadertest.Group, action)
				}
			}
			rec := w.Stored(t, c1.id)
			if rec.State != record.Deleting || rec.DeleteDeadline.Sub(w.Clock.Now()) != c.want {
				t.Errorf("the record is %s with the deadline %s, want deleting until %s", rec.State,
					rec.DeleteDeadline, w.Clock.Now().Add(c.want))
			}
		})
	}
}

// TestHostileFloodOfNotices simulates instances that each report a termination notice as soon as they are registered.
// The server must replace them at a decreasing rate.
func TestHostileFloodOfNotices(t *testing.T) {
	w, logs := newHostileTest(t)
	created := 0
	for range 60 { // one per minute
		c := w.agent(t)
		r := c.reports()
		for range 3 {
			r.send(func(m *nstancev1.ReportHealthRequest) { m.Termination = &nstancev1.TerminationNotice{} })
		}
		actions := w.planned(t)
		created += countKind(actions, plan.Create)
		for _, action := range actions {
			if action.Kind == plan.Mark {
				w.Executor.Do(t.Context(), leadertest.Group, action)
			}
		}
		c.conn.Close()
		w.Clock.Advance(time.Minute)
	}
	if created > 25 {
		t.Errorf("%d replacements for 60 notices in an hour of a group of one, want at most 25", created)
	}
	if n := len(logs.Lines(`msg="termination notice"`)); n != 60 {
		t.Errorf("%d notices are logged, want each agent's first: 60", n)
	}
}

func TestHostileAgentRenewsWhileItIsDeleted(t *testing.T) {
	w, logs := newHostileTest(t)
	c := w.agent(t)
	w.Clock.Advance(5 * 24 * time.Hour)
	w.Change(t, c.id, func(r *record.Instance) {
		r.State, r.DeleteReason, r.DeletingAt = record.Deleting, "test", w.Clock.Now()
		r.DeleteDeadline = w.Clock.Now().Add(time.Minute)
	})
	_, err := c.renew()
	wants(t, "renewal", err, codes.PermissionDenied, "is being deleted: it gets no new certificates")
	wantsLine(t, logs, refusalOf(c.id, "RenewCertificate", "it gets no new certificates")...)

	// The server still accepts the instance's reports, because it may be draining.
	c.reports().send(nil)
	if view, _ := w.State.Instance(c.id); view.Plan.LastReport.IsZero() {
		t.Error("the report of an instance that is being deleted was refused")
	}
	// The agent of an instance that is being deleted submits a key. The server issues no certificate for it.
	files := c.files()
	if err := c.submit("node.pub", pkixOf(t, transporttest.NewKey(t))); err != nil {
		t.Fatal(err)
	}
	if err := c.push(); err != nil {
		t.Fatal(err)
	}
	w.Delete(t, c.id, true)
	w.service.Deleted(t.Context(), c.id)
	if message, err := files.Recv(); err == nil {
		t.Errorf("an instance that is being deleted received %v", message)
	}
	if issued := w.log(t); len(issued) != 0 {
		t.Errorf("certificates were issued: %+v", issued)
	}
}

func TestHostileReportForAnotherInstance(t *testing.T) {
	w, logs := newHostileTest(t)
	c, other := w.agent(t), w.agent(t)
	for rpc, err := range c.each(t, other.id.String()) {
		wants(t, rpc, err, codes.PermissionDenied, "instance_id: is not the one in the client certificate")
		wantsLine(t, logs, refusalOf(c.id, rpc, "instance_id: is not the one in the client certificate")...)
	}
	if view, _ := w.State.Instance(other.id); !view.Plan.LastReport.IsZero() {
		t.Error("the report of another instance was accepted")
	}
}

// TestHostileNamesReachNoCertificate checks that the host name and addresses that an agent reports do not get into a
// certificate. A certificate contains only those that the provider gives.
func TestHostileNamesReachNoCertificate(t *testing.T) {
	w, _ := newHostileTest(t)
	id, key := w.Created(t), transporttest.NewKey(t)
	cert := w.Certificate(t, w.Agent(id), key)
	w.Change(t, id, func(r *record.Instance) { // without a host name, as if the provider knew none
		r.State, r.RegisteredAt, r.PublicKey, r.NonceID = record.Registered, w.Clock.Now(),
			transporttest.Public(key), "n"
		r.Certificate = &record.CertificateRef{Serial: authority.Serial(cert.Leaf), NotAfter: cert.Leaf.NotAfter}
	})
	c := w.connect(t, id, key, cert)
	files, pkix := c.files(), pkixOf(t, transporttest.NewKey(t))
	c.reports().send(func(m *nstancev1.ReportHealthRequest) {
		m.Hostname, m.Ipv4, m.Ipv6 = "api.example.internal", "192.0.2.66", "2001:db8::66"
		m.Keys = keyState(pkix)
	})
	if err := c.submit("node.pub", pkix); err != nil {
		t.Fatal(err)
	}
	var issued *nstancev1.File
	for issued == nil {
		issued = receive(t, files).files["node.crt"]
	}
	block, _ := pem.Decode(issued.GetContent())
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if len(leaf.DNSNames) != 1 || leaf.DNSNames[0] != id.String() || len(leaf.IPAddresses) != 1 ||
		leaf.IPAddresses[0].String() != "10.1.2.3" {
		t.Errorf("the certificate is for %v and %v, want %s and 10.1.2.3", leaf.DNSNames, leaf.IPAddresses, id)
	}
}

// TestClaimsReachFiles checks that files contain the host name and addresses that the agent reports. If the server sent
// the files before the agent's first report, it must send them again.
func TestClaimsReachFiles(t *testing.T) {
	w := newTestLeader(t)
	group := w.group
	group.RuntimeHash, group.Files = "r2", map[string]config.File{"host.env": {Kind: "env",
		Vars: map[string]string{"HOST": "{{ .Claimed.Hostname }}"}}}
	w.Configure(group)
	c := w.agent(t)
	files := c.files()
	if err := c.push(); err != nil {
		t.Fatal(err)
	}
	if got := string(receive(t, files).files["host.env"].GetContent()); got != "HOST=\"\"\n" {
		t.Errorf("before the first report: %q", got)
	}
	c.reports().send(func(m *nstancev1.ReportHealthRequest) { m.Hostname = "node-7" })
	if got := string(receive(t, files).files["host.env"].GetContent()); got != "HOST=node-7\n" {
		t.Errorf("after it: %q", got)
	}
}

func TestHostileAddressesOfTheWrongFamily(t *testing.T) {
	w, logs := newHostileTest(t)
	for message, change := range map[string]func(*nstancev1.ReportHealthRequest){
		"ipv4: is not an address of this family":  func(m *nstancev1.ReportHealthRequest) { m.Ipv4 = "2001:db8::1" },
		"ipv6: is not an address of this family":  func(m *nstancev1.ReportHealthRequest) { m.Ipv6 = "10.0.0.1" },
		"ipv6: is not the address of one machine": func(m *nstancev1.ReportHealthRequest) { m.Ipv6 = "fe80::1%eth0" },
	} {
		c := w.agent(t)
		r := c.reports()
		report := &nstancev1.ReportHealthRequest{InstanceId: c.id.String(), Sequence: 1}
		change(report)
		if err := r.Send(report); err != nil {
			t.Fatal(err)
		}
		wants(t, message, r.RecvMsg(&nstancev1.ReportHealthResponse{}), codes.InvalidArgument, message)
		wantsLine(t, logs, refusalOf(c.id, "ReportHealth", message)...)
	}
}

// TestHostileRefusalsDoNotFillTheLog checks that the server logs only a limited number of refusals.
func TestHostileRefusalsDoNotFillTheLog(t *testing.T) {
	w, logs := newHostileTest(t)
	c := w.agent(t)
	for range 300 {
		if err := c.submit("nonsense", nil); err == nil {
			t.Fatal("a key that nothing needs was accepted")
		}
	}
	if n := len(logs.Lines(`msg="agent refused"`)); n < 50 || n > 250 {
		t.Errorf("300 refusals in a moment are %d lines, want about 100", n)
	}
}
