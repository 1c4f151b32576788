package chaos

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
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
	"github.com/nstance-kit/nstance/tests/local"
)

const (
	servers = 2
	group   = "workers"
	size    = 5
	// calm is how long coming to rest may take: the longest thing on the way is the minute for which a VM may be missing from the provider's list.
	calm = 3 * time.Minute
	// lease is the election's, renewed each third of it.
	lease = 3 * time.Second
)

// long is for `make chaos`: the same faults, as long as the text has them.
var long = os.Getenv("CHAOS") == "long"

func TestMain(m *testing.M) {
	if os.Getenv("CHAOS") == "" { // needs the repository's binaries, which `go test` alone does not build
		os.Exit(m.Run())
	}
	code, done, err := isolate()
	if err != nil {
		fmt.Fprintf(os.Stderr, "chaos: %v\n", err)
		os.Exit(1)
	}
	if !done {
		code = m.Run()
	}
	os.Exit(code)
}

// shard is what is broken.
type shard struct {
	*local.Stack
	t        *testing.T
	network  *network
	operator *local.Operator
	mu       sync.Mutex
	running  map[string]*local.Process
}

// fault is one thing that goes wrong.
type fault struct {
	name, want string
	// do breaks something, mends it, and says what was seen meanwhile. The context ends when all patience is exhausted.
	do func(ctx context.Context, s *shard) (seen string, err error)
}

// lasting is how long a fault lasts: some leases, or what the long form says.
func lasting(full time.Duration) time.Duration {
	if long {
		return full
	}
	return min(full, 3*lease)
}

func TestChaos(t *testing.T) {
	if os.Getenv("CHAOS") == "" {
		t.Log("run by scripts/chaos.sh, which builds what it breaks")
		return
	}
	s := start(t)
	var table strings.Builder
	for _, f := range faults {
		ok := t.Run(f.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeoutCause(t.Context(), calm+lasting(20*time.Minute), errors.New("it took too long"))
			defer cancel()
			seen, err := f.do(ctx, s)
			lost := s.network.mend()
			if err != nil {
				t.Fatal(err)
			}
			if lost > 0 {
				seen += fmt.Sprintf("; %d packets lost", lost)
			}
			began := time.Now()
			if err := s.rest(ctx); err != nil {
				t.Fatal(err)
			}
			seen = strings.TrimPrefix(seen+fmt.Sprintf("; at rest %.1f s after", time.Since(began).Seconds()), "; ")
			t.Log(seen)
			fmt.Fprintf(&table, "| %s | %s | %s |\n", f.name, f.want, seen)
		})
		if !ok {
			return // what follows would be judged for what this one left
		}
	}
	fmt.Printf("| fault | expectation | seen |\n|---|---|---|\n%s", table.String())
}

