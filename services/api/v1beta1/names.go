package v1beta1

// Labels. GroupLabel and ShardLabel are set on every object that belongs to a group or a shard.
const (
	// GroupLabel contains the name of the Nstance group.
	GroupLabel = "nstance.dev/group"
	// ShardLabel contains the ID of the shard.
	ShardLabel = "nstance.dev/shard"
	// ImportedLabel is "true" on objects that the operator created for a group that already existed on the servers.
	ImportedLabel = "nstance.dev/imported"
	// PodUIDLabel contains the UID of the pod for which an on-demand machine was created.
	PodUIDLabel = "nstance.dev/pod-uid"
	// OnDemandGroupNodeLabel on a Node contains the group of an on-demand machine. Pods select Nodes by this label.
	OnDemandGroupNodeLabel = "node.cluster.x-k8s.io/on-demand-group"
	// OnDemandPodNodeLabel on a Node contains the UID of the pod that the on-demand machine belongs to. It is also the
	// key of a taint (NoSchedule) with the same value, which only that pod tolerates.
	OnDemandPodNodeLabel = "node.cluster.x-k8s.io/on-demand-pod"
)

// SpareTaint is the key of a taint (NoSchedule) with which a kubelet may register its Node. It keeps pods off the Node
// of a warm spare until the operator has cordoned the Node. The operator also removes it from the Nodes of members.
const SpareTaint = "nstance.dev/spare"

// Annotations.
const (
	// PodAnnotation contains "{namespace}/{name}" of the pod for which an on-demand machine was created.
	PodAnnotation = "nstance.dev/pod"
	// OwnedFieldsAnnotation on an NstanceShardGroup contains all fields that its spec.config ever had, each with the
	// value null: a JSON merge patch (RFC 7396), such as {"instance_type":null,"vars":{"a":null}}. When a field is
	// removed from spec.config, the operator removes it from the group on the server.
	OwnedFieldsAnnotation = "nstance.dev/owned-fields"
	// RemoveAnnotation on a shard group lists instance IDs, separated by commas. When the group's size is lowered, the
	// shard deletes these instances. The operator writes the annotation together with the lower size.
	RemoveAnnotation = "nstance.dev/remove-instances"
	// CapacityAnnotation on a MachinePool contains the values that the operator wrote into the cluster autoscaler's
	// annotations. Other values in the autoscaler's annotations belong to a user and are not changed.
	CapacityAnnotation = "nstance.dev/capacity"
	// InstanceAnnotation on a Node of the workload cluster contains "{shard}/{instance}". The Node is removed once the
	// shard's leader reports that the instance is gone.
	InstanceAnnotation = "nstance.dev/instance"
	// SpareCordonAnnotation on a Node of the workload cluster means that the operator has cordoned the Node because of
	// its instance, a warm spare. The operator uncordons only Nodes with this annotation.
	SpareCordonAnnotation = "nstance.dev/spare-cordon"
	// SkipShardsAnnotation lists IDs of shards, separated by commas. The deletion of the annotated object does not wait
	// for a listed shard that does not answer. On a Cluster, the annotation applies to all objects of the Cluster.
	SkipShardsAnnotation = "nstance.dev/skip-shards"
	// StoredPoolAnnotation on a MachinePool contains a copy of its NstanceMachinePool. If two MachinePools share an
	// NstanceMachinePool and one of them is deleted, Cluster API deletes the NstanceMachinePool too. The operator then
	// creates it again from the copy, and removes the annotation.
	StoredPoolAnnotation = "nstance.dev/stored-pool"
	// SharesAnnotation on an NstanceMachinePool contains the share of each shard as JSON. If a shard group is deleted,
	// the operator creates it again with this share.
	SharesAnnotation = "nstance.dev/shares"
	// RecreateAnnotation on the ConfigMap that records the deletion of a Cluster makes the operator create the Cluster
	// again.
	RecreateAnnotation = "nstance.dev/recreate"
	// OnDemandGroupAnnotation on a pod contains the name of a group. It requests an instance of that group for the pod.
	OnDemandGroupAnnotation = "on-demand.nstance.dev/group"
	// OnDemandInstanceTypeAnnotation on a pod with OnDemandGroupAnnotation contains the type of the pod's instance. It
	// overrides the group's instance type.
	OnDemandInstanceTypeAnnotation = "on-demand.nstance.dev/instance-type"
	// OnDemandShardAnnotation on a pod with OnDemandGroupAnnotation contains the shard of the pod's instance.
	OnDemandShardAnnotation = "on-demand.nstance.dev/shard"
)

