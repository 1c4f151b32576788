package pool

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// randomUser does what users, servers and networks do, in random order.
type randomUser struct {
	*simulatedOperator
	unreachable map[string]bool
	// foreign are the settings of other clients, by the name of the shard group.
	foreign map[string]map[string]any
	log     []string
}

var testShards = []string{"a", "b", "c"}

// alwaysDynamic is a group that is static on no shard.
const alwaysDynamic = "job"

func (user *randomUser) randomShard() string { return testShards[user.random.IntN(len(testShards))] }

// randomPool returns a random pool that is not being deleted, nil if there is none.
func (user *randomUser) randomPool() *v1beta1.NstanceMachinePool {
	pools := slices.DeleteFunc(user.allPools(), func(pool v1beta1.NstanceMachinePool) bool {
		return !pool.DeletionTimestamp.IsZero()
	})
	if len(pools) == 0 {
		return nil
	}
	return &pools[user.random.IntN(len(pools))]
}

// makeRandomChange makes a random change and logs it.
func (user *randomUser) makeRandomChange() {
	user.t.Helper()
	name, shard := []string{"web", "db", "job"}[user.random.IntN(3)], user.randomShard()
	pool := user.randomPool()
	did := ""
	switch k := user.random.IntN(14); {
	case k < 3 && pool != nil:
		n := user.random.Int32N(9)
		did = fmt.Sprintf("scale %s to %d", pool.Name, n)
		user.scale(pool.Name, n)
	case k == 3:
		did = "lose " + shard
		user.unreachable[shard] = true
		user.shards.Of(shard).SetState(func(s *shards.State) { s.Reachable, s.Err = false, "lost" })
	case k == 4 || k == 5:
		if lost := slices.Sorted(maps.Keys(user.unreachable)); len(lost) > 0 {
			did = "find " + lost[0]
			user.reconnect(lost[0])
		}
	case k == 6 && !user.unreachable[shard]:
		if groups := user.shards.Of(shard).Groups(); len(groups) > 0 {
			g, n := groups[user.random.IntN(len(groups))], uint32(user.random.IntN(9))
			patch := user.drift(g, n)
			did = fmt.Sprintf("drift of %s on %s: %s", g.GetGroup(), shard, patch)
			if _, err := user.shards.Of(shard).API().UpsertGroup(user.t.Context(),
				&nstancev1.UpsertGroupRequest{Group: g.GetGroup(), Patch: patch}); err != nil {
				user.t.Fatal(err)
			}
		}
	case k == 7:
		if _, ok := user.shards.Of(shard).Group(name); !ok && name != alwaysDynamic {
			did = fmt.Sprintf("tofu adds %s to %s", name, shard)
			user.shards.Of(shard).SetGroup(staticGroup(name, uint32(user.random.IntN(4))))
		}
	case k == 8 && !user.exists(name, &v1beta1.NstanceMachinePool{}):
		if slices.ContainsFunc(testShards, func(id string) bool {
			_, ok := user.shards.Of(id).Group(name)
			return ok
		}) {
			break // the group will be imported
		}
		did = "make pool " + name
		user.newPool(name, user.random.Int32N(9), v1beta1.NstanceMachinePoolSpec{Group: name,
			Shards: testShards[:1+user.random.IntN(3)], Config: user.randomConfig(name)})
	case k == 9 && pool != nil:
		list := slices.Clone(testShards)
		user.random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		list = list[:1+user.random.IntN(len(list))]
		did = fmt.Sprintf("%s over %v", pool.Name, list)
		user.change(pool, func() {
			pool.Spec.Shards = list
			// A shard that gets the group needs its template.
			pool.Spec.Config = treeConfig(config.MergePatch(configTree(pool.Spec.Config), configTree(fromWorker())))
		})
	case k == 10 && pool != nil && user.random.IntN(2) == 0:
		did = "delete " + pool.Name
		user.deletePool(pool.Name)
	case k == 11 && pool != nil:
		user.change(pool, func() { pool.Spec.Config = user.randomConfig(pool.Spec.Group) })
		did = fmt.Sprintf("config of %s: %s", pool.Name, pool.Spec.Config.Raw)
	case k == 12:
		if groups := user.shards.Of(shard).Groups(); len(groups) > 0 {
			group := groups[user.random.IntN(len(groups))].GetGroup()
			did = "spare " + user.shards.Of(shard).AddSpare(group) + " of " + group
		}
	case k == 13:
		if spare, member := user.randomSpare(shard); spare != "" {
			did = fmt.Sprintf("spare %s takes the place of %s", spare, member)
			user.shards.Of(shard).Promote(spare, member)
		}
	default:
		if list := user.shards.Of(shard).Instances(""); len(list) > 0 {
			i := list[user.random.IntN(len(list))]
			did = "kill " + i.GetInstanceId()
			user.shards.Of(shard).Kill(i.GetInstanceId())
		}
	}
	if did != "" {
		user.log = append(user.log, did)
	}
}

