package server

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/internal/server/serve/agentapi"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
	"github.com/nstance-kit/nstance/services/internal/server/shardconfig"
)

// nonceProvider passes the boot script and the instance ID of each new VM to the test. The boot script contains only
// the nonce.
type nonceProvider struct {
	*mock.Provider
	nonces chan string
	ids    chan ident.ID
}

func (p nonceProvider) Create(ctx context.Context, req infra.CreateRequest) (infra.VM, error) {
	vm, err := p.Provider.Create(ctx, req)
	if err == nil {
		p.nonces <- string(req.Userdata)
		p.ids <- req.Tags.Instance
	}
	return vm, err
}

// testAgent is an agent that registered with the leader.
type testAgent struct {
	t   *testing.T
	id  ident.ID
	tls *tls.Config
}

// registerAgent registers the agent of the VM that the provider makes next.
func (r *testShard) registerAgent(p *run, provider nonceProvider) testAgent {
	r.t.Helper()
	ca, err := p.server.state.LoadCA(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.Certificate())
	a := testAgent{r.t, <-provider.ids, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1",
		MinVersion: tls.VersionTLS13}}
	key := transporttest.NewKey(r.t)
	answer, err := nstancev1.NewRegistrationServiceClient(a.dial(r.ports[2])).RegisterAgent(r.t.Context(),
		&nstancev1.RegisterAgentRequest{Nonce: <-provider.nonces,
			PublicKey: key.Public().(ed25519.PublicKey)})
	if err != nil {
		r.t.Fatal(err)
	}
	block, _ := pem.Decode(answer.GetCertificate())
	a.tls.Certificates = []tls.Certificate{{Certificate: [][]byte{block.Bytes}, PrivateKey: key}}
	return a
}

func (a testAgent) dial(addr string) *grpc.ClientConn {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(a.tls)))
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// report opens a stream of reports. It returns the stream and the leader's addresses in the header of the response.
func (a testAgent) report(conn *grpc.ClientConn) (reports grpc.ClientStreamingClient[nstancev1.ReportHealthRequest,
	nstancev1.ReportHealthResponse], addrs []string) {
	a.t.Helper()
	reports, err := nstancev1.NewAgentServiceClient(conn).ReportHealth(a.t.Context())
	if err != nil {
		a.t.Fatal(err)
	}
	if err := reports.Send(&nstancev1.ReportHealthRequest{InstanceId: a.id.String(), Sequence: 1,
		Healthy: true}); err != nil {
		a.t.Fatal(err)
	}
	header, err := reports.Header()
	if err != nil {
		a.t.Fatal(err)
	}
	return reports, header.Get(agentapi.EndpointsHeader)
}

// TestAgentsLearnANewAddressOfTheLeaderBeforeItRestarts changes the leader's address in the configuration, which needs
// a restart of the leader. The restart waits until a connected agent has learnt the new address.
func TestAgentsLearnANewAddressOfTheLeaderBeforeItRestarts(t *testing.T) {
	r := newTestShard(t)
	provider := nonceProvider{r.provider, make(chan string, 9), make(chan ident.ID, 9)}
	r.changeCloud(func(c *infra.Cloud) {
		c.Open = func(context.Context, infra.Env) (infra.Provider, error) { return provider, nil }
	})
	at := func(address string) func(doc map[string]any) {
		return func(doc map[string]any) {
			server := doc["server"].(map[string]any)
			server["leader_network"] = map[string]any{"ipv4": address}
			server["check_registration_address"] = false
		}
	}
	r.configure(at("127.0.0.1"))
	p := r.start(testKey)
	p.await("a leader", func() bool { return p.server.leading.Load() != nil })
	agent := r.registerAgent(p, provider)
	conn := agent.dial(r.ports[4])
	_, port, err := net.SplitHostPort(r.ports[4])
	if err != nil {
		t.Fatal(err)
	}
	reports, addrs := agent.report(conn)
	if !slices.Equal(addrs, []string{"127.0.0.1:" + port}) {
		t.Errorf("the agent is told %q", addrs)
	}

	r.configure(at("192.0.2.7"))
	if result, problems, err := p.server.leading.Load().operator.Refresh(t.Context()); err != nil ||
		result != shardconfig.Restart {
		t.Fatalf("the refresh answers %d, %v, %v; want a restart", result, problems, err)
	}
	if err := reports.RecvMsg(&nstancev1.ReportHealthResponse{}); err == nil {
		t.Error("the stream that was told the earlier address goes on")
	}
	select {
	case err := <-p.done:
		p.done <- err
		t.Fatalf("the server restarts before the agent has connected again: %v", err)
	default:
	}
	if _, addrs = agent.report(conn); !slices.Equal(addrs, []string{"127.0.0.1:" + port + ",192.0.2.7:" + port}) {
		t.Errorf("the agent is told %q", addrs)
	}
	if err := p.wait(); !errors.Is(err, ErrRestart) {
		t.Errorf("the server ended with %v, want a restart", err)
	}
	p = r.start(testKey)
	p.await("a leader", func() bool { return p.server.leading.Load() != nil })
	if _, addrs = agent.report(agent.dial(r.ports[4])); !slices.Equal(addrs, []string{"192.0.2.7:" + port}) {
		t.Errorf("after the restart the agent is told %q", addrs)
	}
	if n := r.running(); n != 2 {
		t.Errorf("%d VMs run, want 2", n)
	}
}
