package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// highestTimeout bounds the look through all records that a missing lock makes necessary.
const highestTimeout = time.Minute

// Config is what Run needs. All fields are required unless they say otherwise.
type Config struct {
	Store objstore.Store
	// Key of the lock.
	Key     string
	Self    Identity
	Options Options
	// Disabled leads without a lock, for development: in a term above all recorded ones, until ctx ends.
	Disabled bool
	Clock    Clock
	// Peers carries messages between the shard's servers. Nil: there is no heir, whatever Options say. Without
	// PeerLease they tell only that a leader is gone.
	Peers Peers
	// Machine asks the provider about a lock holder's machine. Nil, or MachineUnknown, for whoever cannot say.
	Machine func(ctx context.Context, id string) Evidence
	// HighestTerm is the highest term in any record of the shard, 0 if there is none. It is asked for only when there
	// is no lock.
	HighestTerm func(ctx context.Context) (uint64, error)
	// Lead is the leader's code. It runs once at a time, in its own goroutine, and returns soon after ctx is cancelled,
	// whose cause says why. While it winds down Authority says what may still be done. An error that is not about ctx
	// ends Run; so does its return without one while it leads.
	Lead func(ctx context.Context, a *Authority) error
	// StopTimeout bounds the wait for Lead when Run is to end. After it the lock is not released, since somebody still
	// acts.
	StopTimeout time.Duration
	// Watch, if not nil, is called with each new Status. It must not block, nor call back.
	Watch func(Status)
	Log   *slog.Logger
}

// Status is what a server tells about its election.
type Status struct {
	Role Role
	// Term that is led, 0 if none.
	Term uint64
	// Holder is the lock as it was seen last; nobody holds one if its Term is 0. Its RenewedAt may be missing.
	Holder record.Lock
}

// Run takes part in the election until ctx ends or the leader's code does, and runs Lead whenever this process leads.
// The lock is released before Run returns, after Lead has. The error is Lead's, or says why the lock could not be
// released; then others wait for the lease.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Disabled {
		return runDisabled(ctx, cfg)
	}
	if err := cfg.Options.Validate(); err != nil {
		return fmt.Errorf("elect leader: %w", err)
	}
	if cfg.Peers == nil {
		cfg.Options.PeerLease = 0
	}
	r := &runner{
		cfg:     cfg,
		elector: New(cfg.Self, cfg.Options),
		answers: make(chan Input, 2), // one of the store, one of the provider: their senders never wait
		ask:     make(chan question),
		ended:   make(chan error, 1),
		timer:   time.NewTimer(0),
	}
	if _, err := record.EncodeLock(version(cfg.Self, cfg.Options, 1, 1)); err != nil {
		return fmt.Errorf("elect leader: %w", err)
	}
	return r.run(ctx)
}

// runner is the state of Run. One goroutine has it.
type runner struct {
	cfg     Config
	elector Elector
	answers chan Input
	ask     chan question
	ended   chan error // result of Lead
	timer   *time.Timer

	requests context.Context // of requests: it outlives Run's, for the release
	parent   context.Context // of Lead
	leading  *Authority      // while Lead runs
	lost     bool            // its leadership is over
	waiting  []waiter
	seq      uint64

	heard   <-chan Input // from other servers; nil: from none
	follows record.Lock  // whom Peers were told to follow
	heir    Peer         // last told of

	version record.LockVersion
	body    []byte // of that version
	status  Status
	err     error // fatal
}

type waiter struct {
	seq  uint64
	done chan struct{}
}

