// Package agent implements the program that runs on every VM. The agent registers its instance, keeps streams to the
// shard's leader, generates keys, and receives files. It reports health, termination notices, and its own shutdown.
//
// [Client] is the agent without the machine: its caller supplies every dependency. A load generator therefore runs
// thousands of real clients in one process. [Run] assembles a client for the VM that it runs on.
//
// Invariant: the agent ends only on a signal or when its context ends. It retries every failed step with growing,
// jittered delays. If a retry cannot help, it logs one clear line, reports itself unhealthy, and waits.
package agent

import (
	"context"
	"crypto/rand"
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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/api/notleader"
	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/reconnect"
	"github.com/nstance-kit/nstance/services/internal/agent/check"
	"github.com/nstance-kit/nstance/services/internal/agent/folder"
	"github.com/nstance-kit/nstance/services/internal/agent/identity"
	"github.com/nstance-kit/nstance/services/internal/agent/keypair"
	"github.com/nstance-kit/nstance/services/internal/agent/notice"
	"github.com/nstance-kit/nstance/services/internal/agent/number"
	"github.com/nstance-kit/nstance/services/internal/agent/receiver"
)

// Machine describes the VM that an agent runs on. Only one goroutine at a time calls its methods.
type Machine interface {
	// Facts returns the current addresses and name. They may change, so the agent calls Facts at registration and at
	// the start of every stream.
	Facts() Facts
	// Sample returns the metrics and the uptime of the machine. Rates and CPU use are averages since the last call of
	// Sample.
	Sample(ctx context.Context) (*nstancev1.Metrics, time.Duration)
}

// Facts are the addresses and the host name of a machine. A field is empty if the machine has no such address or name.
type Facts struct {
	IPv4, IPv6, Hostname string
}

// Options configure a [Client]. Every field is required unless its comment says otherwise.
type Options struct {
	ID ident.ID
	// RegistrationAddrs and AgentAddrs are in host:port form. The client tries several addresses in turn.
	RegistrationAddrs, AgentAddrs []string
	Identity, Keys, Files         folder.Folder
	// IdentityMode, KeysMode, and FilesMode are the modes of the files in the identity folder, the keys folder, and the
	// folder of received files.
	IdentityMode, KeysMode, FilesMode fs.FileMode
	// Extensions lists extensions of file names that received files may have, in addition to the default ones.
	// Optional.
	Extensions []string
	Machine    Machine
	// Attest returns a proof that the agent runs on this VM. The agent sends the proof when it registers. Optional.
	Attest func(ctx context.Context) ([]byte, error)
	// Hook is called after received files or the file "role" have changed, with the names of these files. Calls never
	// overlap. Optional.
	Hook func(ctx context.Context, changed []string) error
	// Probe runs a health check once. Optional. Without it the agent runs no health checks.
	Probe check.Probe
	// Numbers reads what programs on the VM serve. Optional. Without it the agent reads no numbers for the scaling of
	// its group.
	Numbers number.Fetch
	// DrainHook runs the command of the drain hook until ctx ends, with the given variables. It returns why the command
	// failed, or "". See [check.Hook]. Optional. Without it the agent runs no drain hook.
	DrainHook func(ctx context.Context, command []string, environ ...string) (failure string)
	// Member starts or stops what runs only while the instance is a member of its group, and not a spare. Optional.
	Member func(ctx context.Context, member bool) error
	// Wakes watches until ctx ends, and sends each time the machine has woken from sleep. It is called when the
	// instance is a spare. Optional.
	Wakes func(ctx context.Context) <-chan struct{}
	// Dial connects to host:port. Optional. The default is TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Version is the agent's version, which the agent reports to the server. Optional.
	Version string
	Log     *slog.Logger
}

