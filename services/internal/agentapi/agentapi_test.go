package agentapi_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/objstore/mem"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/contract/render"
	"github.com/nstance-kit/nstance/services/contract/secretstore"
	"github.com/nstance-kit/nstance/services/internal/agentapi"
	"github.com/nstance-kit/nstance/services/internal/cache"
	"github.com/nstance-kit/nstance/services/internal/execute"
	"github.com/nstance-kit/nstance/services/internal/filegen"
	"github.com/nstance-kit/nstance/services/internal/infra"
	"github.com/nstance-kit/nstance/services/internal/metrics"
	"github.com/nstance-kit/nstance/services/internal/plan"
	"github.com/nstance-kit/nstance/services/internal/registerapi/leadertest"
	"github.com/nstance-kit/nstance/services/internal/shardstate"
	"github.com/nstance-kit/nstance/services/internal/transport/transporttest"
)

var _ execute.Files = (*agentapi.Service)(nil)

type testLeader struct {
	*leadertest.Leader
	service  *agentapi.Service
	addr     string
	leader   atomic.Pointer[agentapi.Leadership]
	cache    *cache.Cache
	disk     string // directory of the cache
	interval atomic.Int64
	// endpoints are the leader's addresses, as a string.
	endpoints atomic.Value
	group     config.Group
}

// oneSecret holds the secret "password".
type oneSecret struct{ secretstore.Store }

func (oneSecret) Get(_ context.Context, name string) (secretstore.Secret, error) {
	if name != "password" {
		return secretstore.Secret{}, secretstore.ErrNotFound
	}
	return secretstore.Secret{Name: name, Value: secretstore.NewValue([]byte("hunter2"))}, nil
}

func newTestLeader(t testing.TB) *testLeader {
	t.Helper()
	w := &testLeader{disk: t.TempDir(), group: config.Group{
		Template: "worker", Kind: "knd", Size: 1, RuntimeHash: "r1", InfraHash: "i1",
		Vars: map[string]string{"role": "worker"},
		Files: map[string]config.File{
			"node.crt": {Kind: "certificate", Template: "node", Key: &config.FileKey{Source: "agent",
				Name: "node.pub"}},
			"node.env":   {Kind: "env", Vars: map[string]string{"ROLE": "{{ .Vars.role }}"}},
			"secret.key": {Kind: "secret", Source: "password"},
		},
	}}
	w.Leader = leadertest.New(t, w.group)
	w.interval.Store(int64(time.Minute))
	generator := filegen.New(filegen.Options{CA: w.CA, WorkloadCA: w.WorkloadCA,
		NonceKey: w.NonceKey, Secrets: oneSecret{}, Rand: rand.Reader,
		Now: w.Clock.Now})
	generator.Configure(filegen.Shard{Cluster: render.Cluster{ID: w.Name}, Server: render.Server{Shard: "a"},
		NonceTTL: time.Minute,
		Certificates: map[string]config.Certificate{"node": {Kind: "server", CN: "node",
			DNS: []string{"{{ .Instance.Hostname }}"}, IP: []string{"{{ .Instance.IP4 }}"}, TTL: 30}}})
	w.leader.Store(&agentapi.Leadership{Context: w.Context, Cluster: w.Name, Shard: "a", Term: w.Term(),
		Incarnation: leadertest.Incarnation, State: w.State,
		Records: w.Executor, CertLog: w.Bucket, Issuer: w.Issuer(), Files: generator, Interval: func() time.Duration {
			return time.Duration(w.interval.Load())
		}, Endpoints: func() string {
			text, _ := w.endpoints.Load().(string)
			return text
		}})
	var err error
	if w.cache, err = cache.Open(context.Background(), cache.Path(w.disk)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.cache.Close() })
	w.service = &agentapi.Service{Keys: w.cache, Now: w.Clock.Now, Log: w.Log, Metrics: metrics.NewServer("test"),
		Leader: func() (*agentapi.Leadership, error) {
			if err := w.Current(); err != nil {
				return nil, err
			}
			return w.leader.Load(), nil
		}}
	w.addr = w.Serve(t, authority.RoleAgent, func(s *grpc.Server) {
		nstancev1.RegisterAgentServiceServer(s, w.service)
	})
	return w
}

// client is one agent's connection.
type client struct {
	nstancev1.AgentServiceClient
	t    testing.TB
	w    *testLeader
	id   ident.ID
	key  ed25519.PrivateKey
	cert *tls.Certificate
	conn *grpc.ClientConn
}

