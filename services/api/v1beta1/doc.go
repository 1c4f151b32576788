// Package v1beta1 owns the Kubernetes types of Nstance, and every name that the operator gives there: labels,
// annotations, finalizers, conditions and their reasons.
//
// The types follow Cluster API's v1beta2 contract for infrastructure providers
// (https://cluster-api.sigs.k8s.io/developer/providers/contracts/): InfraCluster, InfraMachine, InfraMachineTemplate
// and InfraMachinePool with MachinePool Machines. The definitions' label says so: this version speaks that contract.
//
// Invariant: what a schema can say is said by markers and CEL rules here, so that it holds without admission webhooks.
//
// +kubebuilder:object:generate=true
// +groupName=infrastructure.cluster.x-k8s.io
package v1beta1

//go:generate ../../../scripts/generate-crds.sh
