//go:build trial

package all

import (
	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/store/keyring"
)

func clouds(cloud.Access) []keyring.Source { return nil }
