//go:build !trial

package open

import (
	"github.com/nstance-kit/nstance/services/store/secretstore/aws"
	"github.com/nstance-kit/nstance/services/store/secretstore/googlesecretmanager"
)

// clouds are the back ends that a trial cluster on one machine does not need.
var clouds = append(aws.Backends(), googlesecretmanager.Backend)
