//go:build trial

package all

import "github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/machinegroup"

var clouds []machinegroup.Cloud
