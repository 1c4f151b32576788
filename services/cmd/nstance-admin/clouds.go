//go:build !trial

package main

import "github.com/nstance-kit/nstance/services/internal/server/infra/aws"

func init() { clouds = append(clouds, aws.Cloud()) }