var faults = []fault{
	{"leader cut off from the bucket", "another leads after the lease; a VM lost meanwhile is replaced", func(ctx context.Context, s *shard) (string, error) {
		leader, term, err := s.leader(ctx)
		if err != nil {
			return "", err
		}
		began := time.Now()
		s.network.part(leader, local.Store)
		if _, err := s.kill(ctx); err != nil {
			return "", err
		}
		next, err := s.awaitTerm(ctx, term)
		if err != nil {
			return "", err
		}
		if next == leader {
			return "", fmt.Errorf("%s leads again although it cannot reach the bucket", leader)
		}
		took := time.Since(began)
		err = pause(ctx, lasting(30*time.Second))
		return fmt.Sprintf("%s led %.1f s later", next, took.Seconds()), err
	}},
	{"answers of the bucket to the leader are lost", "the same: what the bucket does unheard counts for nothing", func(ctx context.Context, s *shard) (string, error) {
		leader, term, err := s.leader(ctx)
		if err != nil {
			return "", err
		}
		s.network.block(local.Store, leader)
		next, err := s.awaitTerm(ctx, term)
		if err != nil {
			return "", err
		}
		err = pause(ctx, lasting(30*time.Second))
		return next + " led", err
	}},
	{"all VMs cut off from the servers", "no wave of replacements: the VMs run", func(ctx context.Context, s *shard) (string, error) {
		before, err := s.Windows(ctx)
		if err != nil {
			return "", err
		}
		for n := 1; n <= servers; n++ {
			s.network.part(vms, local.ServerName(n))
		}
		if err := pause(ctx, lasting(time.Minute)); err != nil {
			return "", err
		}
		s.network.mend()
		if err := s.rest(ctx); err != nil {
			return "", err
		}
		after, err := s.Windows(ctx)
		replaced := 0
		for _, id := range before {
			if !slices.Contains(after, id) {
				replaced++
			}
		}
		// Page 4: max_unhealthy is 40 %, and at least 2.
		if replaced > 2 {
			err = errors.Join(err, fmt.Errorf("%d of %d VMs were replaced although they ran", replaced, size))
		}
		return fmt.Sprintf("%d of %d replaced", replaced, size), err
	}},
	{"a fifth of all packets lost, VMs dying", "each is replaced", func(ctx context.Context, s *shard) (string, error) {
		s.network.lose(0.2)
		killed := 0
		for end := time.Now().Add(lasting(2 * time.Minute)); time.Now().Before(end); {
			if _, err := s.kill(ctx); err == nil {
				killed++
			}
			if err := pause(ctx, 4*time.Second); err != nil {
				return "", err
			}
		}
		return fmt.Sprintf("%d killed", killed), nil
	}},
	{"kill -9 of the leader, again and again", "another leads each time", func(ctx context.Context, s *shard) (string, error) {
		var longest time.Duration
		rounds := 3
		if long {
			rounds = 20
		}
		for range rounds {
			leader, term, err := s.leader(ctx)
			if err != nil {
				return "", err
			}
			began := time.Now()
			if err := s.process(leader).Kill(); err != nil {
				return "", err
			}
			if _, err := s.kill(ctx); err != nil {
				return "", err
			}
			if _, err := s.awaitTerm(ctx, term); err != nil {
				return "", err
			}
			longest = max(longest, time.Since(began))
			if err := s.revive(ctx, leader); err != nil {
				return "", err
			}
		}
		return fmt.Sprintf("%d times, at most %.1f s without a leader (lease %v)", rounds, longest.Seconds(), lease), nil
	}},
	{"kill -9 of the object store, VMs dying", "nothing acknowledged is lost; VMs run on; replaced when it is back", func(ctx context.Context, s *shard) (string, error) {
		if err := s.process(local.Store).Kill(); err != nil {
			return "", err
		}
		if _, err := s.kill(ctx); err != nil {
			return "", err
		}
		if err := pause(ctx, lasting(time.Minute)); err != nil {
			return "", err
		}
		return "", s.revive(ctx, local.Store)
	}},
	{"leader stopped (SIGSTOP) beyond its lease", "another leads; the first does nothing when it wakes up", func(ctx context.Context, s *shard) (string, error) {
		leader, term, err := s.leader(ctx)
		if err != nil {
			return "", err
		}
		pid := s.process(leader).PID
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			return "", err
		}
		if _, err := s.kill(ctx); err != nil {
			return "", err
		}
		next, err := s.awaitTerm(ctx, term)
		if err == nil {
			err = pause(ctx, lasting(30*time.Second))
		}
		if err := errors.Join(err, syscall.Kill(pid, syscall.SIGCONT)); err != nil {
			return "", err
		}
		_, now, err := s.leader(ctx)
		if err == nil && now < term {
			err = fmt.Errorf("the term fell from %d to %d", term, now)
		}
		return next + " led", err
	}},
	{"object store stopped (SIGSTOP), VMs dying", "half-open connections end by themselves; the dead are replaced when it goes on", func(ctx context.Context, s *shard) (string, error) {
		// Agents cannot be stopped like this: tmux continues its panes' processes.
		pid := s.process(local.Store).PID
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			return "", err
		}
		_, err := s.kill(ctx)
		return "", errors.Join(err, pause(ctx, lasting(time.Minute)), syscall.Kill(pid, syscall.SIGCONT))
	}},
	{"the leader's disk full, VMs dying", "they are replaced: the cache is no truth", func(ctx context.Context, s *shard) (string, error) {
		leader, _, err := s.leader(ctx)
		if err != nil {
			return "", err
		}
		n, err := strconv.Atoi(strings.TrimPrefix(leader, "server-"))
		if err != nil {
			return "", err
		}
		filler := filepath.Join(s.CacheDir(n), "filler")
		written, err := fill(filler)
		if err != nil {
			return "", err
		}
		killed := 0
		for end := time.Now().Add(lasting(time.Minute)); time.Now().Before(end); killed++ {
			id, err := s.kill(ctx)
			if err != nil {
				return "", err
			}
			if err := s.replaced(ctx, id); err != nil {
				return "", fmt.Errorf("on a full disk: %w", err)
			}
		}
		return fmt.Sprintf("%d replaced while not a byte could be written (after %d KiB)", killed, written>>10), os.Remove(filler)
	}},
	{"bucket takes no writes (its disk is full)", "the lease ends and nobody acts; VMs run on; afterwards the dead are replaced", func(ctx context.Context, s *shard) (string, error) {
		filler := filepath.Join(s.StoreDir(), ".filler")
		if _, err := fill(filler); err != nil {
			return "", err
		}
		if err := pause(ctx, 2*lease); err != nil {
			return "", err
		}
		calls, err := s.Calls()
		if _, killErr := s.kill(ctx); err != nil || killErr != nil {
			return "", errors.Join(err, killErr)
		}
		if err := pause(ctx, lasting(10*time.Minute)); err != nil {
			return "", err
		}
		later, err := s.Calls()
		if err == nil && len(later) != len(calls) {
			err = fmt.Errorf("%d calls to the provider without a lease", len(later)-len(calls))
		}
		return fmt.Sprintf("no call to the provider in %v", lasting(10*time.Minute)), errors.Join(err, os.Remove(filler))
	}},
	{"everything killed at once, all disks deleted but the bucket", "all is rebuilt from the bucket", func(ctx context.Context, s *shard) (string, error) {
		if err := s.KillAll(ctx); err != nil {
			return "", err
		}
		if err := s.WipeDisks(); err != nil {
			return "", err
		}
		for n := 1; n <= servers; n++ {
			if err := empty(s.CacheDir(n)); err != nil {
				return "", err
			}
		}
		return "", s.startAll(ctx)
	}},
}

