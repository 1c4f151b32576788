package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-kit/nstance/services/contract/highwater"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
	"github.com/nstance-kit/nstance/services/store/objstore/objstoretest"
)

const lockKey = "shard/z/leader.json"

// bubbleClock is the time of a synctest bubble, plus the time for which the machine was suspended. Timers stop during a
// suspension.
type bubbleClock struct {
	start time.Time
	slept atomic.Int64
}

func (c *bubbleClock) Now() election.Instant {
	return election.Instant(time.Since(c.start)) + election.Instant(c.slept.Load())
}

// shard is a bucket with the servers that elect a leader through it.
type shard struct {
	t       *testing.T
	start   time.Time
	store   *mem.Store
	counted *objstoretest.Counted // wraps store and counts requests
	inject  atomic.Pointer[func(mem.Request) mem.Fault]
	highest atomic.Uint64

	mu     sync.Mutex
	acting int // number of leaders with authority
	ledBy  []string
}

func newShard(t *testing.T) *shard {
	s := &shard{t: t, start: time.Now()}
	s.store = mem.New(mem.Options{
		Inject: func(_ context.Context, r mem.Request) mem.Fault {
			if f := s.inject.Load(); f != nil {
				return (*f)(r)
			}
			return mem.Fault{Before: 10 * time.Millisecond, After: 10 * time.Millisecond}
		},
		Sleep: func(ctx context.Context, d time.Duration) error {
			timer := time.NewTimer(d)
			defer timer.Stop()
			select {
			case <-timer.C:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
	})
	return s
}

func (s *shard) faults(f func(mem.Request) mem.Fault) {
	if f == nil {
		s.inject.Store(nil)
		return
	}
	s.inject.Store(&f)
}

func (s *shard) lock() record.Lock {
	s.t.Helper()
	obj, err := s.store.Get(s.t.Context(), lockKey)
	if err != nil {
		s.t.Fatal(err)
	}
	lock, err := record.DecodeLock(obj.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return lock
}

// marks returns the marks in the lock.
func (s *shard) marks() *highwater.Marks {
	s.t.Helper()
	m := &highwater.Marks{}
	if err := m.Merge(s.lock().Marks); err != nil {
		s.t.Fatal(err)
	}
	return m
}

// server is one call of Run.
type server struct {
	shard  *shard
	name   string
	store  *cut
	clock  *bubbleClock
	cfg    Config
	cancel context.CancelFunc
	leads  chan *Authority // receives each leadership when it begins
	lost   chan error      // receives the cause of the end of each leadership
	wind   time.Duration   // how long the leader's code takes to end
	result chan error
}

// cut is a store that a test can cut off. While it is cut off, requests wait until their context ends.
type cut struct {
	objstore.Store
	off atomic.Bool
}

func (c *cut) Get(ctx context.Context, key string) (objstore.Object, error) {
	if c.off.Load() {
		<-ctx.Done()
		return objstore.Object{}, ctx.Err()
	}
	return c.Store.Get(ctx, key)
}

func (c *cut) Put(ctx context.Context, key string, body []byte, cond objstore.Condition) (objstore.Token, error) {
	if c.off.Load() {
		<-ctx.Done()
		return "", fmt.Errorf("%w: %w", objstore.ErrIndeterminate, ctx.Err())
	}
	return c.Store.Put(ctx, key, body, cond)
}

func (s *shard) server(name string) *server {
	v := &server{shard: s, name: name, store: &cut{Store: s.store}, clock: &bubbleClock{start: s.start},
		leads: make(chan *Authority, 100), lost: make(chan error, 100), result: make(chan error, 1)}
	v.cfg = Config{
		Store:       v.store,
		Key:         lockKey,
		Self:        election.Identity{ID: name, Incarnation: name + "-1", Machine: "m-" + name},
		Options:     defaults,
		Clock:       v.clock,
		HighestTerm: func(context.Context) (uint64, error) { return s.highest.Load(), nil },
		Lead:        v.lead,
		StopTimeout: 10 * time.Second,
		Log:         slog.New(slog.DiscardHandler),
	}
	return v
}

func (v *server) run() {
	ctx, cancel := context.WithCancel(v.shard.t.Context())
	v.cancel = cancel
	go func() { v.result <- Run(ctx, v.cfg) }()
}

func (v *server) lead(ctx context.Context, a *Authority) error {
	if a.Remaining() <= 0 {
		v.shard.t.Errorf("%s leads without time left", v.name)
	}
	v.shard.mu.Lock()
	v.shard.acting++
	if v.shard.acting > 1 {
		v.shard.t.Errorf("%d leaders act", v.shard.acting)
	}
	v.shard.ledBy = append(v.shard.ledBy, v.name)
	v.shard.mu.Unlock()
	v.leads <- a
	<-ctx.Done()
	v.shard.mu.Lock()
	v.shard.acting--
	v.shard.mu.Unlock()
	v.lost <- context.Cause(ctx)
	timer := time.NewTimer(v.wind)
	<-timer.C
	return ctx.Err()
}

// stop ends a server as SIGTERM would.
func (v *server) stop() error {
	v.cancel()
	return <-v.result
}

// pass advances the time of the bubble.
func pass(d time.Duration) {
	timer := time.NewTimer(d)
	<-timer.C
	synctest.Wait()
}

func within(t *testing.T, what string, got, low, high time.Duration) {
	t.Helper()
	if got < low || got > high {
		t.Errorf("%s took %v, want %v to %v", what, got, low, high)
	}
}

func TestCleanHandover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t)
		a, b := s.server("a"), s.server("b")
		a.wind = 2 * time.Second
		a.run()
		if term := (<-a.leads).Term(); term != 1 {
			t.Errorf("first term is %d", term)
		}
		b.run()
		pass(time.Minute)

		began := time.Now()
		if err := a.stop(); err != nil {
			t.Errorf("a ends with %v", err)
		}
		within(t, "the end of a", time.Since(began), a.wind, a.wind+100*time.Millisecond)
		if cause := <-a.lost; !errors.Is(cause, context.Canceled) {
			t.Errorf("the leader's context ended because %v", cause)
		}
		if lock := s.lock(); !lock.Released || lock.LeaderID != "a" || lock.Term != 1 {
			t.Errorf("the lock is not released: %+v", lock)
		}
		released := time.Now()
		authority := <-b.leads
		// The successor can take the released lock immediately. It does so when it next reads the lock, which happens
		// once in a renewal interval.
		within(t, "hand-over", time.Since(released), 0, defaults.Renew+200*time.Millisecond)
		if authority.Term() != 2 {
			t.Errorf("second term is %d", authority.Term())
		}
		if err := b.stop(); err != nil {
			t.Errorf("b ends with %v", err)
		}

		c := s.server("c") // a server that starts now does not wait
		began = time.Now()
		c.run()
		<-c.leads
		within(t, "start after a release", time.Since(began), 0, 100*time.Millisecond)
		if err := c.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestCutOffLeaderIsReplacedAfterLeaseAndMargin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t)
		a, b := s.server("a"), s.server("b")
		a.run()
		authority := <-a.leads
		b.run()
		pass(time.Minute)
		a.store.off.Store(true)
		// renewed is the time at which the server "a" began to send its last renewal. A renewal gives authority for 9.5
		// s.
		renewed := time.Now().Add(authority.Remaining() - 9500*time.Millisecond)
		cause := <-a.lost
		within(t, "authority", time.Since(renewed), 9500*time.Millisecond, 9500*time.Millisecond)
		if !errors.Is(cause, ErrLost) || authority.Remaining() != 0 {
			t.Errorf("authority ended because %v, %v remain", cause, authority.Remaining())
		}
		if err := authority.Confirm(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("confirmed after the end: %v", err)
		}
		if term := (<-b.leads).Term(); term != 2 {
			t.Errorf("second term is %d", term)
		}
		within(t, "fail-over", time.Since(renewed), 10600*time.Millisecond, 11*time.Second)

		a.store.off.Store(false) // a reads the other server's lock and follows
		pass(time.Minute)
		if err := a.stop(); err != nil {
			t.Error(err)
		}
		if lock := s.lock(); lock.LeaderID != "b" || lock.Released {
			t.Errorf("the follower's end touched the lock: %+v", lock)
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestMachineOfTheHolderIsTerminated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t)
		a, b := s.server("a"), s.server("b")
		a.cfg.Options = election.Options{Lease: 90 * time.Second, Renew: 30 * time.Second}
		var state atomic.Uint32
		state.Store(uint32(election.MachineRunning))
		b.cfg.Machine = func(_ context.Context, id string) election.MachineState {
			if id != "m-a" {
				t.Errorf("asked about %q", id)
			}
			return election.MachineState(state.Load())
		}
		a.run()
		<-a.leads
		b.run()
		pass(3 * time.Minute)
		a.store.off.Store(true)
		died := time.Now()
		a.cancel()
		<-a.lost
		state.Store(uint32(election.MachineTerminated))
		<-b.leads
		within(t, "fail-over", time.Since(died), 0, 37*time.Second) // as soon as a renewal is overdue, not after 99 s
		if err := b.stop(); err != nil {
			t.Error(err)
		}
		if err := <-a.result; err == nil {
			t.Error("a ended without having released the lock, and does not say so")
		}
	})
}

func TestLeaderFunctionThatDoesNotReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t)
		a := s.server("a")
		a.wind = time.Minute
		a.run()
		authority := <-a.leads
		began := time.Now()
		err := a.stop()
		if err == nil || !strings.Contains(err.Error(), "did not return") {
			t.Errorf("Run returned %v", err)
		}
		within(t, "stop", time.Since(began), 10*time.Second, 10*time.Second)
		if s.lock().Released {
			t.Error("released while the leader's code runs")
		}
		if authority.Remaining() != 0 {
			t.Error("authority without anybody who renews it")
		}
		pass(time.Minute)
	})
}

func TestStopWhileLeadershipIsEnding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t)
		a := s.server("a")
		a.wind = 5 * time.Second
		a.run()
		<-a.leads
		a.store.off.Store(true)
		<-a.lost
		a.store.off.Store(false)
		began := time.Now()
		a.cancel()
		pass(time.Second)
		if s.lock().Released {
			t.Error("released while the leader's code runs")
		}
		if err := <-a.result; err != nil {
			t.Error(err)
		}
		within(t, "stop", time.Since(began), 5*time.Second, 6*time.Second)
		if !s.lock().Released {
			t.Error("the lock is not released")
		}
	})
}

func TestUnlimitedAuthorityEnds(t *testing.T) {
	ctx, authority, cancel := Unlimited(t.Context(), 3)
	if err := authority.Confirm(ctx); err != nil || authority.Term() != 3 {
		t.Errorf("term %d, confirmed: %v", authority.Term(), err)
	}
	cancel()
	for range 50 { // independent of which reason Confirm checks first
		if err := authority.Confirm(t.Context()); !errors.Is(err, ErrLost) {
			t.Fatalf("confirmed after its end: %v", err)
		}
	}
}

func TestSuspendedMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t)
		a := s.server("a")
		a.run()
		authority := <-a.leads
		pass(time.Minute)
		if authority.Remaining() < 4*time.Second {
			t.Fatalf("%v remain", authority.Remaining())
		}
		a.clock.slept.Store(int64(time.Hour)) // no timer has fired
		if left := authority.Remaining(); left != 0 {
			t.Errorf("%v remain after an hour's sleep", left)
		}
		woke := time.Now()
		if cause := <-a.lost; !errors.Is(cause, ErrLost) {
			t.Error(cause)
		}
		within(t, "noticing it", time.Since(woke), 0, 500*time.Millisecond)
		if term := (<-a.leads).Term(); term != 2 {
			t.Errorf("leads again in term %d", term)
		}
		if err := a.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestConfirmAgainstTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t)
		a := s.server("a")
		counted := objstoretest.NewCounted(a.store)
		a.cfg.Store = counted
		a.run()
		authority := <-a.leads
		before := counted.Counts()
		var group sync.WaitGroup
		for range 1000 {
			group.Go(func() {
				if err := authority.Confirm(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if made := counted.Counts().Sub(before); made.Get > 2 || made.Put > 0 {
			t.Errorf("1000 confirmations cost %+v", made)
		}

		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		a.store.off.Store(true)
		if err := authority.Confirm(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("confirmed without a store: %v", err)
		}
		a.store.off.Store(false)

		lock := s.lock()
		lock.LeaderID, lock.Incarnation, lock.Term = "x", "x-1", lock.Term+1
		body, err := record.EncodeLock(lock)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.store.Put(t.Context(), lockKey, body, objstore.Always()); err != nil {
			t.Fatal(err)
		}
		if err := authority.Confirm(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("confirmed although the lock is another's: %v", err)
		}
		if cause := <-a.lost; !errors.Is(cause, ErrLost) {
			t.Error(cause)
		}
		if err := a.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestAmbiguousRenewalsAreSentAgainWithTheSameBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t)
		a := s.server("a")
		a.run()
		<-a.leads
		var mu sync.Mutex
		bodies := map[uint64][]string{} // by revision
		s.faults(func(r mem.Request) mem.Fault {
			if r.Op != mem.Put {
				return mem.Fault{}
			}
			lock, err := record.DecodeLock(r.Body)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			bodies[lock.Revision] = append(bodies[lock.Revision], string(r.Body))
			switch first := len(bodies[lock.Revision]) == 1; {
			case lock.Revision%3 == 0 && first: // hangs and never arrives, and the next attempt succeeds a second later
				return mem.Fault{Before: 2 * time.Second}
			case lock.Revision%3 == 1: // the answer is lost
				return mem.Fault{Lost: true}
			case lock.Revision%3 == 2 && first: // lands late
				return mem.Fault{Late: 3}
			}
			return mem.Fault{}
		})
		pass(10 * time.Minute)
		repeated := 0
		for revision, sent := range bodies {
			if len(sent) > 1 {
				repeated++
			}
			for _, body := range sent {
				if body != sent[0] {
					t.Errorf("revision %d was sent as %s, then %s", revision, sent[0], body)
				}
			}
		}
		if repeated < 30 {
			t.Errorf("of %d versions only %d were sent again", len(bodies), repeated)
		}
		if len(s.ledBy) != 1 || s.lock().Term != 1 {
			t.Errorf("led %d times, term %d: leadership was lost for nothing", len(s.ledBy), s.lock().Term)
		}
		s.faults(nil)
		if err := a.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestAppliedETagGoesIntoTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t)
		a := s.server("a")
		a.run()
		(<-a.leads).SetAppliedETag("config-2")
		pass(defaults.Renew + time.Second)
		if lock := s.lock(); lock.AppliedETag != "config-2" || lock.RenewedAt.IsZero() {
			t.Errorf("lock: %+v", lock)
		}
		if err := a.stop(); err != nil {
			t.Error(err)
		}
		b := s.server("b")
		b.run()
		<-b.leads
		if lock := s.lock(); lock.LeaderID != "b" || lock.AppliedETag != "config-2" {
			t.Errorf("the next leader forgot it: %+v", lock)
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestMarksStayInTheLock checks that a new server learns from the lock which versions of objects earlier servers have
// seen.
func TestMarksStayInTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t)
		a, b, c := s.server("a"), s.server("b"), s.server("c")
		for _, v := range []*server{a, b, c} {
			v.cfg.Marks = &highwater.Marks{}
		}
		a.run()
		<-a.leads
		a.cfg.Marks.Raise("secret", 7)
		pass(defaults.Renew + time.Second)
		if got := s.marks().Highest("secret"); got != 7 {
			t.Errorf("the mark in the renewed lock is %d", got)
		}
		a.cfg.Marks.Raise("secret", 8)
		if err := a.stop(); err != nil {
			t.Error(err)
		}
		if got := s.marks().Highest("secret"); got != 8 {
			t.Errorf("the mark in the released lock is %d", got)
		}
		b.cfg.Marks.Raise("document", 3)
		b.run()
		<-b.leads
		if m := s.marks(); m.Highest("secret") != 8 || m.Highest("document") != 3 {
			t.Errorf("the next leader's lock has the marks %d and %d", m.Highest("secret"), m.Highest("document"))
		}
		c.run()
		pass(time.Minute)
		if got := c.cfg.Marks.Highest("document"); got != 3 {
			t.Errorf("the standby's mark is %d", got)
		}
		for _, v := range []*server{b, c} {
			if err := v.stop(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestRefusedTermEndsAuthorityImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t)
		a := s.server("a")
		a.run()
		authority := <-a.leads
		authority.Refuse(1)
		if authority.Remaining() == 0 {
			t.Error("refused its own term")
		}
		authority.Refuse(9)
		if authority.Remaining() != 0 {
			t.Error("authority after a higher term was met")
		}
		if next := <-a.leads; next.Term() != 10 {
			t.Errorf("next term is %d", next.Term())
		}
		if err := a.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestErrorOfTheLeaderFunction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t)
		a := s.server("a")
		broken := errors.New("provider of another cluster")
		var authority *Authority
		a.cfg.Lead = func(_ context.Context, given *Authority) error {
			authority = given
			return broken
		}
		a.run()
		if err := <-a.result; !errors.Is(err, broken) {
			t.Errorf("Run returned %v", err)
		}
		if err := authority.Confirm(t.Context()); !errors.Is(err, ErrLost) || authority.Remaining() != 0 {
			t.Errorf("authority is left: %v, confirmed: %v", authority.Remaining(), err)
		}
		if !s.lock().Released {
			t.Error("the lock is not released")
		}
		a = s.server("a2")
		a.cfg.Lead = func(context.Context, *Authority) error { return nil } // to hand over and restart
		a.run()
		if err := <-a.result; err != nil {
			t.Errorf("Run returned %v", err)
		}
		if lock := s.lock(); !lock.Released || lock.LeaderID != "a2" {
			t.Errorf("the lock is not released: %+v", lock)
		}
	})
}

func TestMissingLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t)
		s.highest.Store(41)
		a := s.server("a")
		var known atomic.Bool
		a.cfg.HighestTerm = func(context.Context) (uint64, error) {
			if !known.Load() {
				return 0, errors.New("list is not to be had")
			}
			return s.highest.Load(), nil
		}
		a.run()
		pass(time.Minute)
		if len(s.ledBy) != 0 {
			t.Fatal("leads without knowing the terms of the records")
		}
		known.Store(true)
		if term := (<-a.leads).Term(); term != 42 {
			t.Errorf("leads in term %d", term)
		}
		if err := a.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestUndecodableLockIsNotTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t)
		newer := `{"schema":3}`
		if _, err := s.store.Put(t.Context(), lockKey, []byte(newer), objstore.IfAbsent()); err != nil {
			t.Fatal(err)
		}
		var logged strings.Builder
		a := s.server("a")
		a.cfg.Log = slog.New(slog.NewTextHandler(&logged, nil))
		a.run()
		pass(time.Hour)
		if err := a.stop(); err != nil {
			t.Error(err)
		}
		if obj, err := s.store.Get(t.Context(), lockKey); err != nil || string(obj.Body) != newer || len(s.ledBy) != 0 {
			t.Errorf("the lock was taken: %s, %v", obj.Body, err)
		}
		if !strings.Contains(logged.String(), "newer version") {
			t.Errorf("no alert was raised: %s", logged.String())
		}
	})
}

