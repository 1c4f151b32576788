package system

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/dev/local"
	"github.com/nstance-kit/nstance/tests/cloud/libvirtd"
)

var guestFlag = flag.String("guest", "", "directory with vmlinuz and initrd of images/local/guest.sh, for libvirt")

// TestLibvirt runs a shard of two VMs on a real libvirtd with QEMU. The VMs boot a kernel and run an agent. The test
// kills a QEMU, kills libvirtd, changes the image, and scales to zero. It runs in a network namespace of its script.
func TestLibvirt(t *testing.T) {
	if *guestFlag == "" {
		t.Log("run by scripts/libvirt.sh, which makes the guest")
		return
	}
	daemon := libvirtd.StartInNetwork(t)
	runShard(t, "scripts/libvirt.sh", local.Trial{}, func(ctx context.Context, stack *local.Stack) error {
		ctx, cancel := context.WithTimeoutCause(ctx, 9*time.Minute, errors.New("timeout after 9 minutes"))
		defer cancel()
		stack.Network = hostNetwork(libvirtd.Gateway)
		return (&libvirtShard{t: t, daemon: daemon, stack: stack}).run(ctx)
	})
}

// hostNetwork is the network of the VMs: every program runs on the host and has this address there.
type hostNetwork string

func (n hostNetwork) Host(string) string                { return string(n) }
func (hostNetwork) Start(_ string, cmd *exec.Cmd) error { return cmd.Start() }

// libvirtSize is the number of VMs.
const libvirtSize = 2

// libvirtShard is one run of TestLibvirt.
type libvirtShard struct {
	t        *testing.T
	daemon   *libvirtd.Daemon
	stack    *local.Stack
	operator *local.Operator
}

