package machine

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

const someID = "wrk01k1bnbb2we2dbk3cgk8v7tz41"

// newView returns the view of a new individual machine. The machine has an owner, and two shards have its group.
func newView(change func(*view)) view {
	empty := ""
	v := view{
		machine: &v1beta1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Name: "m", Namespace: "nstance-system",
			UID: "uid", Generation: 1},
			Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "workers"}}},
		owner: &clusterv1.Machine{Spec: clusterv1.MachineSpec{Bootstrap: clusterv1.Bootstrap{DataSecretName: &empty}}},
		shards: []shardView{
			{id: "a", reachable: true, synced: true},
			{id: "b", reachable: true, synced: true, group: &nstancev1.GroupStatus{Group: "workers", Kind: "wrk"}},
			{id: "c", reachable: true, synced: true, group: &nstancev1.GroupStatus{Group: "workers", Kind: "wrk"}},
		},
		now: metav1.NewTime(time.Date(2026, 7, 28, 10, 0, 0, 0, time.UTC)),
	}
	change(&v)
	return v
}

// placedView returns the view of a machine that has an instance ID, a shard and the finalizer.
func placedView(change func(*view)) view {
	return newView(func(v *view) {
		v.machine.Finalizers = []string{v1beta1.MachineFinalizer}
		v.machine.Spec.Shard, v.machine.Spec.InstanceID = "b", someID
		change(v)
	})
}

// runningView returns the view of a machine with a running instance and the matching status.
func runningView(change func(*view)) view {
	v := placedView(func(v *view) {
		v.machine.Spec.ProviderID = "test:///b/1"
		v.shards[1].instance = &nstancev1.InstanceStatus{InstanceId: someID, State: "registered",
			ProviderState: "running", ProviderId: "test:///b/1", Health: "healthy",
			Hostname: "host", Ipv4: "10.0.0.1", Ipv6: "fd00::1"}
	})
	v.machine.Status = decide(v).status
	change(&v)
	return v
}

func ofPool(v *view) {
	v.machine.Labels = map[string]string{clusterv1.MachinePoolNameLabel: "workers"}
}

func deleted(v *view) {
	at := v.now
	v.machine.DeletionTimestamp = &at
}

func ended(v *view) {
	meta.SetStatusCondition(&v.machine.Status.Conditions, metav1.Condition{Type: v1beta1.ServerDeletedCondition,
		Status: metav1.ConditionTrue,
		Reason: v1beta1.InstanceGoneReason})
}

func allOf(fns ...func(*view)) func(*view) {
	return func(v *view) {
		for _, fn := range fns {
			fn(v)
		}
	}
}

func instanceIn(state string) func(*view) {
	return func(v *view) {
		v.shards[1].instance = &nstancev1.InstanceStatus{InstanceId: someID, State: state, ProviderState: "running"}
	}
}

func unreachable(v *view) { v.shards[1].reachable = false }
func unsynced(v *view)    { v.shards[1].synced = false }
func unknown(v *view)     { v.shards = append(v.shards[:1:1], v.shards[2]) }
func absent(v *view)      { v.shards[1].instance = nil }
func missing(v *view)     { absent(v); v.answer = &answer{} }
func faulty(v *view) {
	v.fault = &fault{reason: v1beta1.CreateFailedReason, text: "no", after: time.Second}
}
func skipped(v *view)     { v.skip = true }
func clusterEnds(v *view) { v.ending = true }
func noFinalizer(v *view) { v.machine.Finalizers = nil }
func noOwner(v *view)     { v.owner = nil }
func ownerGone(v *view)   { v.owner, v.ownerGone = nil, true }
func ofStatic(v *view)    { v.shards[1].group.IsStatic = true }
func ownerGoes(v *view) {
	at := v.now
	v.owner.DeletionTimestamp = &at
}

func ownerDrained(v *view) {
	ownerGoes(v)
	v.owner.Status.Deletion = &clusterv1.MachineDeletionStatus{NodeDrainStartTime: v.now}
}

