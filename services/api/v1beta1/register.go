package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of the types. Cluster API prescribes this group for its providers.
var GroupVersion = schema.GroupVersion{Group: "infrastructure.cluster.x-k8s.io", Version: "v1beta1"}

// AddToScheme registers the types with a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&NstanceCluster{}, &NstanceClusterList{},
		&NstanceMachinePool{}, &NstanceMachinePoolList{},
		&NstanceShardGroup{}, &NstanceShardGroupList{},
		&NstanceMachine{}, &NstanceMachineList{},
		&NstanceMachineTemplate{}, &NstanceMachineTemplateList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
