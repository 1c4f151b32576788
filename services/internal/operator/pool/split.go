package pool

// shardShare is the number of instances that one shard keeps for a pool.
type shardShare struct {
	Shard string
	Size  int32
}

// splitReplicas divides the replicas of a pool over its shards. Each shard gets an equal part, and the remainder goes
// to the first shards of the list, one each. A negative number of replicas counts as zero. Without shards there are no
// shares.
//
// The result depends only on the arguments: an unreachable shard keeps its share, so a temporary fault moves no
// instance. One replica more or less changes one share.
func splitReplicas(replicas int32, shards []string) []shardShare {
	if len(shards) == 0 {
		return nil
	}
	// int64, because the list may be longer than an int32 can count.
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
