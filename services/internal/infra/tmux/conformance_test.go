package tmux

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nstance-kit/nstance/services/internal/infra"
	"github.com/nstance-kit/nstance/services/internal/infra/infratest"
)

// testOptions are options for a tmux server of the test's own, which ends with it.
func testOptions(t *testing.T) Options {
	t.Helper()
	// Socket paths are short (unix(7): 107 bytes), temporary directories of tests are not.
	sockets, err := os.MkdirTemp("", "nst")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(sockets, "tmux")
	t.Cleanup(func() {
		_ = exec.Command("tmux", "-S", socket, "kill-server").Run() // none may be running
		os.RemoveAll(sockets)
	})
	return Options{Dir: filepath.Join(t.TempDir(), "agents #1 50%d 'x'"), Session: "test", Socket: socket, Command: "exec sleep 1000000"}
}

func open(t *testing.T, o Options) *Provider {
	t.Helper()
	p, err := New(Config{Options: o})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// document reads what the provider remembers of a VM.
func (p *Provider) document(t *testing.T, vm infra.VM) document {
	t.Helper()
	d, ok, err := p.state.read(vm.Tags.Instance)
	if err != nil || !ok {
		t.Fatalf("document of %s: %v, %v", vm.ProviderID, ok, err)
	}
	return d
}

// kill ends a VM's process behind the provider's back and waits until it has.
func (p *Provider) kill(t *testing.T, vm infra.VM) {
	t.Helper()
	machine := p.document(t, vm).process()
	if err := unix.Kill(machine.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if !machine.gone(t.Context(), time.Minute) {
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
			Settle:   func(*testing.T) {}, // looking again costs a call of tmux
			Reopen:   func(t *testing.T) infra.Provider { return open(t, options) },
			Unknown:  "tmux://tst06bgm7733st2576nx5jht4ecjw",
		}
	})
}

