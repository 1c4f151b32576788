package pool

import (
	"encoding/json"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

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
