// Package distribute owns how the replicas of a pool are split over its shards.
//
// Invariant: a pure function of the number and the list. Shards that cannot be reached, or are not configured, keep
// their share, so that no instance moves because of something that passes; one replica more or less changes one share.
package distribute

// Share is what one shard is to keep.
type Share struct {
	Shard string
	Size  int32
}

// Split gives every shard an equal part of the replicas, and one more to the first ones until nothing is left. The
// order is that of the list; no replicas, or less than that, are none. Without shards there are no shares.
func Split(replicas int32, shards []string) []Share {
	if len(shards) == 0 {
		return nil
	}
	// In 64 bits: a list may be longer than an int32 can say.
	total, n := max(int64(replicas), 0), int64(len(shards))
	shares := make([]Share, len(shards))
	for i, shard := range shards {
		size := total / n
		if int64(i) < total%n {
			size++
		}
		shares[i] = Share{Shard: shard, Size: int32(size)}
	}
	return shares
}