// start prepares the network and the disks, and starts everything.
func start(t *testing.T) *shard {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("the stack did not start within a minute"))
	defer cancel()
	n, err := newNetwork(uint64(time.Now().UnixNano()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.close)
	dir, err := os.MkdirTemp("", "nstance-chaos-") //nolint:usetesting // its own would be removed with disks mounted in it, and its path is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	stack, err := local.New(local.Options{Root: "../..", Dir: dir, Ports: local.DefaultPorts(), Network: n})
	if err != nil {
		t.Fatal(err)
	}
	s := &shard{Stack: stack, t: t, network: n, running: map[string]*local.Process{}}
	// Small disks for the caches and the bucket, which can be filled.
	var mounts []string
	for i := 1; i <= servers; i++ {
		mounts = append(mounts, stack.CacheDir(i))
		if err := errors.Join(os.MkdirAll(stack.CacheDir(i), 0o700), unix.Mount("tmpfs", stack.CacheDir(i), "tmpfs", 0, "size=8m,mode=0700")); err != nil {
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
	if err := stack.PutConfig(ctx, settings); err != nil {
		t.Fatal(err)
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	running.Go(func() { n.lead(background, s.holder) })
	if err := s.startAll(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := stack.AwaitLine(ctx, servers, "serving as leader", 0); err != nil {
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

func settings(s *config.Shard) {
	d := func(d time.Duration) *config.Duration { c := config.Duration(d); return &c }
	s.Server.HealthCheckInterval, s.Server.DefaultDrainTimeout = d(time.Second), d(2*time.Second)
	// Without an heir, whose ways to fail tests/failover plays: with one, the leader may go on without the bucket for a minute and a half.
	s.Server.LeaderElection.RenewInterval, s.Server.LeaderElection.LeaseDuration, s.Server.LeaderElection.PeerLease = d(lease/3), d(lease), d(0)
	s.Server.GarbageCollection = config.GarbageCollection{Interval: d(2 * time.Second), RegistrationTimeout: d(30 * time.Second), DeletedRecordRetention: d(time.Hour)}
	s.Server.ErrorExitJitter = config.ErrorExitJitter{MinDelay: d(0), MaxDelay: d(100 * time.Millisecond)}
	spec, want := s.Groups[local.Tenant][group], size
	spec.Size = &want
	s.Groups[local.Tenant][group] = spec
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
		} else if !slices.ContainsFunc(healthy, func(i *nstancev1.InstanceStatus) bool { return i.GetInstanceId() == gone.String() }) {
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
			return errors.Join(err, s.Consistent(context.WithoutCancel(ctx)))
		}
		if err := errors.Join(s.Consistent(ctx), s.certified(ctx)); err != nil {
			if ctx.Err() != nil {
				return errors.Join(context.Cause(ctx), err)
			}
			quiet = -1
		}
		if err := pause(ctx, 300*time.Millisecond); err != nil {
			return err
		}
	}
	return s.oneLife()
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
