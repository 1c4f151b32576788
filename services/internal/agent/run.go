package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sync/errgroup"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/agent/check"
	"github.com/nstance-kit/nstance/services/internal/agent/folder"
	"github.com/nstance-kit/nstance/services/internal/agent/machine"
	"github.com/nstance-kit/nstance/services/internal/agent/notice"
	"github.com/nstance-kit/nstance/services/internal/agent/number"
	"github.com/nstance-kit/nstance/services/internal/daemon/systemd"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
)

// farewell is the time limit for telling the server why the agent ends.
const farewell = 3 * time.Second

// Run runs the agent of this machine. It returns nil after a signal or the end of ctx, and an error if it cannot start.
func Run(ctx context.Context, s Settings, version string, log *slog.Logger) error {
	if !s.Batch.IsZero() {
		cloud := notice.Find(s.Provider, notice.Firmware{FS: os.DirFS("/sys/class/dmi/id")})
		id, err := member(ctx, cloud, s.Batch, log)
		if err != nil {
			return err
		}
		s.ID = id
	}
	log = log.With("instance", s.ID.String())
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)

	client, err := assemble(s, version, log)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	if s.HealthAddr != "" {
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.HealthAddr)
		if err != nil {
			return fmt.Errorf("listen for health checks: %w", err)
		}
		log.Info("Answering health checks", "address", listener.Addr().String())
		group.Go(func() error { return serveHealth(ctx, listener, client) })
	}
	group.Go(func() error { return client.Run(ctx) })
	group.Go(func() error { return watchShutdown(ctx, client, log) })
	group.Go(func() error {
		// A client that hangs may hold its lock forever. Health waits for this lock, so Alive hangs too. systemd's
		// watchdog then notices.
		return systemd.Run(ctx, systemd.Daemon{Ready: client.Connected, Alive: func() bool {
			_ = client.Health()
			return true
		}, Log: log})
	})
	group.Go(func() error { return watchNotices(ctx, s, client, log) })
	group.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case sig := <-signals:
			log.Info("Told to end", "signal", sig.String())
			sayGoodbye(ctx, s, client, sig, signals, log)
			cancel()
			return nil
		}
	})
	log.Info("Started", "version", version)
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// member asks the machine's cloud until it tells which instance of a batch has this machine as its VM.
func member(ctx context.Context, cloud notice.Cloud, batch ident.Batch, log *slog.Logger) (ident.ID, error) {
	if cloud.Member == nil {
		return ident.ID{}, fmt.Errorf("%sINSTANCE_ID is batch %s, but the cloud of this machine (%s) creates no "+
			"batches", Prefix, batch, cloud.Name)
	}
	for delays := newDelays(); ; {
		call, cancel := context.WithTimeout(ctx, attestTimeout)
		id, err := cloud.Member(call, notice.Options{Log: log}, batch)
		cancel()
		if err == nil || ctx.Err() != nil {
			return id, err
		}
		log.Warn("The cloud does not tell yet which instance of the batch this machine is", "batch", batch.String(),
			"error", err)
		if err := tasks.Sleep(ctx, delays.NextBackOff()); err != nil {
			return ident.ID{}, err
		}
	}
}

// assemble makes the client of this machine.
func assemble(s Settings, version string, log *slog.Logger) (*Client, error) {
	var folders [3]*folder.Disk
	for i, dir := range []struct {
		path string
		mode fs.FileMode
	}{{s.IdentityDir, 0o700}, {s.KeysDir, 0o750}, {s.RecvDir, 0o750}} {
		disk, err := folder.Open(dir.path, dir.mode)
		if err != nil {
			return nil, err
		}
		folders[i] = disk
	}
	host := machine.NewHost(machine.HostOptions{
		Hostname: s.Hostname, IPv4: s.IPv4, IPv6: s.IPv6, Server: s.AgentAddrs[0], Interface: s.MetricsInterface,
		Log: log,
	})
	var hook func(context.Context, []string) error
	if s.Hook != "" {
		// The hook reads the host names while another goroutine makes reports. The methods of a Host must not run
		// concurrently, so the hook needs its own Host.
		named := machine.NewHost(machine.HostOptions{Hostname: s.Hostname, Log: log})
		environ := func() []string {
			fqdn := s.FQDN
			if fqdn == "" {
				fqdn = named.FQDN(context.Background())
			}
			return []string{
				Prefix + "INSTANCE_KIND=" + s.Kind, Prefix + "INSTANCE_HOSTNAME=" + named.Name(), Prefix +
					"INSTANCE_FQDN=" + fqdn,
				Prefix + "IDENTITY_DIR=" + s.IdentityDir, Prefix + "KEYS_DIR=" + s.KeysDir, Prefix + "RECV_DIR=" +
					s.RecvDir,
			}
		}
		hook = shellHook(s.Hook, s.HookTimeout, environ, log)
	}
	return New(Options{
		ID:                s.ID,
		RegistrationAddrs: s.RegistrationAddrs, AgentAddrs: s.AgentAddrs,
		Identity: folders[0], Keys: folders[1], Files: folders[2],
		IdentityMode: s.IdentityMode, KeysMode: s.KeysMode, FilesMode: s.RecvMode,
		Extensions: s.RecvExtensions,
		Machine:    thisMachine{host},
		Attest:     attestor(s, log),
		Hook:       hook,
		Probe:      check.Local,
		Numbers:    number.Local,
		DrainHook:  check.Hook,
		Member:     machine.SetMember,
		Wakes:      machine.NewSleepWatch(os.DirFS("/sys"), log).Watch,
		Version:    version,
		Log:        log,
	}), nil
}

