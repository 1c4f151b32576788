//go:build trial

package main

import "github.com/nstance-kit/nstance/services/internal/server/infra"

var clouds []infra.Cloud
