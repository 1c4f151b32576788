package all_test

import (
	"slices"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/keyring/all"
)

// TestNames checks that the configuration accepts the names of all sources.
func TestNames(t *testing.T) {
	for _, name := range keyring.Names(all.Sources(cloud.Access{})) {
		if !slices.Contains(config.KeySourceNames(), name) {
			t.Errorf("the configuration does not know %q", name)
		}
	}
}
