//go:build !trial

package open

import (
	"github.com/nstance-kit/nstance/services/store/secretstore/aws"
	"github.com/nstance-kit/nstance/services/store/secretstore/googlesecretmanager"
)

func init() { clouds = append(aws.Backends(), googlesecretmanager.Backend) }