type thisMachine struct{ *machine.Host }

// Facts implements [Machine].
func (m thisMachine) Facts() Facts {
	ipv4, ipv6 := m.Addresses()
	return Facts{IPv4: ipv4, IPv6: ipv6, Hostname: m.Name()}
}

// attestor returns the function that proves on which VM the agent runs, or nil if the machine's cloud gives no proofs.
func attestor(s Settings, log *slog.Logger) func(context.Context) ([]byte, error) {
	cloud := notice.Find(s.Provider, notice.Firmware{FS: os.DirFS("/sys/class/dmi/id")})
	if cloud.Attest == nil {
		return nil
	}
	return func(ctx context.Context) ([]byte, error) {
		return cloud.Attest(ctx, notice.Options{Log: log}, s.ID.String())
	}
}

// watchNotices watches for termination notices of the machine's cloud until ctx ends.
func watchNotices(ctx context.Context, s Settings, client *Client, log *slog.Logger) error {
	cloud := notice.Find(s.Provider, notice.Firmware{FS: os.DirFS("/sys/class/dmi/id")})
	if cloud.NewSource == nil {
		log.Debug("No termination notices are watched", "provider", cloud.Name)
		return nil
	}
	return cloud.NewSource(notice.Options{Interval: s.SpotPollInterval, Log: log}).Watch(ctx, client.Notice)
}

// watchShutdown holds a shutdown inhibitor lock of logind. When the connection to logind fails, it tries again after a
// delay.
func watchShutdown(ctx context.Context, client *Client, log *slog.Logger) error {
	delays := newDelays()
	for logged := false; ; logged = true {
		err := func() error {
			logind, err := machine.ConnectLogind(ctx, dbus.ConnectSystemBus)
			if err != nil {
				return err
			}
			return errors.Join(machine.WatchShutdown(ctx, logind, client.Announce, log), logind.Close())
		}()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !logged {
			log.Info("Without logind; a shutdown is noticed at SIGTERM", "error", err)
		}
		if err := client.pause(ctx, delays.NextBackOff(), nil); err != nil {
			return err
		}
	}
}

// sayGoodbye reports to the server why this process ends. It takes at most [farewell]. If a second signal arrives on
// the channel `again`, sayGoodbye gives up.
func sayGoodbye(ctx context.Context, s Settings, client *Client, sig os.Signal, again <-chan os.Signal,
	log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, farewell)
	defer cancel()
	go func() {
		select {
		case <-again:
			cancel()
		case <-ctx.Done():
		}
	}()
	reason := nstancev1.StoppingReason_STOPPING_REASON_POWER_OFF
	if !s.PowerOffOnSIGTERM || sig == syscall.SIGINT {
		reason = client.stoppingReason(ctx)
	}
	began := time.Now()
	if err := client.Announce(ctx, reason); err != nil {
		log.Warn("The server has not confirmed the announcement", "reason", reason.String(), "error", err)
		return
	}
	log.Info("The server knows", "reason", reason.String(), "duration", time.Since(began))
}

// stoppingReason returns the reason in the current announcement. If there is no announcement, it returns the reason
// that the service manager gives.
func (c *Client) stoppingReason(ctx context.Context) nstancev1.StoppingReason {
	c.mu.Lock()
	stop := c.standing.stop
	c.mu.Unlock()
	if stop != nil && stop.reason != nstancev1.StoppingReason_STOPPING_REASON_UNSPECIFIED {
		return stop.reason
	}
	return machine.ThisSystem().StoppingReason(ctx)
}

// serveHealth answers GET /healthz and GET /metrics until ctx ends. The status of /healthz is 200 with "ok", or 503
// with the problem.
func serveHealth(ctx context.Context, listener net.Listener, client *Client) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		if err := client.Health(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, err)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /metrics", client.serveMetrics)
	server := &http.Server{Handler: mux, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 8 << 10}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health checks: %w", err)
	}
	return nil
}
