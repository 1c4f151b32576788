package system

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/bootscript"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/dev/libvirtd"
	"github.com/nstance-kit/nstance/services/dev/local"
	testlibvirtd "github.com/nstance-kit/nstance/tests/cloud/libvirtd"
)

var (
	debianFlag = flag.String("debian", "", "directory with what images/local/debian.sh writes, for libvirt")
	vmsFlag    = flag.Int("vms", 1, "number of VMs that boot side by side, for -debian")
	memoryFlag = flag.Int("memory", 512, "memory of a VM in MiB, for -debian")
)

// TestDebian boots several VMs at the same time on a real libvirtd. They run a complete Debian with the boot script of
// the Terraform provider. The test prints the time from the create call to the registration of each VM, and the memory
// of its QEMU.
func TestDebian(t *testing.T) {
	if *debianFlag == "" {
		t.Log("run by hand, as scripts/libvirt.sh says: without hardware support, Debian boots for minutes")
		return
	}
	daemon := testlibvirtd.StartInNetwork(t)
	runShard(t, "scripts/libvirt.sh", local.Trial{}, func(ctx context.Context, stack *local.Stack) error {
		ctx, cancel := context.WithTimeoutCause(ctx, time.Hour, errors.New("timeout after an hour"))
		defer cancel()
		machines := &libvirtd.Machines{}
		defer machines.Close()
		stack.Network = machines
		shard := &libvirtShard{t: t, daemon: daemon, stack: stack, servers: map[string]*local.Process{}}
		return shard.bootDebian(ctx)
	})
}

func (s *libvirtShard) bootDebian(ctx context.Context) error {
	for _, name := range []string{"vmlinuz", "initrd", "disk.qcow2"} {
		content, err := os.ReadFile(filepath.Join(*debianFlag, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(s.daemon.Pool, name), content, 0o600); err != nil {
			return err
		}
	}
	began := time.Now()
	if err := s.lead(ctx, s.configureDebian); err != nil {
		return err
	}
	defer s.operator.Close()
	instances, err := s.operator.AwaitHealthy(ctx, *vmsFlag)
	if err != nil {
		return errors.Join(err, errors.New(s.consoles()))
	}
	s.report("%d VMs with Debian are healthy", *vmsFlag, began)
	for _, instance := range instances {
		if err := s.reportDebian(ctx, began, instance.GetInstanceId()); err != nil {
			return err
		}
	}
	return nil
}

func (s *libvirtShard) configureDebian(ctx context.Context) error {
	script, err := bootscript.Agent{}.Script()
	if err != nil {
		return err
	}
	return s.stack.PutConfig(ctx, func(c *config.Shard) {
		c.Server.HealthCheckInterval = duration(30 * time.Second)
		c.Server.GarbageCollection.RegistrationTimeout = duration(time.Hour)
		libvirtd.Guest{URI: s.daemon.URI(), Leader: s.stack.Network.Host(local.Leader)}.Configure(c, "worker")
		c.Defaults.Userdata.Content = script
		template := c.Templates["worker"]
		template.InstanceType = fmt.Sprintf("1x%d", *memoryFlag)
		template.Args = map[string]any{"image": "disk.qcow2", "kernel": "vmlinuz", "initrd": "initrd",
			"cmdline": "root=/dev/vda console=ttyS0"}
		c.Templates["worker"] = template
		spec := c.Groups[local.Tenant][group]
		spec.Size = vmsFlag
		c.Groups[local.Tenant][group] = spec
	})
}

// reportDebian prints the figures of one VM.
func (s *libvirtShard) reportDebian(ctx context.Context, since time.Time, instance string) error {
	var times []time.Time
	for _, kind := range []record.EventKind{record.EventInstanceCreating, record.EventInstanceRegistered} {
		at, err := s.awaitEvent(ctx, since, kind, func(e *nstancev1.JournalEvent) bool {
			return e.GetInstanceId() == instance
		})
		if err != nil {
			return err
		}
		times = append(times, at)
	}
	kib, err := s.measure(ctx, instance, `awk '/^Pss:/ { print $2 }' "/proc/$pid/smaps_rollup"`)
	if err != nil {
		return err
	}
	seconds, err := s.measure(ctx, instance, `ps -o cputimes= -p "$pid"`)
	if err != nil {
		return err
	}
	fmt.Printf("libvirt: %s: %.1f s from the create call until it has registered; its QEMU takes %d MiB and took %d s "+
		"of a core\n", instance, times[1].Sub(times[0]).Seconds(), kib/1024, seconds)
	return nil
}

// measure runs a shell script and returns the number that it prints. In the script, $pid is the PID of an instance's
// QEMU.
func (s *libvirtShard) measure(ctx context.Context, instance, script string) (int, error) {
	out, err := s.daemon.Enter(ctx, "sh", "-c", `pid=$(cat "/run/libvirt/qemu/$1.pid") && `+script, "sh",
		instance).Output()
	if err != nil {
		return 0, fmt.Errorf("measure the QEMU of %s: %w", instance, err)
	}
	number, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		return 0, fmt.Errorf("measure the QEMU of %s: %w", instance, err)
	}
	return number, nil
}
