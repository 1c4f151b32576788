package pool

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
	"github.com/nstance-kit/nstance/services/internal/operator/shards/shardstest"
)

type (
	specT   = v1beta1.NstanceShardGroupSpec
	statusT = nstancev1.GroupStatus
	request = nstancev1.UpsertGroupRequest
	vars    = map[string]string
)

// baseGroup returns the input for a shard group. The group in the shard is already in the wanted state. The function
// change modifies the input.
func baseGroup(change func(*groupInput)) groupInput {
	in := groupInput{
		group: &v1beta1.NstanceShardGroup{
			ObjectMeta: metav1.ObjectMeta{Name: "g--a", Generation: 3,
				Finalizers: []string{v1beta1.ShardGroupFinalizer}},
			Spec: specT{Group: "g", Shard: "a", Size: ptr.To(int32(2)), Config: jsonOf(`{"template":"t"}`)},
		},
		wanted: true, configured: true, state: shards.State{Reachable: true, Synced: true}, now: shardstest.Start,
		known: &statusT{Group: "g", Size: 2, ActualSize: 2, Healthy: 2, SpecJson: `{"template":"t"}`},
	}
	if change != nil {
		change(&in)
	}
	return in
}

// deleted marks the shard group as deleted.
func deleted(in *groupInput) {
	in.group.DeletionTimestamp = ptr.To(metav1.NewTime(in.now))
	in.wanted = false
}

