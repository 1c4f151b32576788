package infra

import "context"

// Sleeper is an optional capability: VMs sleep and wake. A VM that sleeps keeps its disks, addresses, tags and ID, and
// does not run. [cloud.Block.Sleeps] lists in which ways the VMs of a cloud can sleep.
//
// While a VM falls asleep, its state is [Stopping] or [Stopped]. While it sleeps, its state is [Stopped]. While it
// wakes, its state is [Pending] or [Running]. Both methods are idempotent, and first compare the VM's own tags with
// vm.Tags, as [Provider.Delete] does. A nil error means that the change was requested, not that it is done. Both fail
// as [NotFound] if the VM is gone or is being deleted. Delete works on sleeping VMs, too.
type Sleeper interface {
	// Sleep puts a VM to sleep that was created with [CreateRequest.Sleep]. It fails as [Invalid] if the VM cannot
	// sleep in that way. For a VM that sleeps or falls asleep it does nothing. A VM that is not yet able to sleep,
	// because it boots or wakes, is a [Conflict]: the caller repeats the call later.
	Sleep(ctx context.Context, vm VM, how string) error
	// Wake lets a sleeping VM run. For a VM that runs or wakes it does nothing. A VM that still falls asleep is a
	// [Conflict]: the caller repeats the call later. [Capacity] means that the cloud has no room for the VM at the
	// moment.
	Wake(ctx context.Context, vm VM) error
}
