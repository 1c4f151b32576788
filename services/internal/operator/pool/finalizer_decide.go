package pool

import (
	"time"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// newMachinePool is how long the operator waits for Cluster API's finalizer on a new MachinePool before it creates
// instances. If a MachinePool is deleted before it has the finalizer, Cluster API does not delete the
// NstanceMachinePool. The instances would then stay. The wait is limited, because the finalizer never comes where
// Cluster API does not run (dev-k8s).
const newMachinePool = 5 * time.Second

// waitForFinalizer returns the time until the operator creates instances for a MachinePool, 0 if it may do so now. If
// the MachinePool seems to be created in the future, the clocks of the API server and the operator differ, and the
// operator does not wait.
func waitForFinalizer(mp *clusterv1.MachinePool, now time.Time) time.Duration {
	if mp == nil || controllerutil.ContainsFinalizer(mp, clusterv1.MachinePoolFinalizer) {
		return 0
	}
	age := now.Sub(mp.CreationTimestamp.Time)
	if age < 0 || age > newMachinePool {
		return 0
	}
	return newMachinePool - age
}
