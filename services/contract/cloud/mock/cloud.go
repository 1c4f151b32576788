// Package mock describes the cloud of tests, which exists only in memory.
package mock

import "github.com/nstance-kit/nstance/services/contract/cloud"

// Name is the cloud's name.
const Name = "mock"

// Block describes the cloud.
var Block = cloud.Block{Name: Name, Hidden: true, HasImages: true, LoadBalancer: LoadBalancer{},
	Sleeps:   []string{"stopped", "suspended"},
	SpotArgs: [][]any{{"market"}}, LeaderNetworkKinds: []string{cloud.LeaderARP}}

// LoadBalancer is a load balancer without fields.
type LoadBalancer struct{}

// MissingForHealth implements [cloud.HealthSource].
func (LoadBalancer) MissingForHealth() string { return "" }
