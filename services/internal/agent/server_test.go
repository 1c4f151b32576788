package agent_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/agent"
	"github.com/nstance-kit/nstance/services/internal/proof/foldertest"
)

const address = "127.0.0.1:8994" // for connections in memory

// fakeServer serves the agent's API with real gRPC over real TLS and a real CA. The test decides the answers.
type fakeServer struct {
	nstancev1.UnimplementedRegistrationServiceServer
	nstancev1.UnimplementedAgentServiceServer

	ca  authority.CA
	id  ident.ID
	ttl time.Duration // of issued certificates
	lag time.Duration // of the server's clock

	reports   chan *nstancev1.ReportHealthRequest
	submitted chan []*nstancev1.PublicKey
	keyAsks   chan *nstancev1.KeyGenRequestsResponse
	fileSends chan *nstancev1.ReceiveFilesResponse
	ends      chan struct{} // receives when the agent ends a report stream

	mu      sync.Mutex
	spentBy ed25519.PublicKey // the key that consumed the nonce
	// current is the key of the agent's last renewal, and previous is the key before it. Both are nil before the first
	// renewal.
	current, previous ed25519.PublicKey
	lost              chan struct{} // if set, the next renewal takes effect, but its answer is lost and lost is closed
	registrations     []time.Time
	sessions          []time.Time // start times of report streams
	serials           []string    // of the certificates that the streams used
	renewals          []time.Time
	facts             *nstancev1.RegisterAgentRequest
	asked             *nstancev1.ReceiveFilesRequest // the last request for files
	refuse            error                          // error of every call
	interval          string
	endpoints         string
	keysWithFiles     bool              // the header of reports says that key requests come with the files
	mute              bool              // does not answer the end of a report stream
	foreign           ed25519.PublicKey // the key of another instance
	needsProof        bool              // asks agents without a proof of their VM to try again
	drop              bool              // accepts agents and drops them immediately
	// firstAsk and firstFiles are the messages that the server sends at the start of every stream.
	firstAsk   *nstancev1.KeyGenRequestsResponse
	firstFiles []*nstancev1.ReceiveFilesResponse
}

func newFakeServer(t testing.TB, id ident.ID) *fakeServer {
	t.Helper()
	ca, err := authority.CreateCA("example", rand.Reader, time.Now().Add(-24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return &fakeServer{
		ca: ca, id: id, interval: "1s",
		reports:   make(chan *nstancev1.ReportHealthRequest, 1000),
		submitted: make(chan []*nstancev1.PublicKey, 10),
		keyAsks:   make(chan *nstancev1.KeyGenRequestsResponse, 10),
		fileSends: make(chan *nstancev1.ReceiveFilesResponse, 100),
		ends:      make(chan struct{}, 10),
	}
}

// start serves the agent service and the registration service on one listener until stop is called.
func (s *fakeServer) start(t testing.TB, listener net.Listener) (stop func()) {
	t.Helper()
	return s.startAs(t, listener, authority.Identity{Role: authority.RoleServer, Cluster: "example", Shard: "a",
		Server: "one"}, "127.0.0.1")
}

func (s *fakeServer) startAs(t testing.TB, listener net.Listener, who authority.Identity, host string) (stop func()) {
	t.Helper()
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var cert *x509.Certificate
	if who.Role == authority.RoleServer {
		cert, err = s.ca.IssueServer(authority.ServerSpec{Identity: who, PublicKey: public, Hosts: []string{host},
			TTL: 30 * 24 * time.Hour}, rand.Reader, time.Now().Add(-s.lag))
	} else {
		// The server presents a server certificate that the same CA issued to an instance, for its kubelet.
		cert, err = s.ca.IssueInstance(authority.InstanceSpec{Kind: authority.KindServer, CommonName: "kubelet",
			IP: []string{host}, PublicKey: public, TTL: time.Hour}, rand.Reader, time.Now())
	}
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(s.ca.Certificate())
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}},
		// RenewCertificate accepts expired certificates, which a TLS handshake would reject. So the handshake does not
		// verify the chain. The methods of the server verify it.
		ClientAuth: tls.RequestClientCert,
		ClientCAs:  pool,
	})), grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second}))
	nstancev1.RegisterRegistrationServiceServer(server, s)
	nstancev1.RegisterAgentServiceServer(server, s)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	return func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	}
}

