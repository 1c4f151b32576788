package system

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/dev/local"
	"github.com/nstance-kit/nstance/tests/cloud/fakepve"
)

// TestProxmox runs a shard of two VMs on a fake cluster of Proxmox VE. QEMU boots them with the userdata that the
// server uploaded, and their agents register. The test takes a node down, kills a QEMU, kills another one while a spare
// sleeps, and scales to zero. scripts/libvirt.sh runs it in a network namespace.
func TestProxmox(t *testing.T) {
	if *guestFlag == "" {
		t.Log("run by scripts/libvirt.sh, which makes the guest")
		return
	}
	address := exec.CommandContext(t.Context(), "ip", "addr", "replace", hostAddress+"/32", "dev", "lo")
	if out, err := address.CombinedOutput(); err != nil {
		t.Fatalf("ip addr: %v: %s", err, out)
	}
	pve := fakepve.Start(t)
	pve.Boot(fakepve.Guest{Kernel: filepath.Join(*guestFlag, "vmlinuz"), Initrd: filepath.Join(*guestFlag, "initrd"),
		Dir: t.TempDir()})
	runShard(t, "scripts/libvirt.sh", local.Trial{}, func(ctx context.Context, stack *local.Stack) error {
		ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Minute, errors.New("timeout after 5 minutes"))
		defer cancel()
		token := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(token, []byte(fakepve.TokenID+"="+fakepve.Secret), 0o600); err != nil {
			return err
		}
		stack.Network = hostNetwork(hostAddress)
		return (&proxmoxShard{pve: pve, stack: stack, token: token}).run(ctx)
	})
}

// hostAddress is the address at which VMs reach this machine. QEMU's user network forwards their connections.
const hostAddress = "10.77.9.1"

// proxmoxShard is one run of TestProxmox.
type proxmoxShard struct {
	pve      *fakepve.Cluster
	stack    *local.Stack
	token    string
	operator *local.Operator
	spares   int
}

// configure writes the configuration of the shard, with the given size of the group. If the size is 2, each node gets
// one VM.
func (s *proxmoxShard) configure(ctx context.Context, size int) error {
	return s.stack.PutConfig(ctx, func(c *config.Shard) {
		c.Server.HealthCheckInterval, c.Server.DefaultDrainTimeout = duration(2*time.Second), duration(time.Second)
		c.Server.GarbageCollection.Interval = duration(2 * time.Second)
		c.Server.Provider.Kind = "proxmox"
		c.Server.Provider.Options = map[string]string{"endpoints": s.pve.URL(), "fingerprints": s.pve.Fingerprint(),
			"token_file": s.token}
		c.Server.SubnetPools = map[string][]string{"local": {"pve1/vmbr0", "pve2/vmbr0"}}
		template := c.Templates["worker"]
		template.InstanceType, template.Args = "1x160", map[string]any{"template": "debian"}
		c.Templates["worker"] = template
		spec := c.Groups[local.Tenant][group]
		spec.Size, spec.Spares = &size, suspendedSpares(s.spares)
		c.Groups[local.Tenant][group] = spec
	})
}

func (s *proxmoxShard) run(ctx context.Context) error {
	const size = 2
	if _, err := s.stack.StartStore(ctx); err != nil {
		return err
	}
	if err := s.configure(ctx, size); err != nil {
		return err
	}
	if _, err := s.stack.StartServer(ctx, 1); err != nil {
		return err
	}
	began := time.Now()
	if _, err := s.stack.AwaitLine(ctx, "serving as leader", 0); err != nil {
		return err
	}
	var err error
	if s.operator, err = s.stack.Connect(ctx); err != nil {
		return err
	}
	defer s.operator.Close()
	first, err := s.operator.AwaitHealthy(ctx, size)
	if err != nil {
		return err
	}
	s.report("%v VMs boot, register and are healthy", size, began)
	if err := s.awaitVolumes(ctx, ".iso", 0); err != nil {
		return fmt.Errorf("userdata stay after the registration: %w", err)
	}
	if err := s.takeNodeDown(ctx, first); err != nil {
		return err
	}
	if err := s.killQEMU(ctx, first); err != nil {
		return err
	}
	if err := s.wakeSpare(ctx, size); err != nil {
		return err
	}
	s.spares = 0
	if err := s.configure(ctx, 0); err != nil {
		return err
	}
	if _, err := s.operator.Refresh(ctx); err != nil {
		return err
	}
	if _, err := s.operator.AwaitHealthy(ctx, 0); err != nil {
		return err
	}
	return s.awaitVolumes(ctx, "", 0)
}

func (s *proxmoxShard) report(format string, value any, began time.Time) {
	fmt.Printf("proxmox: "+format+": %v\n", value, time.Since(began).Round(10*time.Millisecond))
}

// awaitVolumes waits until exactly want volumes have the text in their names.
func (s *proxmoxShard) awaitVolumes(ctx context.Context, text string, want int) error {
	for {
		var found []string
		for name := range s.pve.Volumes() {
			if strings.Contains(name, text) {
				found = append(found, name)
			}
		}
		if len(found) == want {
			return nil
		}
		if err := local.Pause(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("%w: volumes %q", err, found)
		}
	}
}

// takeNodeDown makes a node unreachable for the API for some seconds. The node's VM runs and its agent reports all the
// time, so no VM may be replaced.
func (s *proxmoxShard) takeNodeDown(ctx context.Context, before []*nstancev1.InstanceStatus) error {
	s.pve.SetOnline("pve2", false)
	if err := local.Pause(ctx, 3*time.Second); err != nil {
		return err
	}
	s.pve.SetOnline("pve2", true)
	after, err := s.operator.AwaitHealthy(ctx, len(before))
	if err != nil {
		return err
	}
	return unchanged(before, after)
}

// killQEMU kills the QEMU process of a VM and waits until another healthy VM has replaced it.
func (s *proxmoxShard) killQEMU(ctx context.Context, before []*nstancev1.InstanceStatus) error {
	victim, err := strconv.Atoi(before[0].GetProviderId())
	if err != nil {
		return err
	}
	began := time.Now()
	s.pve.Kill(victim)
	for {
		after, err := s.operator.AwaitHealthy(ctx, len(before))
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(after, func(a *nstancev1.InstanceStatus) bool {
			return a.GetInstanceId() == before[0].GetInstanceId()
		}) {
			s.report("after kill -9 of the QEMU of VM %v, another VM is healthy", victim, began)
			return unchanged(before[1:], after)
		}
		if err := local.Pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// wakeSpare lets a spare fall asleep, and kills the QEMU of a VM. The spare takes its place.
func (s *proxmoxShard) wakeSpare(ctx context.Context, size int) error {
	s.spares = 1
	if err := s.configure(ctx, size); err != nil {
		return err
	}
	if _, err := s.operator.Refresh(ctx); err != nil {
		return err
	}
	members, spare, err := awaitSpare(ctx, s.operator, size)
	if err != nil {
		return err
	}
	victim, err := strconv.Atoi(members[0].GetProviderId())
	if err != nil {
		return err
	}
	began := time.Now()
	s.pve.Kill(victim)
	if _, _, err := awaitPromoted(ctx, s.operator, spare.GetInstanceId()); err != nil {
		return err
	}
	s.report("after kill -9 of the QEMU of VM %v, a spare that slept is healthy", victim, began)
	return nil
}