// randomSpare returns a spare of a shard and a member of its group, or nothing if there are none.
func (user *randomUser) randomSpare(shard string) (spare, member string) {
	list := user.shards.Of(shard).Instances("")
	user.random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	for _, s := range list {
		for _, m := range list {
			if s.GetSpare() && !m.GetSpare() && s.GetGroup() == m.GetGroup() && s.GetState() == m.GetState() {
				return s.GetInstanceId(), m.GetInstanceId()
			}
		}
	}
	return "", ""
}

// randomConfig returns random settings for a pool. The settings of a group that may be static are only those that
// operators may change.
func (user *randomUser) randomConfig(group string) *apiextensionsv1.JSON {
	patches := []string{`{"instance_type":"m5.large"}`, `{"instance_type":"c5.large"}`, `{"instance_type":""}`,
		`{"vars":{"n":"1"}}`, `{"vars":{"n":"2"}}`, `{"vars":{"m":""}}`, `{"vars":{}}`}
	if group == alwaysDynamic {
		patches = append(patches, `{"rollout":{"canary":1}}`, `{"rollout":{"canary":0,"bake_time":"60s"}}`,
			`{"max_unhealthy":"50%"}`, `{"drain_timeout":"90s"}`, `{"args":{"x":{"y":[1,{"z":2.0}]}}}`,
			`{"args":{"x":{}}}`, `{"args":{"x":7}}`, `{"disruption":{"max_per_hour":3}}`)
	}
	settings := parseTree(`{"template":"worker"}`)
	for range user.random.IntN(5) {
		settings = config.MergePatch(settings, parseTree(patches[user.random.IntN(len(patches))]))
	}
	return treeConfig(settings)
}

// drift returns the patch of another client. The operator reverts the size, and the template of a dynamic group, which
// its pool always sets. Pools never set the other fields.
func (user *randomUser) drift(g *nstancev1.GroupStatus, size uint32) string {
	patches := []string{`{}`, `{"rollout":{"paused":true}}`, `{"rollout":{"revision":"r"}}`}
	if !g.GetIsStatic() {
		patches = append(patches, `{"template":"drifted"}`, `{"max_surge":3}`, `{"rollout":{"halt_on_failures":2}}`)
	}
	patch := parseTree(patches[user.random.IntN(len(patches))])
	patch["size"] = size
	return treeJSON(patch)
}

// updateForeign updates the settings of other clients from the calls to the shards.
func (user *randomUser) updateForeign() {
	for _, shard := range testShards {
		for _, call := range user.shards.Of(shard).Calls() {
			method, rest, _ := strings.Cut(call, " ")
			group, patch, _ := strings.Cut(rest, " ")
			key := v1beta1.ShardGroupName(group, shard)
			switch method {
			case "DeleteGroup":
				delete(user.foreign, key)
			case "UpsertGroup":
				fields := parseTree(patch)
				for name := range fields {
					if rollout, _ := fields["rollout"].(map[string]any); name != "max_surge" &&
						(name != "rollout" || rollout["canary"] != nil || rollout["bake_time"] != nil) {
						delete(fields, name)
					}
				}
				if user.foreign[key] == nil {
					user.foreign[key] = map[string]any{}
				}
				user.foreign[key] = config.MergePatch(user.foreign[key], without(fields, map[string]any{
					"rollout": map[string]any{"canary": nil, "bake_time": nil}}, nil))
			}
		}
	}
}

