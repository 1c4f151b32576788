package v1beta1

// Labels. The first two stand on everything that belongs to a group or a shard.
const (
	// GroupLabel holds the name of the Nstance group.
	GroupLabel = "nstance.dev/group"
	// ShardLabel holds the ID of the shard.
	ShardLabel = "nstance.dev/shard"
	// ImportedLabel is "true" on what the operator made of a group that it found on the servers.
	ImportedLabel = "nstance.dev/imported"
	// PodUIDLabel holds the UID of the pod that an on-demand machine was made for.
	PodUIDLabel = "nstance.dev/pod-uid"
	// OnDemandGroupNodeLabel holds the group, on an on-demand Machine. Cluster API copies labels of this domain from a
	// Machine to its Node.
	OnDemandGroupNodeLabel = "node.cluster.x-k8s.io/on-demand-group"
	// OnDemandPodNodeLabel holds the pod's UID, in the same way.
	OnDemandPodNodeLabel = "node.cluster.x-k8s.io/on-demand-pod"
)

// Annotations.
const (
	// PodAnnotation holds "{namespace}/{name}" of the pod that an on-demand machine was made for.
	PodAnnotation = "nstance.dev/pod"
	// OwnedFieldsAnnotation on a shard group names, with commas, the fields of a static group that were ever said in
	// Kubernetes: when they are no longer said, what was pushed of them is taken back, and of no others.
	OwnedFieldsAnnotation = "nstance.dev/owned-fields"
	// CapacityAnnotation on a MachinePool holds what the operator wrote into the cluster autoscaler's annotations
	// there, so that it never takes a user's for its own.
	CapacityAnnotation = "nstance.dev/capacity"
	// InstanceAnnotation on a Node of the workload cluster holds "{shard}/{instance}": which instance it is. A Node
	// that has it is removed once the shard's leader says that the instance is gone.
	InstanceAnnotation = "nstance.dev/instance"
	// OnDemandGroupAnnotation on a pod asks for an instance of this group of its own.
	OnDemandGroupAnnotation = "on-demand.nstance.dev/group"
	// OnDemandInstanceTypeAnnotation overrides the group's instance type.
	OnDemandInstanceTypeAnnotation = "on-demand.nstance.dev/instance-type"
	// OnDemandShardAnnotation picks the shard.
	OnDemandShardAnnotation = "on-demand.nstance.dev/shard"
)

// Finalizers, one a kind that has something on the servers. The API server warns of those without a path.
const (
	MachinePoolFinalizer = "infrastructure.cluster.x-k8s.io/nstancemachinepool"
	ShardGroupFinalizer  = "infrastructure.cluster.x-k8s.io/nstanceshardgroup"
	MachineFinalizer     = "infrastructure.cluster.x-k8s.io/nstancemachine"
)

// Condition types.
const (
	// ReadyCondition: all is as the spec wants it. Every kind has it.
	ReadyCondition = "Ready"
	// PausedCondition: the object or its Cluster is paused, and nothing is done (Cluster API contract).
	PausedCondition = "Paused"
	// ShardReachableCondition: the shard's leader answers. On shard groups and machines.
	ShardReachableCondition = "ShardReachable"
	// ConfigValidCondition: the shard took the group's definition. On shard groups.
	ConfigValidCondition = "ConfigValid"
	// ShardsReachableCondition: all shards of a pool answer.
	ShardsReachableCondition = "ShardsReachable"
	// InstanceCreatedCondition: the shard knows the instance and has asked its provider for it. On machines.
	InstanceCreatedCondition = "InstanceCreated"
	// ServerDeletedCondition: the server has said that the instance is gone, so it is not asked to delete it. On
	// machines.
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
	ProvisionedReason           = "Provisioned"
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
	ProviderErrorReason         = "ProviderError"
	ConfigRefusedReason         = "ConfigRefused"
	ShardRemovedReason          = "ShardRemoved"
	KubeconfigFailedReason      = "KubeconfigFailed"
)

// ShardGroupName is the name of the NstanceShardGroup of a group on a shard. Neither may contain "--", so it has one
// reading.
func ShardGroupName(group, shard string) string { return group + "--" + shard }

// ClusterName is the name of the Cluster and NstanceCluster of a tenant, at most 62 characters.
func ClusterName(cluster, tenant string) string { return cluster + "--" + tenant }
