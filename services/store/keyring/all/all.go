// Package all lists the sources of encryption keys. It is separate from package keyring, because its sources link the
// SDKs of clouds. A new cloud must add its sources to clouds.go.
package all

import (
	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/store/keyring"
)

// Sources returns all sources in the order in which help texts list them. access is for the services of a cloud that
// has profiles and roles.
func Sources(access cloud.Access) []keyring.Source {
	return append(keyring.Sources(), clouds(access)...)
}
