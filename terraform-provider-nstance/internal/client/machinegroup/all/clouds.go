//go:build !trial

package all

import (
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/machinegroup/aws"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/machinegroup/gcp"
)

func init() { clouds = append(clouds, aws.Cloud(), gcp.Cloud()) }
