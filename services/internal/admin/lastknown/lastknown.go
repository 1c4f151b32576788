// Package lastknown answers calls of the operator API that only read from what a shard's leaders have left in the
// bucket. nstance-admin shows these answers if no leader answers.
//
// Invariant: an answer says only what the bucket says. What only a leader knows is empty or unknown, and no text says
// that something will be done.
package lastknown

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nstance-kit/nstance/services/api/messages"
	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// keepTime is how long an answer is given again without a look at the bucket.
const keepTime = 15 * time.Second

// Options configure [New]. All are required.
type Options struct {
	Bucket objstore.Store
	// Own opens the bucket of a shard that has its own. It returns Bucket for other shards.
	Own func(ctx context.Context, shard string) (objstore.Store, error)
	Now func() time.Time
	// ForEach calls fn for 0 to n-1, with at most `limit` calls at a time.
	ForEach func(ctx context.Context, n, limit int, fn func(ctx context.Context, i int) error) error
	// Timeout limits one answer.
	Timeout time.Duration
}

// Reader answers from the bucket. It is safe for concurrent use.
type Reader struct {
	options Options

	mu   sync.Mutex
	kept map[string]*answer
}

// answer is an answer that is given again. Its mutex is locked while the bucket is read, so that concurrent callers
// share one answer.
type answer struct {
	mu      sync.Mutex
	read    time.Time
	message proto.Message
	at      time.Time
	err     error
}

// New returns a Reader.
func New(o Options) *Reader { return &Reader{options: o, kept: map[string]*answer{}} }

// ErrUnknown means that the bucket has no answer to a call.
var ErrUnknown = errors.New("the bucket does not have it")

// Answer answers a request for a tenant, and says until when the answer was true as far as the bucket shows. It returns
// nothing for a request that it cannot answer, such as one that changes something. The error is ErrUnknown if the
// request is about something that the bucket does not have.
func (r *Reader) Answer(ctx context.Context, shard, tenant string, request proto.Message) (proto.Message, time.Time,
	error) {
	a := r.keptAnswer(fmt.Sprintf("%s %s %T %v", shard, tenant, request, request))
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.read.IsZero() || r.options.Now().Sub(a.read) > keepTime {
		a.message, a.at, a.err = r.answer(ctx, shard, tenant, request)
		a.read = r.options.Now()
		if ctx.Err() != nil {
			a.read = time.Time{}
		}
	}
	if a.message == nil {
		return nil, a.at, a.err
	}
	return proto.Clone(a.message), a.at, a.err
}

// maxKept is the largest number of answers that are kept.
const maxKept = 100

func (r *Reader) keptAnswer(question string) *answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kept[question] == nil {
		if len(r.kept) >= maxKept {
			clear(r.kept)
		}
		r.kept[question] = new(answer)
	}
	return r.kept[question]
}

func (r *Reader) answer(ctx context.Context, shard, tenant string, request proto.Message) (proto.Message, time.Time,
	error) {
	ctx, cancel := context.WithTimeout(ctx, r.options.Timeout)
	defer cancel()
	bucket, err := r.options.Own(ctx, shard)
	if err != nil {
		return nil, time.Time{}, &unreadableError{err}
	}
	v := &view{Reader: r, bucket: bucket, shard: shard, tenant: tenant}
	v.state = v.stateOf("")
	var answer proto.Message
	switch q := request.(type) {
	case *nstancev1.ListEventsRequest:
		answer, err = v.listEvents(ctx, q)
	case *nstancev1.ListGroupsRequest:
		answer, err = v.listGroups(ctx, q)
	case *nstancev1.ListInstancesRequest:
		answer, err = v.listInstances(ctx, q)
	case *nstancev1.GetInstanceStatusRequest:
		answer, err = v.instanceStatus(ctx, q)
	case *nstancev1.ExplainGroupRequest:
		answer, err = v.explain(ctx, q)
	case *nstancev1.GetShardStatusRequest:
		answer, err = v.shardStatus(ctx)
	default:
		return nil, time.Time{}, nil
	}
	var at time.Time
	if err == nil {
		at, err = v.lastWrite(ctx)
	}
	if err != nil && !errors.Is(err, ErrUnknown) {
		err = &unreadableError{err}
	}
	if err != nil {
		return nil, time.Time{}, err
	}
	return answer, at, nil
}

