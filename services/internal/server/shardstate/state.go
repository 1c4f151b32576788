// Package shardstate holds the leader's view of its shard. It merges information from the bucket, the provider and the
// agents into one State. The planner gets copies of parts of the State, the snapshots.
//
// Invariant: a State belongs to one term of one leader and is discarded with the term. It performs no writes and makes
// no decisions. Every change marks the affected group as dirty and wakes the reconciler.
package shardstate

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// Options configures a State.
type Options struct {
	Term uint64
	Now  func() time.Time
	// Wake is called without any lock held, whenever there may be something to plan. It must not block.
	Wake func()
	// Events receives the shard's events. If Events is nil, the events are dropped.
	Events Events
}

// State is the leader's view of its shard. All methods are safe for concurrent use and do not block.
type State struct {
	opts Options

	mu       sync.Mutex
	settings plan.Settings
	defaults groupDefaults
	// silenceFrom is when the first agent connected to this leader. The time before it does not count as silence of an
	// instance.
	silenceFrom time.Time
	guard       plan.Guard // of the shard
	groups      map[config.GroupKey]*group
	instances   map[ident.ID]*instance
	tombstones  map[ident.ID]tombstone
	reserved    map[Pool][]Reservation
	// leftovers are the reservations of earlier terms and those that this leader no longer needs. Garbage collection
	// decides what becomes of them.
	leftovers     map[ident.ID]Reservation
	strays        map[string]*stray // VMs with the shard's tags but no record, by provider ID
	collecting    map[ident.ID]bool // instance IDs with a running garbage collection action
	listedVMs     int               // VMs in the last provider list that are not deleted
	listedAll     bool              // whether that list lacked no VM
	listed        time.Time         // when that list was asked for
	dirty         map[config.GroupKey]struct{}
	collectionDue bool
	// orphansWait is true after a restore, until a person has confirmed the orphans.
	orphansWait bool
	standing    map[ErrorKey]ErrorEvent
	since       time.Time // when this State was created
	// servingSince is when operators could first connect; zero: they cannot yet.
	servingSince time.Time
	// operators counts, by tenant, the connected operators that take part in drains.
	operators      map[string]int
	operatorLeftAt map[string]time.Time // when the last of them was disconnected
}

// groupDefaults applies to a group that is missing from the configuration but still has instances.
type groupDefaults struct {
	drain     time.Duration
	balancers map[string]config.LoadBalancer // all those of the shard, because the group's own are unknown
	templates map[string]config.Template     // for the drain hook
}

type group struct {
	config.Group
	instances []*instance // sorted by ID, without tombstones
	pending   Pending
	// unknown means that the leader found the group only in records. Its LoadBalancers are all of the shard then.
	unknown bool
	// spotRefusedAt is when the provider last refused a spot instance of the group.
	spotRefusedAt time.Time
	backoff       plan.Backoff
	spareBackoff  plan.Backoff
	notWokenAt    time.Time
	guard         plan.Guard // of the last plan
	notices       plan.Notices
	advised       plan.Notices
	// rolloutFailures counts the failed instances with the present configuration. It can halt a rollout (rule 47 of
	// package plan). rolloutFailure is the reason of the last one.
	rolloutFailures int
	rolloutFailure  string
	// configuredAt, storing and storeFailed are ConfiguredAt, StoringRollout and StoreFailed of plan.Snapshot.
	configuredAt time.Time
	storing      bool
	storeFailed  plan.Failure
	// image is the ID that a lookup found for the image of the group's present configuration, even if the group has
	// returned to its good one. The lookup belongs to the infrastructure configuration with the hash imageFor.
	image, imageFor  string
	scaling          *plan.ScalingDecision // the last choice of its size; nil: none
	blocked, rollout string                // why the group is not at its size, and why its rollout waits
	// blockedUntil and wait are copied from plan.Decision.
	blockedSince, blockedUntil time.Time
	wait                       plan.Wait
}

// instance is one instance of a group: the last known record, the last information from the provider and the agent, and
// the running work.
type instance struct {
	record record.Instance
	token  objstore.Token
	plan   plan.Instance // the planner's view, always current
	vm     infra.VM
	report Report
	group  *group
	hook   *config.DrainHook // with which its drain was announced; nil: none
	stream uint64            // number of the current health stream; 0 for none
}

type tombstone struct {
	record record.Instance
	token  objstore.Token
}

type stray struct {
	vm    infra.VM
	reads []time.Time // times of direct reads of the record's key that found nothing
	busy  bool
	// confirmed is true if a person allowed garbage collection to terminate this VM despite the orphan alert.
	confirmed bool
}

