package proxmox

import (
	"context"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// Passes returns a function that makes one pass of [Provider.Watch].
func Passes(p *Provider) func(context.Context, func(ident.ID)) {
	seen := map[string]map[int]liveVM{}
	return func(ctx context.Context, changed func(ident.ID)) { p.watchOnce(ctx, seen, changed) }
}
