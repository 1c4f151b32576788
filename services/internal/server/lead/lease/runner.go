// Package lease connects the elector of package election to a store, to a clock and to the other servers of the shard.
// Run takes part in the election and runs the leader's code under an Authority. The Authority says until when the code
// may act.
package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nstance-kit/nstance/services/contract/highwater"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// highestTermTimeout limits the time to read all records of the shard, which is necessary if the lock is missing.
const highestTermTimeout = time.Minute

// slowLogEvery is the time between two warnings about a slow store.
const slowLogEvery = time.Minute

// Config is what Run needs. All fields are required unless their comment says otherwise.
type Config struct {
	Store objstore.Store
	// Key is the key of the lock.
	Key     string
	Self    election.Identity
	Options election.Options
	// Disabled makes Run lead without a lock, for development. The term is above all recorded terms. The leadership
	// ends with ctx.
	Disabled bool
	Clock    Clock
	// Links connect the shard's servers. If Links is nil, there is no heir, even if Options have a PeerLease. If
	// Options have no PeerLease, there is no heir either. A standby then uses Links only to notice that its link to the
	// leader has ended.
	Links Links
	// Marks, if not nil, contain the highest version that was seen of each object in the bucket. Run adds the marks of
	// each lock that it reads, and writes all marks into each lock.
	Marks *highwater.Marks
	// Machine asks the provider for the state of a lock holder's machine. Nil means MachineUnknown.
	Machine func(ctx context.Context, id string) election.MachineState
	// HighestTerm returns the highest term in any record of the shard, or 0 if there is none. It is called only when
	// there is no lock.
	HighestTerm func(ctx context.Context) (uint64, error)
	// Lead is the leader's code. At most one call runs at a time, in its own goroutine. Lead must return soon after ctx
	// is cancelled; the cause of ctx says why it was cancelled. The parameter a, the authority, says for how long Lead
	// may still act. Run ends when Lead returns an error other than that of ctx. It also ends when Lead returns nil
	// while this process still leads.
	Lead func(ctx context.Context, a *Authority) error
	// StopTimeout is how long Run waits for Lead before Run itself returns. If Lead takes longer, the lock is not
	// released, because the leader's code may still act.
	StopTimeout time.Duration
	// Watch, if not nil, is called with each new Status. It must not block, and must not call an Authority, because Run
	// waits for Watch.
	Watch func(Status)
	// Failing, if not nil, says in words that requests to the store fail, or returns "". It is part of the reason for
	// the end of a leadership.
	Failing func() string
	Log     *slog.Logger
}

// Status is what a server reports about its election.
type Status struct {
	Role election.Role
	// Term is the term in which this server leads, or 0.
	Term uint64
	// Holder is the lock as this server last read it. Its Term is 0 if there is no lock. Its RenewedAt may be missing.
	Holder record.Lock
	// Wait is what this server waits for while it stands by. Its instants are readings of Config.Clock.
	Wait election.Wait
}

// Run takes part in the election, and runs Lead while this process leads. It ends when ctx ends, or because of the
// result of Lead. Run releases the lock after Lead has returned. It returns the error of Lead, or an error that says
// why the lock was not released. If the lock was not released, the other servers wait for the end of the lease.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Disabled {
		return runDisabled(ctx, cfg)
	}
	if err := cfg.Options.Validate(); err != nil {
		return fmt.Errorf("elect leader: %w", err)
	}
	if cfg.Links == nil {
		cfg.Options.PeerLease = 0
	}
	r := &runner{
		cfg:      cfg,
		elector:  election.New(cfg.Self, cfg.Options),
		answers:  make(chan election.Input, 2), // one of the store and one of the provider: senders never wait
		requests: make(chan request),
		returned: make(chan error, 1),
		timer:    time.NewTimer(0),
	}
	if _, err := record.EncodeLock(election.NewLock(cfg.Self, cfg.Options, 1, 1)); err != nil {
		return fmt.Errorf("elect leader: %w", err)
	}
	return r.run(ctx)
}

// runner is the state of Run. Only one goroutine uses it.
type runner struct {
	cfg      Config
	elector  election.Elector
	answers  chan election.Input
	requests chan request
	returned chan error // the result of Lead
	timer    *time.Timer

	storeCtx   context.Context    // of storage requests: it outlives Run's context, for the release
	endAttempt context.CancelFunc // ends the last request to the store
	slowLogged time.Time          // when the slow store was logged last
	leadCtx    context.Context    // the parent of Lead's context
	leading    *Authority         // while Lead runs
	lost       bool               // the leadership is over, and Lead still runs
	waiting    []confirmation
	seq        uint64

	events   <-chan election.Input // of Links; nil: there are none
	followed record.Lock           // the holder that Links follow
	heir     election.Peer         // the heir that was logged last
	newest   record.Lock           // the highest version of the lock that was read

	merged string // the marks that were merged last

	version record.LockVersion
	body    []byte // the encoded lock of that version
	status  Status
	err     error // fatal
}