// Client is one agent. Call [Client.Run] at most once. The other methods are safe for concurrent use at any time.
type Client struct {
	Options
	identity *identity.Store
	keys     *keypair.Store
	files    *receiver.Receiver
	checks   *check.Runner  // nil: the agent runs no health checks
	numbers  *number.Reader // nil: the agent reads no numbers
	cert     atomic.Pointer[identity.Certificate]
	hooked   chan struct{} // signals that the hook may have work
	hooking  sync.Mutex    // allows one run of the hook at a time
	told     chan nstancev1.InstanceRole
	// early receives the time after which keepRenewed must renew the certificate. A server can ask for such an early
	// renewal.
	early chan time.Duration
	wake  chan struct{} // signals that there is something to report
	woken chan struct{} // signals that the machine has woken, so that the session must end
	// reportInterval is the time between two reports, as a time.Duration. A server sets it. Zero means unknown.
	reportInterval atomic.Int64
	counts         counts
	// process is a random text. With it, a server tells this process from a second agent with a copy of its identity.
	process string

	mu sync.Mutex
	// announced are the addresses of the agent service that a leader announced last. The slice is never changed.
	announced []string
	standing  standing
	health    health
	drain     drain
}

// standing is the state that the agent reports again in the first report of every stream.
type standing struct {
	notices notice.Notices
	stop    *announcement          // nil: no announcement
	urgent  bool                   // the notice, the announcement or the end of the drain hook is not reported yet
	drain   *nstancev1.DrainReport // nil: the drain hook has not ended
	role    nstancev1.InstanceRole // unspecified: none was taken yet
	changed bool                   // files, keys or health checks may have changed since the last report of them
	unwell  string                 // why the agent is unhealthy; empty: healthy
	remark  string                 // reported as the message of a healthy agent
}

// New returns an agent that is not running yet.
func New(o Options) *Client {
	if o.Dial == nil {
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		}
	}
	c := &Client{
		Options:  o,
		identity: identity.NewStore(o.Identity, o.ID, o.IdentityMode),
		keys:     keypair.NewStore(o.Keys, o.KeysMode),
		hooked:   make(chan struct{}, 1),
		told:     make(chan nstancev1.InstanceRole, 1),
		early:    make(chan time.Duration, 1),
		wake:     make(chan struct{}, 1),
		woken:    make(chan struct{}, 1),
		process:  rand.Text(),
		health:   health{problem: errors.New("starting")},
		drain:    drain{asked: make(chan *nstancev1.Drain, 1)},
	}
	if o.Probe != nil {
		c.checks = check.New(o.Probe, func() { c.update(func(s *standing) { s.changed = true }) })
	}
	if o.Numbers != nil {
		c.numbers = number.New(o.Numbers, func() { nudge(c.wake) })
	}
	return c
}

// Run registers the instance if necessary, then keeps streams to the server until ctx ends. It returns ctx's error.
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
	if c.checks != nil {
		group.Go(func() error { return c.checks.Run(ctx) })
	}
	if c.numbers != nil {
		group.Go(func() error { return c.numbers.Run(ctx) })
	}
	if c.DrainHook != nil {
		c.loadDrain()
		group.Go(func() error { return c.runDrain(ctx) })
	}
	group.Go(func() error { return c.runRole(ctx) })
	group.Go(func() error { return c.stayConnected(ctx) })
	return group.Wait()
}

const (
	// settled is the minimum length of a session that resets the reconnect delay to its minimum. Without this limit,
	// the agent would reconnect four times a second to a server that accepts the agent and then drops it. Two agents
	// with the same identity would also end each other's sessions at that rate.
	settled = 5 * time.Second
	// offline is how long an agent without a session still reports itself healthy.
	offline = 2 * time.Minute
	// firstAttempt is the timeout of the first try to reach one of several servers. Each further try has twice the
	// timeout of the previous one, up to reconnect.AttemptTimeout.
	firstAttempt = 2 * time.Second
)

