package system

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/dev/libvirtd"
	"github.com/nstance-kit/nstance/services/dev/local"
	testlibvirtd "github.com/nstance-kit/nstance/tests/cloud/libvirtd"
)

var guestFlag = flag.String("guest", "", "directory with vmlinuz and initrd of images/local/guest.sh, for libvirt")

var killsFlag = flag.Int("kills", 1, "number of VMs whose QEMU is killed, for libvirt")

// TestLibvirt runs a shard of two VMs on a real libvirtd with QEMU. The VMs boot a kernel and run an agent. The test
// kills a QEMU, kills libvirtd, kills a QEMU while a spare sleeps, changes the image, and scales to zero. scripts/libvirt.sh runs it in a network
// namespace.
func TestLibvirt(t *testing.T) {
	if *guestFlag == "" {
		t.Log("run by scripts/libvirt.sh, which makes the guest")
		return
	}
	daemon := testlibvirtd.StartInNetwork(t)
	runShard(t, "scripts/libvirt.sh", local.Trial{}, func(ctx context.Context, stack *local.Stack) error {
		limit := 7*time.Minute + time.Duration(*killsFlag)*2*time.Minute
		ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("timeout after %s", limit))
		defer cancel()
		machines := &libvirtd.Machines{}
		defer machines.Close()
		stack.Network = machines
		shard := &libvirtShard{t: t, daemon: daemon, stack: stack, servers: map[string]*local.Process{}}
		return shard.run(ctx)
	})
}

// hostNetwork is the address of this host in the network of the VMs. All programs of the test run on this host, so each
// of them has this address.
type hostNetwork string

func (n hostNetwork) Host(string) string                { return string(n) }
func (hostNetwork) Start(_ string, cmd *exec.Cmd) error { return cmd.Start() }

// libvirtSize is the number of VMs.
const libvirtSize = 2

// libvirtShard is one run of TestLibvirt.
type libvirtShard struct {
	t        *testing.T
	daemon   *testlibvirtd.Daemon
	stack    *local.Stack
	operator *local.Operator
	servers  map[string]*local.Process
	spares   int
}

