package pool

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSplit(t *testing.T) {
	for name, test := range map[string]struct {
		replicas int32
		shards   []string
		want     []shardShare
	}{
		"no shards":         {5, nil, nil},
		"no replicas":       {0, []string{"a", "b"}, []shardShare{{"a", 0}, {"b", 0}}},
		"negative":          {-3, []string{"a", "b"}, []shardShare{{"a", 0}, {"b", 0}}},
		"smallest number":   {math.MinInt32, []string{"a"}, []shardShare{{"a", 0}}},
		"fewer than shards": {1, []string{"a", "b"}, []shardShare{{"a", 1}, {"b", 0}}},
		"even":              {6, []string{"a", "b", "c"}, []shardShare{{"a", 2}, {"b", 2}, {"c", 2}}},
		"remainder":         {8, []string{"a", "b", "c"}, []shardShare{{"a", 3}, {"b", 3}, {"c", 2}}},
		"the given order":   {1, []string{"b", "a"}, []shardShare{{"b", 1}, {"a", 0}}},
		"largest number":    {math.MaxInt32, []string{"a"}, []shardShare{{"a", math.MaxInt32}}},
		"largest number on two shards": {math.MaxInt32, []string{"a", "b"},
			[]shardShare{{"a", 1 << 30}, {"b", 1<<30 - 1}}},
	} {
		if diff := cmp.Diff(test.want, splitReplicas(test.replicas, test.shards)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestSplitProperties checks the sum, order, evenness and stability of splits of random input.
func TestSplitProperties(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		shards := make([]string, 1+random.IntN(64))
		for i := range shards {
			shards[i] = fmt.Sprintf("s%d", i)
		}
		random.Shuffle(len(shards), func(i, j int) { shards[i], shards[j] = shards[j], shards[i] })
		replicas := random.Int32N(200)
		if random.IntN(4) == 0 {
			replicas = random.Int32N(math.MaxInt32)
		}
		shares := splitReplicas(replicas, shards)
		sum := int64(0)
		for i, share := range shares {
			sum += int64(share.Size)
			if share.Shard != shards[i] {
				t.Fatalf("%d over %v: want the order of the list, got %v", replicas, shards, shares)
			}
			if i > 0 && share.Size > shares[i-1].Size || shares[0].Size-share.Size > 1 {
				t.Fatalf("%d over %v: %v is not even with the remainder first", replicas, shards, shares)
			}
		}
		if len(shares) != len(shards) || sum != int64(replicas) {
			t.Fatalf("%d over %d: sum %d of %d shares", replicas, len(shards), sum, len(shares))
		}
		if diff := cmp.Diff(shares, splitReplicas(replicas, shards)); diff != "" {
			t.Fatalf("a second split differs: %s", diff)
		}
		changed := 0
		for i, share := range splitReplicas(replicas+1, shards) {
			switch share.Size - shares[i].Size {
			case 0:
			case 1:
				changed++
			default:
				t.Fatalf("%d to %d: share %d changed from %d to %d", replicas, replicas+1, i, shares[i].Size,
					share.Size)
			}
		}
		if changed != 1 {
			t.Fatalf("%d to %d over %d: %d shares changed", replicas, replicas+1, len(shards), changed)
		}
	}
}
