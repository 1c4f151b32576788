package shardconfig

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// InPlace reports whether a running server can replace the configuration `a` by `b` without a restart. Both must
// contain their defaults.
func InPlace(a, b *config.Shard) bool { return len(config.Restarting(a, b)) == 0 }

// GroupETag returns an identifier of a group's definition, for conditional changes. It covers every field that a call
// of the operator API can change. settings is the JSON of all settings of the group that are in force.
func GroupETag(g config.Group, settings string) string {
	digest := sha256.New()
	fmt.Fprintf(digest, "%s\x00%t\x00%t\x00%s\x00%s\x00%s\x00%s\x00%s", g.GroupKey, g.Static, g.Deleted, g.RuntimeHash,
		g.InfraHash, g.Removed, g.Protected, settings)
	return hex.EncodeToString(digest.Sum(nil)[:8])
}
