package shard

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// release lists the subnets and the network interface that servers and VMs stop using after a change of the
// configuration. Terraform may destroy them after the update of this resource, so the update must wait until they are
// no longer used.
type release struct {
	// subnets are the subnets that are no longer in any pool, sorted.
	subnets []string
	// leaderInterface means that the leader's address has left its network interface.
	leaderInterface bool
}

// releaseOf compares two configurations.
func releaseOf(before, after *config.Shard) release {
	var out release
	if before == nil || after == nil {
		return out
	}
	kept := map[string]bool{}
	for _, subnets := range after.Server.SubnetPools {
		for _, subnet := range subnets {
			kept[subnet] = true
		}
	}
	for _, subnets := range before.Server.SubnetPools {
		for _, subnet := range subnets {
			if !kept[subnet] {
				out.subnets = append(out.subnets, subnet)
			}
		}
	}
	slices.Sort(out.subnets)
	from, to := before.Server.LeaderNetwork, after.Server.LeaderNetwork
	out.leaderInterface = from != nil && from.InterfaceID != "" && (to == nil || to.InterfaceID != from.InterfaceID)
	return out
}

func (r release) isEmpty() bool { return len(r.subnets) == 0 && !r.leaderInterface }

// heldBy returns an error that names the instances in released subnets, or nil if there are no such instances.
func (r release) heldBy(instances []record.Instance) error {
	held := contents{}
	for _, rec := range instances {
		if slices.Contains(r.subnets, rec.SubnetID) {
			held.left = append(held.left, rec)
		}
	}
	if len(held.left) == 0 {
		return nil
	}
	return fmt.Errorf("in %s, %s", strings.Join(r.subnets, ", "), &held)
}
