package pool

import (
	"math"
	"slices"
	"sort"
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
