package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// GroupReference names a group that the Nstance servers manage.
type GroupReference struct {
	// name is the name of the group.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9]|-[a-z0-9])*$`
	Name string `json:"name,omitempty"`
}

// NstanceMachineSpec is the desired state of an NstanceMachine. If it has the label cluster.x-k8s.io/pool-name,
// it represents an instance of a pool (a MachinePool Machine), which the servers create. Without the label, the
// operator creates an instance for the NstanceMachine, and deletes both together.
//
// +kubebuilder:validation:XValidation:rule="self.groupRef == oldSelf.groupRef",message="groupRef is immutable: an instance does not change its group"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.instanceID) || (has(self.instanceID) && self.instanceID == oldSelf.instanceID)",message="instanceID is immutable once set"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.instanceID) || !has(oldSelf.shard) || (has(self.shard) && self.shard == oldSelf.shard)",message="shard is immutable once the instance has an ID"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.instanceID) || (has(oldSelf.instanceType) == has(self.instanceType) && (!has(self.instanceType) || self.instanceType == oldSelf.instanceType))",message="instanceType is immutable once the instance has an ID: delete the machine and create another"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.instanceID) || (has(oldSelf.vars) == has(self.vars) && (!has(self.vars) || self.vars == oldSelf.vars))",message="vars are immutable once the instance has an ID: delete the machine and create another"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.providerID) || (has(self.providerID) && self.providerID == oldSelf.providerID)",message="providerID is immutable once set"
type NstanceMachineSpec struct {
	// groupRef is the group whose template the instance uses.
	// +required
	GroupRef GroupReference `json:"groupRef,omitzero"`
	// shard is the shard of the instance. If empty, the operator chooses the shard with the fewest instances of the
	// group.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Shard string `json:"shard,omitempty"`
	// instanceType overrides the group's instance type.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	InstanceType string `json:"instanceType,omitempty"`
	// vars are variables for the instance. They override the group's variables of the same names.
	// +optional
	// +kubebuilder:validation:MaxProperties=256
	Vars map[string]string `json:"vars,omitempty"`
	// instanceID is the instance's ID on the servers. The operator generates and stores the ID before it asks a server
	// for the instance, so that a repeated request never creates a second instance.
	// +optional
	// +kubebuilder:validation:MaxLength=29
	// +kubebuilder:validation:Pattern=`^[a-z]{3}[0-9a-hjkmnp-tv-z]{26}$`
	InstanceID string `json:"instanceID,omitempty"`
	// providerID is the provider's ID of the VM. The instance's Node has the same ID. The operator sets it.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	ProviderID string `json:"providerID,omitempty"`
}

// NstanceMachineStatus is the observed state of an NstanceMachine, as last reported by the shard's leader.
type NstanceMachineStatus struct {
	// initialization reports the provisioning state to Cluster API. The state is provisioned from the first time that
	// the instance runs and has a provider ID.
	// +optional
	Initialization Initialization `json:"initialization,omitempty,omitzero"`
	// instanceID equals the ID in the spec once the shard's leader has reported the instance.
	// +optional
	InstanceID string `json:"instanceID,omitempty"`
	// ready is true while the instance runs and is healthy.
	// +optional
	Ready bool `json:"ready,omitempty"`
	// state is the instance's state on the server: reserved, created, registered, deleting or deleted.
	// +optional
	State string `json:"state,omitempty"`
	// addresses are the instance's host name and private addresses.
	// +optional
	Addresses clusterv1.MachineAddresses `json:"addresses,omitempty"`
	// failureDomain is the ID of the shard.
	// +optional
	FailureDomain string `json:"failureDomain,omitempty"`
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions of the machine: Ready, InstanceCreated, ServerDeleted, ShardReachable and Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NstanceMachine is one instance (InfraMachine of Cluster API).
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels={"cluster.x-k8s.io/provider=infrastructure-nstance","cluster.x-k8s.io/v1beta2=v1beta1"}
// +kubebuilder:resource:path=nstancemachines,scope=Namespaced,categories=cluster-api,shortName=nm
// +kubebuilder:printcolumn:name="Group",type=string,JSONPath=`.spec.groupRef.name`
// +kubebuilder:printcolumn:name="Shard",type=string,JSONPath=`.spec.shard`
// +kubebuilder:printcolumn:name="Instance",type=string,JSONPath=`.spec.instanceID`
// +kubebuilder:printcolumn:name="ProviderID",type=string,JSONPath=`.spec.providerID`,priority=1
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Ready",type=boolean,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NstanceMachine struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`
	// spec is the desired state.
	// +required
	Spec NstanceMachineSpec `json:"spec,omitzero"`
	// status is the observed state.
	// +optional
	Status NstanceMachineStatus `json:"status,omitempty,omitzero"`
}

// NstanceMachineList is a list of NstanceMachines.
//
// +kubebuilder:object:root=true
type NstanceMachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NstanceMachine `json:"items"`
}

// NstanceMachineTemplateResource describes the machines created from a template.
type NstanceMachineTemplateResource struct {
	// metadata contains labels and annotations for the machines.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"`
	// spec is the spec of the machines.
	// +required
	Spec NstanceMachineSpec `json:"spec,omitzero"`
}

// NstanceMachineTemplateSpec is the desired state of an NstanceMachineTemplate.
type NstanceMachineTemplateSpec struct {
	// template describes the machines.
	// +required
	// +kubebuilder:validation:XValidation:rule="self.spec == oldSelf.spec",message="template.spec is immutable: create another template"
	// +kubebuilder:validation:XValidation:rule="!has(self.spec.instanceID) && !has(self.spec.providerID)",message="instanceID and providerID belong to one machine, not to a template"
	Template NstanceMachineTemplateResource `json:"template,omitzero"`
}

// NstanceMachineTemplateStatus is the observed state of an NstanceMachineTemplate.
type NstanceMachineTemplateStatus struct {
	// capacity is the capacity of one machine, derived from its instance type. It is empty if unknown. The cluster
	// autoscaler needs it to scale from zero.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions of the template: Ready and Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NstanceMachineTemplate is the template from which MachineDeployments and MachineSets create NstanceMachines
// (InfraMachineTemplate of Cluster API).
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels={"cluster.x-k8s.io/provider=infrastructure-nstance","cluster.x-k8s.io/v1beta2=v1beta1"}
// +kubebuilder:resource:path=nstancemachinetemplates,scope=Namespaced,categories=cluster-api,shortName=nmt
// +kubebuilder:printcolumn:name="Group",type=string,JSONPath=`.spec.template.spec.groupRef.name`
// +kubebuilder:printcolumn:name="Shard",type=string,JSONPath=`.spec.template.spec.shard`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.template.spec.instanceType`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NstanceMachineTemplate struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`
	// spec is the desired state.
	// +required
	Spec NstanceMachineTemplateSpec `json:"spec,omitzero"`
	// status is the observed state.
	// +optional
	Status NstanceMachineTemplateStatus `json:"status,omitempty,omitzero"`
}

// NstanceMachineTemplateList is a list of NstanceMachineTemplates.
//
// +kubebuilder:object:root=true
type NstanceMachineTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NstanceMachineTemplate `json:"items"`
}