func (r *runner) run(ctx context.Context) error {
	requests, stopRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRequests()
	defer r.timer.Stop()
	defer r.end(context.Canceled)
	r.requests, r.parent = requests, ctx
	if r.cfg.Peers != nil {
		r.heard = r.cfg.Peers.Events(requests)
		defer r.cfg.Peers.Follow(record.Lock{})
	}

	var result error
	stop := ctx.Done()
	var giveUp <-chan time.Time
	release := func() {
		stop = nil
		giveUp = time.After(r.cfg.Options.Lease) // later the lease has ended anyway
		r.step(Release{})
	}
	for r.err == nil && r.elector.Role() != Gone {
		select {
		case in := <-r.answers:
			r.step(in)
		case in := <-r.heard:
			r.step(in)
		case <-r.timer.C:
			r.step(Tick{})
		case q := <-r.ask:
			r.hear(q)
		case err := <-r.ended:
			lost := r.lost
			r.end(context.Canceled)
			r.leading = nil
			if aboutContext(err) {
				err = nil
			}
			if result = err; err == nil && lost && ctx.Err() == nil {
				r.step(LeaderStopped{})
			} else {
				release()
			}
		case <-stop:
			if stop = nil; r.leading == nil {
				release()
			} else {
				giveUp = time.After(r.cfg.StopTimeout) // Lead's context has ended with ours
			}
		case <-giveUp:
			if r.leading != nil {
				return fmt.Errorf("release lock: the leader's code did not end within %v", r.cfg.StopTimeout)
			}
			return errors.Join(result, fmt.Errorf("release lock: no answer within %v", r.cfg.Options.Lease))
		}
	}
	return errors.Join(result, r.err)
}

func aboutContext(err error) bool { return errors.Is(err, context.Canceled) || errors.Is(err, ErrLost) }

// step gives the elector an input, does what it says, and sets the timer.
func (r *runner) step(in Input) {
	now := r.cfg.Clock.Now()
	next, decision := r.elector.Next(now, in)
	r.elector = next
	until, term := r.elector.ActUntil()
	if r.leading != nil && !r.lost {
		r.leading.until.Store(int64(until)) // before a write goes out that shortens it
	}
	for _, action := range decision.Actions {
		r.perform(action)
	}
	if heir := r.elector.heir; term != 0 && heir != r.heir {
		r.heir = heir
		r.cfg.Log.Info("heir", "term", term, "heir", heir.ID)
	}
	r.tell(Status{Role: r.elector.Role(), Term: term})
	r.follow()

	wait := decision.Wake.Sub(now)
	if term != 0 {
		// The timer does not count suspended time: look often enough to notice soon after waking up that time has
		// passed.
		wait = min(wait, r.cfg.Options.Lease/20)
	}
	r.timer.Reset(max(wait, 0))
}

func (r *runner) tell(s Status) {
	s.Holder, _ = r.elector.Holder()
	if r.cfg.Watch != nil && s != r.status {
		r.status = s
		r.cfg.Watch(s)
	}
}

// hear takes a question of the leader's code to the elector.
func (r *runner) hear(q question) {
	switch {
	case q.about != r.leading || r.lost: // its asker learns of that by itself
	case q.in != nil:
		r.step(q.in)
	default:
		r.seq++
		r.waiting = append(r.waiting, waiter{seq: r.seq, done: q.done})
		r.step(Confirm{Seq: r.seq})
	}
}

func (r *runner) perform(action Action) {
	switch a := action.(type) {
	case ReadLock:
		leads := r.elector.Role() == Leader
		go func() { r.answers <- r.read(leads) }()
	case WriteLock:
		body, err := r.encode(a.Lock)
		// what the leader's code had us write: without renewal its authority would end for no visible reason
		if err != nil {
			r.err = fmt.Errorf("elect leader: %w", err)
			return
		}
		go func() { r.answers <- r.write(body, a) }()
	case AskMachine:
		go func() { r.answers <- MachineAnswer{State: r.askMachine(a.Machine)} }()
	case BecameLeader:
		r.cfg.Log.Info("became leader", "term", a.Term)
		ctx, authority := newAuthority(r.parent, a.Term, r.cfg.Clock, r.ask)
		until, _ := r.elector.ActUntil()
		authority.until.Store(int64(until))
		r.leading, r.lost = authority, false
		go func() { r.ended <- r.cfg.Lead(ctx, authority) }()
	case LostLeadership:
		r.cfg.Log.Info("lost leadership", "term", a.Term, "reason", string(a.Reason))
		r.end(fmt.Errorf("%w: %s", ErrLost, a.Reason))
	case Confirmed:
		for len(r.waiting) > 0 && r.waiting[0].seq <= a.Seq {
			close(r.waiting[0].done)
			r.waiting = r.waiting[1:]
		}
	case Send:
		r.cfg.Peers.Send(a.To, a.Message)
	case Released:
	}
}