func (s *libvirtShard) run(ctx context.Context) error {
	for _, image := range []string{"v1", "v2"} {
		if err := s.addImage(image); err != nil {
			return err
		}
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	defer s.operator.Close()
	for _, step := range []func(context.Context) error{s.killQEMU, s.killDaemon, s.roll, s.scaleToZero} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// addImage copies the guest to the storage pool under two new names.
func (s *libvirtShard) addImage(version string) error {
	for _, name := range []string{"vmlinuz", "initrd"} {
		content, err := os.ReadFile(filepath.Join(*guestFlag, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(s.daemon.Pool, name+"-"+version), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// configure writes the configuration of the shard with an image and a size of the group. Its times are longer than
// those of other tests, because VMs without hardware support are slow.
func (s *libvirtShard) configure(ctx context.Context, image string, size int) error {
	return s.stack.PutConfig(ctx, func(c *config.Shard) {
		c.Server.HealthCheckInterval, c.Server.DefaultDrainTimeout = duration(5*time.Second), duration(2*time.Second)
		c.Server.GarbageCollection.Interval = duration(2 * time.Second)
		c.Server.Provider.Kind = "libvirt"
		c.Server.Provider.Options = map[string]string{"hosts": "local=" + s.daemon.URI(), "domain_type": "qemu"}
		c.Server.SubnetPools = map[string][]string{"local": {"local/a"}}
		template := c.Templates["worker"]
		template.InstanceType = "1x160"
		template.Args = map[string]any{"kernel": "vmlinuz-" + image, "initrd": "initrd-" + image,
			"cmdline": "console=ttyS0 quiet panic=1"}
		c.Templates["worker"] = template
		spec := c.Groups[local.Tenant][group]
		spec.Size = &size
		c.Groups[local.Tenant][group] = spec
	})
}

func (s *libvirtShard) start(ctx context.Context) error {
	if _, err := s.stack.StartStore(ctx); err != nil {
		return err
	}
	if err := s.configure(ctx, "v1", libvirtSize); err != nil {
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
	if _, err = s.healthy(ctx); err != nil {
		return err
	}
	s.report("%d VMs boot, register and are healthy", libvirtSize, began)
	return nil
}

// healthy waits until all VMs are healthy. On failure it adds the ends of their consoles.
func (s *libvirtShard) healthy(ctx context.Context) ([]*nstancev1.InstanceStatus, error) {
	instances, err := s.operator.AwaitHealthy(ctx, libvirtSize)
	if err != nil {
		return nil, errors.Join(err, errors.New(s.consoles()))
	}
	return instances, nil
}

func (s *libvirtShard) consoles() string {
	var all strings.Builder
	files, _ := filepath.Glob(filepath.Join(s.daemon.Pool, "*-console.log"))
	for _, file := range files {
		content, err := os.ReadFile(file)
		fmt.Fprintf(&all, "\n--- %s %v\n%s", filepath.Base(file), err, content[max(0, len(content)-2000):])
	}
	return all.String()
}

func (s *libvirtShard) report(format string, value any, began time.Time) {
	fmt.Printf("libvirt: "+format+": %v\n", value, time.Since(began).Round(10*time.Millisecond))
}

// killQEMU kills the process of a VM. The server learns of it by libvirt's event and makes another VM.
func (s *libvirtShard) killQEMU(ctx context.Context) error {
	before, err := s.healthy(ctx)
	if err != nil {
		return err
	}
	victim := before[0].GetInstanceId()
	began := time.Now()
	s.daemon.KillVM(s.t, victim)
	for {
		instances, err := s.operator.Instances(ctx)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(instances, func(i *nstancev1.InstanceStatus) bool {
			return !slices.ContainsFunc(before, func(b *nstancev1.InstanceStatus) bool {
				return b.GetInstanceId() == i.GetInstanceId()
			})
		}) {
			break
		}
		if err := local.Pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	s.report("after kill -9 of the QEMU of %s, another VM is asked for", victim, began)
	after, err := s.healthy(ctx)
	if err != nil {
		return err
	}
	s.report("after kill -9 of the QEMU of %s, another VM is healthy", victim, began)
	return unchanged(before[1:], after)
}

// unchanged checks that every instance of before is in after.
func unchanged(before, after []*nstancev1.InstanceStatus) error {
	for _, b := range before {
		if !slices.ContainsFunc(after, func(a *nstancev1.InstanceStatus) bool {
			return a.GetInstanceId() == b.GetInstanceId()
		}) {
			return fmt.Errorf("%s was replaced although its VM ran", b.GetInstanceId())
		}
	}
	return nil
}

// killDaemon kills libvirtd and starts it after several reports of the agents. No VM is replaced.
func (s *libvirtShard) killDaemon(ctx context.Context) error {
	before, err := s.healthy(ctx)
	if err != nil {
		return err
	}
	s.daemon.KillDaemon(s.t)
	if err := local.Pause(ctx, 12*time.Second); err != nil {
		return err
	}
	s.daemon.StartDaemon(s.t)
	if err := local.Pause(ctx, 3*time.Second); err != nil {
		return err
	}
	after, err := s.healthy(ctx)
	if err != nil {
		return err
	}
	return unchanged(before, after)
}

// roll changes the image. Every VM is replaced.
func (s *libvirtShard) roll(ctx context.Context) error {
	before, err := s.healthy(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := s.configure(ctx, "v2", libvirtSize); err != nil {
		return err
	}
	if _, err := s.operator.Refresh(ctx); err != nil {
		return err
	}
	for {
		after, err := s.healthy(ctx)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(before, func(b *nstancev1.InstanceStatus) bool {
			return unchanged([]*nstancev1.InstanceStatus{b}, after) == nil
		}) {
			break
		}
		if err := local.Pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	s.report("%d VMs have the new image", libvirtSize, began)
	return nil
}

// scaleToZero deletes all VMs. Of their disks, seeds and consoles nothing is left.
func (s *libvirtShard) scaleToZero(ctx context.Context) error {
	if err := s.configure(ctx, "v2", 0); err != nil {
		return err
	}
	if _, err := s.operator.Refresh(ctx); err != nil {
		return err
	}
	if _, err := s.operator.AwaitHealthy(ctx, 0); err != nil {
		return err
	}
	for {
		left := s.leftovers()
		if len(left) == 0 {
			return nil
		}
		if err := local.Pause(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("%w: left in the storage pool: %q", err, left)
		}
	}
}

func (s *libvirtShard) leftovers() []string {
	files, _ := filepath.Glob(filepath.Join(s.daemon.Pool, "*"))
	return slices.DeleteFunc(files, func(file string) bool {
		name := filepath.Base(file)
		return strings.HasSuffix(name, ".claim") || strings.HasPrefix(name, "vmlinuz-") ||
			strings.HasPrefix(name, "initrd-")
	})
}
