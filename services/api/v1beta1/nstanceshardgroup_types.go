package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NstanceShardGroupSpec is the part of a pool on one shard. The operator writes it and reverts changes by users.
type NstanceShardGroupSpec struct {
	// group is the name of the group on the shard's servers.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="group is immutable"
	Group string `json:"group,omitempty"`
	// shard is the ID of the shard.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="shard is immutable"
	Shard string `json:"shard,omitempty"`
	// size is the number of instances that the shard must keep.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100000
	Size *int32 `json:"size,omitempty"`
	// config is the pool's config.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	Config *apiextensionsv1.JSON `json:"config,omitempty"`
}

// SparesStatus counts warm spares, which are in no other number.
type SparesStatus struct {
	// count is the number of spares that the configuration asks for.
	// +optional
	Count *int32 `json:"count,omitempty"`
	// actual is the number of spares that exist.
	// +optional
	Actual *int32 `json:"actual,omitempty"`
	// ready is the number of spares that can become members now.
	// +optional
	Ready *int32 `json:"ready,omitempty"`
}

// NstanceShardGroupStatus is the observed state of an NstanceShardGroup, as last reported by the shard's leader.
type NstanceShardGroupStatus struct {
	// observedGeneration is the generation of this object's spec that the shard's leader has accepted.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// isStatic is true if the group is defined in the shard's configuration.
	// +optional
	IsStatic bool `json:"isStatic,omitempty"`
	// config has all settings of the group that are in force, in the form of a group in the shard's configuration. The
	// shard's leader merges it from the template, the shard's configuration and the pool's settings.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	Config *apiextensionsv1.JSON `json:"config,omitempty"`
	// capacity is the CPU, memory and other resources of the group's instance type.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// actualSize is the number of instances that count towards size: all but on-demand instances, spares and those
	// being deleted.
	// +optional
	ActualSize *int32 `json:"actualSize,omitempty"`
	// healthy is the number of healthy instances among those that actualSize counts.
	// +optional
	Healthy *int32 `json:"healthy,omitempty"`
	// spares counts the group's warm spares. It is empty if the group has and wants none.
	// +optional
	Spares *SparesStatus `json:"spares,omitempty"`
	// providerIDs contains the provider IDs of the group's instances without spares, sorted.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10000
	ProviderIDs []string `json:"providerIDs,omitempty"`
	// lastSyncTime is the time when the operator last changed this status while it could reach the shard's leader.
	// +optional
	LastSyncTime *metav1.Time `json:"lastSyncTime,omitempty"`
	// conditions of the shard group: Ready, ShardReachable, ConfigValid and Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NstanceShardGroup is the part of an NstanceMachinePool on one shard. The pool owns the NstanceShardGroup, which has
// the name `{group}--{shard}`.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels={"cluster.x-k8s.io/provider=infrastructure-nstance","cluster.x-k8s.io/v1beta2=v1beta1"}
// +kubebuilder:resource:path=nstanceshardgroups,scope=Namespaced,categories=cluster-api,shortName=nsg
// +kubebuilder:printcolumn:name="Group",type=string,JSONPath=`.spec.group`
// +kubebuilder:printcolumn:name="Shard",type=string,JSONPath=`.spec.shard`
// +kubebuilder:printcolumn:name="Size",type=integer,JSONPath=`.spec.size`
// +kubebuilder:printcolumn:name="Actual",type=integer,JSONPath=`.status.actualSize`
// +kubebuilder:printcolumn:name="Healthy",type=integer,JSONPath=`.status.healthy`
// +kubebuilder:printcolumn:name="Spares",type=integer,JSONPath=`.status.spares.ready`,priority=1
// +kubebuilder:printcolumn:name="Static",type=boolean,JSONPath=`.status.isStatic`
// +kubebuilder:printcolumn:name="Reachable",type=string,JSONPath=`.status.conditions[?(@.type=="ShardReachable")].status`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Synced",type=date,JSONPath=`.status.lastSyncTime`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NstanceShardGroup struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`
	// spec is the desired state.
	// +required
	Spec NstanceShardGroupSpec `json:"spec,omitzero"`
	// status is the observed state.
	// +optional
	Status NstanceShardGroupStatus `json:"status,omitempty,omitzero"`
}

// NstanceShardGroupList is a list of NstanceShardGroups.
//
// +kubebuilder:object:root=true
type NstanceShardGroupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NstanceShardGroup `json:"items"`
}