func (s *fakeServer) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func get[T any](s *fakeServer, what func() T) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return what()
}

func (s *fakeServer) issue(key ed25519.PublicKey) ([]byte, error) {
	cert, err := s.ca.IssueClient(authority.ClientSpec{
		Identity:  authority.Identity{Role: authority.RoleAgent, Cluster: "example", Tenant: "default", ID: s.id},
		PublicKey: key,
		TTL:       s.ttl,
	}, rand.Reader, time.Now().Add(-s.lag))
	if err != nil {
		return nil, err
	}
	return authority.EncodeCertificate(cert), nil
}

// RegisterAgent accepts a consumed nonce only with the key that consumed it, as a real server does.
func (s *fakeServer) RegisterAgent(_ context.Context, req *nstancev1.RegisterAgentRequest) (
	*nstancev1.RegisterAgentResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.registrations = append(s.registrations, time.Now())
	s.facts = req
	if s.refuse != nil {
		return nil, s.refuse
	}
	if req.GetNonce() != "good.nonce.jwt" {
		return nil, status.Error(codes.Unauthenticated, "nonce: not ours")
	}
	if s.foreign != nil && s.foreign.Equal(ed25519.PublicKey(req.GetPublicKey())) {
		return nil, status.Error(codes.AlreadyExists, "public_key: is the key of another instance")
	}
	if s.needsProof && len(req.GetAttestation()) == 0 {
		return nil, status.Error(codes.Unavailable, "no proof, try again")
	}
	if s.spentBy == nil {
		s.spentBy = req.GetPublicKey()
	}
	if !s.spentBy.Equal(ed25519.PublicKey(req.GetPublicKey())) {
		return nil, status.Error(codes.PermissionDenied, "nonce: consumed by another key")
	}
	cert, err := s.issue(s.spentBy)
	return &nstancev1.RegisterAgentResponse{Certificate: cert, CaBundle: authority.EncodeBundle(s.ca.Certificate())},
		err
}

// admit checks the certificate of a call.
func (s *fakeServer) admit(ctx context.Context, instance string, expired bool) (*x509.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse != nil {
		return nil, s.refuse
	}
	who, ok := peer.FromContext(ctx)
	if !ok {
		return nil, status.Error(codes.Internal, "no peer")
	}
	certs := who.AuthInfo.(credentials.TLSInfo).State.PeerCertificates
	if len(certs) == 0 {
		return nil, status.Error(codes.Unauthenticated, "no certificate")
	}
	pool := x509.NewCertPool()
	pool.AddCert(s.ca.Certificate())
	at := time.Now()
	if expired {
		at = certs[0].NotBefore
	}
	if _, err := certs[0].Verify(x509.VerifyOptions{Roots: pool, CurrentTime: at,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	if key := certs[0].PublicKey.(ed25519.PublicKey); !expired && s.current != nil && !s.current.Equal(key) {
		return nil, status.Error(codes.PermissionDenied, "registered with another key")
	}
	if instance != s.id.String() || certs[0].Subject.CommonName != instance {
		return nil, status.Error(codes.PermissionDenied, "instance_id: not yours")
	}
	return certs[0], nil
}

func (s *fakeServer) KeyGenRequests(req *nstancev1.KeyGenRequestsRequest,
	stream grpc.ServerStreamingServer[nstancev1.KeyGenRequestsResponse]) error {
	if _, err := s.admit(stream.Context(), req.GetInstanceId(), false); err != nil {
		return err
	}
	if ask := get(s, func() *nstancev1.KeyGenRequestsResponse { return s.firstAsk }); ask != nil {
		if err := stream.Send(ask); err != nil {
			return err
		}
	}
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case ask := <-s.keyAsks:
			if err := stream.Send(ask); err != nil {
				return err
			}
		}
	}
}

