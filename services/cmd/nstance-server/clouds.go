//go:build !trial

package main

import (
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/aws"
	"github.com/nstance-kit/nstance/services/internal/server/infra/gcp"
	"github.com/nstance-kit/nstance/services/internal/server/infra/proxmox"
)

// remote are the clouds that a trial cluster on one machine does not need.
var remote = []infra.Cloud{aws.Cloud(), gcp.Cloud(), proxmox.Cloud()}