// New returns an empty State.
func New(opts Options) *State {
	if opts.Events == nil {
		opts.Events = noEvents{}
	}
	return &State{
		opts:       opts,
		since:      opts.Now(),
		groups:     map[config.GroupKey]*group{},
		instances:  map[ident.ID]*instance{},
		tombstones: map[ident.ID]tombstone{},
		reserved:   map[Pool][]Reservation{},
		leftovers:  map[ident.ID]Reservation{},
		strays:     map[string]*stray{},
		collecting: map[ident.ID]bool{},
		dirty:      map[config.GroupKey]struct{}{},
		standing:   map[ErrorKey]ErrorEvent{},
		operators:  map[string]int{},

		operatorLeftAt: map[string]time.Time{},
	}
}

// Term returns the term of the leader that the State belongs to.
func (s *State) Term() uint64 { return s.opts.Term }

// Configure sets the shard's settings and its merged groups. A group that is no longer in the configuration may still
// have instances. The State marks it as deleted and keeps it until its last instance is gone. A change of a group may
// reset its backoff.
func (s *State) Configure(shard *config.Shard, groups map[config.GroupKey]config.Group) {
	s.mu.Lock()
	s.settings = SettingsOf(shard)
	previous := s.defaults.balancers
	s.defaults = groupDefaults{drain: shard.Server.DefaultDrainTimeout.D(), balancers: shard.LoadBalancers,
		templates: shard.Templates}
	// Compare whole load balancers, not only their names: a load balancer may keep its name but get other target
	// groups.
	changed := func(name string) bool { return !reflect.DeepEqual(previous[name], shard.LoadBalancers[name]) }
	for _, g := range s.groups {
		if slices.ContainsFunc(g.LoadBalancers, changed) {
			g.registerAgain(s.opts.Now())
		}
	}
	keys := slices.Collect(maps.Keys(groups))
	for key := range s.groups {
		if _, ok := groups[key]; !ok {
			keys = append(keys, key)
		}
	}
	over := s.setGroups(groups, keys)
	if s.settings.Terminating {
		s.abandonReservations()
	}
	s.mu.Unlock()
	s.publishGroups(keys, over)
}

// ConfigureGroups does what Configure does, but only for the groups in changed. If a group in changed is missing from
// groups, the configuration no longer contains it.
func (s *State) ConfigureGroups(groups map[config.GroupKey]config.Group, changed []config.GroupKey) {
	s.mu.Lock()
	over := s.setGroups(groups, changed)
	s.mu.Unlock()
	s.publishGroups(changed, over)
}

// setGroups stores the groups in keys and marks them as dirty. It resolves all errors of dropped groups and the create
// errors of changed groups. It returns an event for each of these errors. Call with mu held.
func (s *State) setGroups(groups map[config.GroupKey]config.Group, keys []config.GroupKey) (over []ErrorEvent) {
	for _, key := range keys {
		s.dirty[key] = struct{}{}
		g, ok := groups[key]
		have := s.groups[key]
		switch {
		case !ok && have == nil:
			delete(s.dirty, key)
			continue
		case !ok && len(have.instances) == 0 && have.pending == (Pending{}):
			over = append(over, s.dropGroup(key)...)
			continue
		case !ok:
			have.Deleted, have.Size = true, 0
			continue
		case have == nil:
			have = &group{}
			s.groups[key] = have
		default:
			if plan.EndsBackoff(&have.Group, &g) {
				created := GroupError(plan.AlertProvider, key, ident.ID{})
				over = append(over, s.settle(func(about ErrorKey) bool { return about == created })...)
			}
		}
		have.configure(g, s.opts.Now())
	}
	return over
}

// configure gives a group another configuration.
func (g *group) configure(next config.Group, now time.Time) {
	if g.GroupKey == (config.GroupKey{}) { // a new group
		g.Group, g.configuredAt = next, now
	}
	if plan.EndsBackoff(&g.Group, &next) {
		g.backoff, g.notices, g.advised = plan.Backoff{}, plan.Notices{}, plan.Notices{}
		g.spareBackoff = plan.Backoff{}
	}
	if plan.EndsRollout(&g.Group, &next) {
		g.endRollout(now)
	}
	if !slices.Equal(g.LoadBalancers, next.LoadBalancers) || g.LoadBalancerHealth != next.LoadBalancerHealth {
		g.registerAgain(now)
	}
	g.Group, g.unknown = next, false
}

// endRollout forgets the failures of a rollout, because another one begins.
func (g *group) endRollout(now time.Time) {
	g.rolloutFailures, g.rolloutFailure, g.configuredAt = 0, "", now
}

