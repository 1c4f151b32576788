package gcp

import (
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/compute"
)

// sleepy makes a VM that can be suspended. change may modify the args.
func (c *testCloud) sleepy(p *Provider, change func(args map[string]any)) infra.VM {
	c.t.Helper()
	req := c.request()
	req.Sleep = config.SparesSuspended
	if change != nil {
		change(req.Args)
	}
	return c.create(p, req)
}

// status returns the status of a VM as Google shows it, or "" if the VM is gone.
func (c *testCloud) status(vm infra.VM) (status string) {
	c.fake.Do(func() {
		if r := c.fake.Find(instances + vm.ProviderID); r != nil {
			status, _ = r.Body["status"].(string)
		}
	})
	return status
}

// TestUnsuspendableIsInvalid checks that Google's reason is in the error of a VM that cannot be suspended, and that the
// VM runs on and can be stopped.
func TestUnsuspendableIsInvalid(t *testing.T) {
	for reason, change := range map[string]func(map[string]any){
		"GPUs": func(args map[string]any) {
			args["guestAccelerators"] = []any{map[string]any{"acceleratorCount": 1,
				"acceleratorType": "zones/us-central1-a/acceleratorTypes/nvidia-t4"}}
		},
		"Confidential VM": func(args map[string]any) {
			args["confidentialInstanceConfig"] = map[string]any{"enableConfidentialCompute": true}
		},
	} {
		c := newTestCloud(t)
		p := c.open(nil)
		vm := c.sleepy(p, change)
		wantClass(t, reason, p.Sleep(t.Context(), vm, config.SparesSuspended), infra.Invalid, "UNSUPPORTED_OPERATION",
			reason)
		if got := c.status(vm); got != "RUNNING" {
			t.Errorf("%s: the VM is %s", reason, got)
		}
		if err := p.Sleep(t.Context(), vm, config.SparesStopped); err != nil {
			t.Error(err)
		}
	}
}

// TestLocalSSDs checks that a VM with local SSDs can sleep.
func TestLocalSSDs(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	vm := c.sleepy(p, func(args map[string]any) {
		args["disks"] = append(args["disks"].([]any), map[string]any{"type": "SCRATCH",
			"initializeParams": map[string]any{}})
	})
	for _, how := range []string{config.SparesStopped, config.SparesSuspended} {
		if err := p.Sleep(t.Context(), vm, how); err != nil {
			t.Error(err)
		}
		if err := p.Wake(t.Context(), vm); err != nil {
			t.Error(err)
		}
	}
}

// TestLongSleep checks that a VM which Google has stopped, because it was suspended for too long, is woken.
func TestLongSleep(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	vm := c.sleepy(p, nil)
	if err := p.Sleep(t.Context(), vm, config.SparesSuspended); err != nil {
		t.Fatal(err)
	}
	c.fake.End(instances+vm.ProviderID, "suspended for 60 days")
	if err := p.Wake(t.Context(), vm); err != nil || c.status(vm) != "RUNNING" {
		t.Errorf("%v, the VM is %s", err, c.status(vm))
	}
}

// TestSlowPower lets the operations take minutes. Sleep must not wait for the end of its operation, and Wake must.
// A VM that is being deleted counts as gone, although its status is the same as that of a VM that is being stopped.
func TestSlowPower(t *testing.T) {
	for _, how := range []string{config.SparesStopped, config.SparesSuspended} {
		c := newTestCloud(t)
		p := c.open(nil)
		vm := c.sleepy(p, nil)
		for _, kind := range []string{"stop", "suspend", "start", "resume", "delete"} {
			c.fake.SetDelay(kind, 3*time.Minute)
		}
		began := c.now()
		for range 2 {
			if err := p.Sleep(t.Context(), vm, how); err != nil {
				t.Fatal(err)
			}
		}
		if took := c.now().Sub(began); took > time.Minute {
			t.Errorf("%s: Sleep took %s", how, took)
		}
		wantClass(t, how+": Wake of a VM that falls asleep", p.Wake(t.Context(), vm), infra.Conflict)
		c.ahead.Add(int64(3 * time.Minute))
		if err := p.Wake(t.Context(), vm); err != nil || c.status(vm) != "RUNNING" {
			t.Errorf("%s: %v, the VM is %s", how, err, c.status(vm))
		}
		if err := p.Delete(t.Context(), vm); err != nil {
			t.Fatal(err)
		}
		if got := c.status(vm); got != "STOPPING" {
			t.Errorf("a VM that is being deleted is %s", got)
		}
		wantClass(t, how+": Sleep while it is deleted", p.Sleep(t.Context(), vm, how), infra.NotFound)
		wantClass(t, how+": Wake while it is deleted", p.Wake(t.Context(), vm), infra.NotFound)
	}
}

// TestWakeWithoutRoom checks that the operation, which fails late, tells that there is no room.
func TestWakeWithoutRoom(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	vm := c.sleepy(p, nil)
	if err := p.Sleep(t.Context(), vm, config.SparesSuspended); err != nil {
		t.Fatal(err)
	}
	c.fake.SetDelay("resume", 20*time.Second)
	c.fake.Fail(compute.Fault{Type: "resume", Failure: compute.Stockout(), Times: 1})
	wantClass(t, "Wake", p.Wake(t.Context(), vm), infra.Capacity, "ZONE_RESOURCE_POOL_EXHAUSTED")
	if got := c.status(vm); got != "SUSPENDED" {
		t.Errorf("the VM is %s", got)
	}
	if err := p.Wake(t.Context(), vm); err != nil {
		t.Error(err)
	}
}

// TestLostAnswerOfPower loses the answer of a call that had an effect. The repeated call has nothing to do.
func TestLostAnswerOfPower(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	vm := c.sleepy(p, nil)
	c.server.LoseAnswer("compute.instances.suspend")
	wantClass(t, "Sleep", p.Sleep(t.Context(), vm, config.SparesSuspended), infra.Indeterminate)
	if err := p.Sleep(t.Context(), vm, config.SparesSuspended); err != nil {
		t.Error(err)
	}
	c.server.LoseAnswer("compute.instances.resume")
	wantClass(t, "Wake", p.Wake(t.Context(), vm), infra.Indeterminate)
	if err := p.Wake(t.Context(), vm); err != nil {
		t.Error(err)
	}
}
