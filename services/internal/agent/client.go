// Package agent owns the program that runs on every VM: it registers the instance, keeps streams to the shard's leader,
// makes keys, receives files, and reports health, notices and its own stopping.
//
// [Client] is the agent without its machine: everything that it touches is handed to it, so that a load generator runs
// thousands of real ones in one process. [Run] is the composition root that puts it on a VM.
//
// Invariant: the agent ends only when it is told to. Whatever fails is tried again with growing, jittered delays, or,
// when trying again cannot help, waited for with one clear line in the log and a failing health endpoint.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/errgroup"

	"github.com/nstance-kit/nstance/services/api/notleader"
	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/reconnect"
	"github.com/nstance-kit/nstance/services/internal/agent/folder"
	"github.com/nstance-kit/nstance/services/internal/agent/identity"
	"github.com/nstance-kit/nstance/services/internal/agent/keypair"
	"github.com/nstance-kit/nstance/services/internal/agent/receiver"
)

// Machine is what an agent knows of the VM that it runs on. Its methods are called by one goroutine at a time.
type Machine interface {
	// Facts are looked up when the agent registers and at the start of every stream: they may change.
	Facts() Facts
	// Sample returns the metrics since the last call, and how long the machine has been up.
	Sample(ctx context.Context) (*nstancev1.Metrics, time.Duration)
}

// Facts are the addresses and the name under which a machine is reached; empty when it has none.
type Facts struct {
	IPv4, IPv6, Hostname string
}

// NoticeSource watches for the cloud's word that the VM will be taken away.
type NoticeSource interface {
	// Watch calls notice at every change, with nil when a notice was withdrawn. It returns when ctx ends, or with an
	// error when there is nothing to watch.
	Watch(ctx context.Context, notice func(*nstancev1.TerminationNotice)) error
}

// Options of a [Client]. All fields are required, unless they say otherwise.
type Options struct {
	ID ident.ID
	// RegistrationAddrs and AgentAddrs are host:port; several are tried in turn.
	RegistrationAddrs, AgentAddrs []string
	Identity, Keys, Files         folder.Folder
	// The modes of files in the three folders.
	IdentityMode, KeysMode, FilesMode fs.FileMode
	// Extensions of received files that are accepted beside the usual ones. Optional.
	Extensions []string
	Machine    Machine
	// Hook is called after a batch changed files, with their names, never twice at a time. Optional.
	Hook func(ctx context.Context, changed []string) error
	// Dial connects to host:port. Optional: TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Version of the agent, for reports. Optional.
	Version string
	Log     *slog.Logger
}

// Client is one agent. [Client.Run] may be called once; the other methods at any time, by any goroutine.
type Client struct {
	Options
	identity *identity.Store
	keys     *keypair.Store
	files    *receiver.Receiver
	cert     atomic.Pointer[identity.Certificate]
	hooked   chan struct{} // there may be something for the hook
	wake     chan struct{} // there is something to report
	// reportInterval is the latest interval that a server asked for, a time.Duration; zero: unknown.
	reportInterval atomic.Int64

	mu       sync.Mutex
	standing standing
	health   health
}

// standing is what every stream's first report repeats.
type standing struct {
	termination *nstancev1.TerminationNotice
	stop        *announcement // nil: none
	urgent      bool          // the notice or the announcement is news
	changed     bool          // files or keys may have changed since they were last looked at
	unwell      string        // why the agent is not well
	remark      string        // what else people should know
}

// New returns an agent that has done nothing yet.
func New(o Options) *Client {
	if o.Dial == nil {
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		}
	}
	return &Client{
		Options:  o,
		identity: identity.NewStore(o.Identity, o.ID, o.IdentityMode),
		keys:     keypair.NewStore(o.Keys, o.KeysMode),
		hooked:   make(chan struct{}, 1),
		wake:     make(chan struct{}, 1),
		health:   health{problem: errors.New("starting")},
	}
}

// Run registers the instance if that is still to be done, then keeps streams to the server until ctx ends. It returns
// ctx's error.
func (c *Client) Run(ctx context.Context) error {
	c.files = receiver.Open(c.Files, receiver.Options{Mode: c.FilesMode, Extensions: c.Extensions,
		Hooked: c.Hook != nil, Log: c.Log})
	if err := c.enroll(ctx); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	if c.Hook != nil {
		group.Go(func() error { return c.runHook(ctx) })
	}
	group.Go(func() error { return c.stayConnected(ctx) })
	return group.Wait()
}