// registered returns an instance whose agent has registered with a key.
func (w *testLeader) registered(t testing.TB) (ident.ID, ed25519.PrivateKey, *tls.Certificate) {
	t.Helper()
	id, key := w.Created(t), transporttest.NewKey(t)
	cert := w.Certificate(t, w.Agent(id), key)
	w.Change(t, id, func(r *record.Instance) {
		r.State, r.RegisteredAt, r.PublicKey, r.NonceID, r.Hostname = record.Registered, w.Clock.Now(),
			transporttest.Public(key), "n", "node-1"
		r.Certificate = &record.CertificateRef{Serial: authority.Serial(cert.Leaf), NotAfter: cert.Leaf.NotAfter}
	})
	return id, key, cert
}

func (w *testLeader) agent(t testing.TB) *client {
	t.Helper()
	id, key, cert := w.registered(t)
	return w.connect(t, id, key, cert)
}

func (w *testLeader) connect(t testing.TB, id ident.ID, key ed25519.PrivateKey, cert *tls.Certificate) *client {
	t.Helper()
	conn := w.Dial(t, w.addr, cert)
	return &client{AgentServiceClient: nstancev1.NewAgentServiceClient(conn), t: t, w: w, id: id, key: key, cert: cert,
		conn: conn}
}

// again opens another connection of the same agent.
func (c *client) again() *client { return c.w.connect(c.t, c.id, c.key, c.cert) }

// reports is an open health stream.
type reports struct {
	grpc.ClientStreamingClient[nstancev1.ReportHealthRequest, nstancev1.ReportHealthResponse]
	c        *client
	sequence uint64
}

func (c *client) reports() *reports {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // a failing test ends after this time
	c.t.Cleanup(cancel)
	stream, err := c.ReportHealth(ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	header, err := stream.Header()
	if err != nil {
		c.t.Fatal(err)
	}
	if got := header.Get(agentapi.IntervalHeader); len(got) != 1 || got[0] != time.Duration(
		c.w.interval.Load()).String() {
		c.t.Errorf("interval %q", got)
	}
	return &reports{ClientStreamingClient: stream, c: c}
}

// send sends a report and returns when the server has processed it.
func (r *reports) send(change func(*nstancev1.ReportHealthRequest)) {
	r.c.t.Helper()
	counter := r.c.w.service.Metrics.Reports
	before := testutil.ToFloat64(counter)
	r.sequence++
	report := &nstancev1.ReportHealthRequest{InstanceId: r.c.id.String(), Sequence: r.sequence, Healthy: true,
		Message: time.Duration(r.sequence).String()}
	if change != nil {
		change(report)
	}
	if err := r.Send(report); err != nil {
		r.c.t.Fatal(err)
	}
	eventually(r.c.t, "the report arrives", func() bool { return testutil.ToFloat64(counter) > before })
}

// eventually waits for an action of another goroutine.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("timeout: %s", what)
		}
	}
}

type filesStream = grpc.ServerStreamingClient[nstancev1.ReceiveFilesResponse]

func (c *client) files() filesStream {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second) // a failing test ends after this time
	c.t.Cleanup(cancel)
	stream, err := c.ReceiveFiles(ctx, &nstancev1.ReceiveFilesRequest{InstanceId: c.id.String()})
	if err != nil {
		c.t.Fatal(err)
	}
	return stream
}

// batch holds what an agent received up to a commit.
type batch struct {
	files  map[string]*nstancev1.File
	commit *nstancev1.FilesCommit
}