func TestDecide(t *testing.T) {
	nothing := func(*view) {}
	for name, c := range map[string]struct {
		view view
		want step
		// condition is a "Type=Reason" that the status must have.
		condition string
	}{
		"paused": {newView(func(v *view) { v.paused = true }), stepWait, "Paused=Paused"},
		"paused and deleted": {runningView(allOf(deleted, func(v *view) {
			v.paused = true
		})), stepWait, "Paused=Paused"},
		"not paused":         {runningView(nothing), stepWait, "Paused=NotPaused"},
		"no Machine yet":     {newView(noOwner), stepWait, "InstanceCreated=WaitingForMachine"},
		"Machine is deleted": {newView(ownerGoes), stepWait, "InstanceCreated=WaitingForMachine"},
		"Machine is gone":    {newView(ownerGone), stepDeleteSelf, ""},
		"bootstrap unset": {newView(func(v *view) {
			v.owner.Spec.Bootstrap.DataSecretName = nil
		}), stepWait, "Ready=WaitingForMachine"},
		"place": {newView(nothing), stepChoose, ""},
		"place on an unknown shard": {newView(func(v *view) {
			v.machine.Spec.Shard = "x"
		}), stepWait, "InstanceCreated=UnknownShard"},
		"place on an unreachable shard": {newView(allOf(unreachable, func(v *view) {
			v.machine.Spec.Shard = "b"
		})), stepWait, "InstanceCreated=WaitingForShard"},
		"place on an unsynced shard": {newView(allOf(unsynced, func(v *view) {
			v.machine.Spec.Shard = "b"
		})), stepWait, "InstanceCreated=WaitingForShard"},
		"place without the group": {newView(func(v *view) {
			v.machine.Spec.Shard = "a"
		}), stepWait, "InstanceCreated=Refused"},
		"place, group being deleted": {newView(func(v *view) {
			v.shards[1].group.Deleting = true
			v.machine.Spec.Shard = "b"
		}), stepWait, "InstanceCreated=Refused"},
		"place, no shard has the group": {newView(func(v *view) {
			v.shards = v.shards[:1]
		}), stepWait, "InstanceCreated=Refused"},
		"place, one may have the group": {newView(allOf(unreachable, func(v *view) {
			v.shards = v.shards[:2]
		})), stepWait, "InstanceCreated=WaitingForShard"},
		"place, no shards": {newView(func(v *view) { v.shards = nil }), stepWait, "InstanceCreated=Refused"},
		"failure domain": {newView(func(v *view) {
			v.owner.Spec.FailureDomain = "a"
		}), stepWait, "InstanceCreated=Refused"},
		"ID without a shard":         {newView(func(v *view) { v.machine.Spec.InstanceID = someID }), stepChoose, ""},
		"pool machine without an ID": {newView(ofPool), stepWait, "InstanceCreated=WaitingForInstance"},

		"create":                     {placedView(nothing), stepCreate, ""},
		"create needs the finalizer": {placedView(noFinalizer), stepKeep, ""},
		"create, Machine gone":       {placedView(ownerGone), stepDeleteSelf, ""},
		"create, Machine goes":       {placedView(ownerGoes), stepWait, "InstanceCreated=WaitingForMachine"},
		"create, no Machine":         {placedView(noOwner), stepWait, "InstanceCreated=WaitingForMachine"},
		"create, shard unreachable":  {placedView(unreachable), stepWait, "InstanceCreated=Unreachable"},
		"create, shard unsynced":     {placedView(unsynced), stepWait, "ShardReachable=WaitingForShard"},
		"create, shard unknown":      {placedView(unknown), stepWait, "ShardReachable=UnknownShard"},
		"create failed":              {placedView(faulty), stepWait, "InstanceCreated=CreateFailed"},
		"created before":             {placedView(missing), stepDeleteOwner, "ServerDeleted=InstanceGone"},
		"created, mirrored":          {placedView(instanceIn("created")), stepWait, "InstanceCreated=Created"},
		"created by the call": {placedView(func(v *view) {
			v.answer = &answer{&nstancev1.InstanceStatus{InstanceId: someID, State: "created"}}
		}), stepWait, "InstanceCreated=Created"},
		"provider ID": {placedView(func(v *view) {
			instanceIn("created")(v)
			v.shards[1].instance.ProviderId = "test:///1"
		}), stepKeep, ""},
		"reserved":                      {placedView(instanceIn("reserved")), stepWait, "Ready=WaitingForInstance"},
		"pool machine is never created": {placedView(ofPool), stepAsk, ""},
		"pool machine, server has not": {placedView(allOf(ofPool, missing)), stepDeleteOwner,
			"ServerDeleted=InstanceGone"},
		"pool machine, no Machine": {placedView(allOf(ofPool, missing, noOwner)), stepDeleteSelf,
			"ServerDeleted=InstanceGone"},
		"pool machine, Machine gone": {runningView(allOf(ofPool, ownerGone)), stepWait, "Ready=Ready"},
		"pool machine, instance there": {placedView(allOf(ofPool, instanceIn("created"))), stepWait,
			"InstanceCreated=Created"},
		"running":               {runningView(nothing), stepWait, "Ready=Ready"},
		"running, no finalizer": {runningView(noFinalizer), stepKeep, ""},
		"running, unhealthy": {runningView(func(v *view) {
			v.shards[1].instance.Health = "unhealthy"
		}), stepWait, "Ready=NotReady"},
		"running, new leader": {runningView(func(v *view) {
			v.shards[1].instance.Health = "unknown"
		}), stepWait, "Ready=Ready"},
		"running, stopped": {runningView(func(v *view) {
			v.shards[1].instance.ProviderState = "stopped"
		}), stepWait, "Ready=WaitingForInstance"},
		"running, shard unreachable": {runningView(unreachable), stepWait, "Ready=Ready"},
		"running, shard unreachable, absent": {runningView(allOf(unreachable, absent)), stepWait,
			"ShardReachable=Unreachable"},
		"running, shard unreachable, deleted": {runningView(allOf(unreachable, instanceIn("deleted"))), stepWait,
			"ShardReachable=Unreachable"},
		"running, shard unsynced, absent": {runningView(allOf(unsynced, absent)), stepWait,
			"ShardReachable=WaitingForShard"},
		"running, shard unknown":       {runningView(unknown), stepWait, "ShardReachable=UnknownShard"},
		"running, absent":              {runningView(absent), stepAsk, ""},
		"running, absent, call fails":  {runningView(allOf(absent, faulty)), stepWait, "Ready=Ready"},
		"running, absent and NotFound": {runningView(missing), stepDeleteOwner, "ServerDeleted=InstanceGone"},
		"running, being deleted":       {runningView(instanceIn("deleting")), stepWait, "Ready=Deleting"},
		"deleted by the server": {runningView(instanceIn("deleted")), stepDeleteOwner,
			"ServerDeleted=InstanceGone"},
		"deleted by the server, no Machine": {runningView(allOf(instanceIn("deleted"), noOwner)), stepDeleteSelf,
			"ServerDeleted=InstanceGone"},
		"deleted, Machine goes":  {runningView(allOf(ended, ownerGoes)), stepWait, "Ready=InstanceGone"},
		"deleted, stays so":      {runningView(ended), stepDeleteOwner, "Ready=InstanceGone"},
		"deleted, shard unknown": {runningView(allOf(ended, unknown)), stepDeleteOwner, ""},

		"end, no finalizer": {newView(deleted), stepWait, ""},
		"end before an ID": {newView(allOf(deleted, func(v *view) {
			v.machine.Finalizers = []string{v1beta1.MachineFinalizer}
		})), stepRelease, ""},
		"end between ID and instance":         {placedView(deleted), stepDestroy, ""},
		"end":                                 {runningView(deleted), stepDestroy, "Ready=Deleting"},
		"end, Machine gone":                   {runningView(allOf(deleted, ownerGone)), stepDestroy, ""},
		"end of a gone instance":              {runningView(allOf(deleted, ended)), stepRelease, ""},
		"end of a gone instance, unreachable": {runningView(allOf(deleted, ended, unreachable)), stepRelease, ""},
		"end, silent":                         {runningView(allOf(deleted, unreachable)), stepWait, "Ready=Deleting"},
		"end, unreachable, mirror shows deleted": {runningView(allOf(deleted, unreachable, instanceIn("deleted"))),
			stepWait,
			"ShardReachable=Unreachable"},
		"end, unsynced": {runningView(allOf(deleted, unsynced)), stepWait, "ShardReachable=WaitingForShard"},

		"end, unknown shard":          {runningView(allOf(deleted, unknown)), stepWait, "Ready=Deleting"},
		"end, unknown shard, skipped": {runningView(allOf(deleted, unknown, skipped)), stepRelease, ""},
		"end, silent, skipped":        {runningView(allOf(deleted, unreachable, skipped)), stepRelease, ""},
		"end, skipped, but answers":   {runningView(allOf(deleted, skipped)), stepDestroy, ""},
		"end, Cluster ends":           {runningView(allOf(deleted, clusterEnds)), stepDestroy, ""},
		"Cluster ends, no shard":      {newView(clusterEnds), stepWait, "InstanceCreated=WaitingForMachine"},
		"Cluster ends, no instance":   {placedView(clusterEnds), stepWait, "InstanceCreated=WaitingForMachine"},
		"Cluster ends, running":       {runningView(clusterEnds), stepWait, "Ready=Ready"},
		"end of a pool machine, Cluster ends": {runningView(allOf(deleted, ofPool, clusterEnds)), stepRelease,
			""},
		"end, being deleted": {runningView(allOf(deleted, instanceIn("deleting"))), stepWait, "Ready=Deleting"},
		"end, deleted":       {runningView(allOf(deleted, instanceIn("deleted"))), stepRelease, ""},
		"end, NotFound":      {runningView(allOf(deleted, missing)), stepRelease, ""},
		"end, no answer":     {runningView(allOf(deleted, faulty)), stepWait, "Ready=Deleting"},
		"end, deletion requested, mirror lags": {runningView(allOf(deleted, func(v *view) {
			v.machine.Status.State = "deleting"
		})), stepWait, ""},
		"end, deletion requested, dropped from the mirror": {runningView(allOf(deleted, absent, func(v *view) {
			v.machine.Status.State = "deleting"
		})), stepAsk, ""},
		"end of a pool machine":              {runningView(allOf(deleted, ofPool, ownerGoes)), stepDestroy, ""},
		"end of a pool machine, no Machine":  {runningView(allOf(deleted, ofPool, noOwner)), stepDestroy, ""},
		"end of a pool machine, not Machine": {runningView(allOf(deleted, ofPool)), stepRelease, ""},
		"end, pool being deleted": {runningView(allOf(deleted, ofPool, func(v *view) {
			v.poolGone = true
		})), stepRelease, ""},
		"end, pool being deleted, unreachable": {runningView(allOf(deleted, ofPool, unreachable, func(v *view) {
			v.poolGone = true
		})), stepRelease, ""},
		"end, pool and Machine of a static group being deleted": {runningView(allOf(deleted, ofPool, ownerGoes,
			ofStatic, func(v *view) { v.poolGone = true })), stepDestroy, ""},
		"end, pool and Machine being deleted, shard silent": {runningView(allOf(deleted, ofPool, ownerGoes, ofStatic,
			unreachable, func(v *view) { v.poolGone = true })), stepWait, "Ready=Deleting"},
		"end, pool and Machine being deleted, groups unknown": {runningView(allOf(deleted, ofPool, ownerGoes, unsynced,
			func(v *view) { v.poolGone = true })), stepWait, "Ready=Deleting"},
		"end, pool and Machine of a dynamic group being deleted": {runningView(allOf(deleted, ofPool, ownerGoes,
			func(v *view) { v.poolGone = true })), stepRelease, ""},
		"end, Machine of a static group drained, Cluster ends": {runningView(allOf(deleted, ofPool, ownerDrained,
			ofStatic, clusterEnds)), stepDestroy, ""},
		"end, Machine of a static group not drained, Cluster ends": {runningView(allOf(deleted, ofPool, ownerGoes,
			ofStatic, clusterEnds)), stepRelease, ""},
		"end, Machine of a dynamic group drained, Cluster ends": {runningView(allOf(deleted, ofPool, ownerDrained,
			clusterEnds)), stepRelease, ""},
		"end, pool of a static group being deleted": {runningView(allOf(deleted, ofPool, ofStatic, func(v *view) {
			v.poolGone = true
		})), stepRelease, ""},
		"end, no pool machine": {runningView(allOf(deleted, func(v *view) {
			v.poolGone = true
		})), stepDestroy, ""},
		"end of a pool machine, gone": {runningView(allOf(deleted, ofPool, ended)), stepRelease, ""},
		"end of a pool machine without an ID": {newView(allOf(deleted, ofPool, func(v *view) {
			v.machine.Finalizers = []string{v1beta1.MachineFinalizer}
		})), stepRelease, ""},
	} {
		t.Run(name, func(t *testing.T) {
			before := c.view.machine.DeepCopy()
			d := decide(c.view)
			if d.step != c.want {
				t.Errorf("step %q, want %q; conditions %+v", d.step, c.want, d.status.Conditions)
			}
			if c.condition != "" && !hasCondition(d.status.Conditions, c.condition) {
				t.Errorf("condition %s is missing from %+v", c.condition, d.status.Conditions)
			}
			if diff := diffObjects(before, c.view.machine); diff != "" {
				t.Errorf("the decision modified its input:\n%s", diff)
			}
			// Deciding again with the resulting status must change nothing.
			after := c.view
			after.machine = c.view.machine.DeepCopy()
			after.machine.Status = d.status
			if again := decide(after); diffObjects(again.status, d.status) != "" && !c.view.paused {
				t.Errorf("a second decision changes the status:\n%s", diffObjects(d.status, again.status))
			}
		})
	}
}