// SetImages stores the results of looking up the images of groups, with their present configurations. images holds the
// image ID of each group for which one was found. If a group's image changed, its count of failed instances and its
// backoff start again from zero.
func (s *State) SetImages(groups map[config.GroupKey]config.Group, images map[config.GroupKey]string) {
	var changed []config.GroupKey
	s.mu.Lock()
	for key, looked := range groups {
		g := s.groups[key]
		if g == nil {
			continue
		}
		before, now := g.wantedImage(), images[key]
		g.image, g.imageFor = now, looked.Wanted().InfraHash
		if before != g.wantedImage() {
			if before != "" && !g.RolledBack() {
				g.endRollout(s.opts.Now())
				g.backoff, g.spareBackoff = plan.Backoff{}, plan.Backoff{}
			}
			s.dirty[key] = struct{}{}
			changed = append(changed, key)
		}
	}
	s.mu.Unlock()
	if len(changed) > 0 {
		s.publishGroups(changed, nil)
	}
}

// wantedImage returns the ID of the image of the group's present configuration; "" if it is unknown.
func (g *group) wantedImage() string {
	if g.imageFor != g.Wanted().InfraHash {
		return ""
	}
	return g.image
}

// currentImage returns the ID of the image that the group runs; "" if it is unknown.
func (g *group) currentImage() string {
	if g.RolledBack() {
		return g.Good.Image
	}
	return g.wantedImage()
}

// registerAgain notes that no instance of the group is registered with the load balancers, so that the planner
// registers all of them. For an instance that is registered already, the provider's call has no effect. But in the
// State, the new registration restarts the time in which unhealthy verdicts do not count (rule 59). Call with mu held.
func (g *group) registerAgain(now time.Time) {
	for _, inst := range g.instances {
		inst.plan.InLoadBalancers, inst.plan.Deregistered, inst.plan.BalancedAt = false, false, now
		inst.plan = plan.ForgetBalancerHealth(inst.plan)
	}
}

// publishGroups publishes the resolved errors in `over` and the groups in `changed`, and wakes the planner.
func (s *State) publishGroups(changed []config.GroupKey, over []ErrorEvent) {
	s.publishResolved(over)
	for _, key := range slices.SortedFunc(slices.Values(changed), compareKeys) {
		s.opts.Events.Group(key)
	}
	s.opts.Wake()
}

// SettingsOf returns the planner's settings from a shard configuration that already contains the defaults.
func SettingsOf(shard *config.Shard) plan.Settings {
	s := &shard.Server
	return plan.Settings{
		HealthInterval:      s.HealthCheckInterval.D(),
		ShutdownGrace:       s.ShutdownGrace.D(),
		RegistrationTimeout: s.GarbageCollection.RegistrationTimeout.D(),
		Retention:           s.GarbageCollection.DeletedRecordRetention.D(),
		CollectInterval:     s.GarbageCollection.Interval.D(),
		EligibleAge:         s.Expiry.EligibleAge.D(),
		ForcedAge:           s.Expiry.ForcedAge.D(),
		OnDemandAge:         s.Expiry.OnDemandAge.D(),
		RequestTimeout:      s.RequestTimeout.D(),
		Terminating:         shard.Terminating,
	}
}

func compareKeys(a, b config.GroupKey) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Group, b.Group))
}

// groupOf returns the group of a record. If the group is unknown, groupOf adds it, marked as deleted. Call with mu
// held.
func (s *State) groupOf(rec *record.Instance) *group {
	key := config.GroupKey{Tenant: rec.Tenant, Group: rec.Group}
	g := s.groups[key]
	if g == nil {
		g = &group{unknown: true, Group: config.Group{GroupKey: key, Deleted: true, Template: rec.Template,
			Kind:         rec.Kind,
			Drain:        s.defaults.templates[rec.Template].Drain,
			DrainTimeout: config.Duration(s.defaults.drain), LoadBalancers: slices.Sorted(
				maps.Keys(s.defaults.balancers))}}
		s.groups[key] = g
	}
	return g
}

// MayBeOutside reports whether the instances of a group may not be in all of the group's load balancers, because the
// group left the configuration before this leader's term.
func (s *State) MayBeOutside(key config.GroupKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.groups[key]
	return g != nil && g.unknown
}

// touch marks a group as dirty. Call with mu held, and call Wake after unlocking.
func (s *State) touch(g *group) { s.dirty[g.GroupKey] = struct{}{} }

// TouchGroup marks one group as dirty and wakes the planner.
func (s *State) TouchGroup(key config.GroupKey) {
	s.Mark(key)
	s.opts.Wake()
}

