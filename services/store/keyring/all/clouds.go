//go:build !trial

package all

import (
	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/keyring/aws"
	"github.com/nstance-kit/nstance/services/store/keyring/gcp"
)

// clouds returns the sources that a trial cluster on one machine does not need.
func clouds(access cloud.Access) []keyring.Source {
	return append(aws.Sources(access), gcp.Sources(access)...)
}