func hasCondition(conditions []metav1.Condition, want string) bool {
	for _, c := range conditions {
		if c.Type+"="+c.Reason == want {
			return true
		}
	}
	return false
}

func TestChooseShard(t *testing.T) {
	loaded := func(b, c int) func(*view) {
		return func(v *view) { v.shards[1].load, v.shards[2].load = b, c }
	}
	for name, c := range map[string]struct {
		change func(*view)
		want   string
	}{
		"fewest instances":             {loaded(2, 3), "b"},
		"fewest instances in the last": {loaded(4, 3), "c"},
		"the emptier one is silent":    {allOf(loaded(0, 3), unreachable), "c"},
		"the emptier one is unsynced":  {allOf(loaded(0, 3), unsynced), "c"},
		"named by the machine":         {allOf(loaded(0, 3), func(v *view) { v.machine.Spec.Shard = "c" }), "c"},
		"failure domain": {allOf(loaded(0, 3), func(v *view) {
			v.owner.Spec.FailureDomain = "c"
		}), "c"},
		"the machine precedes failure domain": {func(v *view) {
			v.owner.Spec.FailureDomain, v.machine.Spec.Shard = "c", "b"
		}, "b"},
	} {
		if d := decide(newView(c.change)); d.step != stepChoose || d.shard != c.want || d.kind != "wrk" {
			t.Errorf("%s: %s on %q of kind %q", name, d.step, d.shard, d.kind)
		}
	}
	// Machines that are created together see the same number of instances on each shard, so only the hash spreads them.
	chosen := map[string]int{}
	for i := range 100 {
		chosen[decide(newView(func(v *view) { v.machine.UID = types.UID(fmt.Sprint(i)) })).shard]++
	}
	if chosen["b"] < 35 || chosen["c"] < 35 || chosen["b"]+chosen["c"] != 100 {
		t.Errorf("100 machines chose %v", chosen)
	}
}

