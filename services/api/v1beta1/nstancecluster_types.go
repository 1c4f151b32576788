package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// NstanceClusterSpec is the desired state of an NstanceCluster.
type NstanceClusterSpec struct {
	// controlPlaneEndpoint is the address of the workload cluster's API server.
	// +optional
	ControlPlaneEndpoint clusterv1.APIEndpoint `json:"controlPlaneEndpoint,omitempty,omitzero"`
}

// NstanceClusterStatus is the observed state of an NstanceCluster.
type NstanceClusterStatus struct {
	// initialization reports to Cluster API that the infrastructure is provisioned. It always does so, because the
	// infrastructure exists before this object.
	// +optional
	Initialization Initialization `json:"initialization,omitempty,omitzero"`
	// failureDomains has one entry for each shard, named by the shard's ID.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=100
	FailureDomains []clusterv1.FailureDomain `json:"failureDomains,omitempty"`
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions of the cluster: Ready, ShardsReachable and Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NstanceCluster represents an Nstance cluster for one tenant (InfraCluster of Cluster API). The operator creates it
// with the name `{cluster}--{tenant}`.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels={"cluster.x-k8s.io/provider=infrastructure-nstance","cluster.x-k8s.io/v1beta2=v1beta1"}
// +kubebuilder:resource:path=nstanceclusters,scope=Namespaced,categories=cluster-api,shortName=nc
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.metadata.labels['cluster\.x-k8s\.io/cluster-name']`
// +kubebuilder:printcolumn:name="Endpoint",type=string,JSONPath=`.spec.controlPlaneEndpoint.host`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Provisioned",type=boolean,JSONPath=`.status.initialization.provisioned`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NstanceCluster struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`
	// spec is the desired state.
	// +optional
	Spec NstanceClusterSpec `json:"spec,omitempty,omitzero"`
	// status is the observed state.
	// +optional
	Status NstanceClusterStatus `json:"status,omitempty,omitzero"`
}

// NstanceClusterList is a list of NstanceClusters.
//
// +kubebuilder:object:root=true
type NstanceClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NstanceCluster `json:"items"`
}
