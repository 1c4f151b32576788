package pool

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/distribute"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// player does what users, servers and networks do, in any order.
type player struct {
	*world
	lost map[string]bool
	log  []string
}

var testShards = []string{"a", "b", "c"}

func (p *player) shard() string { return testShards[p.random.IntN(len(testShards))] }

// alive picks a pool that is not being deleted; nil when there is none.
func (p *player) alive() *v1beta1.NstanceMachinePool {
	pools := slices.DeleteFunc(p.allPools(), func(pool v1beta1.NstanceMachinePool) bool {
		return !pool.DeletionTimestamp.IsZero()
	})
	if len(pools) == 0 {
		return nil
	}
	return &pools[p.random.IntN(len(pools))]
}

func (p *player) move() {
	p.t.Helper()
	name, shard := []string{"web", "db", "job"}[p.random.IntN(3)], p.shard()
	pool := p.alive()
	did := ""
	switch k := p.random.IntN(12); {
	case k < 3 && pool != nil:
		n := p.random.Int32N(9)
		did = fmt.Sprintf("scale %s to %d", pool.Name, n)
		p.scale(pool.Name, n)
	case k == 3:
		did = "lose " + shard
		p.lost[shard] = true
		p.shards.Of(shard).SetState(func(s *shards.State) { s.Reachable, s.Err = false, "lost" })
	case k == 4 || k == 5:
		if lost := slices.Sorted(maps.Keys(p.lost)); len(lost) > 0 {
			did = "find " + lost[0]
			p.find(lost[0])
		}
	case k == 6 && !p.lost[shard]:
		if groups := p.shards.Of(shard).Groups(); len(groups) > 0 {
			g, n := groups[p.random.IntN(len(groups))], uint32(p.random.IntN(9))
			did = fmt.Sprintf("drift of %s on %s to %d", g.GetGroup(), shard, n)
			if _, err := p.shards.Of(shard).API().UpsertGroup(p.t.Context(),
				&nstancev1.UpsertGroupRequest{Group: g.GetGroup(), Size: ptr.To(n),
					Template: templateOf(g)}); err != nil {
				p.t.Fatal(err)
			}
		}
	case k == 7:
		if _, ok := p.shards.Of(shard).Group(name); !ok {
			did = fmt.Sprintf("tofu adds %s to %s", name, shard)
			p.shards.Of(shard).SetGroup(static(name, uint32(p.random.IntN(4))))
		}
	case k == 8 && pool == nil, k == 8 && !p.exists(name, &v1beta1.NstanceMachinePool{}):
		if slices.ContainsFunc(testShards, func(id string) bool { _, ok := p.shards.Of(id).Group(name); return ok }) {
			break // it is imported
		}
		did = "make pool " + name
		p.newPool(name, p.random.Int32N(9), v1beta1.NstanceMachinePoolSpec{Group: name,
			Shards: testShards[:1+p.random.IntN(3)], InstanceType: "m5.large"})
	case k == 9 && pool != nil:
		list := slices.Clone(testShards)
		p.random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		list = list[:1+p.random.IntN(len(list))]
		did = fmt.Sprintf("%s over %v", pool.Name, list)
		p.change(pool, func() { pool.Spec.Shards = list })
	case k == 10 && pool != nil && p.random.IntN(2) == 0:
		did = "delete " + pool.Name
		p.deletePool(pool.Name)
	case k == 11 && pool != nil:
		did = "other type for " + pool.Name
		p.change(pool, func() {
			pool.Spec.InstanceType, pool.Spec.Vars = []string{"", "m5.large", "c5.large"}[p.random.IntN(3)],
				map[string]string{"n": fmt.Sprint(p.random.IntN(3))}
		})
	default:
		if list := p.shards.Of(shard).Instances(""); len(list) > 0 {
			i := list[p.random.IntN(len(list))]
			did = "kill " + i.GetInstanceId()
			p.shards.Of(shard).Kill(i.GetInstanceId())
		}
	}
	if did != "" {
		p.log = append(p.log, did)
	}
}

// templateOf is what may be said of a group's template: nothing of a static one's.
func templateOf(g *nstancev1.GroupStatus) string {
	if g.GetIsStatic() {
		return ""
	}
	return "drifted"
}

func (p *player) find(shard string) {
	delete(p.lost, shard)
	p.shards.Of(shard).SetState(func(s *shards.State) { s.Reachable, s.Err = true, "" })
}

