package pool

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"sort"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// shardShare is the number of a pool's instances that one shard must have.
type shardShare struct {
	Shard string
	Size  int32
}

// splitReplicas divides the replicas of a pool over its shards. Each shard gets an equal part, and the remainder goes
// to the first shards of the list, one each. A negative number of replicas counts as zero. Without shards there are no
// shares.
//
// The result depends only on the arguments: an unreachable shard keeps its share, so a temporary fault moves no
// instance. If the number of replicas changes by one, only one share changes.
func splitReplicas(replicas int32, shards []string) []shardShare {
	if len(shards) == 0 {
		return nil
	}
	// Use int64, because the list may be longer than an int32 can count.
	total, n := max(int64(replicas), 0), int64(len(shards))
	shares := make([]shardShare, len(shards))
	for i, shard := range shards {
		size := total / n
		if int64(i) < total%n {
			size++
		}
		shares[i] = shardShare{Shard: shard, Size: int32(size)}
	}
	return shares
}

// victim is an instance that is deleted first when the pool shrinks, because its node is drained already.
type victim struct{ shard, instance string }

// scaleShares changes the shares of a pool so that their sum is replicas. It returns the new shares, and the chosen
// victims, which are the first instances to delete.
//
// Each chosen victim lowers the share of its own shard by one. If the sum is still too large, the largest shares
// shrink, beginning at the end of the list. If the sum is too small, the smallest shares grow, beginning at the start
// of the list. An equal split therefore stays equal. Shares that victims have made unequal stay unequal until the pool
// grows or shrinks, because instances would have to be deleted to make them equal.
func scaleShares(have []shardShare, replicas int32, victims []victim) (shares []shardShare, chosen []victim) {
	shares = slices.Clone(have)
	target, sum := max(int64(replicas), 0), int64(0)
	for _, share := range shares {
		sum += int64(share.Size)
	}
	for _, v := range victims {
		if sum <= target {
			break
		}
		i := slices.IndexFunc(shares, func(s shardShare) bool { return s.Shard == v.shard })
		if i >= 0 && shares[i].Size > 0 {
			shares[i].Size--
			sum--
			chosen = append(chosen, v)
		}
	}
	switch {
	case sum > target:
		lowerShares(shares, target)
	case sum < target:
		raiseShares(shares, target)
	}
	return shares, chosen
}

// lowerShares lowers the largest shares so that the sum is the target. The lowered shares get the same size. If that
// leaves a surplus, the last of them in the list get one less.
func lowerShares(shares []shardShare, target int64) {
	sum := func(level int) (n int64) {
		for _, s := range shares {
			n += min(int64(s.Size), int64(level))
		}
		return n
	}
	level := sort.Search(math.MaxInt32, func(level int) bool { return sum(level) >= target })
	surplus := sum(level) - target
	for i := len(shares) - 1; i >= 0; i-- {
		if int64(shares[i].Size) < int64(level) {
			continue
		}
		if shares[i].Size = int32(level); surplus > 0 {
			shares[i].Size--
			surplus--
		}
	}
}

// raiseShares raises the smallest shares so that the sum is the target. The raised shares get the same size. If
// replicas are left over, the first of them in the list get one more.
func raiseShares(shares []shardShare, target int64) {
	sum := func(level int) (n int64) {
		for _, s := range shares {
			n += max(int64(s.Size), int64(level))
		}
		return n
	}
	level := sort.Search(math.MaxInt32, func(level int) bool { return sum(level+1) > target })
	lacking := target - sum(level)
	for i := range shares {
		if int64(shares[i].Size) > int64(level) {
			continue
		}
		if shares[i].Size = int32(level); lacking > 0 {
			shares[i].Size++
			lacking--
		}
	}
}

// readShares returns the shares in [v1beta1.SharesAnnotation], nil if there is none or if it cannot be read.
func readShares(pool *v1beta1.NstanceMachinePool) (shares map[string]int32) {
	if json.Unmarshal([]byte(pool.Annotations[v1beta1.SharesAnnotation]), &shares) != nil {
		return nil
	}
	return shares
}

