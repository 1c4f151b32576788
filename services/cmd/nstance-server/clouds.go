//go:build !trial

package main

import (
	"github.com/nstance-kit/nstance/services/internal/server/infra/aws"
	"github.com/nstance-kit/nstance/services/internal/server/infra/gcp"
	"github.com/nstance-kit/nstance/services/internal/server/infra/proxmox"
)

func init() { remote = append(remote, aws.Cloud(), gcp.Cloud(), proxmox.Cloud()) }