// confirmation is a call of Confirm that has not returned yet.
type confirmation struct {
	seq  uint64
	done chan struct{}
}

func (r *runner) run(ctx context.Context) error {
	storeCtx, stopRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRequests()
	defer r.timer.Stop()
	defer r.endAuthority(context.Canceled)
	r.storeCtx, r.leadCtx = storeCtx, ctx
	if r.cfg.Links != nil {
		r.events = r.cfg.Links.Events(storeCtx)
		defer r.cfg.Links.Follow(record.Lock{})
	}

	var result error
	stop := ctx.Done()
	var giveUp <-chan time.Time
	release := func() {
		stop = nil
		giveUp = time.After(r.cfg.Options.Lease) // by then the lease has ended
		r.step(election.Release{})
	}
	for r.err == nil && r.elector.Role() != election.Done {
		select {
		case in := <-r.answers:
			r.step(r.refuseReplay(in))
		case in := <-r.events:
			r.step(in)
		case <-r.timer.C:
			r.step(election.Tick{})
		case q := <-r.requests:
			r.handleRequest(q)
		case err := <-r.returned:
			lost := r.lost
			r.endAuthority(context.Canceled)
			r.leading = nil
			if isContextError(err) {
				err = nil
			}
			if result = err; err == nil && lost && ctx.Err() == nil {
				r.step(election.LeaderStopped{})
			} else {
				release()
			}
		case <-stop:
			if stop = nil; r.leading == nil {
				release()
			} else {
				giveUp = time.After(r.cfg.StopTimeout) // Lead's context has ended together with ctx
			}
		case <-giveUp:
			if r.leading != nil {
				return fmt.Errorf("release the lock: the leader's code did not return within %v", r.cfg.StopTimeout)
			}
			return errors.Join(result, fmt.Errorf("release the lock: the store did not answer within %v",
				r.cfg.Options.Lease))
		}
	}
	return errors.Join(result, r.err)
}

func isContextError(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, ErrLost)
}

// step gives the elector an input, performs its actions and sets the timer.
func (r *runner) step(in election.Input) {
	if r.cfg.Marks != nil {
		r.mergeMarks(in)
		r.elector = r.elector.WithMarks(r.cfg.Marks.Encode())
	}
	now := r.cfg.Clock.Now()
	next, decision := r.elector.Next(now, in)
	r.elector = next
	until, term := r.elector.ActUntil()
	if r.leading != nil && !r.lost {
		r.leading.until.Store(int64(until)) // before a write is sent that shortens it
	}
	for _, action := range decision.Actions {
		r.perform(action)
	}
	if heir := r.elector.Heir(); term != 0 && heir != r.heir {
		r.heir = heir
		r.cfg.Log.Info("heir", "term", term, "heir", heir.ID)
	}
	r.publishStatus(now, term)
	r.followHolder()
	r.reportLatency()

	wait := decision.Wake.Sub(now)
	if term != 0 {
		// The timer does not count the time during which the machine is suspended. So a leader checks often, to notice
		// soon after a suspension that its authority has ended.
		wait = min(wait, r.cfg.Options.Lease/20)
	}
	r.timer.Reset(max(wait, 0))
}

// reportLatency logs that the store has become so slow that this process may lose its leadership.
func (r *runner) reportLatency() {
	slowest, limit := r.elector.Latency()
	if 2*slowest < limit || limit == 0 || time.Since(r.slowLogged) < slowLogEvery {
		return
	}
	r.slowLogged = time.Now()
	r.cfg.Log.Warn("the bucket is slow: this server loses its leadership if a renewal takes longer than the limit",
		"key", r.cfg.Key, "slowest_request", slowest.Round(time.Millisecond).String(), "limit", limit.String())
}

// mergeMarks adds the marks of a lock that this server received, in a read or a heartbeat, to the marks of this
// process.
func (r *runner) mergeMarks(in election.Input) {
	marks := r.merged
	switch in := in.(type) {
	case election.LockRead:
		marks = in.Lock.Marks
	case election.Heartbeat:
		marks = in.Lock.Marks
	}
	if marks == r.merged {
		return
	}
	if err := r.cfg.Marks.Merge(marks); err != nil { // a decoded lock has valid marks
		r.cfg.Log.Error("cannot use the marks of the lock", "key", r.cfg.Key, "error", err)
		return
	}
	r.merged = marks
}

