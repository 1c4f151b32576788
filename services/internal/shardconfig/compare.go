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
// of the operator API can change.
func GroupETag(g config.Group) string {
	if len(g.Schedules) > 0 {
		g.Size = 0 // the status of the group has the size of a schedule here, and no call can change it
	}
	digest := sha256.New()
	fmt.Fprintf(digest, "%s\x00%t\x00%t\x00%s\x00%d\x00%s\x00%q\x00%s\x00%q\x00%v\x00%d\x00%s\x00%s\x00%s", g.GroupKey,
		g.Static, g.Deleted, g.Template,
		g.Size, g.InstanceType, g.InstanceTypes, g.SubnetPool, g.LoadBalancers, g.DrainTimeout, g.MaxSurge,
		g.MaxUnhealthy, g.RuntimeHash, g.InfraHash)
	fmt.Fprintf(digest, "\x00%+v\x00%d\x00%+v\x00%s\x00%s", g.Rollout, g.MaxPerHour, g.Purchase, g.Removed,
		g.Protected)
	// Write each field of the windows instead of a whole window, because a window contains a pointer to its time zone.
	for _, w := range g.Windows {
		fmt.Fprintf(digest, "\x00window %v %d %d %s", w.Days, w.From, w.To, w.Zone)
	}
	for _, s := range g.Schedules {
		fmt.Fprintf(digest, "\x00schedule %q %s %d", s.Cron, s.Zone, s.Size)
	}
	return hex.EncodeToString(digest.Sum(nil)[:8])
}
