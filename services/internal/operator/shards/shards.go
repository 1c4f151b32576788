// Package shards connects the operator to the leader of every shard. For each shard it keeps one connection and a
// mirror of the tenant's groups and instances as the leader reports them.
//
// Invariants:
//
//   - Shards are independent. A shard that does not answer delays no other.
//   - A mirror shows what a leader once reported. Code that acts on the absence of an object must check that the mirror
//     is synced, or ask the leader.
package shards

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// Shards gives reconcilers access to all shards. It is safe for concurrent use, and no method blocks.
type Shards interface {
	// All returns the shards of the current configuration file, sorted by ID.
	All() []Shard
	// Shard returns a shard by its ID. It returns false if the configuration file does not list the shard.
	Shard(id string) (Shard, bool)
	// Notify registers fn for all future changes. fn may be called from any goroutine and must not block.
	Notify(fn func(Change))
}

// Shard is the mirror of one shard and the client of its leader. The messages that it returns are shared and must not
// be modified.
type Shard interface {
	ID() string
	State() State
	// Group returns a group of the mirror. It returns false if the leader has not reported the group.
	Group(name string) (*nstancev1.GroupStatus, bool)
	// Groups returns all groups of the tenant, sorted by name.
	Groups() []*nstancev1.GroupStatus
	// Instance returns an instance of the mirror. A deleted instance stays in the mirror for 15 minutes with the state
	// "deleted".
	Instance(id string) (*nstancev1.InstanceStatus, bool)
	// Instances returns the instances of a group, or of all groups if group is empty, sorted by ID. It includes
	// instances that are being deleted and leaves out deleted ones.
	Instances(group string) []*nstancev1.InstanceStatus
	// Drains returns the instances whose nodes must be drained before the leader deletes them, sorted by ID.
	Drains() []Drain
	// API returns a client of the shard's leader. A call takes at most 10 seconds. While the shard is unreachable,
	// all calls except RenewCertificate fail immediately with Unavailable.
	API() nstancev1.OperatorServiceClient
}

// State is the state of the connection to a shard.
type State struct {
	// Reachable reports whether the leader answers.
	Reachable bool
	// Synced reports whether all groups and instances have been read from a leader at least once. It stays true while
	// the operator reconnects.
	Synced bool
	// Err says why the shard is unreachable. It is empty if the shard is reachable, or if the first attempt to connect
	// still runs.
	Err string
	// Zone and Region come from the shard's provider. They are empty while unknown.
	Zone, Region string
}

// Answers reports whether the leader answers and the mirror is complete.
func (s State) Answers() bool { return s.Reachable && s.Synced }

// Silent returns the IDs of the shards that do not answer, separated by commas. If only is not empty, it considers only
// the shard with this ID.
func Silent(all Shards, only string) string {
	var ids []string
	for _, one := range all.All() {
		if !one.State().Answers() && (only == "" || only == one.ID()) {
			ids = append(ids, one.ID())
		}
	}
	return strings.Join(ids, ", ")
}

// Drain is an instance that the leader deletes once its node is drained, or at the deadline.
type Drain struct {
	Instance *nstancev1.InstanceStatus
	Reason   string
	// Deadline is the deadline by this process's clock. It is zero if there is none.
	Deadline time.Time
	// Announced is the deadline by the leader's clock. It only serves to notice that the deadline was moved.
	Announced time.Time
}

// ChangeKind is the kind of a [Change].
type ChangeKind int

// Kinds of changes.
const (
	// ShardState means that the shard was added or removed, or its reachability or sync state changed.
	ShardState ChangeKind = iota + 1
	// GroupChanged means that the group in the field Group was changed or removed.
	GroupChanged
	// InstanceChanged means that the instance in the field Instance was changed or deleted.
	InstanceChanged
	// DrainPending means that the instance in the field Instance waits for the drain of its node.
	DrainPending
	// ErrorReported means that the leader reported Error.
	ErrorReported
)

// Change is a notification. When it is sent, the mirror already shows the new state.
type Change struct {
	Shard           string
	Kind            ChangeKind
	Group, Instance string
	Error           *nstancev1.ErrorEvent
}

const (
	// typeTimeout is the timeout of one request to a shard for a type's size.
	typeTimeout = 5 * time.Second
	// askAgain is the time after which a shard is asked again if it gave no size. A size stays in use, because types do
	// not change.
	askAgain = time.Minute
	// maxCPUs and maxMiB are the largest values that are accepted in a shard's answer.
	maxCPUs, maxMiB = 1 << 16, 1 << 30
)

// Types asks shards for the capacity of instance types and remembers the answers. It is safe for concurrent use.
//
// The cluster autoscaler trusts the capacity when it decides whether a pod fits on a machine that does not exist yet.
// If there is none for a type, the autoscaler cannot scale a group of this type up from zero. Everything else works.
type Types struct {
	Now func() time.Time

	mu    sync.Mutex
	asked map[typeKey]typeAnswer
}

