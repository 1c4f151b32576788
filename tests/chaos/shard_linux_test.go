package chaos

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/dev/local"
)

const (
	servers = 2
	group   = "workers"
	size    = 5
	// lease is the election's without an heir, renewed each third of it; with one it is heirLease.
	lease = 3 * time.Second
)

// shard is what is broken.
type shard struct {
	*local.Stack
	form
	network  *network
	operator *local.Operator
	watch    watch
	journal  journal
	mu       sync.Mutex
	running  map[string]*local.Process
}

// form is how a shard is set up.
type form struct {
	name string
	heir bool
	// number of its network.
	number byte
}

// lease is for how long others than the heir wait.
func (f form) lease() time.Duration {
	if f.heir {
		return heirLease
	}
	return lease
}

// lasting is how long a fault lasts that a lease more or less makes no difference to: some seconds, or what the long
// form says.
func lasting(full time.Duration) time.Duration { return lastingShort(full, 3*lease) }

// lastingShort is the same where the short run has less time for it.
func lastingShort(full, short time.Duration) time.Duration {
	if long {
		return full
	}
	return min(full, short)
}

// start prepares the network and the disks, and starts everything.
func start(t *testing.T, f form) *shard {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New(
		"the stack did not start within a minute"))
	defer cancel()
	n, err := newNetwork(f.number, uint64(time.Now().UnixNano()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.close)
	dir, err := os.MkdirTemp("",
		"nstance-chaos-") //nolint:usetesting // its own would be removed with disks mounted in it, and its path is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	stack, err := local.New(local.Options{Root: "../..", Bin: os.Getenv("CHAOS_BIN"), Dir: dir,
		Ports: local.DefaultPorts(), Network: n})
	if err != nil {
		t.Fatal(err)
	}
	s := &shard{Stack: stack, form: f, network: n, running: map[string]*local.Process{},
		journal: journal{acted: map[uint64]int{}, led: map[uint64]string{}}}
	// Small disks for the caches and the bucket, which can be filled.
	var mounts []string
	for i := 1; i <= servers; i++ {
		mounts = append(mounts, stack.CacheDir(i))
		if err := errors.Join(os.MkdirAll(stack.CacheDir(i), 0o700), unix.Mount("tmpfs", stack.CacheDir(i), "tmpfs", 0,
			"size=8m,mode=0700")); err != nil {
			t.Fatal(err)
		}
	}
	mounts = append(mounts, stack.StoreDir())
	if err := unix.Mount("tmpfs", stack.StoreDir(), "tmpfs", 0, "size=64m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if t.Failed() {
			stack.Tails(os.Stderr, 60)
		}
		if err := stack.KillAll(clean); err != nil {
			t.Error(err)
		}
		for _, path := range mounts {
			_ = unix.Unmount(path, unix.MNT_DETACH)
		}
		if err := stack.Clean(clean); err != nil {
			t.Error(err)
		}
	})
	if s.running[local.Store], err = stack.StartStore(ctx); err != nil {
		t.Fatal(err)
	}
	if err := stack.PutConfig(ctx, s.settings); err != nil {
		t.Fatal(err)
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	running.Go(func() { n.lead(background, s.holder) })
	running.Go(func() { s.journal.follow(background, stack) })
	for i := 1; i <= servers; i++ {
		url := "http://" + net.JoinHostPort(n.Host(local.ServerName(i)), strconv.Itoa(stack.Ports.Health)) + "/leader"
		running.Go(func() { s.watch.follow(background, i, url) })
	}
	if err := s.startAll(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := stack.AwaitLine(ctx, "serving as leader", 0); err != nil {
		t.Fatal(err)
	}
	if s.operator, err = stack.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.operator.Close)
	running.Go(func() { s.operator.Watch(background) })
	if err := s.rest(ctx); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *shard) settings(c *config.Shard) {
	d := func(d time.Duration) *config.Duration { c := config.Duration(d); return &c }
	c.Server.HealthCheckInterval, c.Server.DefaultDrainTimeout = d(time.Second), d(2*time.Second)
	c.Server.LeaderElection.RenewInterval, c.Server.LeaderElection.LeaseDuration = d(lease/3), d(lease)
	if !s.heir {
		c.Server.LeaderElection.PeerLease = d(0)
	}
	c.Server.GarbageCollection = config.GarbageCollection{Interval: d(2 * time.Second),
		RegistrationTimeout: d(30 * time.Second), DeletedRecordRetention: d(time.Hour)}
	c.Server.ErrorExitJitter = config.ErrorExitJitter{MinDelay: d(0), MaxDelay: d(100 * time.Millisecond)}
	spec, want := c.Groups[local.Tenant][group], size
	spec.Size = &want
	c.Groups[local.Tenant][group] = spec
}

