// Package v1beta1 defines Nstance's Kubernetes types, and the labels, annotations, finalizers, conditions and reasons
// that the operator uses.
//
// The types implement Cluster API's v1beta2 contract for infrastructure providers: InfraCluster, InfraMachine,
// InfraMachineTemplate and InfraMachinePool with MachinePool Machines. A label on the CRDs declares the version of the
// contract. See https://cluster-api.sigs.k8s.io/developer/providers/contracts/.
//
// Invariant: markers and CEL rules express every check that a schema can make, so that no admission webhook is needed.
//
// +kubebuilder:object:generate=true
// +groupName=infrastructure.cluster.x-k8s.io
package v1beta1

//go:generate ../../../scripts/generate-crds.sh
