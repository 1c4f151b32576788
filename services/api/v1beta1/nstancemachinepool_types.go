package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NstanceMachinePoolSpec describes a group of instances on one or more shards. The number of instances is the replicas
// field of the MachinePool that references the pool.
//
// A static group is defined in the shards' configuration. An NstanceMachinePool can change only the size,
// instance_type, vars, rollout.paused and rollout.revision of a static group.
type NstanceMachinePoolSpec struct {
	// group is the name of the group on the servers.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9]|-[a-z0-9])*$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="group is immutable: create another pool"
	Group string `json:"group,omitempty"`
	// shards are the IDs of the shards that share the replicas. Each shard gets an equal part. The remainder goes to
	// the first shards of this list, one replica each.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=32
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([a-z0-9]|-[a-z0-9])*$`
	Shards []string `json:"shards,omitempty"`
	// config has the group's settings, in the form of a group in the shard's configuration
	// (docs/reference/configuration.md#groups), but without size: the replicas of the MachinePool set the size. The
	// shards check the settings. Settings that other clients made, such as rollout.paused, stay unless config has them.
	// A dynamic group needs a template.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	Config *apiextensionsv1.JSON `json:"config,omitempty"`
	// providerIDList contains the provider IDs of the existing instances without spares, sorted. The operator maintains
	// it for Cluster API.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10000
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	ProviderIDList []string `json:"providerIDList,omitempty"`
}

// NstanceMachinePoolStatus sums up the statuses of the pool's shard groups.
type NstanceMachinePoolStatus struct {
	// ready is true once every reachable shard has accepted the group. Cluster API's MachinePool controller waits for
	// this.
	// +optional
	Ready bool `json:"ready,omitempty"`
	// initialization reports the provisioning state to Cluster API: provisioned once every reachable shard has accepted
	// the group.
	// +optional
	Initialization Initialization `json:"initialization,omitempty,omitzero"`
	// infrastructureMachineKind is the kind of the objects that represent the pool's instances (MachinePool Machines).
	// +optional
	InfrastructureMachineKind string `json:"infrastructureMachineKind,omitempty"`
	// replicas is the number of instances on all shards, without on-demand instances, spares and those being deleted.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// readyReplicas is the number of healthy instances among the replicas.
	// +optional
	ReadyReplicas *int32 `json:"readyReplicas,omitempty"`
	// spares counts the warm spares on all shards. It is empty if the pool has and wants none.
	// +optional
	Spares *SparesStatus `json:"spares,omitempty"`
	// isStatic is true if the group is defined in the configuration of a shard.
	// +optional
	IsStatic bool `json:"isStatic,omitempty"`
	// capacity is the capacity of one instance, derived from its instance type. It is empty if unknown. The cluster
	// autoscaler needs it to scale from zero.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions of the pool: Ready, ShardsReachable and Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NstanceMachinePool is a group of instances on one or more shards (InfraMachinePool of Cluster API).
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels={"cluster.x-k8s.io/provider=infrastructure-nstance","cluster.x-k8s.io/v1beta2=v1beta1"}
// +kubebuilder:resource:path=nstancemachinepools,scope=Namespaced,categories=cluster-api,shortName=nmp
// +kubebuilder:printcolumn:name="Group",type=string,JSONPath=`.spec.group`
// +kubebuilder:printcolumn:name="Shards",type=string,JSONPath=`.spec.shards`,priority=1
// +kubebuilder:printcolumn:name="Template",type=string,JSONPath=`.spec.config.template`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.config.instance_type`,priority=1
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.status.replicas`
// +kubebuilder:printcolumn:name="Healthy",type=integer,JSONPath=`.status.readyReplicas`
// +kubebuilder:printcolumn:name="Spares",type=integer,JSONPath=`.status.spares.ready`,priority=1
// +kubebuilder:printcolumn:name="Static",type=boolean,JSONPath=`.status.isStatic`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NstanceMachinePool struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`
	// spec is the desired state.
	// +required
	Spec NstanceMachinePoolSpec `json:"spec,omitzero"`
	// status is the observed state.
	// +optional
	Status NstanceMachinePoolStatus `json:"status,omitempty,omitzero"`
}

// NstanceMachinePoolList is a list of NstanceMachinePools.
//
// +kubebuilder:object:root=true
type NstanceMachinePoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NstanceMachinePool `json:"items"`
}