// unreadableError means that the bucket does not answer, or that a document in it cannot be read.
type unreadableError struct{ err error }

func (e *unreadableError) Error() string {
	return "the bucket cannot be read from here: " + objstore.Cause(e.err)
}
func (e *unreadableError) Unwrap() error { return e.err }

// view is a shard in the bucket, as one tenant may see it.
type view struct {
	*Reader
	bucket        objstore.Store // of the shard
	shard, tenant string
	state         *clusterstate.State

	config  *config.Shard
	dynamic config.Groups
	groups  map[config.GroupKey]config.Group
	// instances are the tenant's instances, without unused reservations. healths are their last events about health.
	instances []record.Instance
	healths   map[string]record.Event
	// living is the number of live instances of all tenants.
	living uint32
}

// stateOf returns the state of the shard in a cluster. A read that checks no cluster needs no cluster's ID.
func (v *view) stateOf(cluster string) *clusterstate.State {
	o := v.options
	return clusterstate.New(clusterstate.Options{Cluster: o.Bucket, Shard: v.bucket, ShardID: v.shard,
		ClusterID: cluster, Now: o.Now, ForEach: o.ForEach})
}

// lastWrite returns the time at which a leader last renewed the lock or wrote a part of the journal, by the bucket's
// clock.
func (v *view) lastWrite(ctx context.Context) (last time.Time, err error) {
	for _, prefix := range []string{keys.Leader(v.shard), keys.JournalPrefix(v.shard)} {
		entries, err := v.options.Bucket.List(ctx, prefix)
		if err != nil {
			return last, err
		}
		for _, e := range entries {
			if e.Modified.After(last) {
				last = e.Modified
			}
		}
	}
	return last.UTC(), nil
}

// load reads the configuration in force, the groups and the instances.
func (v *view) load(ctx context.Context) error {
	applied, err := v.state.UnverifiedApplied(ctx)
	body := applied.Body
	if errors.Is(err, objstore.ErrNotFound) { // no leader has applied one yet
		body, _, err = v.state.ReadConfig(ctx, v.shard)
	}
	if err != nil {
		return err
	}
	var problems config.Problems
	if v.config, problems = config.ParseApplied(keys.Config(v.shard), body); v.config == nil {
		return problems.Err()
	}
	if v.dynamic, _, _, err = v.state.ReadGroups(ctx); err != nil && !errors.Is(err, objstore.ErrNotFound) {
		return err
	}
	v.groups, _ = v.config.Merged(v.dynamic)
	return v.stateOf(v.config.Cluster.ID).LoadInstances(ctx, func(rec record.Instance, _ objstore.Token) {
		if rec.Group == "" {
			return // an unused reservation
		}
		if rec.State != record.Deleted {
			v.living++
		}
		if rec.Tenant == v.tenant {
			v.instances = append(v.instances, rec)
		}
	})
}

// loadAll reads what load and loadHealth read.
func (v *view) loadAll(ctx context.Context) error {
	if err := v.load(ctx); err != nil {
		return err
	}
	return v.loadHealth(ctx)
}

// loadHealth reads the last event about the health of each instance from the last day of the journal.
func (v *view) loadHealth(ctx context.Context) error {
	v.healths = map[string]record.Event{}
	events, err := v.events(ctx, time.Time{}, func(e record.Event) bool {
		switch e.Kind {
		case record.EventInstanceHealthy, record.EventInstanceUnhealthy, record.EventInstanceLost:
			return e.Tenant == v.tenant
		}
		return false
	})
	for _, e := range events {
		v.healths[e.Instance] = e
	}
	return err
}

func (v *view) listEvents(ctx context.Context, q *nstancev1.ListEventsRequest) (proto.Message, error) {
	f := q.GetFilter()
	var since time.Time
	if f.GetSince() != nil {
		since = f.GetSince().AsTime()
	}
	events, err := v.events(ctx, since, func(e record.Event) bool {
		return (e.Tenant == v.tenant || e.Tenant == "") && (f.GetGroup() == "" || e.Group == f.GetGroup()) &&
			(f.GetInstanceId() == "" || e.Instance == f.GetInstanceId()) &&
			(f.GetCause() == "" || e.Cause == f.GetCause()) &&
			(len(f.GetKinds()) == 0 || slices.Contains(f.GetKinds(), string(e.Kind))) &&
			(q.GetUntil() == nil || e.At.Before(q.GetUntil().AsTime()))
	})
	if err != nil {
		return nil, err
	}
	answer := new(nstancev1.ListEventsResponse)
	for _, e := range events {
		answer.Events = append(answer.Events, messages.Event(e))
	}
	return answer, nil
}

