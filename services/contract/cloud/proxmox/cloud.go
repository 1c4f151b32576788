// Package proxmox describes Proxmox VE to the shard configuration.
package proxmox

import "github.com/nstance-kit/nstance/services/contract/cloud"

// Block describes the cloud.
var Block = cloud.Block{Name: "proxmox", Planned: true, NeedsInstanceType: true, HasImages: true}
