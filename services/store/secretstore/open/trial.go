//go:build trial

package open

import "github.com/nstance-kit/nstance/services/store/secretstore"

var clouds []secretstore.Backend