// Finalizers. ClusterFinalizer keeps a deleted Cluster until the operator has recorded its deletion. The other
// finalizers are on objects that represent a group or an instance on the servers.
const (
	ClusterFinalizer     = "infrastructure.cluster.x-k8s.io/nstancecluster"
	MachinePoolFinalizer = "infrastructure.cluster.x-k8s.io/nstancemachinepool"
	ShardGroupFinalizer  = "infrastructure.cluster.x-k8s.io/nstanceshardgroup"
	MachineFinalizer     = "infrastructure.cluster.x-k8s.io/nstancemachine"
)

// Condition types.
const (
	// ReadyCondition: the state of the object matches its spec. All kinds have it.
	ReadyCondition = "Ready"
	// PausedCondition: the object or its Cluster is paused and not reconciled (Cluster API contract).
	PausedCondition = "Paused"
	// ShardReachableCondition: the shard's leader is reachable. Shard groups and machines have it.
	ShardReachableCondition = "ShardReachable"
	// ConfigValidCondition: the shard accepted the group's definition. Shard groups have it.
	ConfigValidCondition = "ConfigValid"
	// ShardsReachableCondition: all shards are reachable. Pools and the NstanceCluster have it.
	ShardsReachableCondition = "ShardsReachable"
	// PoolSharedCondition: other MachinePools reference the same NstanceMachinePool. MachinePools have it.
	PoolSharedCondition = "PoolShared"
	// InstanceCreatedCondition: the shard accepted the request for the instance. Machines have it.
	InstanceCreatedCondition = "InstanceCreated"
	// ServerDeletedCondition: the server reported that a machine's instance is gone, so the operator sends no delete
	// request for the instance. Machines have this condition.
	ServerDeletedCondition = "ServerDeleted"
)

// Reasons of conditions and events.
const (
	ReadyReason                 = "Ready"
	NotReadyReason              = "NotReady"
	PausedReason                = "Paused"
	NotPausedReason             = "NotPaused"
	ReachableReason             = "Reachable"
	UnreachableReason           = "Unreachable"
	UnknownShardReason          = "UnknownShard"
	AcceptedReason              = "Accepted"
	RefusedReason               = "Refused"
	ScalingReason               = "Scaling"
	BlockedReason               = "Blocked"
	ImportedReason              = "Imported"
	DeletingReason              = "Deleting"
	PreservedReason             = "Preserved"
	WaitingForMachineReason     = "WaitingForMachine"
	WaitingForMachinePoolReason = "WaitingForMachinePool"
	WaitingForShardReason       = "WaitingForShard"
	WaitingForInstanceReason    = "WaitingForInstance"
	CreatedReason               = "Created"
	CreateFailedReason          = "CreateFailed"
	InstanceGoneReason          = "InstanceGone"
	DrainStartedReason          = "DrainStarted"
	DrainedReason               = "Drained"
	DrainFailedReason           = "DrainFailed"
	DrainDeadlineReason         = "DrainDeadlineExceeded"
	SparePromotedReason         = "SparePromoted"
	ProviderErrorReason         = "ProviderError"
	ConfigRefusedReason         = "ConfigRefused"
	ShardRemovedReason          = "ShardRemoved"
	ShardSkippedReason          = "ShardSkipped"
	KubeconfigFailedReason      = "KubeconfigFailed"
	SecretRestoredReason        = "SecretRestored"
	IdentityFailedReason        = "IdentityFailed"
	ConfigurationInvalidReason  = "ConfigurationInvalid"
	TakenOverReason             = "TakenOver"
	PoolSharedReason            = "PoolShared"
	PoolNotSharedReason         = "PoolNotShared"
	UnreferencedReason          = "Unreferenced"
	ReconcileFailedReason       = "ReconcileFailed"
)

// DeletionRecordName returns the name of the ConfigMap that records the deletion of a Cluster.
func DeletionRecordName(cluster string) string { return cluster + "-deleted" }

// ShardGroupName returns the name of the NstanceShardGroup of a group on a shard. It is unambiguous, because neither
// name may contain "--".
func ShardGroupName(group, shard string) string { return group + "--" + shard }

// ClusterName returns the name of a tenant's Cluster and of its NstanceCluster. The name has at most 62 characters.
func ClusterName(cluster, tenant string) string { return cluster + "--" + tenant }
