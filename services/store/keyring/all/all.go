// Package all lists the sources of encryption keys. It is separate from package keyring, because its sources link the
// SDKs of clouds. A new cloud must add its sources to [Sources].
package all

import (
	"slices"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/keyring/aws"
	"github.com/nstance-kit/nstance/services/store/keyring/gcp"
)

// Sources returns all sources in the order in which help texts list them. access is for the services of a cloud that
// has profiles and roles.
func Sources(access cloud.Access) []keyring.Source {
	return slices.Concat(keyring.Sources(), aws.Sources(access), gcp.Sources())
}
