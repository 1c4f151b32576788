package open_test

import (
	"slices"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/secretstore/open"
)

// TestNames checks that the configuration accepts the name of every back end.
func TestNames(t *testing.T) {
	for _, name := range open.Names() {
		if !slices.Contains(config.SecretsStoreNames(), name) {
			t.Errorf("the configuration does not know %q", name)
		}
	}
}