// stayConnected runs sessions one after another until ctx ends.
func (c *Client) stayConnected(ctx context.Context) error {
	c.loadAddrs()
	servers := addresses{}
	delays := newDelays()
	for {
		began := time.Now()
		servers.configured = c.candidates(servers.tries)
		addr, timeout := servers.next()
		accepted, err := c.session(ctx, addr, timeout)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if accepted {
			servers.tries = 0
		}
		if accepted && time.Since(began) >= settled {
			delays.Reset()
		}
		if errors.Is(err, errRenewed) || errors.Is(err, errWoken) {
			continue
		}
		if servers.hint(err, (*nstancev1.NotLeader).GetAgentAddr) {
			delays.Reset()
		}
		c.setOffline(err)
		delays.MaxInterval = reconnect.LongestPause(time.Duration(c.reportInterval.Load())) * 3 / 4
		delay := delays.NextBackOff()
		if status.Code(err) == codes.NotFound {
			delay = reconnect.MaxPause // the instance is deleted: another try is useful only if that leader errs
		}
		c.Log.Warn("No session with the server; trying again", "error", err, "duration", delay)
		// Wait before the next attempt. A termination notice or an announcement ends the wait early.
		if err := c.pause(ctx, delay, c.wake); err != nil {
			return err
		}
	}
}

// newDelays returns jittered delays that start at 250 to 500 ms and grow to at most [reconnect.MaxPause].
func newDelays() *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{
		InitialInterval:     375 * time.Millisecond, // 250 to 500 ms
		RandomizationFactor: 1.0 / 3,
		Multiplier:          2,
		MaxInterval:         reconnect.MaxPause * 3 / 4, // with jitter: from half of the longest pause to all of it
	}
}

// pause waits for the duration d, or until the channel early has a value. early may be nil. pause returns ctx's error
// if ctx ends first.
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

// addresses are the servers to try in turn. If a server answers that another server leads, the agent tries that leader
// after only a short pause, because the leader may soon treat the agent as dead.
type addresses struct {
	configured []string
	turn       int
	hinted     string
	followed   bool   // the last address returned by next was a hint
	last       string // the last address returned by next
	tries      int    // calls of next since a server accepted the agent
}

// next returns the address to try, and the timeout of the try. With several configured addresses, next never takes the
// same one twice in a row. The first timeouts are short, because a suspended server process accepts connections but
// never answers. The timeouts grow with every try, so that a busy server has enough time.
func (a *addresses) next() (addr string, timeout time.Duration) {
	addr, timeout = a.hinted, reconnect.AttemptTimeout
	a.hinted, a.followed = "", addr != ""
	several := len(a.configured) > 1
	for try := 0; addr == "" || several && !a.followed && addr == a.last && try < len(a.configured); try++ {
		addr = a.configured[a.turn%len(a.configured)]
		a.turn++
	}
	if several {
		timeout = reconnect.Backoff(firstAttempt, reconnect.AttemptTimeout, a.tries+1)
	}
	a.last = addr
	a.tries++
	return addr, timeout
}

// hint stores the leader's address if the server's error contains one. It reports whether to try that address after
// only a short pause. The result is false if the last try already went to an address from an error. Otherwise the agent
// would call two servers without a break if each answers that the other leads.
func (a *addresses) hint(err error, of func(*nstancev1.NotLeader) string) (news bool) {
	if leader := notleader.FromError(err); leader != nil {
		a.hinted = of(leader)
	}
	return a.hinted != "" && !a.followed
}

// runHook runs the hook whenever files have changed. At the start, it also runs the hook for earlier changes that no
// finished run has handled. If the hook fails, runHook reports the failure, and runs the hook again only at the next
// change.
func (c *Client) runHook(ctx context.Context) error {
	for {
		if changed := c.files.Pending(); len(changed) > 0 {
			began := time.Now()
			c.hooking.Lock()
			err := c.Hook(ctx, changed)
			c.hooking.Unlock()
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

// update changes the state that the agent reports, and triggers a report.
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

// health is the state that the health endpoint shows.
type health struct {
	problem error     // nil: healthy
	since   time.Time // when the session was lost; zero: the problem counts immediately
}

// Health returns nil while the agent is healthy. A registered agent is healthy unless it has been without a session for
// two minutes or more.
func (c *Client) Health() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.health.problem == nil || !c.health.since.IsZero() && time.Since(c.health.since) < offline {
		return nil
	}
	return c.health.problem
}

// Connected reports whether the agent has a session that the server accepted.
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

// setOffline records that the agent has no session, why, and since when.
func (c *Client) setOffline(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	since := c.health.since
	if since.IsZero() {
		since = time.Now()
	}
	c.health = health{problem: fmt.Errorf("no session with the server: %w", err), since: since}
}
