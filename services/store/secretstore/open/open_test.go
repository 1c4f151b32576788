package open_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	"github.com/nstance-kit/nstance/services/store/secretstore/open"
)

// TestNames checks that the configuration accepts the name of every back end.
func TestNames(t *testing.T) {
	if names := open.Names(); len(names) != len(open.Backends()) {
		t.Errorf("names %v", names)
	}
	for _, name := range open.Names() {
		if !slices.Contains(config.SecretsStoreNames(), name) {
			t.Errorf("the configuration does not know %q", name)
		}
	}
}

func TestOpen(t *testing.T) {
	settings := config.Secrets{Provider: config.ObjectStorage}
	store, err := open.Open(t.Context(), settings, secretstore.Options{})
	if _, ok := store.(*secretstore.Objects); !ok || err != nil {
		t.Errorf("opened %T, %v", store, err)
	}
	settings.Provider = "paper"
	if store, err := open.Open(t.Context(), settings, secretstore.Options{}); err == nil ||
		!strings.Contains(err.Error(), config.ObjectStorage) {
		t.Errorf("opened %T, %v", store, err)
	}
}
