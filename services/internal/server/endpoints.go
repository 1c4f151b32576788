package server

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	grpchealth "google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/nstance-kit/nstance/services/api/notleader"
	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/internal/server/health"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/internal/server/metrics"
	"github.com/nstance-kit/nstance/services/internal/server/serve/registerapi"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
)

// endpoints are the listeners of a server: the election listener and those of the three services.
type endpoints struct {
	mu      sync.Mutex
	source  *transport.Source
	sourced chan struct{} // closed once source is set
	serving func()        // stops the services; nil while they do not run
	stopped []func()
	// portTaken is true if the services do not run because another process uses one of their ports.
	portTaken bool
	// notHome is true if this server's bucket is not known to be the home of the shard.
	notHome bool
	// closed is true after stop. Nothing may be opened then.
	closed bool
}

// onStop registers the function `do`, which will be called by stop. If stop has already run, onStop calls `do`
// immediately and returns false.
func (e *endpoints) onStop(do func()) bool {
	e.mu.Lock()
	closed := e.closed
	if !closed {
		e.stopped = append(e.stopped, do)
	}
	e.mu.Unlock()
	if closed {
		do()
	}
	return !closed
}

// certificates returns the source of this server's certificates. It is nil while the cluster has no CA.
func (e *endpoints) certificates() *transport.Source {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.source
}

// stop closes every listener.
func (e *endpoints) stop() {
	e.mu.Lock()
	serving, stopped := e.serving, e.stopped
	e.serving, e.stopped, e.closed = nil, nil, true
	e.mu.Unlock()
	if serving != nil {
		serving()
	}
	for _, stop := range stopped {
		stop()
	}
}

// use sets the CA and its bundle for later connections. The bundle may have changed while this server was a standby.
func (e *endpoints) use(ca authority.CA, bundle []*x509.Certificate) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.source == nil {
		return nil
	}
	return e.source.SetCA(ca, bundle)
}

// listen opens the listeners that both leaders and standbys have. It waits while their ports are taken.
func (s *server) listen(ctx context.Context) error {
	election, err := s.awaitPort(ctx, s.ports.bind.Election, "election")
	if err != nil {
		return err
	}
	s.openPeers(ctx, election)
	if addr := s.ports.bind.Health; !samePort(addr, s.opts.HealthAddr) {
		listener, err := s.awaitPort(ctx, addr, "health")
		if err != nil {
			return err
		}
		serveCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
		s.endpoints.onStop(stop)
		s.env.Go("health", func() { _ = health.Serve(serveCtx, listener, &s.probe, s.pages()) })
	}
	// A standby also runs the services: it answers every call with the leader's address. For that it needs the CA,
	// which the first leader of the cluster may not have created yet.
	var fatal *fatalError
	if err = s.ensureServices(ctx); err == nil || errors.As(err, &fatal) {
		return err
	}
	s.reportNotServing(err, 1, 0)
	s.env.Go("start the services", func() { s.awaitServices(ctx) })
	return nil
}

// awaitPort opens a listener. While another process uses the port, it tries again, and the server is not ready.
func (s *server) awaitPort(ctx context.Context, addr, what string) (listener net.Listener, err error) {
	err = s.repeat(ctx, func() error {
		listener, err = s.open(ctx, addr, what)
		return err
	}, s.reportNotReady)
	return listener, err
}

func samePort(a, b string) bool {
	_, portA, errA := net.SplitHostPort(a)
	_, portB, errB := net.SplitHostPort(b)
	return errA == nil && errB == nil && portA == portB
}

var errNoCA = errors.New("the cluster has no CA yet")

// awaitServices retries until the services run. The services need a reachable bucket and the cluster's CA, which the
// first leader of the cluster creates.
func (s *server) awaitServices(ctx context.Context) {
	err := s.repeat(ctx, func() error { return s.ensureServices(ctx) }, s.reportNotServing)
	if err != nil && ctx.Err() == nil {
		s.restart(err)
	}
}

func (s *server) reportNotServing(err error, _ int, wait time.Duration) {
	if !errors.Is(err, errNoCA) {
		s.log.Warn("services not started yet", "error", err, "again_in", wait.String())
	}
}

