// Package hosttest tests the provider with a real libvirtd and real VMs.
package hosttest

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/libvirt"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/infratest"
	"github.com/nstance-kit/nstance/services/internal/server/infra/libvirt"
	"github.com/nstance-kit/nstance/tests/cloud/libvirtd"
)

// image is an empty disk. The firmware finds nothing to boot, and waits.
const image = "empty.qcow2"

func startDaemon(t *testing.T) *libvirtd.Daemon {
	t.Helper()
	daemon := libvirtd.Start(t)
	out, err := exec.CommandContext(t.Context(), "qemu-img", "create", "-q", "-f", "qcow2",
		filepath.Join(daemon.Pool, image), "16M").CombinedOutput()
	if err != nil {
		t.Fatalf("qemu-img: %v: %s", err, out)
	}
	return daemon
}

func open(t *testing.T, daemon *libvirtd.Daemon) *libvirt.Provider {
	t.Helper()
	return openPool(t, daemon, "default")
}

func openPool(t *testing.T, daemon *libvirtd.Daemon, pool string) *libvirt.Provider {
	t.Helper()
	uri, err := url.Parse(daemon.URI())
	if err != nil {
		t.Fatal(err)
	}
	p := libvirt.New(libvirt.Config{Options: contract.Options{Hosts: map[string]*url.URL{"local": uri}, Pool: pool,
		DomainType: "qemu"}})
	t.Cleanup(p.Close)
	return p
}

// TestConformance runs the conformance suite of package infratest against a real libvirtd.
func TestConformance(t *testing.T) {
	daemon := startDaemon(t)
	var owners atomic.Int64
	infratest.Run(t, func(t *testing.T) infratest.Harness {
		return infratest.Harness{
			Provider: open(t, daemon),
			Owner:    infra.Owner{Cluster: fmt.Sprintf("c%d", owners.Add(1)), Shard: "s1"},
			Kill: func(t *testing.T, vm infra.VM) {
				t.Helper()
				daemon.KillVM(t, vm.Tags.Instance.String())
			},
			Settle:  func(t *testing.T) { t.Helper(); time.Sleep(20 * time.Millisecond) },
			Types:   [2]string{"1x32", "1x64"},
			Subnets: [2]string{"local/a", "local/b"},
			Adapt:   func(req *infra.CreateRequest) { req.Args = map[string]any{"image": image} },
			Reopen:  func(t *testing.T) infra.Provider { t.Helper(); return open(t, daemon) },
			Sleeps:  contract.Block.Sleeps,
			Disks: func(t *testing.T, vm infra.VM) string {
				t.Helper()
				info, err := os.Stat(filepath.Join(daemon.Pool, vm.Tags.Instance.String()+".qcow2"))
				if err != nil {
					t.Fatal(err)
				}
				return fmt.Sprint(info.Sys().(*syscall.Stat_t).Ino)
			},
			Unknown: "local/9f2c8a52-1111-8222-8333-0123456789ab",
		}
	})
}