// Mark marks one group as dirty without waking the planner. It is for the reconciler, which plans the dirty groups.
func (s *State) Mark(key config.GroupKey) {
	s.mu.Lock()
	if _, ok := s.groups[key]; ok {
		s.dirty[key] = struct{}{}
	}
	s.mu.Unlock()
}

// GarbageCollectionDue reports whether anything that matters to garbage collection changed since the previous call.
func (s *State) GarbageCollectionDue() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	due := s.collectionDue
	s.collectionDue = false
	return due
}

// TakeDirty returns the dirty groups, sorted, and clears the marks.
func (s *State) TakeDirty() []config.GroupKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(s.dirty), compareKeys)
	clear(s.dirty)
	return keys
}

// Group returns the merged configuration of a group, and whether it exists.
func (s *State) Group(key config.GroupKey) (config.Group, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, ok := s.groups[key]
	if !ok {
		return config.Group{}, false
	}
	return g.Group, true
}

// ForgetGroup drops a deleted group that has no instances and no running creates.
func (s *State) ForgetGroup(key config.GroupKey) {
	var over []ErrorEvent
	s.mu.Lock()
	if g := s.groups[key]; g != nil && g.Deleted && len(g.instances) == 0 && g.pending == (Pending{}) {
		over = s.dropGroup(key)
	}
	s.mu.Unlock()
	s.publishResolved(over)
	s.opts.Events.Group(key)
}

// dropGroup removes a group. The group's errors end. dropGroup returns an event for each of these errors, which the
// caller publishes. Call with mu held.
func (s *State) dropGroup(key config.GroupKey) []ErrorEvent {
	delete(s.groups, key)
	delete(s.dirty, key)
	return s.settle(func(about ErrorKey) bool { return about.Tenant == key.Tenant && about.Group == key.Group })
}

// RolloutFailed counts a failed instance with the group's present configuration (rule 47 of package plan).
func (s *State) RolloutFailed(key config.GroupKey, reason string) {
	s.changeGroup(key, func(g *group) { g.rolloutFailures, g.rolloutFailure = g.rolloutFailures+1, reason })
}

// ResumeRollout starts a halted rollout again.
func (s *State) ResumeRollout(key config.GroupKey) {
	s.changeGroup(key, func(g *group) { g.endRollout(s.opts.Now()) })
}

// StoreRollout notes that something about the group's rollouts is being stored. It returns false if that is so already,
// or if there is no such group.
func (s *State) StoreRollout(key config.GroupKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.groups[key]
	if g == nil || g.storing {
		return false
	}
	g.storing = true
	return true
}

// RolloutStored notes that what [State.StoreRollout] began has ended.
func (s *State) RolloutStored(key config.GroupKey, err error) {
	s.changeGroup(key, func(g *group) {
		g.storing, g.storeFailed = false, g.storeFailed.After(err != nil, s.opts.Now())
	})
}

// changeGroup calls fn with a group, and lets the planner plan the group again. It does nothing if there is no such
// group.
func (s *State) changeGroup(key config.GroupKey, fn func(*group)) {
	s.mu.Lock()
	if g := s.groups[key]; g != nil {
		fn(g)
		s.dirty[key] = struct{}{}
	}
	s.mu.Unlock()
	s.opts.Wake()
}

// SpotRefused notes that the provider has no spot capacity for a group now.
func (s *State) SpotRefused(key config.GroupKey) {
	s.changeGroup(key, func(g *group) { g.spotRefusedAt = s.opts.Now() })
}

// CreateFailed counts a failed create towards the group's backoff. Failures of creates that ran in parallel count once.
func (s *State) CreateFailed(key config.GroupKey, reason string) {
	s.changeGroup(key, func(g *group) { g.backoff = plan.ApplyCreateFailure(g.backoff, key, reason, s.opts.Now()) })
}

// SpareFailed counts a failed creation of a spare. Only creations of spares wait because of it.
func (s *State) SpareFailed(key config.GroupKey, reason string) {
	s.changeGroup(key, func(g *group) {
		g.spareBackoff = plan.ApplyCreateFailure(g.spareBackoff, key, reason, s.opts.Now())
	})
}

// AdvisedCreate counts a create call for a replacement under rule 65 or 66 of package plan. refused is why the provider
// made no VM; "": it made one.
func (s *State) AdvisedCreate(key config.GroupKey, refused string) {
	s.changeGroup(key, func(g *group) { g.advised = plan.ApplyAdvisedCreate(g.advised, key, refused, s.opts.Now()) })
}
