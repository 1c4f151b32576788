//go:build !trial

package open

import "github.com/nstance-kit/nstance/services/store/objstore/gcs"

func init() { clouds = append(clouds, gcs.Backend) }
