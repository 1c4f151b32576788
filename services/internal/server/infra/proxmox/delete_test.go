package proxmox_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/tests/cloud/fakepve"
)

// TestLostDelete loses either the request or the answer of each API call of a deletion. The repeated deletion removes
// everything.
func TestLostDelete(t *testing.T) {
	t.Parallel()
	for _, call := range []string{configCall, stopCall, seedCall} {
		for _, received := range []bool{true, false} {
			pve := fakepve.Start(t)
			p := open(t, pve)
			vm := create(t, p, request(t))
			pve.Inject(fakepve.Fault{Call: call, AnswerLost: received, RequestLost: !received})
			wantClass(t, p.Delete(t.Context(), vm), infra.Indeterminate, "EOF")
			if err := p.Delete(t.Context(), vm); err != nil {
				t.Fatalf("%s: %v", call, err)
			}
			if volumes := pve.Volumes(); len(volumes) > 0 {
				t.Errorf("%s: volumes stay: %v", call, volumes)
			}
		}
	}
}

// TestDeletedStaysADay deletes a VM. The VM stays for a day, without disks. After that day, the deletion of another VM
// removes it.
func TestDeletedStaysADay(t *testing.T) {
	t.Parallel()
	pve, ahead := fakepve.Start(t), new(atomic.Int64)
	p := openWith(t, rawOptions(t, pve), ahead)
	first, second := create(t, p, request(t)), create(t, p, request(t))
	if err := p.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if states := list(t, p); states[first.ProviderID] != infra.Deleted {
		t.Errorf("listed: %v", states)
	}
	pve.ManageByHA(vmid(t, first))
	ahead.Store(25 * 60 * 60)
	if err := p.Delete(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	if ids := pve.VMs(); len(ids) != 1 || ids[0] != vmid(t, second) {
		t.Errorf("VMs %v, want %s only", ids, second.ProviderID)
	}
}

// TestDeleteWithHA deletes a VM that the cluster's high availability manages: the stop task ends before the VM is off.
func TestDeleteWithHA(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	vm := create(t, p, request(t))
	pve.ManageByHA(vmid(t, vm))
	calls := count(pve, statusCall)
	if err := p.Delete(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	if calls = count(pve, statusCall) - calls; calls > 3 {
		t.Errorf("%d calls until the VM was off", calls)
	}
	if volumes := pve.Volumes(); len(volumes) > 0 {
		t.Errorf("volumes stay: %v", volumes)
	}
}

// TestVMIDOfDeletedIsUsed gives the VMID of a deleted VM to a VM that is not an instance. This VM must stay.
func TestVMIDOfDeletedIsUsed(t *testing.T) {
	t.Parallel()
	pve, ahead := fakepve.Start(t), new(atomic.Int64)
	p := openWith(t, rawOptions(t, pve), ahead)
	first, second := create(t, p, request(t)), create(t, p, request(t))
	if err := p.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	pve.RemoveVM(vmid(t, first))
	pve.AddVM(vmid(t, first), "pve1", "somebody")
	ahead.Store(25 * 60 * 60)
	if err := p.Delete(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	if name := pve.Config(vmid(t, first))["name"]; name != "somebody" {
		t.Errorf("the name of the VM is %q", name)
	}
}

// TestDeletedOnNodeDown takes a node down on which a VM was marked as deleted and not stopped, and another VM was cloned
// and not started. Both VMs may run there.
func TestDeletedOnNodeDown(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	req, unstarted := request(t), request(t)
	vm := create(t, p, req)
	pve.Inject(fakepve.Fault{Call: stopCall, RequestLost: true})
	wantClass(t, p.Delete(t.Context(), vm), infra.Indeterminate, "EOF")
	if vm := find(t, p, req); vm.State != infra.Deleting {
		t.Errorf("the VM is %s", vm.State)
	}
	pve.Inject(fakepve.Fault{Call: uploadCall, RequestLost: true})
	_, err := p.Create(t.Context(), unstarted)
	wantClass(t, err, infra.Indeterminate, "EOF")
	pve.SetOnline("pve1", false)
	for _, req := range []infra.CreateRequest{req, unstarted} {
		vm := find(t, p, req)
		if listed := list(t, p)[vm.ProviderID]; vm.State != infra.Unknown || listed != infra.Unknown {
			t.Errorf("the VM is %s, listed as %s", vm.State, listed)
		}
	}
}

// TestOneCallAtATime makes two calls for the same VM at the same time. Each call must wait for the other one, so that
// neither fails because the other one changes the VM.
func TestOneCallAtATime(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	req := request(t)
	// during starts a call just before the request that the call before must not lose.
	during := func(after string, call func() error) (done chan error) {
		done = make(chan error, 1)
		pve.Inject(fakepve.Fault{Call: after, Then: func() {
			pve.Inject(fakepve.Fault{Call: configCall, Before: func() {
				ended := make(chan struct{})
				go func() {
					done <- call()
					close(ended)
				}()
				select {
				case <-ended:
				case <-time.After(300 * time.Millisecond): // it waits, as it should
				}
			}})
		}})
		return done
	}
	removed := during(startCall, func() error { return p.RemoveUserdata(t.Context(), owner, req.Tags.Instance) })
	vm := create(t, p, req)
	if err := <-removed; err != nil {
		t.Error(err)
	}
	pve.Kill(vmid(t, vm))
	if vm := find(t, p, req); vm.State != infra.Stopped {
		t.Errorf("the VM is %s", vm.State)
	}
	deleted := during(stopCall, func() error { return p.Delete(t.Context(), vm) })
	if err := errors.Join(p.Delete(t.Context(), vm), <-deleted); err != nil {
		t.Error(err)
	}
}

// TestDeletedDuringStart deletes a VM while another server creates it: just before or just after its start. Create
// fails, and the VM does not run at the end.
func TestDeletedDuringStart(t *testing.T) {
	t.Parallel()
	for _, before := range []bool{true, false} {
		pve := fakepve.Start(t)
		p, other := open(t, pve), open(t, pve)
		req := request(t)
		remove := func() {
			if err := other.Delete(t.Context(), find(t, other, req)); err != nil {
				t.Error(err)
			}
		}
		fault := fakepve.Fault{Call: startCall, Then: remove}
		if before {
			fault = fakepve.Fault{Call: startCall, Before: remove}
		}
		pve.Inject(fault)
		_, err := p.Create(t.Context(), req)
		if class := infra.ClassOf(err); class != infra.Conflict && class != infra.Invalid {
			t.Errorf("got %v", err)
		}
		if vm := find(t, p, req); vm.State != infra.Deleted {
			t.Errorf("the VM is %s", vm.State)
		}
	}
}

// TestDeletedBeforeStart deletes a VM that was cloned and not started. The repeated create request does not start it.
func TestDeletedBeforeStart(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	req := request(t)
	pve.Inject(fakepve.Fault{Call: uploadCall, RequestLost: true})
	_, err := p.Create(t.Context(), req)
	wantClass(t, err, infra.Indeterminate, "EOF")
	vm := find(t, p, req)
	if vm.State != infra.Pending {
		t.Errorf("the VM is %s", vm.State)
	}
	if states := list(t, p); states[vm.ProviderID] != infra.Pending {
		t.Errorf("listed: %v, want the VM that has no tags yet", states)
	}
	if err := p.Delete(t.Context(), find(t, p, req)); err != nil {
		t.Fatal(err)
	}
	_, err = p.Create(t.Context(), req)
	wantClass(t, err, infra.Conflict, "of this request was deleted")
	if volumes := pve.Volumes(); len(volumes) > 0 {
		t.Errorf("volumes stay: %v", volumes)
	}
}
