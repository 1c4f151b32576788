package machine

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

const someID = "wrk01k1bnbb2we2dbk3cgk8v7tz41"

// viewOf is an individual machine with its Machine, a shard that has the group, and nothing done yet.
func viewOf(change func(*view)) view {
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

// placed has its ID, shard and finalizer.
func placed(change func(*view)) view {
	return viewOf(func(v *view) {
		v.machine.Finalizers = []string{v1beta1.MachineFinalizer}
		v.machine.Spec.Shard, v.machine.Spec.InstanceID = "b", someID
		change(v)
	})
}

// running has an instance that runs, and a status that says so.
func running(change func(*view)) view {
	v := placed(func(v *view) {
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

func gone(v *view) {
	meta.SetStatusCondition(&v.machine.Status.Conditions, metav1.Condition{Type: v1beta1.ServerDeletedCondition,
		Status: metav1.ConditionTrue,
		Reason: v1beta1.InstanceGoneReason})
}

func both(fns ...func(*view)) func(*view) {
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
func noFinalizer(v *view) { v.machine.Finalizers = nil }
func noOwner(v *view)     { v.owner = nil }
func ownerGone(v *view)   { v.owner, v.ownerGone = nil, true }
func ownerGoes(v *view) {
	at := v.now
	v.owner.DeletionTimestamp = &at
}

func TestDecide(t *testing.T) {
	nothing := func(*view) {}
	for name, c := range map[string]struct {
		view view
		want step
		// condition "Type=Reason" that must be there.
		condition string
	}{
		"paused": {viewOf(func(v *view) { v.paused = true }), wait, "Paused=Paused"},
		"paused and deleted": {running(both(deleted, func(v *view) {
			v.paused = true
		})), wait, "Paused=Paused"},
		"not paused":         {running(nothing), wait, "Paused=NotPaused"},
		"no Machine yet":     {viewOf(noOwner), wait, "InstanceCreated=WaitingForMachine"},
		"Machine is deleted": {viewOf(ownerGoes), wait, "InstanceCreated=WaitingForMachine"},
		"Machine is gone":    {viewOf(ownerGone), deleteSelf, ""},
		"bootstrap unset": {viewOf(func(v *view) {
			v.owner.Spec.Bootstrap.DataSecretName = nil
		}), wait, "Ready=WaitingForMachine"},
		"place": {viewOf(nothing), choose, ""},
		"place on an unknown shard": {viewOf(func(v *view) {
			v.machine.Spec.Shard = "x"
		}), wait, "InstanceCreated=UnknownShard"},
		"place on a silent shard": {viewOf(both(unreachable, func(v *view) {
			v.machine.Spec.Shard = "b"
		})), wait, "InstanceCreated=WaitingForShard"},
		"place on an unsynced shard": {viewOf(both(unsynced, func(v *view) {
			v.machine.Spec.Shard = "b"
		})), wait, "InstanceCreated=WaitingForShard"},
		"place without the group": {viewOf(func(v *view) {
			v.machine.Spec.Shard = "a"
		}), wait, "InstanceCreated=Refused"},
		"place, group being deleted": {viewOf(func(v *view) {
			v.shards[1].group.Deleting = true
			v.machine.Spec.Shard = "b"
		}), wait, "InstanceCreated=Refused"},
		"place, nobody has the group": {viewOf(func(v *view) {
			v.shards = v.shards[:1]
		}), wait, "InstanceCreated=Refused"},
		"place, one may have the group": {viewOf(both(unreachable, func(v *view) {
			v.shards = v.shards[:2]
		})), wait, "InstanceCreated=WaitingForShard"},
		"place, no shards": {viewOf(func(v *view) { v.shards = nil }), wait, "InstanceCreated=Refused"},
		"failure domain": {viewOf(func(v *view) {
			v.owner.Spec.FailureDomain = "a"
		}), wait, "InstanceCreated=Refused"},
		"ID without a shard":         {viewOf(func(v *view) { v.machine.Spec.InstanceID = someID }), choose, ""},
		"pool machine without an ID": {viewOf(ofPool), wait, "InstanceCreated=WaitingForInstance"},

		"create":                     {placed(nothing), create, ""},
		"create needs the finalizer": {placed(noFinalizer), keep, ""},
		"create, Machine gone":       {placed(ownerGone), deleteSelf, ""},
		"create, Machine goes":       {placed(ownerGoes), wait, "InstanceCreated=WaitingForMachine"},
		"create, no Machine":         {placed(noOwner), wait, "InstanceCreated=WaitingForMachine"},
		"create, shard silent":       {placed(unreachable), wait, "InstanceCreated=Unreachable"},
		"create, shard unsynced":     {placed(unsynced), wait, "ShardReachable=WaitingForShard"},
		"create, shard unknown":      {placed(unknown), wait, "ShardReachable=UnknownShard"},
		"create failed":              {placed(faulty), wait, "InstanceCreated=CreateFailed"},
		"created before":             {placed(missing), deleteOwner, "ServerDeleted=InstanceGone"},
		"created, mirrored":          {placed(instanceIn("created")), wait, "InstanceCreated=Created"},
		"answered": {placed(func(v *view) {
			v.answer = &answer{&nstancev1.InstanceStatus{InstanceId: someID, State: "created"}}
		}), wait, "InstanceCreated=Created"},
		"provider ID": {placed(func(v *view) {
			instanceIn("created")(v)
			v.shards[1].instance.ProviderId = "test:///1"
		}), keep, ""},
		"reserved":                      {placed(instanceIn("reserved")), wait, "Ready=WaitingForInstance"},
		"pool machine is never created": {placed(ofPool), ask, ""},
		"pool machine, server has not":  {placed(both(ofPool, missing)), deleteOwner, "ServerDeleted=InstanceGone"},
		"pool machine, no Machine": {placed(both(ofPool, missing, noOwner)), deleteSelf,
			"ServerDeleted=InstanceGone"},
		"pool machine, Machine gone": {running(both(ofPool, ownerGone)), wait, "Ready=Ready"},
		"pool machine, instance there": {placed(both(ofPool, instanceIn("created"))), wait,
			"InstanceCreated=Created"},
		"running":               {running(nothing), wait, "Ready=Ready"},
		"running, no finalizer": {running(noFinalizer), keep, ""},
		"running, unhealthy": {running(func(v *view) {
			v.shards[1].instance.Health = "unhealthy"
		}), wait, "Ready=NotReady"},
		"running, new leader": {running(func(v *view) {
			v.shards[1].instance.Health = "unknown"
		}), wait, "Ready=Ready"},
		"running, stopped": {running(func(v *view) {
			v.shards[1].instance.ProviderState = "stopped"
		}), wait, "Ready=WaitingForInstance"},
		"running, shard silent":         {running(unreachable), wait, "Ready=Ready"},
		"running, shard silent, absent": {running(both(unreachable, absent)), wait, "ShardReachable=Unreachable"},
		"running, shard silent, deleted": {running(both(unreachable, instanceIn("deleted"))), wait,
			"ShardReachable=Unreachable"},
		"running, shard unsynced, absent":   {running(both(unsynced, absent)), wait, "ShardReachable=WaitingForShard"},
		"running, shard unknown":            {running(unknown), wait, "ShardReachable=UnknownShard"},
		"running, absent":                   {running(absent), ask, ""},
		"running, absent, nobody to answer": {running(both(absent, faulty)), wait, "Ready=Ready"},
		"running, absent and NotFound":      {running(missing), deleteOwner, "ServerDeleted=InstanceGone"},
		"running, being deleted":            {running(instanceIn("deleting")), wait, "Ready=Deleting"},
		"deleted by the server": {running(instanceIn("deleted")), deleteOwner,
			"ServerDeleted=InstanceGone"},
		"deleted by the server, no Machine": {running(both(instanceIn("deleted"), noOwner)), deleteSelf,
			"ServerDeleted=InstanceGone"},
		"deleted, Machine goes":  {running(both(gone, ownerGoes)), wait, "Ready=InstanceGone"},
		"deleted, stays so":      {running(gone), deleteOwner, "Ready=InstanceGone"},
		"deleted, shard unknown": {running(both(gone, unknown)), deleteOwner, ""},

		"end, no finalizer": {viewOf(deleted), wait, ""},
		"end before an ID": {viewOf(both(deleted, func(v *view) {
			v.machine.Finalizers = []string{v1beta1.MachineFinalizer}
		})), release, ""},
		"end between ID and instance": {placed(deleted), destroy, ""},
		"end":                         {running(deleted), destroy, "Ready=Deleting"},
		"end, Machine gone":           {running(both(deleted, ownerGone)), destroy, ""},
		"end of what is gone":         {running(both(deleted, gone)), release, ""},
		"end of what is gone, silent": {running(both(deleted, gone, unreachable)), release, ""},
		"end, silent":                 {running(both(deleted, unreachable)), wait, "Ready=Deleting"},
		"end, silent, says deleted": {running(both(deleted, unreachable, instanceIn("deleted"))), wait,
			"ShardReachable=Unreachable"},
		"end, unsynced":      {running(both(deleted, unsynced)), wait, "ShardReachable=WaitingForShard"},
		"end, unknown shard": {running(both(deleted, unknown)), release, ""},
		"end, being deleted": {running(both(deleted, instanceIn("deleting"))), wait, "Ready=Deleting"},
		"end, deleted":       {running(both(deleted, instanceIn("deleted"))), release, ""},
		"end, NotFound":      {running(both(deleted, missing)), release, ""},
		"end, no answer":     {running(both(deleted, faulty)), wait, "Ready=Deleting"},
		"end, asked, mirror behind": {running(both(deleted, func(v *view) {
			v.machine.Status.State = "deleting"
		})), wait, ""},
		"end, asked, mirror forgot": {running(both(deleted, absent, func(v *view) {
			v.machine.Status.State = "deleting"
		})), ask, ""},
		"end of a pool machine": {running(both(deleted, ofPool)), destroy, ""},
		"end, pool goes": {running(both(deleted, ofPool, func(v *view) {
			v.poolGone = true
		})), release, ""},
		"end, pool goes, silent": {running(both(deleted, ofPool, unreachable, func(v *view) {
			v.poolGone = true
		})), release, ""},
		"end, no pool machine":        {running(both(deleted, func(v *view) { v.poolGone = true })), destroy, ""},
		"end of a pool machine, gone": {running(both(deleted, ofPool, gone)), release, ""},
		"end of a pool machine, wrong": {viewOf(both(deleted, ofPool, func(v *view) {
			v.machine.Finalizers = []string{v1beta1.MachineFinalizer}
		})), release, ""},
	} {
		t.Run(name, func(t *testing.T) {
			before := c.view.machine.DeepCopy()
			d := decide(c.view)
			if d.step != c.want {
				t.Errorf("step %q, want %q; conditions %+v", d.step, c.want, d.status.Conditions)
			}
			if c.condition != "" && !hasCondition(d.status.Conditions, c.condition) {
				t.Errorf("no %s among %+v", c.condition, d.status.Conditions)
			}
			if diff := diffObjects(before, c.view.machine); diff != "" {
				t.Errorf("the machine was changed:\n%s", diff)
			}
			// The status that a decision asks for is what it would ask for again: nothing is written twice.
			after := c.view
			after.machine = c.view.machine.DeepCopy()
			after.machine.Status = d.status
			if again := decide(after); diffObjects(again.status, d.status) != "" && !c.view.paused {
				t.Errorf("does not settle:\n%s", diffObjects(d.status, again.status))
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

func TestPlaceTakesTheFirstShard(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*view)
		want   string
	}{
		"first that has the group": {func(*view) {}, "b"},
		"first is silent":          {unreachable, "c"},
		"first is unsynced":        {unsynced, "c"},
		"asked for":                {func(v *view) { v.machine.Spec.Shard = "c" }, "c"},
		"failure domain":           {func(v *view) { v.owner.Spec.FailureDomain = "c" }, "c"},
		"asked for goes first": {func(v *view) {
			v.owner.Spec.FailureDomain, v.machine.Spec.Shard = "c", "b"
		}, "b"},
	} {
		if d := decide(viewOf(c.change)); d.step != choose || d.shard != c.want || d.kind != "wrk" {
			t.Errorf("%s: %s on %q of kind %q", name, d.step, d.shard, d.kind)
		}
	}
}

func TestStatus(t *testing.T) {
	v := running(func(*view) {})
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
		v := running(change)
		v.machine.Status = v1beta1.NstanceMachineStatus{}
		if s := decide(v).status; s.Initialization.Provisioned != nil || hasCondition(s.Conditions, "Ready=Ready") {
			t.Errorf("%s: provisioned %+v", name, s)
		}
	}
	// An agent that has registered runs on a machine that runs, whatever the provider said before.
	booted := running(func(v *view) { v.shards[1].instance.ProviderState = "pending" })
	booted.machine.Status = v1beta1.NstanceMachineStatus{}
	if s := decide(booted).status; s.Initialization.Provisioned == nil || !s.Ready {
		t.Errorf("registered, but said to be pending: %+v", s)
	}
	// Once provisioned, for ever; and what the mirror forgot does not take it back.
	stopped := running(func(v *view) {
		v.shards[1].instance.ProviderState, v.shards[1].instance.State = "stopped", "created"
	})
	if s := decide(stopped).status; s.Initialization.Provisioned == nil || s.State != "registered" || s.Ready {
		t.Errorf("%+v", s)
	}
}
