//go:build !trial

package open

import (
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/gcs"
)

// clouds are the back ends that a trial cluster on one machine does not need.
var clouds = []objstore.Backend{gcs.Backend}