func (s *fakeServer) SubmitPublicKeys(ctx context.Context, req *nstancev1.SubmitPublicKeysRequest) (
	*nstancev1.SubmitPublicKeysResponse, error) {
	if _, err := s.admit(ctx, req.GetInstanceId(), false); err != nil {
		return nil, err
	}
	s.submitted <- req.GetKeys()
	return &nstancev1.SubmitPublicKeysResponse{}, nil
}

func (s *fakeServer) ReceiveFiles(req *nstancev1.ReceiveFilesRequest,
	stream grpc.ServerStreamingServer[nstancev1.ReceiveFilesResponse]) error {
	if _, err := s.admit(stream.Context(), req.GetInstanceId(), false); err != nil {
		return err
	}
	s.set(func() { s.asked = req })
	for _, event := range get(s, func() []*nstancev1.ReceiveFilesResponse { return s.firstFiles }) {
		if err := stream.Send(event); err != nil {
			return err
		}
	}
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case event := <-s.fileSends:
			if err := stream.Send(event); err != nil {
				return err
			}
		}
	}
}

func (s *fakeServer) ReportHealth(stream grpc.ClientStreamingServer[nstancev1.ReportHealthRequest,
	nstancev1.ReportHealthResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	cert, err := s.admit(stream.Context(), first.GetInstanceId(), false)
	if err != nil {
		return err
	}
	s.set(func() {
		s.sessions = append(s.sessions, time.Now())
		s.serials = append(s.serials, cert.SerialNumber.String())
	})
	header := metadata.MD{}
	if interval := get(s, func() string { return s.interval }); interval != "" {
		header.Set("nstance-report-interval", interval)
	}
	if endpoints := get(s, func() string { return s.endpoints }); endpoints != "" {
		header.Set("nstance-agent-endpoints", endpoints)
	}
	if get(s, func() bool { return s.keysWithFiles }) {
		header.Set("nstance-key-requests", "with-files")
	}
	if err := stream.SendHeader(header); err != nil {
		return err
	}
	if get(s, func() bool { return s.drop }) {
		return status.Error(codes.Aborted, "another connection took your place")
	}
	for report, err := first, error(nil); ; report, err = stream.Recv() {
		if errors.Is(err, io.EOF) {
			s.ends <- struct{}{}
			if get(s, func() bool { return s.mute }) {
				<-stream.Context().Done()
			}
			return stream.SendAndClose(&nstancev1.ReportHealthResponse{})
		}
		if err != nil {
			return err
		}
		s.reports <- report
	}
}

func (s *fakeServer) RenewCertificate(ctx context.Context, req *nstancev1.AgentServiceRenewCertificateRequest) (
	*nstancev1.AgentServiceRenewCertificateResponse, error) {
	cert, err := s.admit(ctx, req.GetInstanceId(), true)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.foreign != nil && s.foreign.Equal(ed25519.PublicKey(req.GetPublicKey())) {
		return nil, status.Error(codes.AlreadyExists, "public_key: is the key of another instance")
	}
	s.renewals = append(s.renewals, time.Now())
	switch key := cert.PublicKey.(ed25519.PublicKey); {
	case s.current == nil || s.current.Equal(key):
		s.previous, s.current = key, req.GetPublicKey()
	case !s.previous.Equal(key) || !s.current.Equal(ed25519.PublicKey(req.GetPublicKey())):
		return nil, status.Error(codes.PermissionDenied, "registered with another key")
	}
	if s.lost != nil {
		close(s.lost)
		s.lost = nil
		return nil, status.Error(codes.Unavailable, "the answer is lost")
	}
	text, err := s.issue(s.current)
	return &nstancev1.AgentServiceRenewCertificateResponse{Certificate: text,
		CaBundle: authority.EncodeBundle(s.ca.Certificate())}, err
}

// batch returns the events for the given files, followed by the event for their commit. The commit lists the names of
// the files and the additional names.
func batch(hash string, files map[string]string, names ...string) (events []*nstancev1.ReceiveFilesResponse) {
	for name, content := range files {
		events = append(events, &nstancev1.ReceiveFilesResponse{Event: &nstancev1.ReceiveFilesResponse_File{
			File: &nstancev1.File{Name: name, Content: []byte(content), Kind: "string"},
		}})
		names = append(names, name)
	}
	return append(events, &nstancev1.ReceiveFilesResponse{Event: &nstancev1.ReceiveFilesResponse_Commit{
		Commit: &nstancev1.FilesCommit{RuntimeHash: hash, Names: names},
	}})
}

func (s *fakeServer) sendFiles(hash string, files map[string]string, names ...string) {
	for _, event := range batch(hash, files, names...) {
		s.fileSends <- event
	}
}

// next returns the next report for which ok returns true.
func (s *fakeServer) next(t testing.TB, what string,
	ok func(*nstancev1.ReportHealthRequest) bool) *nstancev1.ReportHealthRequest {
	t.Helper()
	timeout := time.After(time.Minute)
	for {
		select {
		case report := <-s.reports:
			if ok(report) {
				return report
			}
		case <-timeout:
			t.Fatalf("no report with %s", what)
		}
	}
}

// network connects agents with servers in memory. Each server has an address.
type network struct {
	mu        sync.Mutex
	listeners map[string]*bufconn.Listener
	dials     []dial
}

type dial struct {
	addr string
	at   time.Time
}

func (n *network) listen(addr string) *bufconn.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners == nil {
		n.listeners = map[string]*bufconn.Listener{}
	}
	n.listeners[addr] = bufconn.Listen(64 << 10)
	return n.listeners[addr]
}

