// Package leader contains the leader's loop. The loop plans the groups that changed in the State, and starts the
// planned actions.
//
// Invariant: the loop makes no decisions. A pass takes the dirty groups and plans each from a fresh snapshot. It marks
// every action as running before it starts the action, and stores when to plan the group next.
package leader

import (
	"context"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/act/execute"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// Loop plans and starts the actions of one leader.
type Loop struct {
	*execute.Executor
	Asker *shardstate.Asker
	// Planned is called with the time that planning one group took.
	Planned func(took time.Duration)
	// CreateEvery returns the minimum time between two creates. 0 means no limit.
	CreateEvery func() time.Duration
	// Started is called for every action that starts.
	Started func(kind plan.Kind)

	mu             sync.Mutex // allows one pass at a time
	lastCreate     time.Time  // when a create was last planned
	buffer         []plan.Instance
	wake           map[config.GroupKey]plan.Schedule
	nextCollection time.Time

	// health is the shard's health at healthAt.
	health   plan.ShardHealth
	healthAt time.Time

	// Creates have their own slots, so that all other actions (others) cannot block them. A group that got fewer slots
	// than it wanted is planned again when slots become free.
	creates, others slots
}

// healthFresh is how long the loop reuses the computed health of the shard for plans that events cause. For a plan at a
// scheduled time, the loop computes the health again.
const healthFresh = 50 * time.Millisecond

const (
	// maxCreates is the maximum number of concurrent creates. Each create writes a reservation twice. Thousands of
	// creates at the same time would keep the bucket and the CPU so busy that the renewal of the lock comes too late.
	// The leader would lose the lock. The next leader would start as many creates and lose the lock too.
	maxCreates = 128
	// resumeCreates is the number of running creates at which waiting groups are planned again. An eighth of the slots
	// is free then. To plan these groups for every single free slot would take too much time.
	resumeCreates = maxCreates * 7 / 8
	// maxOthers is the maximum number of concurrent actions other than creates.
	maxOthers    = 64
	resumeOthers = maxOthers - 1
)

// Pass plans every dirty group and every group whose scheduled time has come, and starts the planned actions. It
// returns the time of the next pass if no event causes an earlier pass. The time is zero if only an event can cause the
// next pass. The actions run under ctx, which ends with the leader's authority.
func (l *Loop) Pass(ctx context.Context) (next time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wake == nil {
		l.wake = map[config.GroupKey]plan.Schedule{}
	}
	now := l.Env.Now()
	timed := false
	for key, wake := range l.wake {
		if wake.NextPlan.After(now) {
			continue
		}
		if later, ok := l.State.Postpone(key, wake, now); ok {
			l.wake[key] = later
			continue
		}
		timed = true
		delete(l.wake, key)
		l.State.Mark(key)
	}
	dirty := l.State.TakeDirty()
	if len(dirty) > 0 {
		// Health visits every instance of the shard, so calling it for every event would be too slow. If the scheduled
		// time of a group has come, Health is always called.
		if timed || now.Sub(l.healthAt) >= healthFresh || now.Before(l.healthAt) {
			l.health, l.healthAt = l.State.Health(now), now
		}
		for _, key := range dirty {
			l.plan(ctx, key, l.health)
		}
	}
	if l.State.GarbageCollectionDue() || !l.nextCollection.IsZero() && !l.nextCollection.After(now) {
		decision := plan.CollectGarbage(l.State.ShardSnapshot())
		l.nextCollection = decision.NextPlan
		for _, action := range decision.Actions {
			l.collect(ctx, action)
		}
	}
	next = l.nextCollection
	for _, wake := range l.wake {
		if next.IsZero() || wake.NextPlan.Before(next) {
			next = wake.NextPlan
		}
	}
	return next
}

func (l *Loop) plan(ctx context.Context, key config.GroupKey, health plan.ShardHealth) {
	snapshot, ok := l.snapshot(key, health, l.buffer)
	if !ok {
		delete(l.wake, key)
		return
	}
	l.buffer = snapshot.Instances
	free := maxCreates - l.creates.inUse()
	if snapshot.CreateBudget < 0 || free < snapshot.CreateBudget {
		snapshot.CreateBudget, snapshot.CreateEvery = free, 0
	}
	began := time.Now()
	decision := plan.Next(snapshot)
	l.Planned(time.Since(began))
	delete(l.wake, key)
	if !decision.NextPlan.IsZero() {
		l.wake[key] = decision.Schedule
	}
	l.State.Planned(key, decision)
	creates := 0
	for _, action := range decision.Actions {
		if action.Kind == plan.Create {
			creates++
			l.State.ExpectCreates(key, shardstate.PendingOf(action))
		}
	}
	if creates > 0 {
		l.lastCreate = snapshot.Now
	}
	var waiting []config.GroupKey
	if creates == free {
		waiting = append(waiting, key)
	}
	l.use(&l.creates, creates, resumeCreates, waiting...) // slots may have become free since they were counted
	for _, part := range l.Executor.Together(key, decision.Actions) {
		if len(part) == 1 {
			l.start(ctx, key, part[0])
		} else {
			l.startTogether(ctx, key, part)
		}
	}
}

// startTogether starts creates that one call can make.
func (l *Loop) startTogether(ctx context.Context, key config.GroupKey, creates []plan.Action) {
	for _, action := range creates {
		l.Started(action.Kind)
	}
	l.Env.Go("create together", func() {
		defer l.use(&l.creates, -len(creates), resumeCreates)
		l.Executor.CreateMany(ctx, key, creates)
	})
}

// snapshot returns the input for the plan of a group. It does not apply the limit of concurrent creates. It may
// overwrite the elements of the parameter instances. The caller must hold mu.
func (l *Loop) snapshot(key config.GroupKey, health plan.ShardHealth, instances []plan.Instance) (plan.Snapshot, bool) {
	snapshot, ok := l.State.Snapshot(key, instances)
	if ok {
		l.limit(&snapshot, health)
	}
	return snapshot, ok
}

// limit adds to a snapshot what the whole shard determines. The caller must hold mu.
func (l *Loop) limit(snapshot *plan.Snapshot, health plan.ShardHealth) {
	snapshot.Shard = health
	snapshot.Waiting = l.WaitingCreates(snapshot.Group.GroupKey)
	if every := l.CreateEvery(); every > 0 {
		snapshot.CreateBudget, snapshot.CreateBudgetAt, snapshot.CreateEvery = 1, snapshot.Now.Add(every), every
		// The pause between two creates may have become longer or shorter since the last create. So compute the end of
		// the pause again.
		if next := l.lastCreate.Add(every); snapshot.Now.Before(next) {
			snapshot.CreateBudget, snapshot.CreateBudgetAt = 0, next
		}
	}
}

// Explain plans a group as the next pass would and starts nothing. It returns false for a group that is gone. It may be
// called at any time and waits for a pass that is running.
func (l *Loop) Explain(key config.GroupKey) (plan.Snapshot, plan.Explanation, bool) {
	l.mu.Lock()
	snapshot, ok := l.snapshot(key, l.State.Health(l.Env.Now()), nil)
	l.mu.Unlock()
	if !ok {
		return snapshot, plan.Explanation{}, false
	}
	return snapshot, plan.Explain(snapshot), true
}

// ExplainChange plans a group as [Loop.Explain] does, as if a change had been made. It also returns the group after the
// change.
func (l *Loop) ExplainChange(key config.GroupKey, change shardstate.Supposition) (plan.Snapshot, plan.Explanation,
	shardstate.GroupView, bool) {
	snapshot, view, ok := l.State.Suppose(key, change)
	if !ok {
		return snapshot, plan.Explanation{}, view, false
	}
	l.mu.Lock()
	l.limit(&snapshot, l.State.Health(snapshot.Now))
	l.mu.Unlock()
	return snapshot, plan.Explain(snapshot), view, true
}

// start starts one action of a group's plan.
func (l *Loop) start(ctx context.Context, key config.GroupKey, action plan.Action) {
	switch action.Kind {
	case plan.Create:
		l.Started(action.Kind)
		l.Env.Go("create", func() {
			defer l.use(&l.creates, -1, resumeCreates)
			l.Executor.Do(ctx, key, action)
		})
	case plan.Ask:
		if l.State.Plan(action, plan.Idle) {
			l.Asker.Ask(ctx, action.Instance)
		}
	case plan.ForgetGroup:
		l.Env.Go("forget group", func() { l.Executor.ForgetGroup(ctx, key) })
	case plan.Halt, plan.EndHalt, plan.KeepGood:
		if !l.State.StoreRollout(key) {
			return
		}
		l.Started(action.Kind)
		l.Log.Info("acting", "action", string(action.Kind), "tenant", key.Tenant, "group", key.Group,
			"reason", action.Why())
		l.Env.Go(string(action.Kind), func() { l.Executor.StoreRollout(ctx, key, action) })
	case plan.RaiseError:
		l.State.RaiseError(shardstate.GroupError(action.Alert, key, action.Instance), action.Why())
	case plan.ResolveError:
		l.State.ResolveError(shardstate.GroupError(action.Alert, key, action.Instance))
	default:
		if l.others.inUse() >= maxOthers {
			l.use(&l.others, 0, resumeOthers, key)
			return
		}
		if !l.State.Plan(action, execute.Work(action.Kind)) {
			return
		}
		l.use(&l.others, 1, resumeOthers)
		l.Started(action.Kind)
		l.Log.Info("acting", "action", string(action.Kind), "tenant", key.Tenant, "group", key.Group,
			"instance", action.Instance.String(), "reason", action.Why())
		l.Env.Go(string(action.Kind), func() {
			defer l.use(&l.others, -1, resumeOthers)
			l.Executor.Do(ctx, key, action)
		})
	}
}

// slots counts running actions: either the creates or all others. It keeps the groups that got fewer slots than they
// wanted.
type slots struct {
	mu      sync.Mutex
	used    int
	waiting map[config.GroupKey]struct{}
}

func (s *slots) inUse() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// use takes n slots. A negative n returns slots. The parameter waiting lists groups that wait for slots from now on.
// When at most resume slots are in use, use marks all waiting groups as dirty.
func (l *Loop) use(s *slots, n, resume int, waiting ...config.GroupKey) {
	s.mu.Lock()
	s.used += n
	if s.waiting == nil {
		s.waiting = map[config.GroupKey]struct{}{}
	}
	for _, key := range waiting {
		s.waiting[key] = struct{}{}
	}
	var ready map[config.GroupKey]struct{}
	if s.used <= resume {
		ready, s.waiting = s.waiting, nil
	}
	s.mu.Unlock()
	for key := range ready {
		l.State.TouchGroup(key)
	}
}

func (l *Loop) collect(ctx context.Context, action plan.Action) {
	switch action.Kind {
	case plan.RaiseError:
		l.State.RaiseError(shardstate.ErrorKey{Kind: action.Alert}, action.Why())
	case plan.ResolveError:
		l.State.ResolveError(shardstate.ErrorKey{Kind: action.Alert})
	default:
		id := action.Instance
		if !l.State.BeginCollect(id) {
			return
		}
		l.Started(action.Kind)
		l.Env.Go(string(action.Kind), func() {
			l.State.EndCollect(id, l.Executor.Collect(ctx, action))
		})
	}
}

// Run runs a pass whenever wake fires and whenever the time of the next scheduled pass has come, until ctx ends.
func (l *Loop) Run(ctx context.Context, wake <-chan struct{}) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-timer.C:
		}
		next := l.Pass(ctx)
		wait := time.Hour
		if !next.IsZero() {
			wait = max(next.Sub(l.Env.Now()), time.Millisecond)
		}
		timer.Reset(wait)
	}
}
