package tmux

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/tmux"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/infratest"
)

// testOptions returns options with a separate tmux server and state directory. When the test ends, the server stops and
// the directory is removed.
func testOptions(t testing.TB) contract.Options {
	t.Helper()
	// Socket paths must be short (unix(7): 107 bytes). TempDir would be removed before the processes that use it have
	// ended.
	dir, err := os.MkdirTemp("", "nst") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	o := contract.Options{Dir: filepath.Join(dir, "agents #1 50%d 'x'"), Session: "test",
		Socket:  filepath.Join(dir, "tmux"),
		Command: "exec sleep 1000000"}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		s := session{name: o.Session, socket: o.Socket, env: environment()}
		panes, err := s.panes(ctx)
		if err != nil {
			t.Error(err)
		}
		machines := make([]process, len(panes))
		for i, pane := range panes {
			machines[i], _ = identify(pane.pid)
		}
		_, _ = s.run(ctx, "kill-server") // there may be no server
		for _, m := range machines {
			killSession(m)
			if !m.awaitExit(ctx, time.Minute) {
				t.Errorf("process %d stays", m.PID)
			}
		}
		// RemoveAll can fail if the shell that copies a window's output opens the log file at the same time.
		for err = os.RemoveAll(dir); err != nil && ctx.Err() == nil; err = os.RemoveAll(dir) {
			t.Log(err)
		}
	})
	return o
}

func open(t testing.TB, o contract.Options) *Provider {
	t.Helper()
	p, err := New(Config{Options: o})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// document reads a VM's document.
func (p *Provider) document(t *testing.T, vm infra.VM) document {
	t.Helper()
	d, ok, err := p.state.read(vm.Tags.Instance)
	if err != nil || !ok {
		t.Fatalf("document of %s: %v, %v", vm.ProviderID, ok, err)
	}
	return d
}

// kill ends a VM's process without a provider call, and waits until it has ended.
func (p *Provider) kill(t *testing.T, vm infra.VM) {
	t.Helper()
	machine := p.document(t, vm).process()
	if err := unix.Kill(machine.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if !machine.awaitExit(t.Context(), time.Minute) {
		t.Fatalf("process %d does not end", machine.PID)
	}
}

func TestConformance(t *testing.T) {
	infratest.Run(t, func(t *testing.T) infratest.Harness {
		options := testOptions(t)
		p := open(t, options)
		return infratest.Harness{
			Provider: p,
			Kill:     p.kill,
			Settle:   func(*testing.T) {}, // each check already takes the time of a tmux call
			Reopen:   func(t *testing.T) infra.Provider { return open(t, options) },
			Sleeps:   contract.Block.Sleeps,
			Unknown:  "tmux://tst06bgm7733st2576nx5jht4ecjw",
		}
	})
}