// ensureServices opens the listeners of the three services if they are not open.
func (s *server) ensureServices(ctx context.Context) error {
	s.endpoints.mu.Lock()
	defer s.endpoints.mu.Unlock()
	if s.endpoints.serving != nil || s.endpoints.closed {
		return nil
	}
	if s.endpoints.source == nil {
		source, err := s.openSource(ctx)
		if err != nil {
			return err
		}
		s.endpoints.source = source
		close(s.endpoints.sourced)
	}
	stop, err := s.serve(ctx, s.endpoints.source)
	switch {
	case isPortTaken(err):
		s.endpoints.portTaken = true
		s.probe.NotReady(err.Error())
	case err == nil && s.endpoints.portTaken:
		if s.endpoints.portTaken = false; !s.endpoints.notHome {
			s.probe.Ready()
		}
	}
	if err != nil {
		return err
	}
	s.endpoints.serving = stop
	return nil
}

// portWait is how long a new leader waits for a taken service port before it gives up its leadership.
const portWait = 3 * time.Second

// ensureServicesToLead opens the listeners of the three services for a new leader. While a port is taken, it retries
// for up to portWait.
func (s *server) ensureServicesToLead(ctx context.Context) error {
	deadline := s.env.Now().Add(portWait)
	for {
		err := s.ensureServices(ctx)
		if !isPortTaken(err) || s.env.Now().After(deadline) {
			return err
		}
		if err := s.env.Sleep(ctx, portWait/10); err != nil {
			return err
		}
	}
}

// openSource opens the source of this server's certificates.
func (s *server) openSource(ctx context.Context) (*transport.Source, error) {
	ca, bundle, err := s.state.ReadCA(ctx)
	if isNotFound(err) {
		return nil, errNoCA
	}
	if err != nil {
		return nil, err
	}
	return transport.NewSource(transport.Options{
		Identity: authority.Identity{Role: authority.RoleServer, Cluster: s.manager.Shard().Cluster.ID,
			Shard: s.opts.Shard, Server: s.opts.ID},
		Hosts: s.ports.hosts, CA: ca, Bundle: bundle, Rand: rand.Reader, Now: time.Now, Log: s.log,
	})
}

// serve opens the listeners of the three services and serves them until stop is called.
func (s *server) serve(ctx context.Context, source *transport.Source) (stop func(), err error) {
	services := []struct {
		name, addr string
		role       authority.Role
		register   func(*grpc.Server)
	}{
		{"registration", s.ports.bind.Registration, "", func(g *grpc.Server) {
			nstancev1.RegisterRegistrationServiceServer(g, &registerapi.Service{
				Leader: func() (*registerapi.Registrar, error) {
					return leaderOf(s, func(l *leadership) *registerapi.Registrar { return l.registration })
				},
				Now: time.Now, Log: s.log, Metrics: s.metrics,
			})
		}},
		{"operators", s.ports.bind.Operator, authority.RoleOperator, func(g *grpc.Server) {
			s.operators.Register(g)
		}},
		{"agents", s.ports.bind.Agent, authority.RoleAgent, func(g *grpc.Server) {
			nstancev1.RegisterAgentServiceServer(g, s.agents)
		}},
	}
	var listeners []net.Listener
	for _, service := range services {
		listener, err := s.open(ctx, service.addr, service.name)
		if err != nil {
			for _, l := range listeners {
				_ = l.Close()
			}
			return nil, err
		}
		listeners = append(listeners, listener)
	}
	var servers []*grpc.Server
	for i, service := range services {
		g := grpc.NewServer(transport.ServerOptions(source, service.role, s.log)...)
		service.register(g)
		if s.opts.Debug {
			reflection.Register(g)
			healthpb.RegisterHealthServer(g, grpchealth.NewServer())
		}
		servers = append(servers, g)
		s.env.Go("serve "+service.name, func() {
			if err := g.Serve(listeners[i]); err != nil {
				s.restart(fmt.Errorf("serve %s: %w", service.name, err))
			}
		})
	}
	return func() {
		for _, g := range servers {
			g.Stop()
		}
	}, nil
}

// leaderOf returns what the function `pick` selects from the current leadership. If this server does not lead, leaderOf
// returns an error with the leader's address.
func leaderOf[T any](s *server, pick func(*leadership) T) (T, error) {
	if l := s.leading.Load(); l != nil && l.agent.Context.Err() == nil {
		return pick(l), nil
	}
	var none T
	return none, s.notLeader()
}