// wrongSettings compares the own settings of a group with the pool's config and the settings of other clients.
func (user *randomUser) wrongSettings(pool *v1beta1.NstanceMachinePool, shard string, g *nstancev1.GroupStatus) string {
	pools := canonical(configTree(pool.Spec.Config))
	foreign := user.foreign[v1beta1.ShardGroupName(pool.Spec.Group, shard)]
	want := config.MergePatch(canonical(configTree(pool.Spec.Config)), parseTree(treeJSON(foreign)))
	want["size"] = float64(g.GetSize())
	have := canonical(ownSettings(g))
	if !g.GetIsStatic() {
		return cmp.Diff(want, have)
	}
	if missing := overrides(pools, nil, parseTree(g.GetMergedJson())); len(missing) > 0 {
		return fmt.Sprintf("not in force: %v", missing)
	}
	if missing := lostPath(foreign, have); missing != "" {
		return "the setting of another client was removed: " + missing
	}
	if extra := lostPath(have, want); extra != "" {
		return "not removed: " + extra
	}
	return ""
}

func (user *randomUser) reconnect(shard string) {
	delete(user.unreachable, shard)
	user.shards.Of(shard).SetState(func(s *shards.State) { s.Reachable, s.Err = true, "" })
}

// deleteOldMachines does the work of package machine: it deletes the machines of deleted instances.
func (user *randomUser) deleteOldMachines() {
	user.t.Helper()
	for _, m := range user.allMachines() {
		i, ok := user.shards.Of(m.Spec.Shard).Instance(m.Spec.InstanceID)
		if ok && i.GetState() != "deleted" {
			continue
		}
		m.Finalizers = nil
		if err := user.client.Update(user.t.Context(), &m); err != nil {
			user.t.Fatal(err)
		}
		if err := user.client.Delete(user.t.Context(), &m); client.IgnoreNotFound(err) != nil {
			user.t.Fatal(err)
		}
	}
}