func (s *libvirtShard) run(ctx context.Context) error {
	for _, image := range []string{"v1", "v2"} {
		if err := libvirtd.AddGuest(s.daemon.Dir(), *guestFlag, image); err != nil {
			return err
		}
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	defer s.operator.Close()
	for _, step := range []func(context.Context) error{s.killQEMU, s.killDaemon, s.killLeader, s.wakeSpare, s.roll,
		s.scaleToZero} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// configure writes the configuration of the shard with an image and a size of the group. The intervals in it are longer
// than those of other tests, because VMs without KVM are slow.
func (s *libvirtShard) configure(ctx context.Context, image string, size int) error {
	return s.stack.PutConfig(ctx, func(c *config.Shard) {
		c.Server.HealthCheckInterval, c.Server.DefaultDrainTimeout = duration(5*time.Second), duration(2*time.Second)
		c.Server.GarbageCollection.Interval = duration(2 * time.Second)
		guest := libvirtd.Guest{URI: s.daemon.URI(), Version: image, Leader: s.stack.Network.Host(local.Leader)}
		guest.Configure(c, "worker")
		spec := c.Groups[local.Tenant][group]
		spec.Size, spec.Spares = &size, suspendedSpares(s.spares)
		c.Groups[local.Tenant][group] = spec
	})
}

func (s *libvirtShard) start(ctx context.Context) error {
	began := time.Now()
	err := s.lead(ctx, func(ctx context.Context) error { return s.configure(ctx, "v1", libvirtSize) })
	if err != nil {
		return err
	}
	if _, err = s.healthy(ctx); err != nil {
		return err
	}
	s.report("%d VMs boot, register and are healthy", libvirtSize, began)
	return nil
}

// lead starts the store, writes the configuration, starts the servers, and connects to the server that becomes the
// first leader.
func (s *libvirtShard) lead(ctx context.Context, configure func(context.Context) error) error {
	if _, err := s.stack.StartStore(ctx); err != nil {
		return err
	}
	if err := configure(ctx); err != nil {
		return err
	}
	for i := 1; i <= servers; i++ {
		if err := s.startServer(ctx, i); err != nil {
			return err
		}
	}
	if _, err := s.stack.AwaitLine(ctx, "serving as leader", 0); err != nil {
		return err
	}
	var err error
	s.operator, err = s.stack.Connect(ctx)
	return err
}

func (s *libvirtShard) startServer(ctx context.Context, number int) error {
	process, err := s.stack.StartServer(ctx, number)
	if err != nil {
		return err
	}
	s.servers[local.ServerName(number)] = process
	return s.stack.AwaitReady(ctx, process, number)
}

// healthy waits until all VMs are healthy. On failure it adds the ends of their consoles to the error.
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

// killQEMU kills the QEMU process of a VM. libvirtd sends the server an event, and the server must make another VM.
func (s *libvirtShard) killQEMU(ctx context.Context) error {
	for range *killsFlag {
		before, err := s.healthy(ctx)
		if err != nil {
			return err
		}
		victim := before[0].GetInstanceId()
		began := time.Now()
		event := s.daemon.KillVMUntilEvent(s.t, victim)
		lost, err := s.awaitEvent(ctx, began, record.EventInstanceLost, func(e *nstancev1.JournalEvent) bool {
			return e.GetInstanceId() == victim
		})
		if err != nil {
			return err
		}
		creating, err := s.awaitEvent(ctx, began, record.EventInstanceCreating, func(e *nstancev1.JournalEvent) bool {
			return e.GetReplaces() == victim
		})
		if err != nil {
			return err
		}
		fmt.Printf("libvirt: after kill -9 of the QEMU of %s: %.1f ms: libvirt's event, %.1f ms: it is lost, "+
			"%.1f ms: the create call of another VM\n", victim, milliseconds(event.Sub(began)),
			milliseconds(lost.Sub(began)), milliseconds(creating.Sub(began)))
		after, err := s.healthy(ctx)
		if err != nil {
			return err
		}
		s.report("after kill -9 of the QEMU of %s, another VM is healthy", victim, began)
		if err := unchanged(before[1:], after); err != nil {
			return err
		}
	}
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// awaitEvent waits for an event in the journal and returns its time.
func (s *libvirtShard) awaitEvent(ctx context.Context, since time.Time, kind record.EventKind,
	match func(*nstancev1.JournalEvent) bool) (time.Time, error) {
	for {
		answer, err := s.operator.ListEvents(ctx, &nstancev1.ListEventsRequest{Filter: &nstancev1.EventFilter{
			Kinds: []string{string(kind)}, Since: timestamppb.New(since)}})
		if err != nil {
			return time.Time{}, err
		}
		if i := slices.IndexFunc(answer.GetEvents(), match); i >= 0 {
			return answer.GetEvents()[i].GetAt().AsTime(), nil
		}
		if err := local.Pause(ctx, 20*time.Millisecond); err != nil {
			return time.Time{}, fmt.Errorf("%w: no event %s in the journal", err, kind)
		}
	}
}

// unchanged checks that every instance in before is also in after.
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

// killDaemon kills libvirtd. It starts libvirtd again when the agents have sent several reports. No VM may be replaced.
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

// killLeader kills the process of the leader, two times. Each time, the standby must take the leader's address,
// although the killed leader's machine keeps the address until the lifetime of the address ends. The test calls the
// address from a third network namespace. No VM may be replaced.
func (s *libvirtShard) killLeader(ctx context.Context) error {
	before, err := s.healthy(ctx)
	if err != nil {
		return err
	}
	address := net.JoinHostPort(s.stack.Network.Host(local.Leader), strconv.Itoa(s.stack.Ports.Health))
	for range 2 {
		leader, err := lockHolder(ctx, s.stack)
		if err != nil {
			return err
		}
		if err := s.servers[leader].Kill(); err != nil {
			return err
		}
		began := time.Now()
		if err := awaitAnswer(ctx, "http://"+address+"/leader"); err != nil {
			return err
		}
		s.report("after kill -9 of the leader %s, the next one answers at the leader's address", leader, began)
		after, err := s.healthy(ctx)
		if err != nil {
			return err
		}
		s.report("after kill -9 of the leader %s, it says that the VMs are healthy", leader, began)
		if err := unchanged(before, after); err != nil {
			return err
		}
		number := slices.Index([]string{local.ServerName(1), local.ServerName(2)}, leader) + 1
		if err := s.startServer(ctx, number); err != nil {
			return err
		}
	}
	return nil
}

// awaitAnswer waits until a GET succeeds with status 200.
func awaitAnswer(ctx context.Context, url string) error {
	client := http.Client{Timeout: 100 * time.Millisecond, Transport: &http.Transport{DisableKeepAlives: true}}
	last := errors.New("no answer")
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(response.Status)
		}
		if ctx.Err() == nil {
			last = err
		}
		if err := local.Pause(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("%w: %w", err, last)
		}
	}
}

// roll changes the image. Every VM is replaced.
func (s *libvirtShard) roll(ctx context.Context) error {
	instances, err := s.operator.Instances(ctx)
	if err != nil {
		return err
	}
	before := slices.DeleteFunc(instances, func(i *nstancev1.InstanceStatus) bool { return i.GetSpare() })
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

// scaleToZero deletes all VMs and waits until none of their disks, seeds and consoles is left.
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
