// Package open lists the back ends of secrets stores and opens a store by the name of its back end. It links the SDK of
// every cloud, so it is separate from package secretstore. To add a back end, add it to clouds.go.
package open

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// Backends returns all back ends. The first one is the default of the programs.
func Backends() []secretstore.Backend {
	return append([]secretstore.Backend{secretstore.ObjectStorage}, clouds...)
}

// Names returns the names of all back ends.
func Names() []string {
	var names []string
	for _, backend := range Backends() {
		names = append(names, backend.Name)
	}
	return names
}

// Open opens the store of settings.Provider. It does not connect to the store.
func Open(ctx context.Context, settings config.Secrets, options secretstore.Options) (secretstore.Store, error) {
	backends := Backends()
	i := slices.IndexFunc(backends, func(b secretstore.Backend) bool { return b.Name == settings.Provider })
	if i < 0 {
		return nil, fmt.Errorf("there is no secrets store %q; there are %s", settings.Provider,
			strings.Join(Names(), ", "))
	}
	return backends[i].Open(ctx, settings, options)
}