// TestHostileReplayedLock acts as a client that writes an earlier, released lock back into the bucket while another
// server leads. The standby must not believe the release, because the leader still acts.
func TestHostileReplayedLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t)
		a := s.server("a")
		a.run()
		<-a.leads
		if err := a.stop(); err != nil {
			t.Fatal(err)
		}
		released, err := s.store.Get(t.Context(), lockKey)
		if err != nil {
			t.Fatal(err)
		}
		var logged strings.Builder
		b, c := s.server("b"), s.server("c")
		c.cfg.Log = slog.New(slog.NewTextHandler(&logged, nil))
		b.run()
		<-b.leads
		c.run()
		pass(time.Minute)
		if _, err := s.store.Put(t.Context(), lockKey, released.Body, objstore.Always()); err != nil {
			t.Fatal(err)
		}
		pass(time.Hour)
		// The release in the replayed lock is older than the leadership of server b. Server b knows that its own
		// leadership has ended, so it may take over the replayed lock. No other server may.
		if got := strings.Join(s.ledBy, " "); got != "a b b" || s.lock().Term != 3 {
			t.Errorf("leaders: %s, the last in term %d", got, s.lock().Term)
		}
		for _, v := range []*server{b, c} {
			if err := v.stop(); err != nil {
				t.Error(err)
			}
		}
		if !strings.Contains(logged.String(), "an earlier version of the lock was written back") {
			t.Errorf("the replay is not logged: %s", logged.String())
		}
	})
}

func TestWatchReportsTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t)
		a, b := s.server("a"), s.server("b")
		var seen []Status
		b.cfg.Watch = func(st Status) { seen = append(seen, st) }
		a.cfg.Self.Addresses.Registration = "10.0.0.1:8992"
		a.run()
		<-a.leads
		b.run()
		pass(time.Second)
		if len(seen) == 0 {
			t.Fatal("nothing was told")
		}
		last := seen[len(seen)-1]
		if last.Role != election.Standby || last.Term != 0 || last.Holder.Addresses.Registration != "10.0.0.1:8992" {
			t.Errorf("follower's status: %+v", last)
		}
		if err := a.stop(); err != nil {
			t.Error(err)
		}
		<-b.leads
		pass(time.Second)
		if last = seen[len(seen)-1]; last.Role != election.Leader || last.Term != 2 || last.Holder.LeaderID != "b" {
			t.Errorf("leader's status: %+v", last)
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestDisabledElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t)
		s.highest.Store(6)
		a := s.server("a")
		a.cfg.Disabled = true
		a.run()
		authority := <-a.leads
		if authority.Term() != 7 || authority.Remaining() < time.Hour {
			t.Errorf("term %d, %v remain", authority.Term(), authority.Remaining())
		}
		if err := authority.Confirm(t.Context()); err != nil {
			t.Error(err)
		}
		authority.SetAppliedETag("x")
		authority.Refuse(11)
		if authority.Remaining() != 0 {
			t.Error("authority after a higher term was met")
		}
		if next := <-a.leads; next.Term() != 12 {
			t.Errorf("next term is %d", next.Term())
		}
		if err := a.stop(); err != nil {
			t.Error(err)
		}
		if _, err := s.store.Get(t.Context(), lockKey); !errors.Is(err, objstore.ErrNotFound) {
			t.Errorf("there is a lock: %v", err)
		}
	})
}

func TestRunRefusesWhatCannotWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t)
		a := s.server("a")
		a.cfg.Options.Renew = a.cfg.Options.Lease
		if err := Run(t.Context(), a.cfg); err == nil || !strings.Contains(err.Error(), "renew_interval") {
			t.Errorf("Run returned %v", err)
		}
		b := s.server("b")
		b.cfg.Self.Incarnation = ""
		if err := Run(t.Context(), b.cfg); err == nil || !strings.Contains(err.Error(), "incarnation") {
			t.Errorf("Run returned %v", err)
		}
	})
}

func TestRequestsPerHourOfOneServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t)
		a := s.server("a")
		counted := objstoretest.NewCounted(a.store)
		a.cfg.Store = counted
		a.run()
		<-a.leads
		pass(time.Minute)
		before := counted.Counts()
		pass(time.Hour)
		if made := counted.Counts().Sub(before); made.Put != 720 || made.Total() != 720 {
			t.Errorf("an idle hour costs %+v", made)
		}
		if err := a.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestSystemClockRuns(t *testing.T) {
	clock := SystemClock()
	before := clock.Now()
	timer := time.NewTimer(5 * time.Millisecond)
	<-timer.C
	if passed := clock.Now().Sub(before); passed < 5*time.Millisecond {
		t.Errorf("%v passed in 5 ms", passed)
	}
}