// lives reports whether a record is of an instance that is not being deleted.
func lives(rec *record.Instance) bool {
	return rec.State != record.Deleting && rec.State != record.Deleted
}

// group returns what the bucket says about one group.
func (v *view) group(key config.GroupKey) *nstancev1.GroupStatus {
	g := v.groups[key]
	entry, overridden := v.dynamic.Get(key)
	out := messages.Group(v.config, &g, entry, overridden, v.options.Now())
	settings := v.config.SettingsOf(key, v.dynamic)
	out.MergedJson, out.Defaults = settings.JSON(), settings.Defaults()
	out.Paused = g.Rollout.Paused
	if g.Spares.Count > 0 {
		out.Spares = &nstancev1.GroupSpares{Count: uint32(g.Spares.Count), State: g.Spares.State}
	}
	for i := range v.instances {
		rec := &v.instances[i]
		if rec.Group != key.Group || rec.State == record.Deleted {
			continue
		}
		out.InstanceIds = append(out.InstanceIds, rec.ID.String())
		if rec.Preserved != nil && lives(rec) {
			out.Preserved++
		}
		if rec.IsSpare() && lives(rec) && out.Spares != nil {
			out.Spares.Actual++
		}
		if rec.OnDemand || rec.Preserved != nil || rec.IsSpare() || !lives(rec) {
			continue
		}
		out.ActualSize++
		if rec.ProviderID != "" {
			out.ProviderIds = append(out.ProviderIds, rec.ProviderID)
		}
		if v.healths[rec.ID.String()].Kind == record.EventInstanceHealthy {
			out.Healthy++
		}
	}
	return out
}

func (v *view) listGroups(ctx context.Context, q *nstancev1.ListGroupsRequest) (proto.Message, error) {
	if err := v.loadAll(ctx); err != nil {
		return nil, err
	}
	answer := new(nstancev1.ListGroupsResponse)
	for _, key := range slices.SortedFunc(maps.Keys(v.groups), func(a, b config.GroupKey) int {
		return cmp.Compare(a.Group, b.Group)
	}) {
		if key.Tenant == v.tenant && (q.GetGroup() == "" || q.GetGroup() == key.Group) {
			answer.Groups = append(answer.Groups, v.group(key))
		}
	}
	if q.GetGroup() != "" && len(answer.GetGroups()) == 0 {
		return nil, fmt.Errorf("group %q: %w", q.GetGroup(), ErrUnknown)
	}
	return answer, nil
}

// instance returns what the bucket says about one instance.
func (v *view) instance(rec *record.Instance) *nstancev1.InstanceStatus {
	out := messages.Instance(rec)
	out.ProviderState, out.Health = "unknown", "unknown"
	g := v.groups[config.GroupKey{Tenant: rec.Tenant, Group: rec.Group}]
	out.Protected = slices.Contains(g.Protected, rec.ID)
	out.Zone, out.Region = v.config.Server.Provider.Zone, v.config.Server.Provider.Region
	switch e := v.healths[rec.ID.String()]; {
	case rec.State == record.Deleted:
	case rec.RegisteredAt.IsZero():
		out.Health = "unregistered"
	case rec.IsSpare() && !rec.Spare.AsleepAt.IsZero():
		out.Health = "asleep"
	case e.Kind == record.EventInstanceHealthy:
		out.Health = "healthy"
	case e.Kind == record.EventInstanceUnhealthy:
		out.Health, out.HealthMessage = "unhealthy", e.Message
	case e.Kind == record.EventInstanceLost:
		out.Health, out.HealthMessage = "silent", e.Message
	}
	return out
}

func (v *view) listInstances(ctx context.Context, q *nstancev1.ListInstancesRequest) (proto.Message, error) {
	if err := v.loadAll(ctx); err != nil {
		return nil, err
	}
	answer := new(nstancev1.ListInstancesResponse)
	for i := range v.instances {
		rec := &v.instances[i]
		if rec.State == record.Deleted || q.GetGroup() != "" && rec.Group != q.GetGroup() ||
			q.GetPreserved() && rec.Preserved == nil {
			continue
		}
		answer.Instances = append(answer.Instances, v.instance(rec))
	}
	return answer, nil
}

