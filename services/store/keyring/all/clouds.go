//go:build !trial

package all

import (
	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/keyring/aws"
	"github.com/nstance-kit/nstance/services/store/keyring/gcp"
)

func init() {
	clouds = func(access cloud.Access) []keyring.Source { return append(aws.Sources(access), gcp.Sources()...) }
}