func (b batch) names() []string {
	names := []string{}
	for name := range b.files {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// states returns the files of batches in the form of an agent's report.
func states(batches ...batch) (out []*nstancev1.FileState) {
	latest := map[string]*nstancev1.File{}
	for _, b := range batches {
		for name, file := range b.files {
			latest[name] = file
		}
	}
	for _, file := range latest {
		sum := sha256.Sum256(file.GetContent())
		state := &nstancev1.FileState{Name: file.GetName(), Sha256: hex.EncodeToString(sum[:])}
		if block, _ := pem.Decode(file.GetContent()); block != nil {
			if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
				state.NotBefore, state.NotAfter = timestamppb.New(cert.NotBefore), timestamppb.New(cert.NotAfter)
			}
		}
		out = append(out, state)
	}
	slices.SortFunc(out, func(a, b *nstancev1.FileState) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out
}

func receive(t testing.TB, stream filesStream) batch {
	t.Helper()
	b := batch{files: map[string]*nstancev1.File{}}
	for {
		message, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if file := message.GetFile(); file != nil {
			b.files[file.GetName()] = file
		} else {
			b.commit = message.GetCommit()
			return b
		}
	}
}

func (c *client) keyRequests() grpc.ServerStreamingClient[nstancev1.KeyGenRequestsResponse] {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	c.t.Cleanup(cancel)
	stream, err := c.KeyGenRequests(ctx, &nstancev1.KeyGenRequestsRequest{InstanceId: c.id.String()})
	if err != nil {
		c.t.Fatal(err)
	}
	return stream
}

// keyState returns an agent's report of the test's key.
func keyState(pkix []byte) []*nstancev1.KeyState {
	sum := sha256.Sum256(pkix)
	return []*nstancev1.KeyState{{Name: "node.pub", Sha256: hex.EncodeToString(sum[:])}}
}

func pkixOf(t testing.TB, key ed25519.PrivateKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func (c *client) submit(name string, pkix []byte) error {
	_, err := c.SubmitPublicKeys(context.Background(), &nstancev1.SubmitPublicKeysRequest{InstanceId: c.id.String(),
		Keys: []*nstancev1.PublicKey{{Name: name, Pkix: pkix}}})
	return err
}

func (c *client) renew() (*nstancev1.AgentServiceRenewCertificateResponse, error) {
	return c.RenewCertificate(context.Background(), &nstancev1.AgentServiceRenewCertificateRequest{
		InstanceId: c.id.String()})
}

func (c *client) push() error { return c.w.service.Push(context.Background(), c.id) }

func wants(t testing.TB, what string, err error, code codes.Code, message string) {
	t.Helper()
	if status.Code(err) != code || err == nil || !strings.Contains(err.Error(), message) {
		t.Errorf("%s: %v, want %s with %q", what, err, code, message)
	}
}

func (w *testLeader) log(t testing.TB) []record.CertLog {
	t.Helper()
	entries, err := w.Bucket.ListCertLog(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// each calls every RPC with an instance ID and returns the errors by name.
func (c *client) each(t testing.TB, named string) map[string]error {
	t.Helper()
	ctx := t.Context()
	errs := map[string]error{}
	_, errs["RenewCertificate"] = c.RenewCertificate(ctx, &nstancev1.AgentServiceRenewCertificateRequest{
		InstanceId: named})
	_, errs["SubmitPublicKeys"] = c.SubmitPublicKeys(ctx, &nstancev1.SubmitPublicKeysRequest{InstanceId: named,
		Keys: []*nstancev1.PublicKey{{Name: "x"}}})
	files, err := c.ReceiveFiles(ctx, &nstancev1.ReceiveFilesRequest{InstanceId: named})
	if err == nil {
		_, err = files.Recv()
	}
	errs["ReceiveFiles"] = err
	keys, err := c.KeyGenRequests(ctx, &nstancev1.KeyGenRequestsRequest{InstanceId: named})
	if err == nil {
		_, err = keys.Recv()
	}
	errs["KeyGenRequests"] = err
	reports, err := c.ReportHealth(ctx)
	if err == nil {
		if err = reports.Send(&nstancev1.ReportHealthRequest{InstanceId: named, Sequence: 1}); err == nil ||
			errors.Is(err, io.EOF) {
			err = reports.RecvMsg(&nstancev1.ReportHealthResponse{})
		}
	}
	errs["ReportHealth"] = err
	return errs
}

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

func TestReports(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	r := c.reports()
	view, _ := w.State.Instance(c.id)
	if !view.Plan.Connected {
		t.Error("not connected")
	}
	deadline := w.Clock.Now().Add(2 * time.Minute)
	entries := uint64(7)
	r.send(func(m *nstancev1.ReportHealthRequest) {
		m.AgentVersion, m.RuntimeHash, m.Ipv4, m.Hostname = "v1", "r0", "10.0.0.9", "node-9"
		m.Metrics = &nstancev1.Metrics{Cpu: 0.5, MemoryUsedBytes: 1, MemoryTotalBytes: 2, ConntrackEntries: &entries}
		m.Termination = &nstancev1.TerminationNotice{Kind: "spot", Deadline: timestamppb.New(deadline)}
		m.Files = []*nstancev1.FileState{{Name: "a", Error: "disk full"}}
		m.Keys = []*nstancev1.KeyState{{Name: "a.pub", Sha256: strings.Repeat("0", 64)}}
	})
	want := shardstate.Report{Healthy: true, Message: "1ns", Version: "v1", RuntimeHash: "r0", IPv4: "10.0.0.9",
		Hostname: "node-9",
		Files:    []shardstate.FileState{{Name: "a", Error: "disk full"}},
		Keys:     []shardstate.KeyState{{Name: "a.pub", SHA256: strings.Repeat("0", 64)}},
		Notice:   true, NoticeDeadline: deadline,
		Metrics: shardstate.Metrics{CPU: 0.5, MemoryUsed: 1, MemoryTotal: 2, ReceiveRate: -1, TransmitRate: -1,
			ConntrackEntries: 7, ConntrackMax: -1}}
	got, _ := w.State.Instance(c.id)
	if diff := cmp.Diff(want, got.Report); diff != "" {
		t.Error(diff)
	}
	// Unchanged states are kept, and a stop is reported.
	r.send(func(m *nstancev1.ReportHealthRequest) {
		m.Unchanged, m.Stopping = true, nstancev1.StoppingReason_STOPPING_REASON_POWER_OFF
	})
	if got, _ = w.State.Instance(c.id); len(got.Report.Files) != 1 || got.Report.Stopping != plan.PowerOff {
		t.Errorf("%+v", got.Report)
	}
	// The end of the stream is answered after every report before it was processed.
	if _, err := r.CloseAndRecv(); err != nil {
		t.Error(err)
	}
	w.AwaitEvent(t, c.id, shardstate.EventLost, 1)
	view, _ = w.State.Instance(c.id)
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

	// Streams that the old connection opens replace nothing.
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
	// A second stream of the same connection also replaces the first.
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
	r = c.reports()
	header, err := r.Header()
	if got := header.Get(agentapi.EndpointsHeader); err != nil ||
		!slices.Equal(got, []string{"10.0.0.9:8994,10.0.0.10:8994"}) {
		t.Errorf("the agent was told %v, %v", got, err)
	}
	w.service.Configured() // nothing has changed
	r.send(nil)
}

func TestFilesAndKeys(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	r, files, keys := c.reports(), c.files(), c.keyRequests()
	request, err := keys.Recv()
	if err != nil || len(request.GetKeys()) != 1 || request.GetKeys()[0].GetName() != "node.pub" ||
		request.GetKeys()[0].GetAlgorithm() != nstancev1.KeyAlgorithm_KEY_ALGORITHM_ED25519 {
		t.Fatalf("%v %v", request, err)
	}
	r.send(nil)
	// Without the key, all other files are sent, and no hash.
	if err := c.push(); err != nil {
		t.Fatal(err)
	}
	first := receive(t, files)
	if diff := cmp.Diff([]string{"node.env", "secret.key"}, first.names()); diff != "" ||
		first.commit.GetRuntimeHash() != "" {
		t.Errorf("hash %q %s", first.commit.GetRuntimeHash(), diff)
	}
	if diff := cmp.Diff([]string{"node.crt", "node.env", "secret.key"}, first.commit.GetNames()); diff != "" {
		t.Error(diff)
	}
	if string(first.files["node.env"].GetContent()) != "ROLE=worker\n" || first.files["node.env"].GetKind() != "env" ||
		string(first.files["secret.key"].GetContent()) != "hunter2" {
		t.Errorf("%v", first.files)
	}
	if request, err = keys.Recv(); err != nil || request.GetKeys()[0].GetName() != "node.pub" {
		t.Errorf("asked again for %v (%v)", request, err)
	}
	// After the key is submitted, only the certificate is sent.
	key := transporttest.NewKey(t)
	if err := c.submit("node.pub", pkixOf(t, key)); err != nil {
		t.Fatal(err)
	}
	second := receive(t, files)
	if diff := cmp.Diff([]string{"node.crt"}, second.names()); diff != "" || second.commit.GetRuntimeHash() != "r1" {
		t.Errorf("hash %q %s", second.commit.GetRuntimeHash(), diff)
	}
	block, _ := pem.Decode(second.files["node.crt"].GetContent())
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil || !cert.PublicKey.(ed25519.PublicKey).Equal(key.Public()) || cert.DNSNames[0] != "node-1" ||
		cert.IPAddresses[0].String() != "10.1.2.3" {
		t.Errorf("certificate %+v (%v)", cert, err)
	}
	w.AwaitEvent(t, c.id, shardstate.EventFilesPushed, 2)
	entries := w.log(t)
	want := []record.Issued{{Name: "node.crt", Kind: record.CertServer, Serial: authority.Serial(cert),
		NotAfter: cert.NotAfter}}
	if len(entries) != 1 || entries[0].Instance != c.id || cmp.Diff(want, entries[0].Issued) != "" {
		t.Errorf("log %+v", entries)
	}
	if view, _ := w.State.Instance(c.id); view.Plan.FilesSent != "r1" {
		t.Errorf("files sent %q", view.Plan.FilesSent)
	}

	// The instance has everything, so another push sends nothing.
	r.send(func(m *nstancev1.ReportHealthRequest) {
		m.RuntimeHash, m.Files, m.Keys = "r1", states(first, second), keyState(pkixOf(t, key))
	})
	if err := c.push(); err != nil || w.Events(c.id, shardstate.EventFilesPushed) != 2 {
		t.Errorf("%v, %d events", err, w.Events(c.id, shardstate.EventFilesPushed))
	}
	// Another configuration sends only the files that it changes.
	w.group.RuntimeHash, w.group.Vars = "r2", map[string]string{"role": "master"}
	w.Configure(w.group)
	if err := c.push(); err != nil {
		t.Fatal(err)
	}
	third := receive(t, files)
	if diff := cmp.Diff([]string{"node.env"}, third.names()); diff != "" || third.commit.GetRuntimeHash() != "r2" {
		t.Errorf("hash %q %s", third.commit.GetRuntimeHash(), diff)
	}
	if len(w.log(t)) != 1 {
		t.Error("another certificate was issued")
	}
}

func TestRefusedKeys(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	_, err := c.SubmitPublicKeys(t.Context(), &nstancev1.SubmitPublicKeysRequest{InstanceId: c.id.String()})
	wants(t, "none", err, codes.InvalidArgument, "keys: 0 of them")
	wants(t, "not needed", c.submit("other.pub", pkixOf(t, transporttest.NewKey(t))), codes.InvalidArgument,
		"keys[0].name")
	wants(t, "no key", c.submit("node.pub", []byte("x")), codes.InvalidArgument, "keys[0].pkix")
	if keys, err := w.cache.Keys(t.Context(), c.id); err != nil || len(keys) != 0 {
		t.Errorf("keys %v (%v)", keys, err)
	}
}

// complete brings an instance to the state in which it has all its files.
func (c *client) complete() (r *reports, files filesStream, all batch, keys []*nstancev1.KeyState) {
	c.t.Helper()
	r, files = c.reports(), c.files()
	pkix := pkixOf(c.t, transporttest.NewKey(c.t))
	keys = keyState(pkix)
	if err := c.submit("node.pub", pkix); err != nil {
		c.t.Fatal(err)
	}
	all = receive(c.t, files)
	if len(all.files) != 3 || all.commit.GetRuntimeHash() != "r1" {
		c.t.Fatalf("%v %v", all.names(), all.commit)
	}
	r.send(func(m *nstancev1.ReportHealthRequest) { m.RuntimeHash, m.Files, m.Keys = "r1", states(all), keys })
	return r, files, all, keys
}

func TestCertificatesAreRenewed(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	r, files, all, keys := c.complete()
	w.AwaitEvent(t, c.id, shardstate.EventFilesPushed, 1)
	w.Clock.Advance(19 * time.Hour)
	unchanged := func(m *nstancev1.ReportHealthRequest) { m.RuntimeHash, m.Unchanged = "r1", true }
	r.send(unchanged)
	if n := w.Events(c.id, shardstate.EventFilesPushed); n != 1 {
		t.Errorf("%d batches", n)
	}
	w.Clock.Advance(2 * time.Hour) // two thirds of 30 h
	r.send(unchanged)
	b := receive(t, files)
	if diff := cmp.Diff([]string{"node.crt"}, b.names()); diff != "" || b.commit.GetRuntimeHash() != "r1" {
		t.Errorf("%v %s", b.commit, diff)
	}
	if bytes.Equal(b.files["node.crt"].GetContent(), all.files["node.crt"].GetContent()) || len(w.log(t)) != 2 {
		t.Error("not renewed")
	}

	w.AwaitEvent(t, c.id, shardstate.EventFilesPushed, 2)
	// A new leader learns from the report when the certificate is due, and gets the key from its cache.
	leader := *w.leader.Load()
	w.leader.Store(&leader)
	c = c.again()
	r, files = c.reports(), c.files()
	r.send(func(m *nstancev1.ReportHealthRequest) { m.RuntimeHash, m.Files, m.Keys = "r1", states(all, b), keys })
	w.Clock.Advance(21 * time.Hour)
	r.send(unchanged)
	if again := receive(t, files); len(again.files) != 1 || len(w.log(t)) != 3 {
		t.Errorf("%v", again.names())
	}
}

func TestFailedFilesAreSentAgain(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	r, files, all, keys := c.complete()
	pushed := 1
	awaited := func() { // the batch is complete, so the clock may advance
		w.AwaitEvent(t, c.id, shardstate.EventFilesPushed, pushed)
		pushed++
	}
	awaited()
	broken := states(all)
	broken[1] = &nstancev1.FileState{Name: "node.env", Error: "disk full"}
	w.Clock.Advance(time.Minute)
	r.send(func(m *nstancev1.ReportHealthRequest) { m.Files, m.Keys = broken, keys })
	b := receive(t, files)
	if diff := cmp.Diff([]string{"node.env"}, b.names()); diff != "" || b.commit.GetRuntimeHash() != "r1" {
		t.Errorf("%v %s", b.commit, diff)
	}
	awaited()
	// After another failure, the next attempt waits. It is made although nothing changes any more.
	sent := func() int { return w.Events(c.id, shardstate.EventFilesPushed) }
	before := sent()
	r.send(func(m *nstancev1.ReportHealthRequest) { m.Files, m.Keys = broken, keys })
	if sent() != before {
		t.Error("sent again immediately")
	}
	w.Clock.Advance(time.Minute)
	r.send(func(m *nstancev1.ReportHealthRequest) { m.Unchanged = true })
	b = receive(t, files)
	if diff := cmp.Diff([]string{"node.env"}, b.names()); diff != "" {
		t.Error(diff)
	}
	awaited()
	// A changed or removed file is also sent again.
	altered := states(all)
	altered[2].Sha256 = strings.Repeat("0", 64)
	w.Clock.Advance(time.Hour)
	r.send(func(m *nstancev1.ReportHealthRequest) { m.RuntimeHash, m.Files, m.Keys = "r1", altered, keys })
	b = receive(t, files)
	if diff := cmp.Diff([]string{"secret.key"}, b.names()); diff != "" {
		t.Error(diff)
	}
}

// A certificate is sent only after it is in the durable log.
func TestCertificateIsLoggedBeforeItIsSent(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	r, files := c.reports(), c.files()
	r.send(nil)
	w.Fault(func(req mem.Request) mem.Fault {
		if req.Op == mem.Put {
			return mem.Fault{Err: errors.New("disk on fire")}
		}
		return mem.Fault{}
	})
	if err := c.submit("node.pub", pkixOf(t, transporttest.NewKey(t))); err != nil {
		t.Fatal(err)
	}
	if err := c.push(); err != nil {
		t.Error(err)
	}
	logFails := func() bool {
		return slices.ContainsFunc(w.State.Standing("prod"), func(e shardstate.ErrorEvent) bool {
			return e.Instance == c.id && strings.Contains(e.Message, "log certificates")
		})
	}
	eventually(t, "the failure is raised", logFails)
	w.Fault(nil)
	if w.Events(c.id, shardstate.EventFilesPushed) != 0 {
		t.Error("something was sent")
	}
	w.Clock.Advance(time.Minute)
	r.send(func(m *nstancev1.ReportHealthRequest) { m.Unchanged = true })
	if b := receive(t, files); len(b.files) != 3 || len(w.log(t)) != 1 {
		t.Errorf("%v", b.names())
	}
}

// Pushes share the executor's slots with terminations. An agent that reads no files must not occupy one.
func TestPushDoesNotWaitForTheAgent(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	began := time.Now()
	for range 5 {
		if err := c.push(); err != nil {
			t.Errorf("push without a stream: %v, want the push to be enqueued", err)
		}
	}
	if view, _ := w.State.Instance(c.id); view.Plan.FilesSent != "r1" {
		t.Errorf("the planner would push again: files sent are of %q, want r1", view.Plan.FilesSent)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("five pushes took %s: Push waits for the agent", took)
	}
	// All files are one batch, which is sent when the stream opens.
	if b := receive(t, c.files()); len(b.files) != 2 {
		t.Errorf("the batch has the files %v, want the two that need no key", b.names())
	}
	w.AwaitEvent(t, c.id, shardstate.EventFilesPushed, 1)
}

func TestAgentThatDoesNotRead(t *testing.T) {
	w := newTestLeader(t)
	w.service.SetSendTimeout(2 * time.Second)
	w.group.RuntimeHash, w.group.Files = "big", map[string]config.File{}
	for _, name := range []string{"a", "b", "c"} {
		w.group.Files[name] = config.File{Kind: "string", Content: strings.Repeat(name, 200<<10)}
	}
	w.Configure(w.group)
	stuck := w.agent(t)
	stuck.files() // the agent never reads, and its window is 64 KiB
	good := w.agent(t)
	goodFiles := good.files()
	if err := errors.Join(stuck.push(), good.push()); err != nil {
		t.Error(err)
	}
	if b := receive(t, goodFiles); len(b.files) != 3 {
		t.Errorf("an agent that reads received %v, want three files", b.names())
	}
	eventually(t, "the connection is closed", func() bool { return stuck.conn.GetState().String() != "READY" })
	if w.Events(stuck.id, shardstate.EventFilesPushed) != 0 {
		t.Error("an agent that does not read counts as one that has its files")
	}
}

func TestRenewCertificate(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	same, err := c.renew()
	if err != nil || !bytes.Equal(same.GetCertificate(), authority.EncodeCertificate(c.cert.Leaf)) {
		t.Errorf("the young certificate again: %v", err)
	}
	w.Clock.Advance(5 * 24 * time.Hour)
	answer, err := c.renew()
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(answer.GetCertificate())
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	identity, err := authority.ParseIdentity(cert)
	if err != nil || identity != w.Agent(c.id) || !cert.PublicKey.(ed25519.PublicKey).Equal(c.key.Public()) ||
		!cert.NotAfter.Equal(w.Clock.Now().Add(authority.AgentTTL)) ||
		!answer.GetNotAfter().AsTime().Equal(cert.NotAfter) || len(answer.GetCaBundle()) == 0 {
		t.Errorf("%v until %v (%v)", identity, cert.NotAfter, err)
	}
	stored := w.Stored(t, c.id)
	if stored.Certificate.Serial != authority.Serial(cert) || len(w.log(t)) != 1 || stored.State != record.Registered {
		t.Errorf("record %+v, log %v", stored, w.log(t))
	}
	// After a lost answer, the agent gets the same certificate.
	if again, err := c.renew(); err != nil || !bytes.Equal(again.GetCertificate(), answer.GetCertificate()) ||
		w.Stored(t, c.id).Revision != stored.Revision {
		t.Errorf("again: %v", err)
	}
}

// TestRenewalChangesTheKey: a renewal replaces the key. The replaced key can only repeat the renewal, and not even that
// once the agent has used the new one.
func TestRenewalChangesTheKey(t *testing.T) {
	w := newTestLeader(t)
	old := w.agent(t)
	w.Clock.Advance(5 * 24 * time.Hour)
	next := transporttest.NewKey(t)
	renew := func(c *client, key ed25519.PublicKey) (*nstancev1.AgentServiceRenewCertificateResponse, error) {
		return c.RenewCertificate(t.Context(), &nstancev1.AgentServiceRenewCertificateRequest{InstanceId: c.id.String(),
			PublicKey: key})
	}
	answer, err := renew(old, transporttest.Public(next))
	if err != nil {
		t.Fatal(err)
	}
	again, err := renew(old, transporttest.Public(next))
	if err != nil || !bytes.Equal(again.GetCertificate(), answer.GetCertificate()) {
		t.Errorf("the answer was lost: %v", err)
	}
	_, err = renew(old, transporttest.Public(transporttest.NewKey(t)))
	wants(t, "the replaced key for another key", err, codes.PermissionDenied, "registered with another key")
	wants(t, "another call with the replaced key", old.submit("node.pub", pkixOf(t, transporttest.NewKey(t))),
		codes.PermissionDenied, "registered with another key")
	_, err = renew(old, []byte("short"))
	wants(t, "a bad key", err, codes.InvalidArgument, "public_key")

	block, _ := pem.Decode(answer.GetCertificate())
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if !cert.PublicKey.(ed25519.PublicKey).Equal(next.Public()) {
		t.Error("the certificate is for another key")
	}
	w.connect(t, old.id, next, &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: next}).reports()
	eventually(t, "the replaced key is forgotten", func() bool { return len(w.Stored(t, old.id).PreviousKey) == 0 })
	_, err = renew(old, transporttest.Public(next))
	wants(t, "the replaced key after the new one was used", err, codes.PermissionDenied, "registered with another key")
}

func TestRenewExpiredCertificate(t *testing.T) {
	w := newTestLeader(t)
	running, stopped, unknown, deleting := w.agent(t), w.agent(t), w.agent(t), w.agent(t)
	w.Delete(t, deleting.id, false)
	w.Clock.Advance(authority.AgentTTL + 24*time.Hour)
	w.State.Answered(stopped.id, infra.VM{ProviderID: "vm-" + stopped.id.String(), State: infra.Stopped}, w.Clock.Now())
	fresh := shardstate.New(shardstate.Options{Term: w.Term(), Now: w.Clock.Now,
		Wake: func() {}})
	w.State.PutRecord(w.Stored(t, unknown.id), "")

	if err := running.submit("node.pub", pkixOf(t, transporttest.NewKey(t))); status.Code(
		err) != codes.Unauthenticated {
		t.Errorf("another call with an expired certificate: %v", err)
	}
	answer, err := running.renew()
	if err != nil || !answer.GetNotAfter().AsTime().Equal(w.Clock.Now().Add(authority.AgentTTL)) {
		t.Errorf("%v %v", answer.GetNotAfter().AsTime(), err)
	}
	_, err = stopped.renew()
	wants(t, "stopped", err, codes.PermissionDenied, "does not run")
	_, err = deleting.renew()
	wants(t, "deleting", err, codes.PermissionDenied, "is being deleted")

	// The leader has no answer of the provider yet.
	rec, token, err := w.Bucket.GetInstance(t.Context(), "prod", unknown.id)
	if err != nil {
		t.Fatal(err)
	}
	fresh.PutRecord(rec, token)
	leader := *w.leader.Load()
	leader.State = fresh
	w.leader.Store(&leader)
	_, err = unknown.renew()
	wants(t, "not asked yet", err, codes.Unavailable, "has not answered yet")
}

// hookedLog calls a hook before it appends an entry.
type hookedLog struct {
	agentapi.CertLog
	before func()
}

func (l hookedLog) AppendCertLog(ctx context.Context, entry record.CertLog) error {
	l.before()
	return l.CertLog.AppendCertLog(ctx, entry)
}

// An authorized renewal is rejected if the record changes before the renewal is written.
func TestRenewalOfAnInstanceThatChanges(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(t *testing.T, w *testLeader, id ident.ID)
		code    codes.Code
		message string
	}{
		"registered with another key": {func(t *testing.T, w *testLeader, id ident.ID) {
			w.Change(t, id, func(r *record.Instance) { r.PublicKey = transporttest.Public(transporttest.NewKey(t)) })
		}, codes.PermissionDenied, "registered with another key"},
		"being deleted": {func(t *testing.T, w *testLeader, id ident.ID) {
			w.Delete(t, id, false)
		}, codes.PermissionDenied, "is being deleted"},
		"deleted": {func(t *testing.T, w *testLeader, id ident.ID) {
			w.Delete(t, id, true)
		}, codes.NotFound, "is deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTestLeader(t)
			c := w.agent(t)
			w.Clock.Advance(5 * 24 * time.Hour)
			leader := *w.leader.Load()
			leader.CertLog = hookedLog{leader.CertLog, func() { test.change(t, w, c.id) }}
			w.leader.Store(&leader)
			_, err := c.renew()
			wants(t, name, err, test.code, test.message)
			if ref := w.Stored(t, c.id).Certificate; ref != nil && ref.Serial != authority.Serial(c.cert.Leaf) {
				t.Error("the record refers to the certificate of a client that no longer speaks for the instance")
			}
		})
	}
}

func TestRenewalThatCannotBeRecorded(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	w.Clock.Advance(5 * 24 * time.Hour)
	for failing := 1; failing <= 2; failing++ {
		puts := 0
		w.Fault(func(req mem.Request) mem.Fault {
			if req.Op == mem.Put {
				if puts++; puts == failing {
					return mem.Fault{Err: errors.New("disk on fire")}
				}
			}
			return mem.Fault{}
		})
		_, err := c.renew()
		wants(t, "a failing put", err, codes.Unavailable, "try again")
		if w.Stored(t, c.id).Certificate.Serial != authority.Serial(c.cert.Leaf) {
			t.Error("recorded all the same")
		}
	}
	w.Fault(nil)
	if _, err := c.renew(); err != nil {
		t.Error(err)
	}
}

// The cache may be lost. The leader keeps the keys in memory, and a new leader requests them again.
func TestLostCache(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	w.cache.Close()
	c.complete()
	leader := *w.leader.Load()
	w.leader.Store(&leader)
	keys := c.again().keyRequests()
	if request, err := keys.Recv(); err != nil || request.GetKeys()[0].GetName() != "node.pub" {
		t.Errorf("%v %v", request, err)
	}
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
			Ipv4:    "10.0.0.1", Hostname: "node-1"}
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