func TestStatus(t *testing.T) {
	v := runningView(func(*view) {})
	got := decide(v).status
	yes := true
	want := v1beta1.NstanceMachineStatus{
		Initialization: v1beta1.Initialization{Provisioned: &yes}, InstanceID: someID, Ready: true, State: "registered",
		FailureDomain: "b", ObservedGeneration: 1,
		Addresses: clusterv1.MachineAddresses{{Type: clusterv1.MachineHostName, Address: "host"},
			{Type: clusterv1.MachineInternalIP, Address: "10.0.0.1"},
			{Type: clusterv1.MachineInternalIP, Address: "fd00::1"}},
		Conditions: got.Conditions,
	}
	if diff := diffObjects(want, got); diff != "" {
		t.Error(diff)
	}
	for name, change := range map[string]func(*view){
		"a provider ID that never was": func(v *view) {
			v.machine.Spec.ProviderID = ""
			v.shards[1].instance.ProviderId = ""
		},
		"a machine that is not running": func(v *view) {
			v.shards[1].instance.ProviderState, v.shards[1].instance.State = "pending", "created"
		},
	} {
		v := runningView(change)
		v.machine.Status = v1beta1.NstanceMachineStatus{}
		if s := decide(v).status; s.Initialization.Provisioned != nil || hasCondition(s.Conditions, "Ready=Ready") {
			t.Errorf("%s: provisioned %+v", name, s)
		}
	}
	// A registered instance counts as running, although the provider last reported "pending".
	booted := runningView(func(v *view) { v.shards[1].instance.ProviderState = "pending" })
	booted.machine.Status = v1beta1.NstanceMachineStatus{}
	if s := decide(booted).status; s.Initialization.Provisioned == nil || !s.Ready {
		t.Errorf("a registered instance is not provisioned: %+v", s)
	}
	// A provisioned machine stays provisioned, even if a mirror that lags behind shows an earlier state.
	stopped := runningView(func(v *view) {
		v.shards[1].instance.ProviderState, v.shards[1].instance.State = "stopped", "created"
	})
	if s := decide(stopped).status; s.Initialization.Provisioned == nil || s.State != "registered" || s.Ready {
		t.Errorf("%+v", s)
	}
}

