package infratest

import (
	"context"
	"crypto/rand"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// batchTests test the capability [infra.Batch].
var batchTests = map[string]func(*suite){
	"BatchIsIdempotent":            batchIsIdempotent,
	"BatchVMsAreInstances":         batchVMsAreInstances,
	"BatchOtherParametersConflict": batchOtherParametersConflict,
	"BatchIsPartlyFilled":          batchIsPartlyFilled,
	"BatchInvalidRequest":          batchInvalidRequest,
	"BatchOneLife":                 batchOneLife,
	"BatchEndedContext":            batchEndedContext,
}

// runBatch runs the tests of batches if the provider has the capability.
func runBatch(t *testing.T, open func(t *testing.T) Harness) {
	h := open(t)
	_, has := infra.Capability[infra.Batch](h.Provider)
	if has != (h.Room != nil) {
		t.Fatalf("the provider creates batches: %t, the harness limits room: %t", has, h.Room != nil)
	}
	if !has {
		return
	}
	for name, test := range batchTests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(newSuite(t, open(t)))
		})
	}
}

// batch makes a request for a new batch.
func (s *suite) batch(count int) infra.BatchRequest {
	s.Helper()
	batch, err := ident.NewBatch("tst", time.Now(), rand.Reader)
	if err != nil {
		s.Fatal(err)
	}
	vm := s.request()
	vm.Tags.Instance = ident.ID{}
	return infra.BatchRequest{Batch: batch, Count: count, VM: vm}
}

func (s *suite) tryBatch(ctx context.Context, req infra.BatchRequest) ([]infra.VM, error) {
	s.Helper()
	provider, ok := infra.Capability[infra.Batch](s.Provider)
	if !ok {
		s.Fatal("the provider creates no batches")
	}
	return provider.CreateBatch(ctx, req)
}

// createBatch creates a batch and checks that the answer has the given number of VMs, with different IDs of the batch
// and the tags of the request.
func (s *suite) createBatch(req infra.BatchRequest, want int) []infra.VM {
	s.Helper()
	vms, err := s.tryBatch(s.Context(), req)
	if err != nil {
		s.Fatalf("CreateBatch: %v", err)
	}
	if len(vms) != want {
		s.Fatalf("CreateBatch answered %d VMs, want %d", len(vms), want)
	}
	ids, provided := map[ident.ID]bool{}, map[string]bool{}
	for _, vm := range vms {
		tags := req.VM.Tags
		tags.Instance = vm.Tags.Instance
		if !req.Batch.Has(tags.Instance) || ids[tags.Instance] || provided[vm.ProviderID] || vm.ProviderID == "" ||
			vm.LaunchedAt.IsZero() || vm.Warning != "" {
			s.Errorf("CreateBatch answered %+v", vm)
		}
		if diff := cmp.Diff(tags, vm.Tags, cmp.AllowUnexported(ident.ID{})); diff != "" {
			s.Errorf("tags (-asked +answered):\n%s", diff)
		}
		ids[tags.Instance], provided[vm.ProviderID] = true, true
	}
	return vms
}

func providerIDs(vms []infra.VM) (ids []string) {
	for _, vm := range vms {
		ids = append(ids, vm.ProviderID)
	}
	slices.Sort(ids)
	return ids
}

func batchIsIdempotent(s *suite) {
	req := s.batch(5)
	vms := s.createBatch(req, 5)
	for range 2 {
		if diff := cmp.Diff(providerIDs(vms), providerIDs(s.createBatch(req, 5))); diff != "" {
			s.Errorf("a repeat made other VMs (-first +repeat):\n%s", diff)
		}
		s.await(vms[0].ProviderID, running)
	}
	s.wantLiving(providerIDs(vms)...)
	if s.Reopen != nil {
		s.Provider = s.Reopen(s.T)
		if diff := cmp.Diff(providerIDs(vms), providerIDs(s.createBatch(req, 5))); diff != "" {
			s.Errorf("another process made other VMs (-first +repeat):\n%s", diff)
		}
	}
}

