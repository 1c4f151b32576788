package infra

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// Batch is an optional capability: it creates many VMs with one call.
//
// # How a VM of a batch gets its ID
//
// The VMs of a batch get the same request, so no tag and no boot script can tell them apart. The cloud numbers them,
// and a VM's instance ID is a function of its batch and its number ([ident.Batch.Member]): nothing has to be stored or
// looked up to know the ID, and nobody who can change tags can change the number.
//
// # Invariant: an ID never has two VMs
//
//  1. A batch is made for one request and is its idempotency key. Repeats have the same bytes. So there is at most one
//     launch per batch, and the cloud numbers the VMs of a launch differently.
//  2. The IDs of different batches differ, and no single create uses an ID that was reserved for a batch.
//  3. The answer is final: if the cloud made fewer VMs than requested, no repeat makes the others. Their IDs are spent
//     like those of refused creates: they become tombstones. VMs that are still wanted get a new batch with new IDs, at
//     any place and in any number. The IDs that are left over must never be put into another batch or request, because
//     the new launch would number its VMs from the start again.
type Batch interface {
	// CreateBatch asks for VMs and returns those that the cloud made, each with its own instance ID in its tags. They
	// may be fewer than requested if the cloud has no room for all. A repeat with the same request returns the same
	// VMs, in their present states. A request with the same batch and other parameters is a [Conflict], and so is any
	// repeat after all VMs were deleted. [Indeterminate] has the same meaning as for [Provider.Create]. After any other
	// error, this call made no VM; [Capacity] means that there is not even room for one.
	CreateBatch(ctx context.Context, req BatchRequest) ([]VM, error)
}

// BatchRequest asks for VMs that differ in nothing but their IDs.
type BatchRequest struct {
	// Batch is the idempotency key.
	Batch ident.Batch
	// Count is the number of VMs, at most [ident.BatchSize].
	Count int
	// VM describes each VM. It has no instance ID and no host name.
	VM CreateRequest
}

// Check returns an error of class [Invalid] if no provider can fulfill the request.
func (r BatchRequest) Check() error {
	switch {
	case r.Batch.IsZero():
		return Errorf(Invalid, r.String(), "there is no batch")
	case r.Count < 1 || r.Count > ident.BatchSize:
		return Errorf(Invalid, r.String(), "a batch has 1 to %d VMs", ident.BatchSize)
	case !r.VM.Tags.Instance.IsZero() || r.VM.Hostname != "":
		return Errorf(Invalid, r.String(), "the VMs of a batch cannot have an instance ID or a host name in common")
	}
	return nil
}

// Tags returns the tags that describe the VM with an index.
func (r BatchRequest) Tags(index int) Tags {
	tags := r.VM.Tags
	tags.Instance, _ = r.Batch.Member(index)
	return tags
}

// Digest is [CreateRequest.Digest] of the whole batch.
func (r BatchRequest) Digest() (string, error) {
	vm, err := r.VM.Digest()
	return fmt.Sprintf("%s %d %s", r.Batch, r.Count, vm), err
}

// String describes the request without userdata and args.
func (r BatchRequest) String() string {
	return fmt.Sprintf("create batch %s count=%d type=%q subnet=%q userdata=[%d bytes]", r.Batch, r.Count,
		r.VM.InstanceType, r.VM.Subnet, len(r.VM.Userdata))
}

// GoString returns [BatchRequest.String].
func (r BatchRequest) GoString() string { return r.String() }

// LogValue returns [BatchRequest.String].
func (r BatchRequest) LogValue() slog.Value { return slog.StringValue(r.String()) }
