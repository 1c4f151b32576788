package tmux

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// sleepy creates a VM that can sleep, and waits until it has slept once.
func sleepy(t *testing.T, p *Provider) infra.VM {
	t.Helper()
	req := newRequest(t, "")
	req.Sleep = config.SparesSuspended
	vm := create(t, p, req)
	await(t, "a VM that can sleep", func() bool {
		return !errors.Is(p.Sleep(t.Context(), vm, req.Sleep), infra.Conflict)
	})
	must(t, p.Wake(t.Context(), vm))
	return vm
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for began := time.Now(); !done(); time.Sleep(time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestSleepStopsProcessesThatStartOthers puts a VM to sleep whose shells start processes all the time, one of them in
// another process group.
func TestSleepStopsProcessesThatStartOthers(t *testing.T) {
	options := testOptions(t)
	options.Command = "sh -ic 'while :; do sleep 0.01; done' & while :; do sleep 0.01; done"
	p := open(t, options)
	vm := sleepy(t, p)
	await(t, "two shells", func() bool { return len(members(p.document(t, vm).process())) > 3 })
	for range 3 {
		must(t, p.Sleep(t.Context(), vm, config.SparesSuspended))
		before := members(p.document(t, vm).process())
		time.Sleep(30 * time.Millisecond)
		if after := members(p.document(t, vm).process()); fmt.Sprint(before) != fmt.Sprint(after) {
			t.Errorf("processes changed during sleep from %v to %v", before, after)
		}
		wantState(t, p, vm, infra.Stopped)
		must(t, p.Wake(t.Context(), vm))
		wantState(t, p, vm, infra.Running)
		for _, m := range members(p.document(t, vm).process()) {
			if m.stopped {
				t.Errorf("process %d is still stopped", m.pid)
			}
		}
	}
	must(t, p.Delete(t.Context(), vm))
}

// TestVMThatEndsAsleepHasFailed ends VMs that sleep: by a signal, and by closing their window.
func TestVMThatEndsAsleepHasFailed(t *testing.T) {
	options := testOptions(t)
	p := open(t, options)
	for name, end := range map[string]func(infra.VM){
		"killed": func(vm infra.VM) { p.kill(t, vm) },
		"closed": func(vm infra.VM) {
			must(t, p.session.close(t.Context(), "="+options.Session+":="+windowPrefix+vm.Tags.Instance.String()))
		},
	} {
		vm := sleepy(t, p)
		must(t, p.Sleep(t.Context(), vm, config.SparesSuspended))
		end(vm)
		await(t, name, func() bool { return get(t, p, vm).State == infra.Failed })
		if err := p.Wake(t.Context(), vm); !errors.Is(err, infra.NotFound) {
			t.Errorf("%s: Wake: %v", name, err)
		}
		must(t, p.Delete(t.Context(), vm)) // stopped processes do not end by SIGHUP
		await(t, name+": no processes", func() bool { return len(members(p.document(t, vm).process())) == 0 })
	}
}

// TestSleepThatWasInterrupted repeats calls whose server died in between.
func TestSleepThatWasInterrupted(t *testing.T) {
	p := open(t, testOptions(t))
	vm := sleepy(t, p)
	d := p.document(t, vm)
	d.AsleepAt = time.Now()
	must(t, p.state.write(d))
	wantState(t, p, vm, infra.Stopping)
	must(t, p.Sleep(t.Context(), vm, config.SparesSuspended))
	wantState(t, p, vm, infra.Stopped)
	for _, m := range members(d.process()) {
		must(t, unix.Kill(m.pid, unix.SIGCONT))
	}
	must(t, p.Wake(t.Context(), vm))
	wantState(t, p, vm, infra.Running)
}

func TestOnlyVMsMadeToSleepSleep(t *testing.T) {
	p := open(t, testOptions(t))
	vm := create(t, p, newRequest(t, ""))
	if err := p.Sleep(t.Context(), vm, config.SparesSuspended); !errors.Is(err, infra.Invalid) {
		t.Errorf("Sleep: %v", err)
	}
	wantState(t, p, vm, infra.Running)
	odd := newRequest(t, "")
	odd.Sleep = config.SparesStopped
	if _, err := p.Create(t.Context(), odd); !errors.Is(err, infra.Invalid) {
		t.Errorf("Create: %v", err)
	}
}