// follow has a candidate be connected to the holder of the lock.
func (r *runner) follow() {
	if r.heard == nil {
		return
	}
	holder, _ := r.elector.Holder()
	if r.elector.Role() != Candidate || holder.Released || holder.Incarnation == r.cfg.Self.Incarnation {
		holder = record.Lock{}
	}
	if h, f := holder, r.follows; h.LeaderID != f.LeaderID || h.Incarnation != f.Incarnation ||
		h.Addresses.Election != f.Addresses.Election {
		r.follows = holder
		r.cfg.Peers.Follow(holder)
	}
}

// end takes the leader's authority away. Its code may still run.
func (r *runner) end(why error) {
	r.waiting = nil
	if r.leading != nil {
		r.leading.end(why)
		r.lost = true
	}
}

// encode stamps a lock with the time of day and keeps its bytes: the same version is sent again with the same.
func (r *runner) encode(lock record.Lock) ([]byte, error) {
	if lock.Version() != r.version {
		lock.RenewedAt = time.Now()
		body, err := record.EncodeLock(lock)
		if err != nil {
			return nil, err
		}
		r.version, r.body = lock.Version(), body
	}
	return r.body, nil
}

// read runs in its own goroutine.
func (r *runner) read(leads bool) Input {
	ctx, cancel := context.WithTimeout(r.requests, requestTimeout(r.cfg.Options))
	defer cancel()
	obj, err := r.cfg.Store.Get(ctx, r.cfg.Key)
	switch {
	case errors.Is(err, objstore.ErrNotFound) && leads:
		return LockAbsent{}
	case errors.Is(err, objstore.ErrNotFound):
		ctx, cancel := context.WithTimeout(r.requests, highestTimeout)
		defer cancel()
		highest, err := r.cfg.HighestTerm(ctx)
		if err != nil {
			r.complain(ctx, "cannot read the highest recorded term", err)
			return ReadFailed{}
		}
		return LockAbsent{HighestTerm: highest}
	case err != nil:
		r.complain(ctx, "cannot read the lock", err)
		return ReadFailed{}
	}
	lock, err := record.DecodeLock(obj.Body)
	if err != nil {
		r.complain(ctx, "cannot understand the lock, and will not take it", err)
		return LockUnreadable{Token: obj.Token}
	}
	return LockRead{Lock: lock, Token: obj.Token}
}

// write runs in its own goroutine.
func (r *runner) write(body []byte, a WriteLock) Input {
	ctx, cancel := context.WithTimeout(r.requests, requestTimeout(r.cfg.Options))
	defer cancel()
	token, err := r.cfg.Store.Put(ctx, r.cfg.Key, body, a.Condition)
	switch {
	case err == nil:
		return LockWritten{Token: token}
	case errors.Is(err, objstore.ErrConflict):
		return WriteConflict{}
	}
	r.complain(ctx, "cannot write the lock", err)
	return WriteUnknown{}
}

// askMachine runs in its own goroutine.
func (r *runner) askMachine(id string) Evidence {
	if r.cfg.Machine == nil {
		return MachineUnknown
	}
	ctx, cancel := context.WithTimeout(r.requests, r.cfg.Options.Lease)
	defer cancel()
	return r.cfg.Machine(ctx, id)
}

// complain logs what went wrong with a request, unless Run has ended and dropped it.
func (r *runner) complain(ctx context.Context, message string, err error) {
	if r.requests.Err() == nil {
		r.cfg.Log.WarnContext(ctx, "election request failed", "what", message, "key", r.cfg.Key, "error", err)
	}
}

// runDisabled leads without a lock.
func runDisabled(ctx context.Context, cfg Config) error {
	var floor uint64
	for {
		highest, err := cfg.HighestTerm(ctx)
		if err != nil {
			return fmt.Errorf("lead without election: %w", err)
		}
		lead, authority, cancel := Unlimited(ctx, max(highest, floor)+1)
		cfg.Log.Info("leading without election", "term", authority.Term())
		if cfg.Watch != nil {
			cfg.Watch(Status{Role: Leader, Term: authority.Term()})
		}
		err = cfg.Lead(lead, authority)
		cancel()
		var met *termMet
		switch {
		case errors.As(context.Cause(lead), &met) && (err == nil || aboutContext(err)):
			floor = met.term
		case aboutContext(err):
			return nil
		default:
			return err
		}
	}
}