const (
	// settled is how long a session must have lasted for the next delay to be the shortest again. A server that accepts
	// and drops us at once, or a second agent with our identity, is not asked four times a second for ever.
	settled = 5 * time.Second
	// offline is for how long the agent may be without a session and still call itself well.
	offline = 2 * time.Minute
)

// stayConnected holds one session after the other until ctx ends.
func (c *Client) stayConnected(ctx context.Context) error {
	servers := addresses{configured: c.AgentAddrs}
	delays := newDelays()
	for {
		began := time.Now()
		accepted, err := c.session(ctx, servers.next())
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if accepted && time.Since(began) >= settled {
			delays.Reset()
		}
		if errors.Is(err, errRenewed) {
			continue
		}
		if servers.hint(err, (*nstancev1.NotLeader).GetAgentAddr) {
			delays.Reset()
		}
		c.setOffline(err)
		delays.MaxInterval = reconnect.LongestPause(time.Duration(c.reportInterval.Load())) * 3 / 4
		delay := delays.NextBackOff()
		c.Log.Warn("No session with the server; trying again", "error", err, "duration", delay)
		// A notice does not wait for the delay to end.
		if err := c.pause(ctx, delay, c.wake); err != nil {
			return err
		}
	}
}

// newDelays returns jittered delays from 250 ms that grow to [reconnect.MaxPause].
func newDelays() *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{
		InitialInterval:     375 * time.Millisecond, // 250 to 500 ms
		RandomizationFactor: 1.0 / 3,
		Multiplier:          2,
		MaxInterval:         reconnect.MaxPause * 3 / 4, // with jitter: half of the longest pause to all of it
	}
}

// pause waits for d, or less when early (which may be nil) says so. It returns ctx's error when that ends first.
func (c *Client) pause(ctx context.Context, d time.Duration, early <-chan struct{}) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-early:
	case <-timer.C:
	}
	return nil
}

// addresses are the servers to try in turn. Where a server says who the leader is, that one is tried next, and soon: an
// agent that has long been without a session would else wait for up to half a minute more, and be taken for dead.
type addresses struct {
	configured []string
	turn       int
	hinted     string
	followed   bool // the last one was a hint
}

func (a *addresses) next() string {
	addr := a.hinted
	a.hinted, a.followed = "", addr != ""
	if a.followed {
		return addr
	}
	addr = a.configured[a.turn%len(a.configured)]
	a.turn++
	return addr
}

// hint takes the leader's address from an error, if there is one in it. It reports whether that is news: two servers
// that name each other are not asked without pause.
func (a *addresses) hint(err error, of func(*nstancev1.NotLeader) string) (news bool) {
	if leader := notleader.FromError(err); leader != nil {
		a.hinted = of(leader)
	}
	return a.hinted != "" && !a.followed
}

// runHook runs the hook whenever files have changed; also for what changed before a restart. A failure is reported, not
// tried again: the next change runs it anew.
func (c *Client) runHook(ctx context.Context) error {
	for {
		if changed := c.files.Pending(); len(changed) > 0 {
			began := time.Now()
			err := c.Hook(ctx, changed)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			remark := ""
			if err != nil {
				remark = fmt.Sprintf("hook: %v", err)
				c.Log.Error("The hook failed", "error", err, "duration", time.Since(began))
			} else {
				c.Log.Info("The hook ran", "duration", time.Since(began))
			}
			if err := c.files.Done(changed); err != nil {
				c.Log.Error("The hook will run again after a restart", "error", err)
			}
			c.update(func(s *standing) { s.remark = remark })
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.hooked:
		}
	}
}

// update changes what there is to report, and has it reported.
func (c *Client) update(change func(*standing)) {
	c.mu.Lock()
	change(&c.standing)
	c.mu.Unlock()
	nudge(c.wake)
}

func nudge(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// health is what the health endpoint says.
type health struct {
	problem error     // nil: well
	since   time.Time // when the session was lost; zero: the problem counts at once
}

// Health returns nil while the agent is well: registered, and with a session, or without one for less than two minutes.
func (c *Client) Health() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.health.problem == nil || !c.health.since.IsZero() && time.Since(c.health.since) < offline {
		return nil
	}
	return c.health.problem
}

// Connected reports whether there is a session: the server has let the agent in.
func (c *Client) Connected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.health.problem == nil
}

func (c *Client) setHealth(problem error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.health = health{problem: problem}
}

// setOffline keeps since when there has been no session.
func (c *Client) setOffline(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	since := c.health.since
	if since.IsZero() {
		since = time.Now()
	}
	c.health = health{problem: fmt.Errorf("no session with the server: %w", err), since: since}
}