// differences returns the differences between Kubernetes and the servers once nothing changes any more.
func (user *randomUser) differences() (wrong []string) {
	user.t.Helper()
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	want := map[string]types.UID{} // the owners of shard groups
	machines := map[string]bool{}
	for _, m := range user.allMachines() {
		machines[m.Name] = true
	}
	for _, pool := range user.allPools() {
		if !pool.DeletionTimestamp.IsZero() {
			if len(user.unreachable) == 0 {
				complain("%s is still being deleted", pool.Name)
			}
			continue
		}
		replicas := *user.machinePool(pool.Name).Spec.Replicas
		sum, spares, ids := int32(0), int32(0), []string{}
		quiet := true
		for _, share := range splitReplicas(replicas, pool.Spec.Shards) {
			name := v1beta1.ShardGroupName(pool.Spec.Group, share.Shard)
			want[name] = pool.UID
			if user.unreachable[share.Shard] {
				quiet = false
				continue
			}
			g, ok := user.shards.Of(share.Shard).Group(pool.Spec.Group)
			if !ok || g.GetDeleting() {
				complain("%s: shard %s does not have the group", pool.Name, share.Shard)
				continue
			}
			sum += int32(g.GetSize())
			// Not only the first shards in the spec may have the larger shares: if the order of the shards changes, no
			// instance moves.
			if low := replicas / int32(len(pool.Spec.Shards)); int32(g.GetSize()) < low || int32(g.GetSize()) > low+1 ||
				int32(g.GetSize()) != *user.group(name).Spec.Size {
				complain("%s: shard %s keeps %d, want %d or one more", pool.Name, share.Shard, g.GetSize(), low)
			}
			if wrong := user.wrongSettings(&pool, share.Shard, g); wrong != "" {
				complain("%s: settings on shard %s: %s", pool.Name, share.Shard, wrong)
			}
			for _, i := range user.shards.Of(share.Shard).Instances(pool.Spec.Group) {
				if i.GetSpare() {
					spares++
				} else {
					ids = append(ids, i.GetProviderId())
				}
				if machines[i.GetInstanceId()] == i.GetSpare() {
					complain("%s: %s has a machine: %t, want the opposite", pool.Name, i.GetInstanceId(), i.GetSpare())
				}
			}
		}
		if !quiet || len(user.unreachable) > 0 {
			continue
		}
		if sum != replicas {
			complain("%s: %d on the servers, %d wanted", pool.Name, sum, replicas)
		}
		if s := pool.Status.Spares; spares != ptr.Deref(ptr.Deref(s, v1beta1.SparesStatus{}).Actual, 0) {
			complain("%s: status of spares %+v, want %d", pool.Name, s, spares)
		}
		slices.Sort(ids)
		if *pool.Status.Replicas != replicas || *pool.Status.ReadyReplicas != replicas ||
			!slices.Equal(pool.Spec.ProviderIDList, ids) || !pool.Status.Ready ||
			condition(pool.Status.Conditions, "Ready") != "True Ready" ||
			condition(pool.Status.Conditions, "ShardsReachable") != "True Reachable" {
			complain("%s: status %+v, provider IDs %v, want %v", pool.Name, pool.Status, pool.Spec.ProviderIDList, ids)
		}
	}
	have := map[string]types.UID{}
	for _, g := range user.allGroups() {
		if !g.DeletionTimestamp.IsZero() && user.unreachable[g.Spec.Shard] {
			continue // it waits for its unreachable shard
		}
		if len(g.OwnerReferences) != 1 {
			complain("%s is owned by %v", g.Name, g.OwnerReferences)
			continue
		}
		have[g.Name] = g.OwnerReferences[0].UID
	}
	if len(user.unreachable) == 0 {
		if diff := cmp.Diff(want, have); diff != "" {
			complain("shard groups: %s", diff)
		}
		pooled := map[string]bool{}
		for _, pool := range user.allPools() {
			pooled[pool.Spec.Group] = true
		}
		for _, id := range testShards {
			for _, g := range user.shards.Of(id).Groups() {
				if !pooled[g.GetGroup()] {
					complain("group %s of shard %s has no pool", g.GetGroup(), id)
				}
			}
		}
	}
	return wrong
}

// TestSequences makes random changes. Whenever the system converges, the servers must match Kubernetes.
func TestSequences(t *testing.T) {
	games, moves := 25, 25
	if testing.Short() {
		games, moves = 4, 20
	}
	for seed := range games {
		op := newSimulatedOperator(t, testShards...)
		op.random = rand.New(rand.NewPCG(uint64(seed), 7))
		user := &randomUser{simulatedOperator: op, unreachable: map[string]bool{},
			foreign: map[string]map[string]any{}}
		for range moves {
			user.makeRandomChange()
			if user.random.IntN(3) == 0 {
				user.reconcileAll() // the next change comes before the reconcilers have converged
				continue
			}
			user.converge(seed)
		}
		for shard := range user.unreachable {
			user.reconnect(shard)
			user.log = append(user.log, "find "+shard)
		}
		user.converge(seed)
	}
}

// converge lets the system converge and checks it.
func (user *randomUser) converge(seed int) {
	user.t.Helper()
	user.settle()
	user.deleteOldMachines()
	user.settle()
	user.updateForeign()
	if wrong := user.differences(); len(wrong) > 0 {
		user.t.Fatalf("seed %d, after %q:\n%s", seed, user.log, fmt.Sprint(wrong))
	}
}