// startAll starts what does not run: the machine of the VMs, store and servers.
func (s *shard) startAll(ctx context.Context) error {
	// The tmux server is where the VMs are; a server of ours would start it on its own machine.
	if s.process("tmux") == nil || !s.process("tmux").Running() {
		p, err := s.StartTmux(ctx, vms)
		if err != nil {
			return err
		}
		s.keep("tmux", p)
	}
	for _, name := range []string{local.Store, local.ServerName(1), local.ServerName(2)} {
		if p := s.process(name); p != nil && p.Running() {
			continue
		}
		if err := s.revive(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (s *shard) process(name string) *local.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running[name]
}

func (s *shard) keep(name string, p *local.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[name] = p
}

// revive starts a program that has ended.
func (s *shard) revive(ctx context.Context, name string) error {
	var p *local.Process
	var err error
	if name == local.Store {
		p, err = s.StartStore(ctx)
	} else {
		var n int
		if n, err = strconv.Atoi(strings.TrimPrefix(name, "server-")); err == nil {
			p, err = s.StartServer(ctx, n)
		}
	}
	if p != nil {
		s.keep(name, p)
	}
	return err
}

// holder is the server that has the lock.
func (s *shard) holder(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	state, err := s.State(ctx)
	if err != nil {
		return "", err
	}
	lock, _, err := state.ReadLock(ctx, local.Shard)
	return lock.LeaderID, err
}

// leader waits until somebody serves as leader, by his own word.
func (s *shard) leader(ctx context.Context) (name string, term uint64, err error) {
	for {
		one, cancel := context.WithTimeout(ctx, time.Second)
		status, err := s.operator.GetConfigStatus(one, &nstancev1.GetConfigStatusRequest{})
		cancel()
		if err == nil {
			return status.GetLeaderId(), status.GetTerm(), nil
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return "", 0, fmt.Errorf("no leader: %w", err)
		}
	}
}

// victim is the leader, once it has an heir if it is to have one.
func (s *shard) victim(ctx context.Context) (name string, term uint64, err error) {
	if s.heir {
		name, _, term, err = s.pair(ctx)
		return name, term, err
	}
	return s.leader(ctx)
}

// awaitTerm waits for a leader of a later term.
func (s *shard) awaitTerm(ctx context.Context, after uint64) (name string, err error) {
	for {
		name, term, err := s.leader(ctx)
		if err != nil || term > after {
			return name, err
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return "", fmt.Errorf("no leader after term %d: %w", after, err)
		}
	}
}

// kill ends a VM that is in service.
func (s *shard) kill(ctx context.Context) (ident.ID, error) {
	agents, err := s.Agents(ctx)
	if err != nil {
		return ident.ID{}, err
	}
	known, err := s.VMs()
	if err != nil {
		return ident.ID{}, err
	}
	for _, vm := range known {
		if slices.ContainsFunc(agents, func(f local.Found) bool { return f.PID == vm.PID }) {
			return vm.Instance, syscall.Kill(vm.PID, syscall.SIGKILL)
		}
	}
	return ident.ID{}, errors.New("there is no VM to kill")
}

// replaced waits until an instance is gone and the group has its size without it.
func (s *shard) replaced(ctx context.Context, gone ident.ID) error {
	for {
		if healthy, err := s.operator.AwaitHealthy(ctx, size); err != nil {
			return err
		} else if !slices.ContainsFunc(healthy, func(i *nstancev1.InstanceStatus) bool {
			return i.GetInstanceId() == gone.String()
		}) {
			return nil
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// rest waits until the shard is as it should be, and stays so.
func (s *shard) rest(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, calm, errors.New("it did not come to rest within "+calm.String()))
	defer cancel()
	for quiet := 0; quiet < 5; quiet++ {
		if _, err := s.operator.AwaitHealthy(ctx, size); err != nil {
			return errors.Join(err, s.CheckConsistent(context.WithoutCancel(ctx)))
		}
		if err := errors.Join(s.CheckConsistent(ctx), s.certified(ctx)); err != nil {
			if ctx.Err() != nil {
				return errors.Join(context.Cause(ctx), err)
			}
			quiet = -1
		}
		if err := pause(ctx, 300*time.Millisecond); err != nil {
			return err
		}
	}
	return errors.Join(s.oneLife(), s.journal.history())
}

// certified says which certificates on the VMs' disks are missing from the log of certificates.
func (s *shard) certified(ctx context.Context) error {
	state, err := s.State(ctx)
	if err != nil {
		return err
	}
	entries, err := state.ListCertLog(ctx, "")
	if err != nil {
		return err
	}
	logged := map[string]bool{}
	for _, entry := range entries {
		for _, issued := range entry.Issued {
			logged[issued.Serial] = true
		}
	}
	found := 0
	err = filepath.WalkDir(s.AgentsDir(), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".crt") || entry.Name() == "ca.crt" {
			return ignoreGone(err)
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return ignoreGone(err)
		}
		block, _ := pem.Decode(raw)
		if block == nil {
			return fmt.Errorf("%s is no PEM", path)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return err
		}
		if found++; !logged[authority.Serial(cert)] {
			return fmt.Errorf("%s, serial %s, is in no entry of the log", path, authority.Serial(cert))
		}
		return nil
	})
	if err == nil && found < size {
		err = fmt.Errorf("%d certificates on %d VMs", found, size)
	}
	return err
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// oneLife checks in the provider's journal that no instance ID ever started two machines.
func (s *shard) oneLife() error {
	calls, err := s.Calls()
	if err != nil {
		return err
	}
	machines := map[ident.ID]int{}
	for _, call := range calls {
		if call.Op != "create_done" || call.PID == 0 {
			continue
		}
		if pid, ok := machines[call.Instance]; ok && pid != call.PID {
			return fmt.Errorf("%s was started twice, as PID %d and %d", call.Instance, pid, call.PID)
		}
		machines[call.Instance] = call.PID
	}
	return nil
}

// fill writes until the disk is full.
func fill(path string) (written int, err error) {
	file, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	for block := make([]byte, 64<<10); len(block) > 0; {
		n, err := file.Write(block)
		written += n
		switch {
		case errors.Is(err, unix.ENOSPC):
			block = block[:len(block)/2]
		case err != nil:
			return written, err
		}
	}
	return written, nil
}

// empty removes what is in a directory.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