// forget does what the machines' reconciler does: machines of instances that are gone go.
func (p *player) forget() {
	p.t.Helper()
	for _, m := range p.allMachines() {
		i, ok := p.shards.Of(m.Spec.Shard).Instance(m.Spec.InstanceID)
		if ok && i.GetState() != "deleted" {
			continue
		}
		m.Finalizers = nil
		if err := p.client.Update(p.t.Context(), &m); err != nil {
			p.t.Fatal(err)
		}
		if err := p.client.Delete(p.t.Context(), &m); client.IgnoreNotFound(err) != nil {
			p.t.Fatal(err)
		}
	}
}

// check says what is wrong when all is quiet.
func (p *player) check() (wrong []string) {
	p.t.Helper()
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	want := map[string]types.UID{} // shard groups
	machines := map[string]bool{}
	for _, m := range p.allMachines() {
		machines[m.Name] = true
	}
	for _, pool := range p.allPools() {
		if !pool.DeletionTimestamp.IsZero() {
			if len(p.lost) == 0 {
				complain("%s is still being deleted", pool.Name)
			}
			continue
		}
		replicas := *p.machinePool(pool.Name).Spec.Replicas
		sum, ids := int32(0), []string{}
		quiet := true
		for _, share := range distribute.Split(replicas, pool.Spec.Shards) {
			name := v1beta1.ShardGroupName(pool.Spec.Group, share.Shard)
			want[name] = pool.UID
			if p.lost[share.Shard] {
				quiet = false
				continue
			}
			g, ok := p.shards.Of(share.Shard).Group(pool.Spec.Group)
			if !ok || g.GetDeleting() {
				complain("%s: shard %s does not have it", pool.Name, share.Shard)
				continue
			}
			sum += int32(g.GetSize())
			if int32(g.GetSize()) != share.Size {
				complain("%s: shard %s keeps %d, want %d", pool.Name, share.Shard, g.GetSize(), share.Size)
			}
			if !g.GetIsStatic() && (g.GetTemplate() != "worker" || g.GetInstanceType() != pool.Spec.InstanceType ||
				!maps.Equal(g.GetVars(), pool.Spec.Vars)) {
				complain("%s: shard %s has another definition: %v", pool.Name, share.Shard, g)
			}
			if pool.Spec.InstanceType != "" && g.GetInstanceType() != pool.Spec.InstanceType ||
				!within(pool.Spec.Vars, g.GetVars()) {
				complain("%s: shard %s does not have what the pool says: %v", pool.Name, share.Shard, g)
			}
			for _, i := range p.shards.Of(share.Shard).Instances(pool.Spec.Group) {
				ids = append(ids, i.GetProviderId())
				if !machines[i.GetInstanceId()] {
					complain("%s: no machine for %s", pool.Name, i.GetInstanceId())
				}
			}
		}
		if !quiet || len(p.lost) > 0 {
			continue
		}
		if sum != replicas {
			complain("%s: %d on the servers, %d wanted", pool.Name, sum, replicas)
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
	for _, g := range p.allGroups() {
		if !g.DeletionTimestamp.IsZero() && p.lost[g.Spec.Shard] {
			continue // waits for its shard
		}
		if len(g.OwnerReferences) != 1 {
			complain("%s is owned by %v", g.Name, g.OwnerReferences)
			continue
		}
		have[g.Name] = g.OwnerReferences[0].UID
	}
	if len(p.lost) == 0 {
		if diff := cmp.Diff(want, have); diff != "" {
			complain("shard groups: %s", diff)
		}
		pooled := map[string]bool{}
		for _, pool := range p.allPools() {
			pooled[pool.Spec.Group] = true
		}
		for _, id := range testShards {
			for _, g := range p.shards.Of(id).Groups() {
				if !pooled[g.GetGroup()] {
					complain("group %s of shard %s has no pool", g.GetGroup(), id)
				}
			}
		}
	}
	return wrong
}

// Whatever happens in whatever order, it comes to rest, and then the servers have what Kubernetes says.
func TestSequences(t *testing.T) {
	games, moves := 25, 25
	if testing.Short() {
		games, moves = 4, 20
	}
	for seed := range games {
		w := newWorld(t, testShards...)
		w.random = rand.New(rand.NewPCG(uint64(seed), 7))
		p := &player{world: w, lost: map[string]bool{}}
		for range moves {
			p.move()
			if p.random.IntN(3) == 0 {
				p.pass() // others act while the reconcilers are at it
				continue
			}
			p.rest(seed)
		}
		for shard := range p.lost {
			p.find(shard)
			p.log = append(p.log, "find "+shard)
		}
		p.rest(seed)
	}
}

func (p *player) rest(seed int) {
	p.t.Helper()
	p.settle()
	p.forget()
	p.settle()
	if wrong := p.check(); len(wrong) > 0 {
		p.t.Fatalf("seed %d, after %q:\n%s", seed, p.log, fmt.Sprint(wrong))
	}
}
