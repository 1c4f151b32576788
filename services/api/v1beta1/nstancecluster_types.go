package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// NstanceClusterSpec is what Cluster API needs to know of a cluster. The rest is the servers' own configuration.
type NstanceClusterSpec struct {
	// controlPlaneEndpoint is where the workload cluster's API server is reached.
	// +optional
	ControlPlaneEndpoint clusterv1.APIEndpoint `json:"controlPlaneEndpoint,omitempty,omitzero"`
}

// NstanceClusterStatus is what the operator knows of the cluster's shards.
type NstanceClusterStatus struct {
	// initialization is for Cluster API. A cluster of Nstance is provisioned by Terraform, so it is so from the first.
	// +optional
	Initialization Initialization `json:"initialization,omitempty,omitzero"`
	// failureDomains has one entry a shard, by its ID.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=100
	FailureDomains []clusterv1.FailureDomain `json:"failureDomains,omitempty"`
	// observedGeneration is the generation of the spec that the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions: Ready, Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NstanceCluster is an Nstance cluster, seen by one tenant: Cluster API's InfraCluster. The operator makes it, named
// `{cluster}--{tenant}`.
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
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`
	// spec is what is wanted.
	// +optional
	Spec NstanceClusterSpec `json:"spec,omitempty,omitzero"`
	// status is what was seen.
	// +optional
	Status NstanceClusterStatus `json:"status,omitempty,omitzero"`
}

// NstanceClusterList is a list of clusters.
//
// +kubebuilder:object:root=true
type NstanceClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NstanceCluster `json:"items"`
}

// GetConditions returns the conditions.
func (c *NstanceCluster) GetConditions() []metav1.Condition { return c.Status.Conditions }

// SetConditions replaces the conditions.
func (c *NstanceCluster) SetConditions(conditions []metav1.Condition) {
	c.Status.Conditions = conditions
}
