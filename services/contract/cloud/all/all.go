// Package all lists the clouds that a shard configuration can name. To add a cloud, add its block to [Blocks] and its
// own fields to [LeaderNetwork], [LoadBalancer] and [Identity].
package all

import (
	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/cloud/aws"
	"github.com/nstance-kit/nstance/services/contract/cloud/gcp"
	"github.com/nstance-kit/nstance/services/contract/cloud/libvirt"
	"github.com/nstance-kit/nstance/services/contract/cloud/mock"
	"github.com/nstance-kit/nstance/services/contract/cloud/proxmox"
	"github.com/nstance-kit/nstance/services/contract/cloud/tmux"
)

// Blocks returns the clouds in the order in which messages and documents list them.
func Blocks() []cloud.Block {
	return []cloud.Block{aws.Block, gcp.Block, libvirt.Block, proxmox.Block, tmux.Block, mock.Block}
}

// LeaderNetwork holds every cloud's own fields of server.leader_network. Their JSON names must differ.
type LeaderNetwork struct {
	aws.NetworkInterface
	gcp.LeaderAddress
}

// LoadBalancer holds every cloud's own fields of a load balancer. Their JSON names must differ.
type LoadBalancer struct {
	aws.TargetGroups
	gcp.InstanceGroup
}

// Identity holds every cloud's fields of cluster.storage.identity. Their JSON names must differ.
type Identity struct {
	aws.Role
	gcp.PooledAccount
}