// TestDrainLimit checks that Cluster API's drain of a Machine that the operator is responsible for, and its wait for
// volumes, are limited by the drain timeout of the group.
func TestDrainLimit(t *testing.T) {
	timeout := func(d time.Duration) func(*view) {
		return func(v *view) { v.shards[1].group.MergedJson = `{"drain_timeout":"` + d.String() + `"}` }
	}
	limited := func(drain, detach int32) func(*view) {
		return func(v *view) {
			v.owner.Spec.Deletion.NodeDrainTimeoutSeconds = &drain
			v.owner.Spec.Deletion.NodeVolumeDetachTimeoutSeconds = &detach
		}
	}
	onDemand := func(v *view) { v.owner.Labels = map[string]string{v1beta1.PodUIDLabel: "1"} }
	for name, test := range map[string]struct {
		change func(*view)
		want   int32 // 0 for no change
	}{
		"pool":            {allOf(ofPool, timeout(time.Minute)), 60},
		"on-demand":       {allOf(onDemand, timeout(time.Minute)), 60},
		"of a user":       {timeout(time.Minute), 0},
		"limited already": {allOf(ofPool, timeout(time.Minute), limited(60, 60)), 0},
		"changed":         {allOf(ofPool, timeout(time.Minute), limited(20, 60)), 60},
		"volumes":         {allOf(ofPool, timeout(time.Minute), limited(60, 0)), 60},
		"none":            {allOf(ofPool, timeout(0)), 1},
		"part of second":  {allOf(ofPool, timeout(1500*time.Millisecond)), 2},
		"unknown":         {ofPool, 0},
		"no Machine":      {allOf(ofPool, timeout(time.Minute), noOwner), 0},
		"unknown shard":   {allOf(ofPool, timeout(time.Minute), unknown), 0},
	} {
		v := runningView(test.change)
		if got := ptr.Deref(drainLimit(&v), 0); got != test.want {
			t.Errorf("%s: limit %d, want %d", name, got, test.want)
		}
	}
}

// TestPreservedMachine checks that the machine of a preserved instance is not ready, even if its agent reports healthy.
func TestPreservedMachine(t *testing.T) {
	d := decide(runningView(func(v *view) {
		i := v.shards[1].instance
		i.PreservedAt, i.PreservedUntil = timestamppb.New(v.now.Time), timestamppb.New(v.now.Add(24*time.Hour))
		i.PreserveReason = "it runs but is silent (rule 12)"
	}))
	ready := meta.FindStatusCondition(d.status.Conditions, v1beta1.ReadyCondition)
	if d.step != stepWait || d.status.Ready || ready.Reason != v1beta1.PreservedReason || ready.Message !=
		"the instance failed, was replaced, and is kept until 2026-07-29T10:00:00Z: it runs but is silent (rule 12)" {
		t.Errorf("%s: %+v", d.step, ready)
	}
}
