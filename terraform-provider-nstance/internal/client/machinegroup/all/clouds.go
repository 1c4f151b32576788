//go:build !trial

package all

import (
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/machinegroup"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/machinegroup/aws"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/machinegroup/gcp"
)

// clouds are all clouds. A trial cluster on one machine needs none.
var clouds = []machinegroup.Cloud{aws.Cloud(), gcp.Cloud()}
