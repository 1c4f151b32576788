package agentapi_test

import (
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

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/contract/render"
	"github.com/nstance-kit/nstance/services/internal/server/act/execute"
	"github.com/nstance-kit/nstance/services/internal/server/filegen"
	"github.com/nstance-kit/nstance/services/internal/server/journal/localdb"
	"github.com/nstance-kit/nstance/services/internal/server/metrics"
	"github.com/nstance-kit/nstance/services/internal/server/serve/agentapi"
	"github.com/nstance-kit/nstance/services/internal/server/serve/registerapi/leadertest"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

var _ execute.Files = (*agentapi.Service)(nil)

type testLeader struct {
	*leadertest.Leader
	service  *agentapi.Service
	addr     string
	leader   atomic.Pointer[agentapi.Leadership]
	cache    *localdb.DB
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
	generator := filegen.New(filegen.Options{CA: w.CA, WorkloadCAs: authority.WorkloadCAs{w.WorkloadCA},
		NonceKey: w.NonceKey, Secrets: oneSecret{}, Rand: rand.Reader,
		Now: w.Clock.Now})
	generator.Configure(filegen.Shard{Cluster: render.Cluster{ID: w.Name}, Server: render.Server{Shard: "a"},
		NonceTTL: time.Minute,
		Certificates: map[string]config.Certificate{"node": {Kind: "server", CN: "node",
			DNS: []string{"{{ .Instance.Hostname }}"}, IP: []string{"{{ .Instance.IP4 }}"}, TTL: 30}}})
	w.leader.Store(&agentapi.Leadership{Context: w.Context, Cluster: w.Name, Shard: "a", Term: w.Term(),
		Incarnation: leadertest.Incarnation, State: w.State,
		Records: w.Executor, Store: w.Bucket, Issuer: w.Issuer(), Files: generator, Interval: func() time.Duration {
			return time.Duration(w.interval.Load())
		}, Endpoints: func() string {
			text, _ := w.endpoints.Load().(string)
			return text
		}})
	var err error
	if w.cache, err = localdb.Open(context.Background(), localdb.Path(w.disk)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.cache.Close() })
	w.service = &agentapi.Service{Keys: w.cache, Now: w.Clock.Now, Log: w.Log, Metrics: metrics.NewServer("test", "a"),
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
	// keysWithFiles means that the agent asks for key requests on the stream of files.
	keysWithFiles bool
}

// registered returns an instance whose agent has registered with a key.
func (l *testLeader) registered(t testing.TB) (ident.ID, ed25519.PrivateKey, *tls.Certificate) {
	t.Helper()
	id, key := l.Created(t), transporttest.NewKey(t)
	cert := l.Certificate(t, l.Agent(id), key)
	l.Change(t, id, func(r *record.Instance) {
		r.State, r.RegisteredAt, r.PublicKey, r.NonceID, r.Hostname = record.Registered, l.Clock.Now(),
			transporttest.Public(key), "n", "node-1"
		r.Certificate = &record.CertificateRef{Serial: authority.Serial(cert.Leaf), NotAfter: cert.Leaf.NotAfter}
	})
	return id, key, cert
}

func (l *testLeader) agent(t testing.TB) *client {
	t.Helper()
	id, key, cert := l.registered(t)
	return l.connect(t, id, key, cert)
}

func (l *testLeader) connect(t testing.TB, id ident.ID, key ed25519.PrivateKey, cert *tls.Certificate) *client {
	t.Helper()
	conn := l.Dial(t, l.addr, cert)
	return &client{AgentServiceClient: nstancev1.NewAgentServiceClient(conn), t: t, w: l, id: id, key: key, cert: cert,
		conn: conn}
}

// again opens another connection for the same agent.
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

// eventually waits until ok returns true. Another goroutine does the work that ok waits for.
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
	stream, err := c.ReceiveFiles(ctx, &nstancev1.ReceiveFilesRequest{InstanceId: c.id.String(),
		WithKeyRequests: c.keysWithFiles})
	if err != nil {
		c.t.Fatal(err)
	}
	return stream
}

// batch holds the files that an agent received, up to and including their commit.
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

func (l *testLeader) log(t testing.TB) []record.CertLog {
	t.Helper()
	entries, err := l.Bucket.ListCertLog(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// each calls every method of the AgentService with the instance ID `named`. It returns a map from each method's name to
// the error of the call.
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