// batchVMsAreInstances checks that every call describes a VM of a batch as that of its own instance.
func batchVMsAreInstances(s *suite) {
	single := s.create(s.request())
	first, second := s.createBatch(s.batch(4), 4), s.createBatch(s.batch(1), 1)
	listed := map[string]infra.VM{}
	for _, vm := range s.list(s.owner) {
		listed[vm.ProviderID] = vm
	}
	if len(listed) != 6 {
		s.Errorf("List: %d VMs, want 6", len(listed))
	}
	for _, vm := range slices.Concat(first, second, []infra.VM{single}) {
		now := s.await(vm.ProviderID, running)
		found, err := s.Provider.FindByInstance(s.Context(), s.owner, vm.Tags.Instance)
		if err != nil || found.ProviderID != vm.ProviderID {
			s.Errorf("FindByInstance(%s) = %+v, %v", vm.Tags.Instance, found, err)
		}
		for what, other := range map[string]infra.Tags{"Get": now.Tags, "FindByInstance": found.Tags,
			"List": listed[vm.ProviderID].Tags} {
			if diff := cmp.Diff(vm.Tags, other, cmp.AllowUnexported(ident.ID{})); diff != "" {
				s.Errorf("%s: tags (-created +%s):\n%s", vm.ProviderID, what, diff)
			}
		}
	}
	spare, _ := second[0].Tags.Instance.Batch().Member(ident.BatchSize - 1)
	_, err := s.Provider.FindByInstance(s.Context(), s.owner, spare)
	s.wantClass("look-up of an ID of the batch without VM", err, infra.NotFound)

	wrong := first[1]
	wrong.Tags.Instance = first[2].Tags.Instance
	s.wantClass("Delete for another instance of the batch", s.Provider.Delete(s.Context(), wrong), infra.Invalid)
	if err := s.Provider.Delete(s.Context(), first[1]); err != nil {
		s.Fatalf("Delete: %v", err)
	}
	s.await(first[1].ProviderID, deleted)
	s.wantLiving(first[0].ProviderID, first[2].ProviderID, first[3].ProviderID, second[0].ProviderID,
		single.ProviderID)
}

func batchOtherParametersConflict(s *suite) {
	req := s.batch(3)
	vms := s.createBatch(req, 3)
	for name, change := range map[string]func(*infra.BatchRequest){
		"count":    func(r *infra.BatchRequest) { r.Count++ },
		"type":     func(r *infra.BatchRequest) { r.VM.InstanceType = s.Types[1] },
		"subnet":   func(r *infra.BatchRequest) { r.VM.Subnet = s.Subnets[1] },
		"userdata": func(r *infra.BatchRequest) { r.VM.Userdata = []byte("#!/bin/sh\nexit 1\n") },
		"group":    func(r *infra.BatchRequest) { r.VM.Tags.Group = "others" },
	} {
		other := req
		change(&other)
		_, err := s.tryBatch(s.Context(), other)
		s.wantClass("batch with another "+name, err, infra.Conflict)
	}
	s.wantLiving(providerIDs(vms)...)
}

// batchIsPartlyFilled checks that the IDs that are left over get no VM later, and that a further batch gets other IDs.
func batchIsPartlyFilled(s *suite) {
	s.Room(s.T, 3)
	req := s.batch(5)
	vms := s.createBatch(req, 3)
	_, err := s.tryBatch(s.Context(), s.batch(2))
	s.wantClass("batch without room", err, infra.Capacity)
	s.Room(s.T, 100)
	if diff := cmp.Diff(providerIDs(vms), providerIDs(s.createBatch(req, 3))); diff != "" {
		s.Errorf("a repeat with more room made other VMs (-first +repeat):\n%s", diff)
	}
	s.wantLiving(providerIDs(vms)...)
	more := s.createBatch(s.batch(2), 2)
	for _, vm := range more {
		if req.Batch.Has(vm.Tags.Instance) {
			s.Errorf("%s of another batch has an ID of the first", vm.ProviderID)
		}
	}
	s.wantLiving(providerIDs(slices.Concat(vms, more))...)
}

func batchInvalidRequest(s *suite) {
	for name, change := range map[string]func(*infra.BatchRequest){
		"no batch":    func(r *infra.BatchRequest) { r.Batch = ident.Batch{} },
		"no VMs":      func(r *infra.BatchRequest) { r.Count = 0 },
		"many VMs":    func(r *infra.BatchRequest) { r.Count = ident.BatchSize + 1 },
		"an instance": func(r *infra.BatchRequest) { r.VM.Tags.Instance = r.Batch.First() },
		"a host name": func(r *infra.BatchRequest) { r.VM.Hostname = "a" },
	} {
		req := s.batch(2)
		change(&req)
		_, err := s.tryBatch(s.Context(), req)
		s.wantClass("batch with "+name, err, infra.Invalid)
	}
	s.wantLiving()
}

func batchOneLife(s *suite) {
	req := s.batch(2)
	vms := s.createBatch(req, 2)
	for _, vm := range vms {
		if err := s.Provider.Delete(s.Context(), vm); err != nil {
			s.Fatalf("Delete: %v", err)
		}
	}
	for range 2 {
		_, err := s.tryBatch(s.Context(), req)
		s.wantClass("batch after its VMs were deleted", err, infra.Conflict)
		s.await(vms[0].ProviderID, deleted)
		s.await(vms[1].ProviderID, deleted)
	}
	s.wantLiving()
}

func batchEndedContext(s *suite) {
	ended, cancel := context.WithCancel(s.Context())
	cancel()
	_, err := s.tryBatch(ended, s.batch(2))
	s.wantClass("batch under an ended context", err, infra.Indeterminate)
	s.wantLiving()
}