func TestDecideCall(t *testing.T) {
	upsert := &request{Group: "g", Patch: `{"size":2}`}
	differs := func(in *groupInput) { in.known.Size = 1 }
	for name, test := range map[string]struct {
		in   groupInput
		want shardCall
	}{
		"equal":        {baseGroup(nil), shardCall{}},
		"different":    {baseGroup(differs), shardCall{upsert: upsert}},
		"paused":       {baseGroup(func(in *groupInput) { differs(in); in.paused = true }), shardCall{}},
		"unreachable":  {baseGroup(func(in *groupInput) { differs(in); in.state.Reachable = false }), shardCall{}},
		"Cluster ends": {baseGroup(func(in *groupInput) { differs(in); in.ending = true }), shardCall{}},
		"Cluster ends, deleted": {baseGroup(func(in *groupInput) {
			deleted(in)
			in.ending = true
		}), shardCall{remove: true}},
		"not synced": {baseGroup(func(in *groupInput) { in.known, in.state.Synced = nil, false }), shardCall{}},
		"unknown":    {baseGroup(func(in *groupInput) { differs(in); in.configured = false }), shardCall{}},
		"size in config": {baseGroup(func(in *groupInput) {
			differs(in)
			in.group.Spec.Config = jsonOf(`{"template":"t","size":3}`)
		}), shardCall{refused: sizeRefused}},
		"not there": {baseGroup(func(in *groupInput) {
			in.known = nil
		}), shardCall{upsert: &request{Group: "g", Patch: `{"size":2,"template":"t"}`}}},
		"refused": {baseGroup(func(in *groupInput) {
			differs(in)
			in.last = outcome{at: in.now.Add(-20 * time.Second), upsert: upsert, refused: "no"}
		}), shardCall{refused: "no", again: 40 * time.Second}},
		"refused once": {baseGroup(func(in *groupInput) {
			differs(in)
			in.last = outcome{at: in.now.Add(-time.Hour), upsert: upsert, refused: "no"}
		}), shardCall{upsert: upsert}},
		"refused other": {baseGroup(func(in *groupInput) {
			differs(in)
			in.last = outcome{at: in.now, upsert: &request{Group: "g", Patch: `{"size":3}`}, refused: "no"}
		}), shardCall{upsert: upsert}},
		"deleted": {baseGroup(deleted), shardCall{remove: true}},
		"deleted, not there": {baseGroup(func(in *groupInput) {
			deleted(in)
			in.known = nil
		}), shardCall{remove: true}},
		"deleted, wanted": {baseGroup(func(in *groupInput) { deleted(in); in.wanted = true }), shardCall{}},
		"deleted, done": {baseGroup(func(in *groupInput) {
			deleted(in)
			in.group.Finalizers = nil
		}), shardCall{}},
		"deleted, draining": {baseGroup(func(in *groupInput) {
			deleted(in)
			in.known.Deleting = true
		}), shardCall{}},
		"deleted, unreachable": {baseGroup(func(in *groupInput) {
			deleted(in)
			in.state.Reachable = false
		}), shardCall{}},
		"deleted, just now": {baseGroup(func(in *groupInput) {
			deleted(in)
			in.last.removed = in.now.Add(-time.Second)
		}), shardCall{again: 9 * time.Second}},
		"deleted, long ago": {baseGroup(func(in *groupInput) {
			deleted(in)
			in.last.removed = in.now.Add(-time.Minute)
		}), shardCall{remove: true}},
	} {
		if diff := cmp.Diff(test.want, decideCall(test.in), cmp.AllowUnexported(shardCall{}),
			protocmp.Transform()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestDecideGroup(t *testing.T) {
	fails := func(code codes.Code) callResult {
		return callResult{call: shardCall{upsert: &request{}}, err: status.Error(code, "the shard's reason")}
	}
	drop := callResult{call: shardCall{remove: true}}
	for name, test := range map[string]struct {
		in               groupInput
		did              callResult
		ready, reachable string
		valid            string
		observed         int64
		leaves           bool
		events           int
	}{
		"ready": {baseGroup(nil), callResult{}, "True Ready", "True Reachable", "True Accepted", 3, false, 0},
		"pushed": {baseGroup(func(in *groupInput) {
			in.known = nil
		}), callResult{call: shardCall{upsert: &request{}}, group: &statusT{Size: 2, ActualSize: 1}}, "False Scaling",
			"True Reachable", "True Accepted", 3, false, 0},
		"smaller": {baseGroup(func(in *groupInput) {
			in.known.ActualSize, in.known.Healthy = 1, 1
		}), callResult{}, "False Scaling", "True Reachable", "True Accepted", 3, false, 0},
		"sick": {baseGroup(func(in *groupInput) {
			in.known.Healthy = 1
		}), callResult{}, "False Scaling", "True Reachable", "True Accepted", 3, false, 0},
		"blocked": {baseGroup(func(in *groupInput) {
			in.known.ActualSize, in.known.BlockedReason = 1, "no capacity"
		}), callResult{}, "False Blocked", "True Reachable", "True Accepted", 3, false, 0},
		"refused": {baseGroup(nil), fails(codes.InvalidArgument), "False Refused", "True Reachable", "False Refused",
			0, false, 1},
		"static": {baseGroup(nil), fails(codes.FailedPrecondition), "False Refused", "True Reachable",
			"False Refused", 0, false, 1},
		"held": {baseGroup(nil), callResult{call: shardCall{refused: "no", again: 1}}, "False Refused",
			"True Reachable",
			"False Refused", 0, false, 1},
		"size in config": {baseGroup(nil), callResult{call: shardCall{refused: sizeRefused}}, "False Refused",
			"True Reachable", "False Refused", 0, false, 1},
		"aborted": {baseGroup(nil), fails(codes.Aborted), "False NotReady", "True Reachable", "", 0, false, 0},
		"lost": {baseGroup(func(in *groupInput) {
			in.state = shards.State{Synced: true, Err: "lost"}
		}), callResult{}, "False Unreachable", "False Unreachable", "", 0, false, 1},
		"unknown": {baseGroup(func(in *groupInput) {
			in.configured = false
		}), callResult{}, "False UnknownShard", "False UnknownShard", "", 0, false, 1},
		"starting": {baseGroup(func(in *groupInput) {
			in.state = shards.State{}
		}), callResult{}, "False WaitingForShard", "", "", 0, false, 0},
		"reading": {baseGroup(func(in *groupInput) {
			in.state.Synced = false
		}), callResult{}, "False WaitingForShard", "True Reachable", "", 0, false, 0},
		"paused": {baseGroup(func(in *groupInput) { in.paused = true }), callResult{}, "", "", "", 0, false, 0},

		"deleting": {baseGroup(deleted), drop, "False Deleting", "True Reachable", "", 0, false, 0},
		"deleted": {baseGroup(deleted), callResult{call: drop.call,
			err: status.Error(codes.NotFound, "none")}, "", "", "", 0, true, 0},
		"restored": {baseGroup(deleted), callResult{call: drop.call, restored: true}, "", "", "", 0, true, 0},
		"static without overrides": {baseGroup(func(in *groupInput) {
			deleted(in)
			in.known.IsStatic = true
		}), callResult{call: drop.call, err: status.Error(codes.FailedPrecondition, "static")}, "", "", "", 0, true, 0},
		"deletion refused": {baseGroup(deleted), callResult{call: drop.call,
			err: status.Error(codes.FailedPrecondition, "a reason")}, "False Deleting", "True Reachable", "", 0, false,
			1},
		"deletion fails": {baseGroup(deleted), callResult{call: drop.call,
			err: status.Error(codes.Unavailable, "not now")}, "False Deleting", "True Reachable", "", 0, false, 1},
		"name that the shard refuses": {baseGroup(func(in *groupInput) {
			deleted(in)
			in.known = nil
		}), callResult{call: drop.call, err: status.Error(codes.InvalidArgument, "group: name")}, "", "", "", 0, true,
			0},
		"deleted, unreachable": {baseGroup(func(in *groupInput) {
			deleted(in)
			in.state = shards.State{Synced: true, Err: "lost"}
		}), callResult{}, "False Deleting", "False Unreachable", "", 0, false, 2},
		"deleted, shard removed": {baseGroup(func(in *groupInput) {
			deleted(in)
			in.configured = false
		}), callResult{}, "False Deleting", "False UnknownShard", "", 0, false, 2},
		"deleted, shard removed and skipped": {baseGroup(func(in *groupInput) {
			deleted(in)
			in.configured, in.skip = false, true
		}), callResult{}, "", "", "", 0, true, 1},
		"deleted, unreachable and skipped": {baseGroup(func(in *groupInput) {
			deleted(in)
			in.state, in.skip = shards.State{Synced: true, Err: "lost"}, true
		}), callResult{}, "", "", "", 0, true, 1},
		"deleted, skipped, but answers": {baseGroup(func(in *groupInput) {
			deleted(in)
			in.skip = true
		}), drop, "False Deleting", "True Reachable", "", 0, false, 0},
		"Cluster ends": {baseGroup(func(in *groupInput) { in.ending = true }), callResult{}, "False Deleting",
			"True Reachable", "", 0, false, 0},
		"Cluster ends, deleted": {baseGroup(func(in *groupInput) {
			deleted(in)
			in.ending = true
		}), callResult{call: drop.call, restored: true}, "", "", "", 0, true, 0},
		"Cluster ends, deleted, wanted": {baseGroup(func(in *groupInput) {
			deleted(in)
			in.wanted, in.ending = true, true
		}), callResult{}, "False Deleting", "True Reachable", "", 0, false, 0},
		"deleted, wanted": {baseGroup(func(in *groupInput) {
			deleted(in)
			in.wanted = true
		}), callResult{}, "", "", "", 0, true, 0},
		"deleted with the definition, wanted": {baseGroup(func(in *groupInput) {
			deleted(in)
			in.wanted, in.lastOne = true, true
		}), callResult{}, "False Deleting", "True Reachable", "", 0, false, 0},
	} {
		plan := decideGroup(test.in, test.did)
		s := plan.finishStatus(test.in.group, 3, test.in.now)
		got := []any{condition(s.Conditions, "Ready"), condition(s.Conditions, "ShardReachable"),
			condition(s.Conditions, "ConfigValid"), s.ObservedGeneration, len(plan.group.Finalizers) == 0,
			len(plan.events)}
		if diff := cmp.Diff([]any{test.ready, test.reachable, test.valid, test.observed, test.leaves, test.events},
			got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		// Deciding again with the same input must change nothing and record no event.
		if test.leaves {
			continue
		}
		again := test.in
		again.group = test.in.group.DeepCopy()
		again.group.Status, again.now = s, test.in.now.Add(time.Hour)
		plan = decideGroup(again, test.did)
		if diff := cmp.Diff(s, plan.finishStatus(again.group, 3, again.now)); diff != "" || len(plan.events) > 0 {
			t.Errorf("%s: a second decision recorded events %v and changed the status: %s", name, plan.events, diff)
		}
	}
}

func TestMirror(t *testing.T) {
	in := baseGroup(func(in *groupInput) {
		in.known.ActualSize, in.known.Healthy = math.MaxUint32, 7
		in.known.MergedJson = `{"template":"t","args":{"b":{"c":1},"a":[1.0]},"drain_timeout":"1m"}`
		in.instances = []*nstancev1.InstanceStatus{{ProviderId: "z"}, {ProviderId: "b", State: "deleting"},
			{ProviderId: "a"}, {}, {ProviderId: "o", OnDemand: true}, {ProviderId: "a"}}
	})
	s := decideGroup(in, callResult{}).group.Status
	if *s.ActualSize != math.MaxInt32 || *s.Healthy != 7 || !slices.Equal(s.ProviderIDs, []string{"a", "b", "z"}) {
		t.Errorf("%+v", s)
	}
	if string(s.Config.Raw) != in.known.MergedJson {
		t.Errorf("%s", s.Config.Raw)
	}
	// The API server stores the JSON document in another form, with the same content. This difference must not count as
	// a change.
	s.Config.Raw = []byte(`{"args":{"a":[1],"b":{"c":1}},"drain_timeout":"1m","template":"t"}`)
	in.group.Status = s
	if again := decideGroup(in, callResult{}).group.Status; string(again.Config.Raw) != string(s.Config.Raw) {
		t.Errorf("%s", again.Config.Raw)
	}
	in.known.MergedJson = `{"template":"t","drain_timeout":"2m"}`
	if again := decideGroup(in, callResult{}).group.Status; string(again.Config.Raw) == string(s.Config.Raw) {
		t.Error("a changed configuration was not written")
	}
}

// basePool returns the input for a new pool of the given shards.
func basePool(replicas int32, list ...string) poolInput {
	return poolInput{cluster: testCluster, configured: map[string]bool{"a": true, "b": true, "c": true},
		pool: &v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "p"},
			Spec: v1beta1.NstanceMachinePoolSpec{Group: "g", Shards: list, Config: jsonOf(`{"template":"t"}`)}},
		machinePool: &clusterv1.MachinePool{Spec: clusterv1.MachinePoolSpec{Replicas: ptr.To(replicas)}}}
}

// with adds to the input a shard group that its shard has accepted and that has all its instances.
func (in poolInput) with(shard string, size int32, owner types.UID, change func(*v1beta1.NstanceShardGroup)) poolInput {
	g := &v1beta1.NstanceShardGroup{ObjectMeta: metav1.ObjectMeta{Name: "g--" + shard},
		Spec: specT{Group: "g", Shard: shard, Size: ptr.To(size), Config: jsonOf(`{"template":"t"}`)}}
	if owner != "" {
		g.OwnerReferences = []metav1.OwnerReference{{Kind: machinePoolKind, Name: string(owner), UID: owner,
			Controller: ptr.To(true)}}
	}
	g.Status.ActualSize, g.Status.Healthy = ptr.To(size), ptr.To(size)
	for _, kind := range []string{v1beta1.ReadyCondition, v1beta1.ConfigValidCondition,
		v1beta1.ShardReachableCondition} {
		g.Status.Conditions = append(g.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue,
			Reason: "So"})
	}
	if change != nil {
		change(g)
	}
	in.groups = append(in.groups, g)
	return in
}

// changes lists the shard groups that the plan creates, updates or removes, with their sizes.
func (plan *poolPlan) changes() (names []string) {
	for verb, list := range map[string][]*v1beta1.NstanceShardGroup{"create": plan.create, "update": plan.update,
		"remove": plan.remove} {
		for _, g := range list {
			names = append(names, fmt.Sprintf("%s %s %d", verb, g.Name, ptr.Deref(g.Spec.Size, 0)))
		}
	}
	slices.Sort(names)
	return names
}

// TestWaitForFinalizer checks how long the operator waits before it creates groups for a MachinePool. It waits until
// the MachinePool has Cluster API's finalizer, but no longer than newMachinePool.
func TestWaitForFinalizer(t *testing.T) {
	created := time.Unix(1000, 0)
	mp := &clusterv1.MachinePool{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(created)}}
	for _, test := range []struct {
		age, want time.Duration
	}{{0, newMachinePool}, {newMachinePool - time.Second, time.Second}, {newMachinePool, 0}, {time.Hour, 0},
		{-time.Hour, 0}, // The operator's clock is behind the API server's.
	} {
		if got := waitForFinalizer(mp, created.Add(test.age)); got != test.want {
			t.Errorf("wait of a MachinePool of age %s: %s, want %s", test.age, got, test.want)
		}
	}
	mp.Finalizers = []string{clusterv1.MachinePoolFinalizer}
	if got := waitForFinalizer(mp, created); got != 0 {
		t.Errorf("a MachinePool with the finalizer waits %s", got)
	}
	if got := waitForFinalizer(nil, created); got != 0 {
		t.Errorf("no MachinePool waits %s", got)
	}
}

