package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NstanceMachinePoolSpec is a group of instances, spread over shards. How many there are is said by the MachinePool
// that refers to it.
//
// Of a static group (one that the shards' configuration defines) only the size, instanceType and vars can be changed
// here.
type NstanceMachinePoolSpec struct {
	// group is the name of the group on the servers.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9]|-[a-z0-9])*$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="group is immutable: make another pool"
	Group string `json:"group,omitempty"`
	// shards are the shards that share the replicas: equal parts, the remainder to the first ones.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=32
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([a-z0-9]|-[a-z0-9])*$`
	Shards []string `json:"shards,omitempty"`
	// template is the name of the template in the shards' configuration that the group's instances are made of.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9]|-[a-z0-9])*$`
	Template string `json:"template,omitempty"`
	// subnetPool is the pool of subnets that instances are placed in; the template's when empty.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	SubnetPool string `json:"subnetPool,omitempty"`
	// instanceType is the provider's machine type; the template's when empty.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	InstanceType string `json:"instanceType,omitempty"`
	// vars are laid over the template's.
	// +optional
	// +kubebuilder:validation:MaxProperties=256
	Vars map[string]string `json:"vars,omitempty"`
	// providerIDList has the provider IDs of the instances there are, sorted. The operator keeps it; Cluster API reads
	// it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10000
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	ProviderIDList []string `json:"providerIDList,omitempty"`
}

// NstanceMachinePoolStatus sums up the pool's shard groups.
type NstanceMachinePoolStatus struct {
	// ready is what Cluster API's MachinePool controller waits for: the shards know the group.
	// +optional
	Ready bool `json:"ready,omitempty"`
	// initialization is for Cluster API: provisioned once the shards know the group.
	// +optional
	Initialization Initialization `json:"initialization,omitempty,omitzero"`
	// infrastructureMachineKind tells Cluster API which objects stand for the pool's instances (MachinePool Machines).
	// +optional
	InfrastructureMachineKind string `json:"infrastructureMachineKind,omitempty"`
	// replicas counts the instances of all shards, as the servers do: those that are being deleted are not among them.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// readyReplicas counts those of them that the servers find healthy.
	// +optional
	ReadyReplicas *int32 `json:"readyReplicas,omitempty"`
	// isStatic is true when a shard's own configuration defines the group: what makes it up then cannot be changed
	// here.
	// +optional
	IsStatic bool `json:"isStatic,omitempty"`
	// capacity is what one instance offers, by its instance type; empty when that is not known. The cluster autoscaler
	// scales from zero by it.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// observedGeneration is the generation of the spec that the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions: Ready, ShardsReachable, Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NstanceMachinePool is a group of instances over several shards: Cluster API's InfraMachinePool.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels={"cluster.x-k8s.io/provider=infrastructure-nstance","cluster.x-k8s.io/v1beta2=v1beta1"}
// +kubebuilder:resource:path=nstancemachinepools,scope=Namespaced,categories=cluster-api,shortName=nmp
// +kubebuilder:printcolumn:name="Group",type=string,JSONPath=`.spec.group`
// +kubebuilder:printcolumn:name="Shards",type=string,JSONPath=`.spec.shards`,priority=1
// +kubebuilder:printcolumn:name="Template",type=string,JSONPath=`.spec.template`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.instanceType`,priority=1
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.status.replicas`
// +kubebuilder:printcolumn:name="Healthy",type=integer,JSONPath=`.status.readyReplicas`
// +kubebuilder:printcolumn:name="Static",type=boolean,JSONPath=`.status.isStatic`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="!has(self.status) || !has(self.status.isStatic) || !self.status.isStatic || self.spec.template == oldSelf.spec.template",message="template cannot be changed: the group is static, so it is defined in the shards' configuration"
// +kubebuilder:validation:XValidation:rule="!has(self.status) || !has(self.status.isStatic) || !self.status.isStatic || (has(self.spec.subnetPool) == has(oldSelf.spec.subnetPool) && (!has(self.spec.subnetPool) || self.spec.subnetPool == oldSelf.spec.subnetPool))",message="subnetPool cannot be changed: the group is static, so it is defined in the shards' configuration"
type NstanceMachinePool struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`
	// spec is what is wanted.
	// +required
	Spec NstanceMachinePoolSpec `json:"spec,omitzero"`
	// status is what was seen.
	// +optional
	Status NstanceMachinePoolStatus `json:"status,omitempty,omitzero"`
}

// NstanceMachinePoolList is a list of pools.
//
// +kubebuilder:object:root=true
type NstanceMachinePoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NstanceMachinePool `json:"items"`
}

// GetConditions returns the conditions.
func (p *NstanceMachinePool) GetConditions() []metav1.Condition { return p.Status.Conditions }

// SetConditions replaces the conditions.
func (p *NstanceMachinePool) SetConditions(conditions []metav1.Condition) {
	p.Status.Conditions = conditions
}
