//go:build !trial

package main

import (
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/aws"
)

// clouds are those that "config plan" can ask. A trial cluster on one machine needs none.
var clouds = []infra.Cloud{aws.Cloud()}
