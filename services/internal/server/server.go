// Package server assembles nstance-server from the other packages. It opens the bucket, provider and secrets from the
// options and the shard's configuration. The server then takes part in the election. While it leads, it runs the
// leader's tasks.
//
// Invariant: everything that decides or changes something has the authority of one term, and ends with the term.
// Objects that outlive a term (listeners, the configuration in force, the cache) make no decisions.
package server

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/daemon/systemd"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/health"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/journal/localdb"
	"github.com/nstance-kit/nstance/services/internal/server/journal/traces"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/internal/server/lead/lease"
	"github.com/nstance-kit/nstance/services/internal/server/lead/peer"
	"github.com/nstance-kit/nstance/services/internal/server/metrics"
	"github.com/nstance-kit/nstance/services/internal/server/serve/agentapi"
	"github.com/nstance-kit/nstance/services/internal/server/serve/operatorapi"
	"github.com/nstance-kit/nstance/services/internal/server/shardconfig"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// Config holds the parameters of Run.
type Config struct {
	Options Options
	Version string
	Log     *slog.Logger
	// Clouds are the clouds that this binary supports.
	Clouds []infra.Cloud
	// KeySources are the possible sources of encryption keys. nil means all that exist.
	KeySources []keyring.Source
	// Bucket, if set, replaces the bucket that the options name.
	Bucket objstore.Store
	// ClusterBucket, if set, replaces the bucket that cluster.storage names.
	ClusterBucket objstore.Store
	// Listen, if set, opens every listener. The default is TCP.
	Listen func(ctx context.Context, addr string) (net.Listener, error)
	// Supervised means that a supervisor restarts this server when it fails.
	Supervised bool
	// ConfirmOrphans, if set, delivers a value whenever a person allows garbage collection to delete the present
	// orphans. If there are too many orphans, garbage collection waits for such a value.
	ConfirmOrphans <-chan os.Signal
	// Heir changes the timing of a lock with an heir. The server uses only the fields HeirLease, HeirRenew and
	// HeirProbation, and only those that are not zero. For the others it uses the defaults.
	Heir election.Options
	// Started, if set, is called with the address of the health listener.
	Started func(health net.Addr)
}

// ErrRestart is returned by Run when only a new process can apply the new configuration.
var ErrRestart = errors.New("the configuration needs a restart")

// server is one run of nstance-server.
type server struct {
	cfg     Config
	opts    Options
	log     *slog.Logger
	metrics *metrics.Server
	traces  *traces.Exporter
	probe   health.Probe
	env     tasks.Env
	wait    func()
	// incarnation is random for each start. It is part of the lock and of every record.
	incarnation string

	store objstore.Store
	// documents is the store for everything but the lock. It limits concurrent requests, so that a burst of them does
	// not delay the renewal of the lock.
	documents objstore.Store
	// here is the name by which this server knows its bucket.
	here    record.Bucket
	manager *shardconfig.Manager
	state   *clusterstate.State
	secrets secretstore.Store
	machine ownMachine
	localDB *localdb.DB
	// opened holds the resources of the last configuration that passed its trial while the server started. It is nil
	// before the first such trial.
	opened *resources
	// inUse are the resources in use. It is nil while the server starts.
	inUse    atomic.Pointer[resources]
	identity election.Identity
	ports    ports

	agents    *agentapi.Service
	operators *operatorapi.Service
	endpoints endpoints
	peers     *peer.Network
	leading   atomic.Pointer[leadership]
	// served is true if this server has served as leader since its last failed term, or since its start.
	served atomic.Bool
	status atomic.Pointer[lease.Status]
	// former is the status just before this server became leader. It is nil if this server knew no lock then.
	former atomic.Pointer[lease.Status]
	// followedCA is the objstore.Token of the last version of `ca.crt` that this server read and that contained a
	// single CA. During a rotation, `ca.crt` contains more than one.
	followedCA atomic.Value
	restart    context.CancelCauseFunc

	// bucket knows whether the bucket answers.
	bucket bucketWatch
	// idle says why this server takes no part in the election. It is nil while it does.
	idle  atomic.Pointer[string]
	clock lease.Clock // of the election
}

// Run serves until ctx ends or an error stops the server. It returns that error. Run has already logged it, unless it
// is ErrRestart.
func Run(ctx context.Context, cfg Config) error { return newServer(cfg).main(ctx) }

// main does the work of Run.
func (s *server) main(ctx context.Context) error {
	err := s.run(ctx)
	if err == nil || errors.Is(err, ErrRestart) {
		return err
	}
	s.log.Error("server stopped", "error", err)
	s.linger(ctx)
	return err
}

