package scope

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// Index is an index of a cache.
type Index struct {
	Object client.Object
	Field  string
	Values client.IndexerFunc
}

// Add adds the index to a cache. It must not be there yet.
func (i Index) Add(to client.FieldIndexer) error {
	if err := to.IndexField(context.Background(), i.Object, i.Field, i.Values); err != nil {
		return fmt.Errorf("index %s: %w", i.Field, err)
	}
	return nil
}

// MachineByInstance is the index of NstanceMachines by instance ID.
var MachineByInstance = Index{&v1beta1.NstanceMachine{}, "nstance.dev/machine.instance",
	func(o client.Object) []string { return present(o.(*v1beta1.NstanceMachine).Spec.InstanceID) }}

// NodeByProviderID is the index of the Nodes of the workload cluster.
var NodeByProviderID = Index{&corev1.Node{}, "nstance.dev/node.provider-id",
	func(o client.Object) []string { return present(o.(*corev1.Node).Spec.ProviderID) }}

func present(value string) []string {
	if value == "" {
		return nil
	}
	return []string{value}
}
