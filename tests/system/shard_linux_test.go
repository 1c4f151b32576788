package system

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/dev/local"
)

// size is the size of the group.
const size = 5

// shard is one shard under test.
type shard struct {
	*local.Stack
	form
	network  *network
	operator *local.Operator
	polls    leaderPoll
	actions  actionLog
	rng      *rand.Rand
	mu       sync.Mutex
	running  map[string]*local.Process // by name
}

// form tells whether a shard under test has an heir. It also has the number of the shard's network.
type form struct {
	name string
	heir bool
	// number of the network.
	number byte
}

// effectiveLease returns the lease that must end before a server other than the heir may lead.
func (f form) effectiveLease() time.Duration {
	if f.heir {
		return *heirLease
	}
	return lease
}

// faultTime returns how long a fault lasts. In the long form of the test that is the time "full", and in the short form
// at most three leases.
func faultTime(full time.Duration) time.Duration { return shortFaultTime(full, 3*lease) }

// shortFaultTime returns "full" in the long form of the test. In the short form it returns the smaller of "full" and
// "short".
func shortFaultTime(full, short time.Duration) time.Duration {
	if longForm() {
		return full
	}
	return min(full, short)
}

// startShard prepares the network and the disks, and starts every program.
func startShard(t *testing.T, f form) *shard {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New(
		"the shard did not start within a minute"))
	defer cancel()
	n, err := newNetwork(f.number, uint64(time.Now().UnixNano()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.close)
	// A directory of t.TempDir would be removed although disks are mounted in it. Its path is also too long for a
	// socket.
	dir, err := os.MkdirTemp("", "nstance-chaos-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	stack, err := local.New(local.Options{Root: ".", Bin: *binFlag, Dir: dir,
		Ports: local.DefaultPorts(), Network: n})
	if err != nil {
		t.Fatal(err)
	}
	s := &shard{Stack: stack, form: f, network: n, running: map[string]*local.Process{},
		rng: rand.New(rand.NewPCG(uint64(f.number), 0)), actions: actionLog{acted: map[uint64]int{},
			led: map[uint64]string{}}}
	// The caches and the bucket are on small disks, which the faults fill.
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
	running.Go(func() {
		n.moveLeaderAddress(background, func(ctx context.Context) (string, error) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return lockHolder(ctx, stack)
		})
	})
	running.Go(func() { s.actions.collect(background, stack) })
	for i := 1; i <= servers; i++ {
		running.Go(func() { s.polls.poll(background, i, stack.URL(i, "/leader")) })
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
	if err := s.converge(ctx); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *shard) settings(c *config.Shard) {
	useShortTimes(c, size)
	if !s.heir {
		c.Server.LeaderElection.PeerLease = duration(0)
	}
}

// startAll starts every program that does not run.
func (s *shard) startAll(ctx context.Context) error {
	// The tmux server, in which the VMs run, must be on the machine "vms". If the tmux server does not run,
	// nstance-server starts it on its own machine.
	if s.process("tmux") == nil || !s.process("tmux").Running() {
		p, err := s.startTmux(ctx)
		if err != nil {
			return err
		}
		s.setProcess("tmux", p)
	}
	for _, name := range []string{local.Store, local.ServerName(1), local.ServerName(2)} {
		if p := s.process(name); p != nil && p.Running() {
			continue
		}
		if err := s.restart(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// startTmux starts a tmux server on the machine "vms". All VMs then run on that machine.
func (s *shard) startTmux(ctx context.Context) (*local.Process, error) {
	program, err := exec.LookPath("tmux")
	if err != nil {
		return nil, err
	}
	// In the foreground (-D) a tmux server does not end when it has no sessions.
	socket := s.ProviderOptions()["socket"]
	p, err := s.Start(vms, program, "-D", "-f", os.DevNull, "-S", socket)
	if err != nil {
		return nil, err
	}
	for {
		if conn, err := new(net.Dialer).DialContext(ctx, "unix", socket); err == nil {
			return p, conn.Close()
		}
		if !p.Running() {
			return nil, fmt.Errorf("tmux ended; its log is %s", p.Log)
		}
		if err := local.Pause(ctx, 10*time.Millisecond); err != nil {
			return nil, fmt.Errorf("wait for tmux: %w", err)
		}
	}
}

func (s *shard) process(name string) *local.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running[name]
}

func (s *shard) setProcess(name string, p *local.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[name] = p
}

// restart starts a program that has ended.
func (s *shard) restart(ctx context.Context, name string) error {
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
		s.setProcess(name, p)
	}
	return err
}

// leader waits until a server answers as leader, and returns its name and term.
func (s *shard) leader(ctx context.Context) (name string, term uint64, err error) {
	for {
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		status, err := s.operator.GetConfigStatus(attempt, &nstancev1.GetConfigStatusRequest{})
		cancel()
		if err == nil {
			return status.GetLeaderId(), status.GetTerm(), nil
		}
		if err := local.Pause(ctx, 20*time.Millisecond); err != nil {
			return "", 0, fmt.Errorf("no leader: %w", err)
		}
	}
}

// awaitLeader waits for a leader, and in a shard with an heir also for its heir.
func (s *shard) awaitLeader(ctx context.Context) (name string, term uint64, err error) {
	if s.heir {
		name, _, term, err = s.awaitPair(ctx)
		return name, term, err
	}
	return s.leader(ctx)
}

// awaitTerm waits for a leader whose term is later than the given one, and returns the leader's name.
func (s *shard) awaitTerm(ctx context.Context, after uint64) (name string, err error) {
	for {
		name, term, err := s.leader(ctx)
		if err != nil || term > after {
			return name, err
		}
		if err := local.Pause(ctx, 20*time.Millisecond); err != nil {
			return "", fmt.Errorf("no leader after term %d: %w", after, err)
		}
	}
}

// killVM kills a random VM of the shard.
func (s *shard) killVM(ctx context.Context) (ident.ID, error) { return killVM(ctx, s.Stack, s.rng) }

// replaced waits until an instance is gone and the group has its full size without that instance.
func (s *shard) replaced(ctx context.Context, old ident.ID) error {
	return awaitReplaced(ctx, s.operator, old, size)
}

// converge waits until the shard has converged.
func (s *shard) converge(ctx context.Context) error {
	if err := awaitConverged(ctx, s.Stack, s.operator, size, s.checkCertificates); err != nil {
		return err
	}
	return s.actions.check(ctx)
}

// checkCertificates verifies that the certificate log has every certificate on the disks of the VMs.
func (s *shard) checkCertificates(ctx context.Context) error {
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
			return fmt.Errorf("%s is not PEM", path)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return err
		}
		if found++; !logged[authority.Serial(cert)] {
			return fmt.Errorf("%s, serial %s, is not in the certificate log", path, authority.Serial(cert))
		}
		return nil
	})
	if err == nil && found < size {
		err = fmt.Errorf("%d certificates on the disks of %d VMs", found, size)
	}
	return err
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// fill appends to a file until the disk is full. It returns how many bytes it wrote.
func fill(path string) (written int, err error) {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
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

// empty removes the contents of a directory.
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