// unlisten rejects all further connections.
func (n *network) unlisten() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners = nil
}

// delays waits, and records the agent's connection attempts meanwhile. It returns the time until the first attempt, and
// then the time from each attempt to the next.
func (n *network) delays(wait time.Duration) (delays []time.Duration) {
	n.mu.Lock()
	n.dials = nil
	n.mu.Unlock()
	last := time.Now()
	time.Sleep(wait) // synctest time
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, dial := range n.dials {
		delays = append(delays, dial.at.Sub(last))
		last = dial.at
	}
	return delays
}

func (n *network) dial(ctx context.Context, addr string) (net.Conn, error) {
	n.mu.Lock()
	n.dials = append(n.dials, dial{addr, time.Now()})
	listener := n.listeners[addr]
	n.mu.Unlock()
	if listener == nil {
		return nil, errors.New("connection refused")
	}
	return listener.DialContext(ctx)
}

// plainMachine is a machine with fixed facts and metrics.
type plainMachine struct{}

func (plainMachine) Facts() agent.Facts {
	return agent.Facts{IPv4: "10.0.0.7", IPv6: "2001:db8::7", Hostname: "node-7"}
}

func (plainMachine) Sample(context.Context) (*nstancev1.Metrics, time.Duration) {
	return &nstancev1.Metrics{Cpu: 0.5, MemoryUsedBytes: 1, MemoryTotalBytes: 2}, time.Hour
}

func newID(t testing.TB) ident.ID {
	t.Helper()
	id, err := ident.NewID("knc", time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// memories contains the three folders of an agent, as they are after userdata has run.
type memories struct{ identity, keys, files foldertest.Memory }

func newMemories(t testing.TB, s *fakeServer) *memories {
	t.Helper()
	m := &memories{}
	for name, content := range map[string][]byte{"ca.crt": authority.EncodeBundle(s.ca.Certificate()),
		"nonce.jwt": []byte("good.nonce.jwt")} {
		if err := m.identity.Write(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func (m *memories) options(s *fakeServer, n *network) agent.Options {
	return agent.Options{
		ID: s.id, RegistrationAddrs: []string{address}, AgentAddrs: []string{address},
		Identity: &m.identity, Keys: &m.keys, Files: &m.files,
		IdentityMode: 0o600, KeysMode: 0o640, FilesMode: 0o640,
		Machine: plainMachine{}, Dial: n.dial, Version: "test", Log: slog.New(slog.DiscardHandler),
	}
}

// run runs an agent until stop is called. stop returns the result of Run.
func run(t testing.TB, o agent.Options) (client *agent.Client, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	client = agent.New(o)
	done := make(chan error, 1)
	go func() { done <- client.Run(ctx) }()
	return client, func() error {
		cancel()
		return <-done
	}
}
