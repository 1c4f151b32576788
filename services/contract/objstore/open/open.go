// Package open lists the back ends of object storage and opens a bucket by the name of its back end. It is separate
// from objstore because it links every SDK. To add a back end, add it to [Backends].
package open

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/objstore/file"
	"github.com/nstance-kit/nstance/services/contract/objstore/gcs"
	"github.com/nstance-kit/nstance/services/contract/objstore/s3"
)

// Backends returns all back ends. The first one is the default of the programs.
func Backends() []objstore.Backend { return []objstore.Backend{s3.Backend, gcs.Backend, file.Backend} }

// Names returns the names of all back ends.
func Names() []string {
	var names []string
	for _, backend := range Backends() {
		names = append(names, backend.Name)
	}
	return names
}

// Open opens the bucket at the location. It does not connect to the store.
func Open(ctx context.Context, at objstore.Location) (objstore.Store, error) {
	backends := Backends()
	i := slices.IndexFunc(backends, func(b objstore.Backend) bool { return b.Name == at.Provider })
	if i < 0 {
		return nil, fmt.Errorf("storage provider %q is none of %s", at.Provider, strings.Join(Names(), ", "))
	}
	store, err := backends[i].Open(ctx, at)
	if err != nil {
		return nil, err
	}
	return objstore.WithPrefix(store, at.Prefix), nil
}

// Hint returns what a person should do about an error of any store, or "" if that is unknown.
func Hint(err error) string {
	hint := ""
	for _, backend := range Backends() {
		if backend.Hint != nil {
			hint = cmp.Or(hint, backend.Hint(err))
		}
	}
	return hint
}

// Environment returns one line of help for each back end that reads environment variables. format is the fmt format of
// one line. It receives the names of the variables and then the name of the back end.
func Environment(format string) string {
	var text strings.Builder
	for _, backend := range Backends() {
		if backend.Environment != "" {
			fmt.Fprintf(&text, format, backend.Environment, backend.Name)
		}
	}
	return text.String()
}