// linger delays the exit of a failed server, so that many servers do not restart at the same time. It waits only under
// a supervisor. systemd sets INVOCATION_ID for that (systemd.exec(5)).
func (s *server) linger(ctx context.Context) {
	if s.cfg.Supervised {
		low, high := 10*time.Second, 40*time.Second
		if shard := s.manager.Shard(); shard != nil {
			low, high = shard.Server.ErrorExitJitter.MinDelay.D(), shard.Server.ErrorExitJitter.MaxDelay.D()
		}
		var b [2]byte
		_, _ = rand.Read(b[:]) // never fails, see crypto/rand
		wait := low + (high-low)/65536*time.Duration(binary.BigEndian.Uint16(b[:]))
		s.log.Info("exiting later", "wait", wait.String())
		_ = s.env.Sleep(ctx, wait)
	}
}

func newServer(cfg Config) *server {
	incarnation := make([]byte, 12)
	_, _ = rand.Read(incarnation) // never fails, see crypto/rand
	env, wait := tasks.Real()
	s := &server{cfg: cfg, opts: cfg.Options, log: cfg.Log, env: env, wait: wait,
		metrics:     metrics.NewServer(cfg.Version, cfg.Options.Shard),
		incarnation: hex.EncodeToString(incarnation), clock: lease.SystemClock()}
	s.probe.Says = func() string { return s.standing().says }
	s.probe.Details = func() any { return s.standing() }
	for _, class := range infra.Classes() {
		s.metrics.CreateFailures.WithLabelValues(string(class))
	}
	s.metrics.WatchShard(s.readShard)
	s.endpoints.sourced = make(chan struct{})
	s.manager = shardconfig.New(nil, "", s.log)
	s.operators = operatorapi.New(func() (*operatorapi.Leader, error) {
		return leaderOf(s, func(l *leadership) *operatorapi.Leader { return l.operator })
	})
	s.agents = &agentapi.Service{
		Leader: func() (*agentapi.Leadership, error) {
			return leaderOf(s, func(l *leadership) *agentapi.Leadership { return l.agent })
		},
		Now: time.Now, Log: s.log, Metrics: s.metrics,
	}
	return s
}

func (s *server) run(ctx context.Context) error {
	cfg := s.cfg
	exporter, err := traces.Open(ctx, os.Getenv, "nstance-server", cfg.Version, s.log)
	if err != nil {
		s.log.Warn("no traces are exported", "error", err)
	}
	s.traces = exporter
	defer s.traces.Close() // after the journal's last events
	defer s.wait()
	ctx, s.restart = context.WithCancelCause(ctx)
	defer s.restart(nil)

	s.probe.NotReady("starting")
	listener, err := s.awaitPort(ctx, s.opts.HealthAddr, "health")
	if err != nil {
		return err
	}
	if cfg.Started != nil {
		cfg.Started(listener.Addr())
	}
	var daemons sync.WaitGroup
	defer daemons.Wait()
	serveCtx, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	daemons.Go(func() {
		if err := health.Serve(serveCtx, listener, &s.probe, s.pages()); err != nil {
			s.restart(err)
		}
	})
	daemons.Go(func() {
		if err := systemd.Run(serveCtx, systemd.Daemon{Ready: s.probe.IsReady, Alive: s.alive,
			Log: s.log}); err != nil {
			s.log.Warn("service manager not notified", "error", err)
		}
	})
	s.log.Info("server started", "version", cfg.Version, "incarnation", s.incarnation, "health_addr",
		listener.Addr().String())

	s.env.Go("confirm orphans", func() { s.handleOrphanConfirmations(ctx) })
	if err := s.openLocalDB(ctx); err != nil {
		return err
	}
	defer func() {
		if err := s.localDB.Close(); err != nil {
			s.log.Warn("cache not closed", "error", err)
		}
	}()
	if err := s.openBucket(ctx); err != nil {
		return err
	}
	if err := s.prepare(ctx); err != nil {
		return ended(ctx, err)
	}
	defer s.endpoints.stop()
	if err := s.listen(ctx); err != nil {
		return err
	}
	if err := s.awaitHome(ctx); err != nil {
		return ended(ctx, err)
	}
	s.env.Go("follow the CA", func() { s.pollCA(ctx) })
	s.log.Info("ready", "config_etag", s.manager.Status().ETag)
	return ended(ctx, s.elect(ctx))
}

// openLocalDB opens the database in the cache directory, which holds the public keys of agents.
func (s *server) openLocalDB(ctx context.Context) (err error) {
	if s.localDB, err = localdb.Open(ctx, localdb.Path(s.opts.CacheDir)); err != nil {
		return fmt.Errorf("open the cache: %w", err)
	}
	s.agents.Keys = s.localDB
	return nil
}

// ended returns nil if err is only the result of a requested stop. If another cause ended ctx, it returns that cause.
// In all other cases, it returns err.
func ended(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if ctx.Err() == nil {
		return err
	}
	if !errors.Is(cause, context.Canceled) {
		return cause
	}
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// maxRetryPause is the longest pause between two tries to start. When the store works again after an outage, a server
// is ready within this pause and the duration of one try.
const maxRetryPause = 10 * time.Second