type typeKey struct{ shard, instanceType string }

type typeAnswer struct {
	capacity corev1.ResourceList
	known    bool
	at       time.Time
}

// Capacity returns the CPUs and the memory of an instance type, as the shard's provider describes it: the whole memory
// of the machine, including the part that kernel and firmware reserve. It returns nil if the provider does not know the
// type. If the shard has not answered yet, known is false. Capacity waits at most five seconds for the answer.
func (t *Types) Capacity(ctx context.Context, shard Shard, instanceType string) (_ corev1.ResourceList, known bool) {
	if instanceType == "" {
		return nil, true
	}
	key := typeKey{shard.ID(), instanceType}
	t.mu.Lock()
	a, asked := t.asked[key]
	t.mu.Unlock()
	if !shard.State().Reachable || asked && (a.capacity != nil || t.Now().Sub(a.at) < askAgain) {
		return a.capacity, a.known
	}
	ctx, cancel := context.WithTimeout(ctx, typeTimeout)
	defer cancel()
	size, err := shard.API().GetInstanceType(ctx, &nstancev1.GetInstanceTypeRequest{InstanceType: instanceType})
	a = typeAnswer{at: t.Now()}
	switch cpus, mib := int64(size.GetCpus()), size.GetMemoryMib(); {
	case err == nil && cpus > 0 && cpus <= maxCPUs && mib > 0 && mib <= maxMiB:
		a.known, a.capacity = true, corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewQuantity(cpus, resource.DecimalSI),
			corev1.ResourceMemory: *resource.NewQuantity(int64(mib)<<20, resource.BinarySI),
		}
	default:
		switch status.Code(err) {
		case codes.OK, codes.NotFound, codes.InvalidArgument, codes.Unimplemented:
			a.known = true
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asked == nil {
		t.asked = map[typeKey]typeAnswer{}
	}
	t.asked[key] = a
	return a.capacity, a.known
}

// Source adds requests to a controller's queue when a shard changes. The function requests returns the requests for a
// change. At the start, Source calls this function once for every shard, group and drain that exists. The function must
// not block, but may read a cache.
func Source(s Shards, requests func(Change) []reconcile.Request) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		add := func(c Change) {
			if ctx.Err() != nil {
				return
			}
			for _, request := range requests(c) {
				queue.Add(request)
			}
		}
		s.Notify(add)
		go func() { // requests may read a cache that has yet to be filled
			for _, change := range currentState(s) {
				add(change)
			}
		}()
		return nil
	})
}

// currentState returns one change for every shard, group and drain that exists now.
func currentState(s Shards) (changes []Change) {
	for _, one := range s.All() {
		id := one.ID()
		changes = append(changes, Change{Shard: id, Kind: ShardState})
		for _, g := range one.Groups() {
			changes = append(changes, Change{Shard: id, Kind: GroupChanged, Group: g.GetGroup()})
		}
		for _, d := range one.Drains() {
			changes = append(changes, Change{Shard: id, Kind: DrainPending, Group: d.Instance.GetGroup(),
				Instance: d.Instance.GetInstanceId()})
		}
	}
	return changes
}

var (
	reachableDesc = prometheus.NewDesc("nstance_operator_shard_reachable",
		"1 if the shard's leader is reachable, else 0.",
		[]string{"shard"}, nil)
	instancesDesc = prometheus.NewDesc("nstance_operator_instances",
		"Instances of the group that are not deleted, as reported by the shard's leader.", []string{"shard", "group"},
		nil)
)

// newCallDuration returns the only metric that is not computed from the state of the shards at each collection.
func newCallDuration() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "nstance_operator_rpc_duration_seconds", Help: "Duration of calls to the leaders of shards.",
		Buckets: []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10},
	}, []string{"shard", "method", "code"})
}

var _ prometheus.Collector = (*Set)(nil)

// Describe implements prometheus.Collector.
func (s *Set) Describe(out chan<- *prometheus.Desc) {
	out <- reachableDesc
	out <- instancesDesc
	s.calls.Describe(out)
}

// Collect implements prometheus.Collector.
func (s *Set) Collect(out chan<- prometheus.Metric) {
	for _, one := range s.All() {
		id := one.ID()
		reachable := 0.0
		if one.State().Reachable {
			reachable = 1
		}
		out <- prometheus.MustNewConstMetric(reachableDesc, prometheus.GaugeValue, reachable, id)
		for group, n := range one.(*shard).counts() {
			out <- prometheus.MustNewConstMetric(instancesDesc, prometheus.GaugeValue, float64(n), id, group)
		}
	}
	s.calls.Collect(out)
}