// notLeader returns the error of a server that does not lead: Unavailable, with the reason, and with the leader's
// addresses in the details if a leader is known.
func (s *server) notLeader() error {
	detail := &nstancev1.NotLeader{Shard: s.opts.Shard}
	v := s.standing()
	message := "this server does not lead"
	switch {
	case v.Role == "leader":
		message += " yet: it becomes the leader"
	case v.NoLeader != "":
		message += ": " + v.NoLeader
	default:
		message += ": " + v.Leader + " does"
	}
	// Name the holder of the lock even if it may be gone, because it may be reachable from the client.
	if st := s.status.Load(); st != nil && st.Holder.Term > 0 && !st.Holder.Released &&
		st.Holder.Incarnation != s.incarnation && st.Role != election.Leader {
		at := st.Holder.Addresses
		detail.LeaderId, detail.RegistrationAddr, detail.OperatorAddr, detail.AgentAddr = st.Holder.LeaderID,
			at.Registration, at.Operator, at.Agent
	}
	return notleader.Error(message, detail)
}

// portTakenError means that another process listens on an address. The server retries until the port is free.
type portTakenError struct{ addr, what string }

func (e *portTakenError) Error() string {
	return fmt.Sprintf("listen on %s for %s: the port is taken: stop the process that has it, or give this server "+
		"another (server.bind in the shard's configuration, --health-addr, --instance)", e.addr, e.what)
}

func isPortTaken(err error) bool {
	var taken *portTakenError
	return errors.As(err, &taken)
}

// open opens a listener. Its error is a portTakenError or a fatalError.
func (s *server) open(ctx context.Context, addr, what string) (net.Listener, error) {
	open := s.cfg.Listen
	if open == nil {
		open = func(ctx context.Context, addr string) (net.Listener, error) {
			return new(net.ListenConfig).Listen(ctx, "tcp", addr)
		}
	}
	listener, err := open(ctx, addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, &portTakenError{addr, what}
	}
	if err != nil {
		return nil, &fatalError{fmt.Errorf("listen for %s: %w", what, err)}
	}
	return listener, nil
}

// checkBind returns an error if this machine can never listen on an address of p. A port that is taken is no error.
func (s *server) checkBind(ctx context.Context, p ports) error {
	for _, service := range []struct{ field, addr string }{{"health_addr", p.bind.Health},
		{"election_addr", p.bind.Election}, {"registration_addr", p.bind.Registration},
		{"operator_addr", p.bind.Operator}, {"agent_addr", p.bind.Agent}} {
		listener, err := s.open(ctx, service.addr, "server.bind."+service.field)
		switch {
		case err == nil:
			_ = listener.Close()
		case !isPortTaken(err):
			return err
		}
	}
	return nil
}

// pages returns the pages that nstance-server adds to the health port.
func (s *server) pages() map[string]http.Handler {
	return map[string]http.Handler{"/metrics": s.metrics.Handler(), "/leader": http.HandlerFunc(s.serveLeader)}
}

// readShard returns the state of the shard for metrics. It locks the leader's State separately for each group, not for
// the whole time.
func (s *server) readShard() metrics.Shard {
	var shard metrics.Shard
	if source := s.endpoints.certificates(); source != nil {
		shard.CAs = append(shard.CAs, metrics.CA{Name: "cluster", Expires: source.CAExpires()})
	}
	l := s.leading.Load()
	if l == nil {
		return shard
	}
	state := l.leader.State
	shard.Leads = true
	counts := state.Count()
	shard.Instances, shard.AgentsConnected, shard.Reserved = counts.Instances, counts.Connected, counts.Reservations
	for _, key := range state.GroupKeys() {
		if g, ok := state.GroupView(key); ok {
			shard.Groups = append(shard.Groups, g)
		}
	}
	shard.Alerts = state.Alerts()
	settings := s.manager.Shard().Server.LeaderElection
	if settings.Enabled == nil || *settings.Enabled {
		left := l.authority.Remaining()
		shard.LeaseRemaining = &left
	}
	shard.JournalLag = l.journal.Lag()
	if at := l.configured.Load(); at != nil {
		shard.ConfigApplied = *at
	}
	if len(l.workloadCAs) > 0 {
		shard.CAs = append(shard.CAs, metrics.CA{Name: "workload",
			Expires: l.workloadCAs.At(time.Now(), l.ca).Certificate().NotAfter})
	}
	return shard
}

// alive always returns true. It is called before each notification that the server sends to systemd's watchdog. If the
// leader hangs while it holds its locks, alive does not return, and systemd restarts the server.
func (s *server) alive() bool {
	if l := s.leading.Load(); l != nil {
		l.leader.State.Count()
	}
	return true
}