func TestDecidePool(t *testing.T) {
	no := func(kind, reason string) func(*v1beta1.NstanceShardGroup) {
		return func(g *v1beta1.NstanceShardGroup) {
			for i := range g.Status.Conditions {
				if c := &g.Status.Conditions[i]; c.Type == kind || c.Type == v1beta1.ReadyCondition {
					c.Status, c.Reason = metav1.ConditionFalse, reason
				}
			}
		}
	}
	deleting := func(g *v1beta1.NstanceShardGroup) { g.DeletionTimestamp = ptr.To(metav1.Now()) }
	leaving := func(in poolInput) poolInput {
		in.pool.DeletionTimestamp = ptr.To(metav1.Now())
		return in
	}
	nameless := basePool(0, "a")
	nameless.machinePool.Spec.Replicas = nil
	lonely, paused := basePool(3, "a"), basePool(3, "a")
	lonely.machinePool, paused.paused = nil, true
	unseen := basePool(3, "a")
	unseen.wait = time.Second
	for name, test := range map[string]struct {
		in          poolInput
		does        []string
		ready       string
		provisioned bool
		removed     bool
		reachable   string
		replicas    int32
	}{
		"new": {basePool(3, "a", "b"), []string{"create g--a 2", "create g--b 1"}, "False Scaling", false,
			false, "", -1},
		"not seen by Cluster API": {unseen, nil, "False WaitingForMachinePool", false, false, "", -1},
		"no longer seen": {unseen.with("a", 3, "p", nil), []string{"update g--a 3"}, "True Ready", true,
			false, "True Reachable", 3},
		"no replicas set": {nameless, []string{"create g--a 1"}, "False Scaling", false, false, "", -1},
		"in service": {basePool(3, "a", "b").with("a", 2, "p", nil).with("b", 1, "p", nil),
			[]string{"update g--a 2", "update g--b 1"}, "True Ready", true, false, "True Reachable", 3},
		"scaled": {basePool(5, "a", "b").with("a", 2, "p", nil).with("b", 1, "p", nil),
			[]string{"update g--a 3", "update g--b 2"}, "False Scaling", true, false, "True Reachable", 3},
		"another order": {basePool(3, "b", "a").with("a", 2, "p", nil).with("b", 1, "p", nil),
			[]string{"update g--a 2", "update g--b 1"}, "True Ready", true, false, "True Reachable", 3},
		"one more shard": {basePool(2, "a", "b").with("a", 2, "p", nil), []string{"create g--b 1", "update g--a 1"},
			"False Scaling", false, false, "", 2},
		"one shard removed": {basePool(3, "a").with("a", 2, "p", nil).with("b", 1, "p", nil),
			[]string{"remove g--b 1", "update g--a 3"}, "False Scaling", true, false, "True Reachable", 3},
		"removed shard still deleting": {basePool(2, "a").with("a", 2, "p", nil).with("b", 1, "p", deleting),
			[]string{"update g--a 2"},
			"False Scaling", true, false, "True Reachable", 3},
		"shard group deleted by a user": {basePool(2, "a").with("a", 2, "p", deleting), nil, "True Ready", true, false,
			"True Reachable",
			2},
		"owned by another pool": {basePool(2, "a").with("a", 2, "q", nil), nil, "False Refused", false, false,
			"True Reachable", -1},
		"without an owner": {basePool(2, "a").with("a", 2, "", nil), []string{"update g--a 2"}, "True Ready", true,
			false, "True Reachable", 2},
		"too many": {basePool(200_001, "a", "b").with("a", 2, "p", nil), nil, "False Refused", true, false,
			"True Reachable", 2},
		"unreachable": {basePool(3, "a", "b").with("a", 2, "p", nil).with("b", 1, "p",
			no(v1beta1.ShardReachableCondition, "Unreachable")), []string{"update g--a 2", "update g--b 1"},
			"False Unreachable", true, false, "False Unreachable", 3},
		"all unreachable": {basePool(1, "a").with("a", 1, "p", func(g *v1beta1.NstanceShardGroup) {
			no(v1beta1.ShardReachableCondition, "Unreachable")(g)
			no(v1beta1.ConfigValidCondition, "Unreachable")(g)
		}), []string{"update g--a 1"}, "False Unreachable", false, false, "False Unreachable", 1},
		"refused": {basePool(3, "a", "b").with("a", 2, "p", no(v1beta1.ConfigValidCondition, "Refused")).with("b", 1,
			"p", no("", "Scaling")), []string{"update g--a 2", "update g--b 1"},
			"False Refused", false, false, "True Reachable", 3},
		"typing error, new pool": {basePool(4, "a", "x"), []string{"create g--a 4"}, "False UnknownShard", false, false,
			"False UnknownShard", -1},
		"nothing but typing errors": {basePool(4, "x"), nil, "False UnknownShard", false, false,
			"False UnknownShard", -1},
		"typing error added": {basePool(4, "a", "b", "x").with("a", 2, "p", nil).with("b", 2, "p", nil),
			[]string{"update g--a 2", "update g--b 2"}, "False UnknownShard", true, false, "False UnknownShard", 4},
		"typing error instead of a shard": {basePool(3, "x", "b").with("a", 2, "p", nil).with("b", 1, "p", nil),
			[]string{"update g--a 2", "update g--b 1"}, "False UnknownShard", true, false, "False UnknownShard", 3},
		"typing error instead of all": {basePool(4, "x").with("a", 2, "p", nil).with("b", 2, "p", nil),
			[]string{"update g--a 2", "update g--b 2"}, "False UnknownShard", true, false, "False UnknownShard", 4},
		"typing error, scaled": {basePool(6, "a", "x", "b").with("a", 2, "p", nil).with("b", 2, "p", nil),
			[]string{"update g--a 3", "update g--b 3"}, "False UnknownShard", true, false, "False UnknownShard", 4},
		"typing error and another shard": {basePool(4, "a", "c", "x").with("a", 4, "p", nil),
			[]string{"create g--c 2", "update g--a 2"}, "False UnknownShard", false, false, "False UnknownShard", 4},
		"typing error, removed shard still deleting": {basePool(4, "a", "x").with("a", 4, "p", nil).with("b", 2, "p",
			deleting),
			[]string{"update g--a 4"}, "False UnknownShard", true, false, "False UnknownShard", 6},
		"in use but no longer configured": {basePool(4, "a", "w").with("a", 2, "p", nil).with("w", 2, "p",
			no(v1beta1.ShardReachableCondition, "UnknownShard")), []string{"update g--a 2", "update g--w 2"},
			"False UnknownShard", true, false, "False UnknownShard", 4},
		"no MachinePool":          {lonely, nil, "False WaitingForMachinePool", false, false, "", -1},
		"no MachinePool any more": {lonely.with("a", 3, "p", nil), nil, "False Unreferenced", false, false, "", 3},
		"paused":                  {paused, nil, "", false, false, "", -1},
		"deleted": {leaving(basePool(3, "a", "b").with("a", 2, "p", nil).with("b", 1, "p", deleting)),
			[]string{"remove g--a 2"}, "False Deleting", false, false, "", 3},
		"deleted, done": {leaving(basePool(3, "a").with("a", 2, "q", nil)), nil, "False Deleting", false, true, "",
			-1},
	} {
		plan := decidePool(test.in)
		s := plan.finishStatus(test.in.pool, 1, time.Now())
		got := []any{plan.changes(), condition(s.Conditions, "Ready"), s.Ready, plan.finished,
			condition(s.Conditions, "ShardsReachable"), ptr.Deref(s.Replicas, -1)}
		if diff := cmp.Diff([]any{test.does, test.ready, test.provisioned, test.removed, test.reachable, test.replicas},
			got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if s.Ready != ptr.Deref(s.Initialization.Provisioned, false) {
			t.Errorf("%s: ready and provisioned differ", name)
		}
	}
}

// TestProviderIDs checks which provider IDs the spec of a pool lists. Cluster API deletes the Node of an ID that is not
// listed.
func TestProviderIDs(t *testing.T) {
	known := func(g *v1beta1.NstanceShardGroup) { g.Status.ProviderIDs = []string{g.Spec.Shard + "1"} }
	moved := func(g *v1beta1.NstanceShardGroup) { g.Status = v1beta1.NstanceShardGroupStatus{} }
	typo := func(g *v1beta1.NstanceShardGroup) {
		moved(g)
		g.Status.Conditions = []metav1.Condition{{Type: v1beta1.ShardReachableCondition, Status: metav1.ConditionFalse,
			Reason: v1beta1.UnknownShardReason}}
	}
	for name, test := range map[string]struct {
		in   poolInput
		want []string
	}{
		"all": {basePool(2, "b", "a").with("b", 1, "p", known).with("a", 1, "p", known),
			[]string{"a1", "b1"}},
		"a shard that is removed": {basePool(2, "a").with("b", 1, "p", known).with("a", 1, "p", known),
			[]string{"a1", "b1"}},
		"moved to another cluster": {basePool(2, "a", "b").with("b", 1, "p", moved).with("a", 1, "p", known),
			[]string{"a1", "old"}},
		"a shard that does not exist": {basePool(2, "a", "x").with("x", 1, "p", typo).with("a", 1, "p", known),
			[]string{"a1"}},
	} {
		test.in.pool.Spec.ProviderIDList = []string{"old"}
		if diff := cmp.Diff(test.want, decidePool(test.in).pool.Spec.ProviderIDList); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestFillShardGroup checks that a shard group gets the config of its pool without members that are null, which a JSON
// merge patch cannot write, and that it keeps the spelling of an equal config.
func TestFillShardGroup(t *testing.T) {
	in := basePool(1, "a").with("a", 1, "p", nil)
	in.pool.Spec.Config = jsonOf(`{"vars": {"a": "1", "b": null}, "template": "t"}`)
	g := decidePool(in).update[0]
	if diff := cmp.Diff(`{"template":"t","vars":{"a":"1"}}`, string(g.Spec.Config.Raw)); diff != "" ||
		g.Annotations[v1beta1.OwnedFieldsAnnotation] != `{"template":null,"vars":{"a":null}}` {
		t.Error(diff, g.Annotations)
	}
	g.Spec.Config = jsonOf(`{ "vars":{"a":"1"}, "template":"t"}`)
	in.groups = []*v1beta1.NstanceShardGroup{g}
	plan := decidePool(in)
	if got := plan.update[0].Spec.Config.Raw; string(got) != string(g.Spec.Config.Raw) || plan.changesSpec(g) {
		t.Errorf("%s", got)
	}
	in.pool.Spec.Config = nil
	plan = decidePool(in)
	if g = plan.update[0]; g.Spec.Config != nil || !plan.changesSpec(in.groups[0]) ||
		g.Annotations[v1beta1.OwnedFieldsAnnotation] != `{"template":null,"vars":{"a":null}}` {
		t.Errorf("%+v", g)
	}
}

func TestCapacity(t *testing.T) {
	config := func(text string) func(*v1beta1.NstanceShardGroup) {
		return func(g *v1beta1.NstanceShardGroup) {
			g.Status.Config = mergedConfig(&statusT{MergedJson: `{"instance_type":"` + text + `"}`})
			memory := map[string]string{"m5.large": "8Gi", "m6i.large": "8Gi", "c5.large": "4Gi"}[text]
			if memory != "" {
				g.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"),
					corev1.ResourceMemory: resource.MustParse(memory)}
			}
		}
	}
	own, changed := basePool(1, "a").with("a", 1, "p", config("m5.large")), basePool(1, "a").with("a", 1, "p",
		config("m5.large"))
	own.pool.Spec.Config = jsonOf(`{"instance_type":"m5.large"}`)
	changed.pool.Spec.Config = jsonOf(`{"instance_type":"c5.xlarge"}`)
	for name, test := range map[string]struct {
		in   poolInput
		want string
	}{
		"set by the pool":     {own, "2 8Gi"},
		"changed by the pool": {changed, ""},
		"from the server":     {basePool(1, "a").with("a", 1, "p", config("m5.large")), "2 8Gi"},
		"unknown type":        {basePool(1, "a").with("a", 1, "p", config("px-1")), ""},
		"no type":             {basePool(1, "a").with("a", 1, "p", nil), ""},
		"equal on both shards": {basePool(1, "a", "b").with("a", 1, "p", config("m5.large")).with("b", 1, "p",
			config("m6i.large")), "2 8Gi"},
		"different on two shards": {basePool(1, "a", "b").with("a", 1, "p", config("m5.large")).with("b", 1, "p",
			config("c5.large")), ""},
		"one unknown type": {basePool(1, "a", "b").with("a", 1, "p", config("m5.large")).with("b", 1, "p", config("x")),
			""},
	} {
		plan := decidePool(test.in)
		got := ""
		if c := plan.pool.Status.Capacity; c != nil {
			got = c.Cpu().String() + " " + c.Memory().String()
		}
		if a := plan.machinePool.Annotations; got != test.want || strings.TrimSpace(a[cpuAnnotation]+" "+
			a[memoryAnnotation]) != test.want {
			t.Errorf("%s: %q, %v", name, got, a)
		}
	}
}

func TestAnnotate(t *testing.T) {
	offer := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"),
		corev1.ResourceMemory: resource.MustParse("8Gi")}
	const ours = `{"cpu":"2","memory":"8Gi"}`
	for name, test := range map[string]struct {
		have  vars
		offer corev1.ResourceList
		want  vars
	}{
		"nothing known": {nil, nil, nil},
		"first write": {nil, offer, vars{cpuAnnotation: "2", memoryAnnotation: "8Gi",
			v1beta1.CapacityAnnotation: ours}},
		"unchanged": {vars{cpuAnnotation: "2", memoryAnnotation: "8Gi", v1beta1.CapacityAnnotation: ours}, offer,
			vars{cpuAnnotation: "2", memoryAnnotation: "8Gi", v1beta1.CapacityAnnotation: ours}},
		"changed": {vars{cpuAnnotation: "1", memoryAnnotation: "1Gi",
			v1beta1.CapacityAnnotation: `{"cpu":"1","memory":"1Gi"}`}, offer,
			vars{cpuAnnotation: "2", memoryAnnotation: "8Gi", v1beta1.CapacityAnnotation: ours}},
		"no longer known": {vars{"x": "y", cpuAnnotation: "2", memoryAnnotation: "8Gi",
			v1beta1.CapacityAnnotation: ours}, nil, vars{"x": "y"}},
		"set by a user": {vars{cpuAnnotation: "1", memoryAnnotation: "1Gi"}, offer,
			vars{cpuAnnotation: "1", memoryAnnotation: "1Gi"}},
		"set by a user, capacity unknown": {vars{cpuAnnotation: "1", memoryAnnotation: "1Gi"}, nil,
			vars{cpuAnnotation: "1", memoryAnnotation: "1Gi"}},
		"one set by a user": {vars{cpuAnnotation: "1", memoryAnnotation: "8Gi", v1beta1.CapacityAnnotation: ours},
			offer,
			vars{cpuAnnotation: "1", memoryAnnotation: "8Gi", v1beta1.CapacityAnnotation: `{"memory":"8Gi"}`}},
		"invalid annotation": {vars{cpuAnnotation: "1", v1beta1.CapacityAnnotation: `{"cpu":`}, offer,
			vars{cpuAnnotation: "1", memoryAnnotation: "8Gi", v1beta1.CapacityAnnotation: `{"memory":"8Gi"}`}},
	} {
		mp := &clusterv1.MachinePool{ObjectMeta: metav1.ObjectMeta{Annotations: test.have}}
		annotateCapacity(mp, test.offer)
		if diff := cmp.Diff(test.want, mp.Annotations); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestDecideImport(t *testing.T) {
	group := func(static bool, size uint32, spec string) *statusT {
		return &statusT{Group: "g", IsStatic: static, Size: size, SpecJson: spec,
			MergedJson: `{"template":"t","instance_type":"merged","vars":{"a":"1"}}`}
	}
	want := func(text string, shards ...string) *v1beta1.NstanceMachinePoolSpec {
		return &v1beta1.NstanceMachinePoolSpec{Group: "g", Shards: shards, Config: treeConfig(parseTree(text))}
	}
	pool := func(labels vars, finalizers ...string) v1beta1.NstanceMachinePool {
		return v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Name: "g", Labels: labels,
			Finalizers: finalizers}, Spec: v1beta1.NstanceMachinePoolSpec{Group: "g", Shards: []string{"b", "a"}}}
	}
	made := vars{v1beta1.ImportedLabel: "true", clusterv1.ClusterNameLabel: testCluster}
	refers := importedMachinePool(importInput{}, &v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Name: "g"}},
		nil)
	ends := refers.DeepCopy()
	ends.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	endsElsewhere := ends.DeepCopy()
	endsElsewhere.Name = "other"
	going := group(false, 1, "")
	going.Deleting = true
	type groups = map[string][]*statusT
	for name, test := range map[string]struct {
		in       importInput
		want     *v1beta1.NstanceMachinePoolSpec
		replicas int32
		refused  string
	}{
		"nothing": {importInput{groups: groups{"a": nil}}, nil, 0, ""},
		"static": {importInput{groups: groups{"a": {group(true, 1, "")}, "b": {group(true, 2, "")}}},
			want(``, "a", "b"), 3, ""},
		"overrides that agree": {importInput{groups: groups{"a": {group(true, 1,
			`{"instance_type":"i","vars":{"a":"1"}}`)}, "b": {group(true, 2,
			`{"instance_type":"i","vars":{"a":"2"}}`)}}},
			want(`{"instance_type":"i"}`, "a", "b"), 3, ""},
		"paused and rolled": {importInput{groups: groups{"a": {group(true, 1,
			`{"rollout":{"paused":true,"revision":"r"}}`)}}}, want(``, "a"), 1, ""},
		"dynamic": {importInput{groups: groups{"b": {group(false, 4, `{"template":"t","size":4,"vars":{"a":"1"},`+
			`"rollout":{"canary":1,"paused":true,"revision":"r"},"removed":["x"],"protected":["y"]}`)}}},
			want(`{"template":"t","vars":{"a":"1"},"rollout":{"canary":1}}`, "b"), 4, ""},
		"dynamic on one shard, static on another": {importInput{groups: groups{"a": {group(true, 1, "")},
			"b": {group(false, 1, `{"template":"t","vars":{"a":"1"}}`)}}},
			want(`{"template":"t","vars":{"a":"1"}}`, "a", "b"), 2, ""},
		"dynamic and static disagree": {importInput{groups: groups{"a": {group(true, 1, "")},
			"b": {group(false, 1, `{"template":"u","vars":{"a":"1"},"instance_type":"i"}`)}}}, nil, 0,
			"shards b and a disagree on instance_type, template:"},
		"shards disagree": {importInput{groups: groups{"a": {group(false, 1, `{"instance_type":"i"}`)},
			"b": {group(false, 1, `{"vars":{"a":"1"}}`)}}}, nil, 0,
			"shards a and b disagree on instance_type, vars:"},
		"deleting": {importInput{groups: groups{"a": {group(true, 1, "")}, "b": {going}}}, nil, 0, ""},
		"more than the API's maximum": {importInput{groups: groups{"a": {group(true, math.MaxUint32, "")},
			"b": {group(true, math.MaxUint32, "")}}},
			want(``, "a", "b"), math.MaxInt32, ""},
		"has a pool": {importInput{groups: groups{"a": {group(true, 1, "")}},
			pools: []v1beta1.NstanceMachinePool{pool(nil)}}, nil, 0, ""},
		"interrupted import": {importInput{groups: groups{"a": {group(true, 1, "")}, "b": {group(true, 5, "")},
			"c": {group(true, 9, "")}}, pools: []v1beta1.NstanceMachinePool{pool(made)}}, ptr.To(pool(nil).Spec), 6,
			""},
		"imported": {importInput{groups: groups{"a": {group(true, 1, "")}},
			pools: []v1beta1.NstanceMachinePool{pool(made)}, machinePools: []clusterv1.MachinePool{*refers}}, nil, 0,
			""},
		"MachinePool deleted": {importInput{groups: groups{"a": {group(true, 1, "")}},
			pools: []v1beta1.NstanceMachinePool{pool(made, v1beta1.MachinePoolFinalizer)}}, nil, 0, ""},
		"pool of another cluster": {importInput{groups: groups{"a": {group(true, 1, "")}},
			pools: []v1beta1.NstanceMachinePool{pool(vars{clusterv1.ClusterNameLabel: "other"})}}, nil, 0,
			"another group already has"},
		"name is taken": {importInput{groups: groups{"a": {group(true, 1, "")}},
			machinePools: []clusterv1.MachinePool{{ObjectMeta: metav1.ObjectMeta{Name: "g"}}}}, nil, 0,
			"references something else"},
		"MachinePool is being deleted": {importInput{groups: groups{"a": {group(true, 1, "")}},
			machinePools: []clusterv1.MachinePool{*ends}}, nil, 0, ""},
		"another MachinePool is being deleted": {importInput{groups: groups{"a": {group(true, 1, "")}},
			machinePools: []clusterv1.MachinePool{*endsElsewhere}}, nil, 0, ""},
		"MachinePool exists": {importInput{groups: groups{"a": {group(true, 1, "")}},
			machinePools: []clusterv1.MachinePool{*refers}}, want(``, "a"), 1, ""},
	} {
		test.in.namespace, test.in.cluster = testNamespace, testCluster
		found, refused := decideImport(test.in)
		if test.refused != "" {
			if len(found) != 0 || len(refused) != 1 || !strings.Contains(refused[0].reason, test.refused) {
				t.Errorf("%s: %v %v", name, found, refused)
			}
			continue
		}
		if len(refused) != 0 || len(found) > 1 || (len(found) == 1) != (test.want != nil) {
			t.Errorf("%s: %v %v", name, found, refused)
			continue
		}
		if test.want == nil {
			continue
		}
		if diff := cmp.Diff(*test.want, found[0].pool.Spec); diff != "" ||
			*found[0].machinePool.Spec.Replicas != test.replicas || found[0].create == (len(test.in.pools) > 0) {
			t.Errorf("%s: %s %d", name, diff, *found[0].machinePool.Spec.Replicas)
		}
	}
}

// TestLabelValue compares label values with those that Cluster API's own function has computed for the same names.
func TestLabelValue(t *testing.T) {
	for name, want := range map[string]string{"web": "web", strings.Repeat("x", 63): strings.Repeat("x", 63),
		strings.Repeat("x", 64): "hash_0ZsaxQ_z", "web-": "hash_r8Qb9A_z"} {
		if got := labelValue(name); got != want || len(got) > 63 {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestSilentShardOccupiesOnlyItsWorkers checks that a shard that does not answer can occupy only its share of the
// workers.
func TestSilentShardOccupiesOnlyItsWorkers(t *testing.T) {
	var g callGate
	var leave []func()
	for range callsPerShard {
		one, ok := g.acquire("a")
		if !ok {
			t.Fatal("the gate refused a call below its limit")
		}
		leave = append(leave, one)
	}
	if _, ok := g.acquire("a"); ok {
		t.Error("the gate allowed a call above its limit")
	}
	if _, ok := g.acquire("b"); !ok {
		t.Error("the gate of shard a refused a call of shard b")
	}
	leave[0]()
	if _, ok := g.acquire("a"); !ok {
		t.Error("the gate still counts a call that has ended")
	}
}