// publishStatus calls Watch if the status has changed.
func (r *runner) publishStatus(now election.Instant, term uint64) {
	s := Status{Role: r.elector.Role(), Term: term, Wait: r.elector.Waits(now)}
	s.Holder, _ = r.elector.Holder()
	if r.cfg.Watch != nil && s != r.status {
		r.status = s
		r.cfg.Watch(s)
	}
}

// handleRequest passes a request of the leader's code on to the elector.
func (r *runner) handleRequest(q request) {
	switch {
	case q.from != r.leading || r.lost: // Authority.ended answers the caller
	case q.in != nil:
		r.step(q.in)
	default:
		r.seq++
		r.waiting = append(r.waiting, confirmation{seq: r.seq, done: q.done})
		r.step(election.Confirm{Seq: r.seq})
	}
}

func (r *runner) perform(action election.Action) {
	switch a := action.(type) {
	case election.ReadLock:
		leads := r.elector.Role() == election.Leader
		ctx, end := r.attempt()
		go func() {
			defer end()
			r.answers <- r.readLock(ctx, leads)
		}()
	case election.WriteLock:
		body, err := r.encodeLock(a.Lock)
		// Encoding fails if the leader's code has set a configuration token that cannot be encoded. Run then ends with
		// this error, so that the reason for the end of the leadership is visible.
		if err != nil {
			r.err = fmt.Errorf("elect leader: %w", err)
			return
		}
		ctx, end := r.attempt()
		go func() {
			defer end()
			r.answers <- r.writeLock(ctx, body, a)
		}()
	case election.AskMachine:
		go func() { r.answers <- election.MachineAnswer{State: r.askMachine(a.Machine)} }()
	case election.BecameLeader:
		r.cfg.Log.Info("became leader", "term", a.Term)
		ctx, authority := newAuthority(r.leadCtx, a.Term, r.cfg.Clock, r.requests)
		until, _ := r.elector.ActUntil()
		authority.until.Store(int64(until))
		r.leading, r.lost = authority, false
		go func() { r.returned <- r.cfg.Lead(ctx, authority) }()
	case election.LostLeadership:
		slowest, _ := r.elector.Latency()
		reason := string(a.Reason)
		if r.cfg.Failing != nil {
			if failing := r.cfg.Failing(); failing != "" {
				reason += ": " + failing
			}
		}
		r.cfg.Log.Info("lost leadership", "term", a.Term, "reason", reason, "slowest_request",
			slowest.Round(time.Millisecond).String())
		if a.Reason == election.ReasonExpired || a.Reason == election.ReasonPromise {
			r.endAttempt()
		}
		r.endAuthority(fmt.Errorf("%w: %s", ErrLost, reason))
	case election.Confirmed:
		for len(r.waiting) > 0 && r.waiting[0].seq <= a.Seq {
			close(r.waiting[0].done)
			r.waiting = r.waiting[1:]
		}
	case election.Send:
		r.cfg.Links.Send(a.To, a.Message)
	case election.Released:
	}
}

// followHolder makes a standby keep a link to the holder of the lock.
func (r *runner) followHolder() {
	if r.events == nil {
		return
	}
	holder, _ := r.elector.Holder()
	if r.elector.Role() != election.Standby || holder.Released || holder.Incarnation == r.cfg.Self.Incarnation {
		holder = record.Lock{}
	}
	if f := r.followed; holder.LeaderID != f.LeaderID || holder.Incarnation != f.Incarnation ||
		holder.Addresses.Election != f.Addresses.Election {
		r.followed = holder
		r.cfg.Links.Follow(holder)
	}
}

// endAuthority ends the leader's authority. The leader's code may still run.
func (r *runner) endAuthority(cause error) {
	r.waiting = nil
	if r.leading != nil {
		r.leading.end(cause)
		r.lost = true
	}
}

