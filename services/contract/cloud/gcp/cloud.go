// Package gcp describes Google Cloud to the shard configuration: VMs are Compute Engine instances.
package gcp

import (
	"strings"

	"github.com/nstance-kit/nstance/services/contract/cloud"
)

// Name is the cloud's name.
const Name = "gcp"

// Block describes the cloud.
var Block = cloud.Block{
	Name:              Name,
	Planned:           true,
	NeedsZone:         true,
	NeedsInstanceType: true,
	HasImages:         true,
	LoadBalancer:      InstanceGroup{},
	ObjectStores:      []cloud.ObjectStore{{Name: "gcs"}},
	SecretsStores: []cloud.SecretsStore{{Name: "google-secret-manager", TakesProject: true,
		NeedsProject: func(source string) bool { return !strings.HasPrefix(source, "projects/") }}},
}

// InstanceGroup is the instance group to which a group's instances are added.
type InstanceGroup struct {
	// Google Cloud: the unmanaged instance group.
	InstanceGroupName string `json:"instance_group_name,omitempty" rule:"required"`
}