// find returns the record of an instance.
func (v *view) find(id string) (*record.Instance, error) {
	i := slices.IndexFunc(v.instances, func(rec record.Instance) bool { return rec.ID.String() == id })
	if i < 0 {
		return nil, fmt.Errorf("instance %s: %w", id, ErrUnknown)
	}
	return &v.instances[i], nil
}

func (v *view) instanceStatus(ctx context.Context, q *nstancev1.GetInstanceStatusRequest) (proto.Message, error) {
	if err := v.loadAll(ctx); err != nil {
		return nil, err
	}
	rec, err := v.find(q.GetInstanceId())
	if err != nil {
		return nil, err
	}
	return &nstancev1.GetInstanceStatusResponse{Instance: v.instance(rec)}, nil
}

// explain returns the instances with their last known states, and the alerts that were active. No server plans
// anything.
func (v *view) explain(ctx context.Context, q *nstancev1.ExplainGroupRequest) (proto.Message, error) {
	if err := v.loadAll(ctx); err != nil {
		return nil, err
	}
	name := q.GetGroup()
	if q.GetInstanceId() != "" {
		rec, err := v.find(q.GetInstanceId())
		if err != nil {
			return nil, err
		}
		name = rec.Group
	}
	key := config.GroupKey{Tenant: v.tenant, Group: name}
	g, ok := v.groups[key]
	if !ok {
		return nil, fmt.Errorf("group %q: %w", name, ErrUnknown)
	}
	size, _ := g.SizeAt(v.options.Now())
	answer := &nstancev1.ExplainGroupResponse{Group: name, Desired: uint32(size),
		BlockedReason: "the shard has no leader, so nothing is planned or done"}
	for i := range v.instances {
		rec := &v.instances[i]
		if rec.Group != name || rec.State == record.Deleted || q.GetInstanceId() != "" &&
			rec.ID.String() != q.GetInstanceId() {
			continue
		}
		answer.Instances = append(answer.Instances, &nstancev1.InstanceVerdict{InstanceId: rec.ID.String(),
			RuleName: string(rec.State), Work: v.instance(rec).GetHealth(),
			DrainDeadline: messages.Timestamp(rec.DeleteDeadline)})
	}
	var err error
	answer.Errors, err = v.alerts(ctx, func(e record.Event) bool { return e.Group == "" || e.Group == name })
	return answer, err
}

// alerts returns the alerts that were active when the last leader ended, as far as the last day of the journal shows.
func (v *view) alerts(ctx context.Context, selects func(record.Event) bool) (active []*nstancev1.ErrorEvent,
	err error) {
	events, err := v.events(ctx, time.Time{}, func(e record.Event) bool {
		return (e.Kind == record.EventAlertRaised || e.Kind == record.EventAlertResolved ||
			e.Kind == record.EventLeaderStarted) && (e.Tenant == v.tenant || e.Tenant == "") && selects(e)
	})
	for _, e := range events {
		if e.Kind == record.EventLeaderStarted { // a new leader raises again what still holds
			active = nil
			continue
		}
		active = slices.DeleteFunc(active, func(a *nstancev1.ErrorEvent) bool {
			return a.GetKind() == e.Cause && a.GetGroup() == e.Group && a.GetInstanceId() == e.Instance
		})
		if e.Kind == record.EventAlertRaised {
			active = append(active, &nstancev1.ErrorEvent{Kind: e.Cause, Group: e.Group, InstanceId: e.Instance,
				Message: e.Message, At: messages.Timestamp(e.At)})
		}
	}
	return active, err
}

// shardStatus returns what is known of a shard without a leader: its last term, and the numbers of its objects.
func (v *view) shardStatus(ctx context.Context) (proto.Message, error) {
	if err := v.load(ctx); err != nil {
		return nil, err
	}
	answer := &nstancev1.GetShardStatusResponse{ClusterId: v.config.Cluster.ID, Groups: uint32(len(v.groups))}
	lock, _, err := v.state.ReadLock(ctx, v.shard)
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		return nil, err
	}
	answer.Term, answer.ConfigEtag, answer.Instances = lock.Term, lock.AppliedETag, v.living
	answer.Errors, err = v.alerts(ctx, func(record.Event) bool { return true })
	return answer, err
}