// encodeLock encodes a lock, with the current time as RenewedAt. If the same version was encoded before, encodeLock
// returns the same bytes again, so that a repeated write changes nothing.
func (r *runner) encodeLock(lock record.Lock) ([]byte, error) {
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

// attempt returns the context of a request to the store. It ends early if this process loses its authority, because a
// leader waits longer for an answer than other processes.
func (r *runner) attempt() (context.Context, context.CancelFunc) {
	ctx, end := context.WithTimeout(r.storeCtx, r.elector.RequestTimeout(r.cfg.Clock.Now()))
	r.endAttempt = end
	return ctx, end
}

// readLock reads the lock. It runs in its own goroutine.
func (r *runner) readLock(ctx context.Context, leads bool) election.Input {
	obj, err := r.cfg.Store.Get(ctx, r.cfg.Key)
	switch {
	case errors.Is(err, objstore.ErrNotFound) && leads:
		return election.LockAbsent{}
	case errors.Is(err, objstore.ErrNotFound):
		ctx, cancel := context.WithTimeout(r.storeCtx, highestTermTimeout)
		defer cancel()
		highest, err := r.cfg.HighestTerm(ctx)
		if err != nil {
			r.logFailure(ctx, "cannot read the highest recorded term", err)
			return election.ReadFailed{}
		}
		return election.LockAbsent{HighestTerm: highest}
	case err != nil:
		r.logFailure(ctx, "cannot read the lock", err)
		return election.ReadFailed{}
	}
	lock, err := record.DecodeLock(obj.Body)
	if err != nil {
		r.logFailure(ctx, "cannot decode the lock, and will not take it over", err)
		return election.LockUnreadable{Token: obj.Token}
	}
	return election.LockRead{Lock: lock, Token: obj.Token}
}

// writeLock writes the lock. It runs in its own goroutine.
func (r *runner) writeLock(ctx context.Context, body []byte, a election.WriteLock) election.Input {
	token, err := r.cfg.Store.Put(ctx, r.cfg.Key, body, a.Condition)
	switch {
	case err == nil:
		return election.LockWritten{Token: token}
	case errors.Is(err, objstore.ErrConflict):
		return election.WriteConflict{}
	}
	r.logFailure(ctx, "cannot write the lock", err)
	return election.WriteUnknown{}
}

// refuseReplay checks the lock that a read has returned. If the lock is older than one that this process read before,
// someone has written an old version back. The holder, the heir and the release in the old version are no longer valid.
// So refuseReplay returns LockUnreadable instead, and this process does not take the lock over.
func (r *runner) refuseReplay(in election.Input) election.Input {
	read, ok := in.(election.LockRead)
	if !ok {
		return in
	}
	lock := read.Lock
	if lock.Term < r.newest.Term || lock.Term == r.newest.Term && lock.Incarnation == r.newest.Incarnation &&
		lock.Revision < r.newest.Revision {
		r.cfg.Log.Error("an earlier version of the lock was written back, and will not be taken over", "key", r.cfg.Key,
			"term", lock.Term, "revision", lock.Revision, "term_before", r.newest.Term,
			"revision_before", r.newest.Revision)
		return election.LockUnreadable{Token: read.Token}
	}
	r.newest = lock
	return in
}

// askMachine asks the provider about a machine. It runs in its own goroutine.
func (r *runner) askMachine(id string) election.MachineState {
	if r.cfg.Machine == nil {
		return election.MachineUnknown
	}
	ctx, cancel := context.WithTimeout(r.storeCtx, r.cfg.Options.Lease)
	defer cancel()
	return r.cfg.Machine(ctx, id)
}

// logFailure logs a failed request, unless Run has ended and cancelled it.
func (r *runner) logFailure(ctx context.Context, message string, err error) {
	if r.storeCtx.Err() == nil {
		r.cfg.Log.WarnContext(ctx, "election request failed", "what", message, "key", r.cfg.Key, "error", err)
	}
}

// runDisabled leads without a lock.
func runDisabled(ctx context.Context, cfg Config) error {
	var highestTerm uint64
	for {
		recorded, err := cfg.HighestTerm(ctx)
		if err != nil {
			return fmt.Errorf("lead without election: %w", err)
		}
		leadCtx, authority, cancel := Unlimited(ctx, max(recorded, highestTerm)+1)
		cfg.Log.Info("leading without election", "term", authority.Term())
		if cfg.Watch != nil {
			cfg.Watch(Status{Role: election.Leader, Term: authority.Term()})
		}
		err = cfg.Lead(leadCtx, authority)
		cancel()
		var higher *higherTermError
		switch {
		case errors.As(context.Cause(leadCtx), &higher) && (err == nil || isContextError(err)):
			highestTerm = higher.term
		case isContextError(err):
			return nil
		default:
			return err
		}
	}
}

// Links carry messages between the processes of a shard. The methods do not block and may be called concurrently.
type Links interface {
	// Events returns the inputs from the links until ctx ends. It begins with a LinkUp for every open link. After that,
	// messages and changes of links come in the order in which they happen. A LinkDown comes before the next LinkUp of
	// the same process. A LeaderLinkDown comes when a link that Follow opened has ended. The sender in a message is
	// authenticated. If Events is called again, the channel of the earlier call gets no more inputs.
	Events(ctx context.Context) <-chan election.Input
	// Send hands a message to the link with a process. The message is lost if there is no link or its queue is full.
	Send(to election.Peer, m election.Message)
	// Follow opens a link to the holder of a lock, and keeps it open. The lock contains the holder's election address.
	// The link replaces an earlier link, whose queued messages are still sent. With the zero Lock there is no link to a
	// leader.
	Follow(holder record.Lock)
}
