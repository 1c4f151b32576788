//go:build trial

package open

import "github.com/nstance-kit/nstance/services/store/objstore"

var clouds []objstore.Backend
