package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// GroupReference names a group of the servers.
type GroupReference struct {
	// name of the group.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9]|-[a-z0-9])*$`
	Name string `json:"name,omitempty"`
}

// NstanceMachineSpec is one instance. With the label cluster.x-k8s.io/pool-name it stands for one that its group
// manages (a MachinePool Machine); without, it is an individual one, which the operator creates and deletes.
//
// +kubebuilder:validation:XValidation:rule="self.groupRef == oldSelf.groupRef",message="groupRef is immutable: an instance does not change its group"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.instanceID) || (has(self.instanceID) && self.instanceID == oldSelf.instanceID)",message="instanceID is immutable once set"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.instanceID) || !has(oldSelf.shard) || (has(self.shard) && self.shard == oldSelf.shard)",message="shard is immutable once the instance has an ID"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.instanceID) || (has(oldSelf.instanceType) == has(self.instanceType) && (!has(self.instanceType) || self.instanceType == oldSelf.instanceType))",message="instanceType is immutable once the instance has an ID: delete the machine and make another"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.instanceID) || (has(oldSelf.vars) == has(self.vars) && (!has(self.vars) || self.vars == oldSelf.vars))",message="vars are immutable once the instance has an ID: delete the machine and make another"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.providerID) || (has(self.providerID) && self.providerID == oldSelf.providerID)",message="providerID is immutable once set"
type NstanceMachineSpec struct {
	// groupRef is the group whose template the instance is made of.
	// +required
	GroupRef GroupReference `json:"groupRef,omitzero"`
	// shard is where the instance is; when empty, the operator picks one that has the group.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Shard string `json:"shard,omitempty"`
	// instanceType overrides the group's.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	InstanceType string `json:"instanceType,omitempty"`
	// vars are laid over the group's.
	// +optional
	// +kubebuilder:validation:MaxProperties=256
	Vars map[string]string `json:"vars,omitempty"`
	// instanceID is the instance's ID on the servers. The operator makes it and stores it here before it asks for the
	// instance, so that asking again, after a crash too, never makes a second one.
	// +optional
	// +kubebuilder:validation:MaxLength=29
	// +kubebuilder:validation:Pattern=`^[a-z]{3}[0-9a-hjkmnp-tv-z]{26}$`
	InstanceID string `json:"instanceID,omitempty"`
	// providerID is the provider's name of the instance, equal to its Node's. The operator sets it.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	ProviderID string `json:"providerID,omitempty"`
}

// NstanceMachineStatus is what the shard's leader said last.
type NstanceMachineStatus struct {
	// initialization is for Cluster API: provisioned once the instance had a provider ID and was running.
	// +optional
	Initialization Initialization `json:"initialization,omitempty,omitzero"`
	// instanceID repeats the spec's once the server knows the instance.
	// +optional
	InstanceID string `json:"instanceID,omitempty"`
	// ready is true while the instance runs and the server finds it healthy.
	// +optional
	Ready bool `json:"ready,omitempty"`
	// state is the server's: reserved, created, registered, deleting, deleted.
	// +optional
	State string `json:"state,omitempty"`
	// addresses of the instance.
	// +optional
	Addresses clusterv1.MachineAddresses `json:"addresses,omitempty"`
	// failureDomain is the shard.
	// +optional
	FailureDomain string `json:"failureDomain,omitempty"`
	// observedGeneration is the generation of the spec that the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions: Ready, InstanceCreated, ServerDeleted, ShardReachable, Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NstanceMachine is one instance: Cluster API's InfraMachine.
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
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`
	// spec is what is wanted.
	// +required
	Spec NstanceMachineSpec `json:"spec,omitzero"`
	// status is what was seen.
	// +optional
	Status NstanceMachineStatus `json:"status,omitempty,omitzero"`
}

// NstanceMachineList is a list of machines.
//
// +kubebuilder:object:root=true
type NstanceMachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NstanceMachine `json:"items"`
}

// GetConditions returns the conditions.
func (m *NstanceMachine) GetConditions() []metav1.Condition { return m.Status.Conditions }

// SetConditions replaces the conditions.
func (m *NstanceMachine) SetConditions(conditions []metav1.Condition) {
	m.Status.Conditions = conditions
}

// NstanceMachineTemplateResource is what machines are made of.
type NstanceMachineTemplateResource struct {
	// metadata: labels and annotations of the machines.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"`
	// spec of the machines.
	// +required
	Spec NstanceMachineSpec `json:"spec,omitzero"`
}

// NstanceMachineTemplateSpec holds the template.
type NstanceMachineTemplateSpec struct {
	// template of the machines.
	// +required
	// +kubebuilder:validation:XValidation:rule="self.spec == oldSelf.spec",message="template.spec is immutable: make another template"
	// +kubebuilder:validation:XValidation:rule="!has(self.spec.instanceID) && !has(self.spec.providerID)",message="instanceID and providerID belong to one machine, not to a template"
	Template NstanceMachineTemplateResource `json:"template,omitzero"`
}

// NstanceMachineTemplateStatus is what is known of machines made of the template.
type NstanceMachineTemplateStatus struct {
	// capacity is what one machine offers, by its instance type; empty when that is not known. The cluster autoscaler
	// scales from zero by it.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
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

// NstanceMachineTemplate is what MachineDeployments and MachineSets make NstanceMachines of: Cluster API's
// InfraMachineTemplate.
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
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`
	// spec is what is wanted.
	// +required
	Spec NstanceMachineTemplateSpec `json:"spec,omitzero"`
	// status is what was seen.
	// +optional
	Status NstanceMachineTemplateStatus `json:"status,omitempty,omitzero"`
}

// NstanceMachineTemplateList is a list of templates.
//
// +kubebuilder:object:root=true
type NstanceMachineTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NstanceMachineTemplate `json:"items"`
}

// GetConditions returns the conditions.
func (t *NstanceMachineTemplate) GetConditions() []metav1.Condition { return t.Status.Conditions }

// SetConditions replaces the conditions.
func (t *NstanceMachineTemplate) SetConditions(conditions []metav1.Condition) {
	t.Status.Conditions = conditions
}