// writeShares stores the shares in [v1beta1.SharesAnnotation].
func writeShares(pool *v1beta1.NstanceMachinePool, shares []shardShare) {
	sizes := map[string]int32{}
	for _, share := range shares {
		sizes[share.Shard] = share.Size
	}
	text, err := json.Marshal(sizes)
	if err != nil {
		return // not possible: numbers can always be encoded
	}
	metav1.SetMetaDataAnnotation(&pool.ObjectMeta, v1beta1.SharesAnnotation, string(text))
}

// knownShares returns the shares of the shards: the size of each shard group that exists, else the stored share. It
// returns nil if the stored shares are for other shards.
func knownShares(shards []string, sizes, stored map[string]int32) (shares []shardShare) {
	if !slices.Equal(slices.Sorted(maps.Keys(stored)), slices.Sorted(slices.Values(shards))) {
		return nil
	}
	for _, shard := range shards {
		size, exists := sizes[shard]
		if !exists {
			size = max(0, stored[shard])
		}
		shares = append(shares, shardShare{shard, size})
	}
	return shares
}

// requestsForGroup returns requests for all pools of the group that a shard group or a pool belongs to. A pool may wait
// for the shard groups of another one.
func (p *pools) requestsForGroup(ctx context.Context, object client.Object) (requests []reconcile.Request) {
	var group string
	switch one := object.(type) {
	case *v1beta1.NstanceShardGroup:
		group = one.Spec.Group
	case *v1beta1.NstanceMachinePool:
		group = one.Spec.Group
	}
	list := &v1beta1.NstanceMachinePoolList{}
	if err := p.Client.List(ctx, list, client.InNamespace(p.Namespace)); err != nil {
		p.Log.Error("failed to list pools", "error", err)
		return nil
	}
	for i := range list.Items {
		if list.Items[i].Spec.Group == group {
			requests = append(requests, p.Request(list.Items[i].Name))
		}
	}
	return requests
}

// findWaiting returns the pool that waits for the shard groups of a pool that is being deleted, nil if there is none. A
// waiting pool is of the same group and has a MachinePool. findWaiting reads from the API server, because the answer
// decides whether instances are deleted.
func (r *poolReconciler) findWaiting(ctx context.Context, in poolInput) (*v1beta1.NstanceMachinePool, error) {
	if in.pool.DeletionTimestamp.IsZero() || in.paused || in.ending {
		return nil, nil
	}
	list := &v1beta1.NstanceMachinePoolList{}
	if err := r.Reader.List(ctx, list, client.InNamespace(r.Namespace)); err != nil {
		return nil, fmt.Errorf("list pools: %w", err)
	}
	for i := range list.Items {
		other := &list.Items[i]
		if other.Spec.Group != in.pool.Spec.Group || other.UID == in.pool.UID || !other.DeletionTimestamp.IsZero() {
			continue
		}
		users, err := r.listUsers(ctx, r.Reader, other.Name)
		if err != nil {
			return nil, err
		}
		if len(livingUsers(users)) > 0 {
			return other, nil
		}
	}
	return nil, nil
}

// giveTo makes the pool heir the owner of the shard groups of the pool in.pool on the shards that heir lists. The shard
// groups on other shards stay in in.groups, and are deleted with their pool.
func (r *poolReconciler) giveTo(ctx context.Context, in *poolInput, heir *v1beta1.NstanceMachinePool) error {
	groups, err := r.listGroups(ctx, r.Reader, in.pool)
	if err != nil {
		return err
	}
	in.groups = nil
	for _, g := range groups {
		owner := metav1.GetControllerOf(g)
		if owner == nil || owner.UID != in.pool.UID || !g.DeletionTimestamp.IsZero() ||
			!slices.Contains(heir.Spec.Shards, g.Spec.Shard) {
			in.groups = append(in.groups, g)
			continue
		}
		want := g.DeepCopy()
		dropOwner(want, in.pool.UID)
		want.OwnerReferences = append(want.OwnerReferences, *metav1.NewControllerRef(heir,
			v1beta1.GroupVersion.WithKind(machinePoolKind)))
		if err := r.PatchLocked(ctx, g, want); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("write shard group %s: %w", g.Name, err)
		}
		r.Log.Info("handed a shard group over", "shard_group", g.Name, "from", in.pool.Name, "to", heir.Name)
		r.recordEvents(heir, normalEvent(v1beta1.TakenOverReason,
			"shard group %s with its instances was taken over from "+
				"NstanceMachinePool %s, which is being deleted", g.Name, in.pool.Name))
	}
	return nil
}
