package pool

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// ab returns the shares of two shards.
func ab(a, b int32) []shardShare { return []shardShare{{"a", a}, {"b", b}} }

func TestSplit(t *testing.T) {
	for name, test := range map[string]struct {
		replicas int32
		shards   []string
		want     []shardShare
	}{
		"no shards":         {5, nil, nil},
		"no replicas":       {0, []string{"a", "b"}, ab(0, 0)},
		"negative":          {-3, []string{"a", "b"}, ab(0, 0)},
		"smallest number":   {math.MinInt32, []string{"a"}, []shardShare{{"a", 0}}},
		"fewer than shards": {1, []string{"a", "b"}, ab(1, 0)},
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

func TestScaleShares(t *testing.T) {
	a, b, b2 := victim{"a", "a1"}, victim{"b", "b1"}, victim{"b", "b2"}
	for name, test := range map[string]struct {
		have     []shardShare
		replicas int32
		victims  []victim
		want     []shardShare
		chosen   []victim
	}{
		"unchanged":              {ab(2, 0), 2, []victim{a}, ab(2, 0), nil},
		"a victim elsewhere":     {ab(2, 1), 2, []victim{b}, ab(2, 0), []victim{b}},
		"a victim is enough":     {ab(2, 2), 3, []victim{b, a}, ab(2, 1), []victim{b}},
		"too few victims":        {ab(4, 4), 4, []victim{b}, ab(2, 2), []victim{b}},
		"more than the share":    {ab(3, 1), 2, []victim{b, b2}, ab(2, 0), []victim{b}},
		"an unknown shard":       {[]shardShare{{"a", 3}}, 2, []victim{b}, []shardShare{{"a", 2}}, nil},
		"growing evens out":      {ab(4, 1), 7, nil, ab(4, 3), nil},
		"shrinking evens out":    {ab(4, 1), 3, nil, ab(2, 1), nil},
		"to zero":                {ab(4, 1), 0, []victim{b}, ab(0, 0), []victim{b}},
		"from zero to the limit": {[]shardShare{{"a", 0}}, math.MaxInt32, nil, []shardShare{{"a", math.MaxInt32}}, nil},
	} {
		shares, chosen := scaleShares(test.have, test.replicas, test.victims)
		if diff := cmp.Diff(test.want, shares); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if diff := cmp.Diff(test.chosen, chosen, cmp.AllowUnexported(victim{})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestScaleSharesProperties checks that an equal split stays equal if there are no victims. With victims, the sum of
// the shares must be the number of replicas. In addition, no share may grow while the pool shrinks, or shrink while the
// pool grows.
func TestScaleSharesProperties(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 3000 {
		names := make([]string, 1+random.IntN(9))
		for i := range names {
			names[i] = fmt.Sprintf("s%d", i)
		}
		from, to := random.Int32N(60), random.Int32N(60)
		have := splitReplicas(from, names)
		if shares, _ := scaleShares(have, to, nil); !cmp.Equal(shares, splitReplicas(to, names)) {
			t.Fatalf("%d to %d over %d: %v", from, to, len(names), shares)
		}
		var victims []victim
		for i := range random.IntN(20) {
			victims = append(victims, victim{names[random.IntN(len(names))], fmt.Sprint(i)})
		}
		for range 4 {
			shares, chosen := scaleShares(have, to, victims)
			sum := int32(0)
			for i, share := range shares {
				sum += share.Size
				if grew := share.Size > have[i].Size; share.Size != have[i].Size && grew != (to > from) {
					t.Fatalf("%v to %d: %v", have, to, shares)
				}
			}
			if sum != to || len(chosen) > int(max(0, from-to)) {
				t.Fatalf("%v to %d: sum %d of %v, chosen %v", have, to, sum, shares, chosen)
			}
			have, from, to = shares, to, random.Int32N(60)
		}
	}
}
