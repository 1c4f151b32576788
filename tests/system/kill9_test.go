package system

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/dev/local"
)

// While processes are killed, the group's size changes between leastSize and mostSize. At the end it is finalSize.
const (
	leastSize, mostSize, finalSize = 3, 8, 5
)

// TestKill9 kills random processes of a shard at random moments while the group is scaled and VMs die. Servers and the
// object store are started again, as systemd would. Afterwards the shard must converge: each VM has one record and one
// agent. The same seed gives the same kills at the same times, but the processes may be doing something else at these
// times.
func TestKill9(t *testing.T) {
	rounds, seed := *roundsFlag, *seedFlag
	if rounds < 0 {
		rounds = 10
	}
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
	runShard(t, "scripts/test.sh kill9", local.Trial{}, func(ctx context.Context, stack *local.Stack) error {
		fmt.Printf("kill9: -rounds=%d -seed=%d\n", rounds, seed)
		k := &kill9{stack: stack, rng: rand.New(rand.NewPCG(seed, 0)), killed: map[string]int{}}
		if err := k.run(ctx, rounds, seed); err != nil {
			return fmt.Errorf("kill9 -rounds=%d -seed=%d: %w", rounds, seed, err)
		}
		return nil
	})
}

// kill9 is one run of TestKill9.
type kill9 struct {
	stack    *local.Stack
	rng      *rand.Rand
	operator *local.Operator
	store    *supervised
	servers  [servers + 1]*supervised
	killed   map[string]int // number of kills by kind of process
}

func (k *kill9) run(ctx context.Context, rounds int, seed uint64) error {
	supervising, stopSupervising := context.WithCancel(ctx)
	var supervisors sync.WaitGroup
	defer supervisors.Wait()
	defer stopSupervising()
	if err := k.start(ctx); err != nil {
		return err
	}
	defer k.operator.Close()
	for _, p := range append(k.servers[1:], k.store) {
		supervisors.Go(func() { p.supervise(supervising) })
	}
	loading, stopLoad := context.WithCancel(ctx)
	defer stopLoad()
	var load sync.WaitGroup
	load.Go(func() { k.operator.Watch(loading) })
	load.Go(func() { k.changeSize(loading, rand.New(rand.NewPCG(seed, 1))) })
	load.Go(func() { k.killVMs(loading, rand.New(rand.NewPCG(seed, 2))) })
	for round := 1; round <= rounds; round++ {
		if err := local.Pause(ctx, k.between(300*time.Millisecond, 4*time.Second)); err != nil {
			return err
		}
		killed, err := k.killProcess(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("  round %2d: killed %s\n", round, killed)
	}
	stopLoad()
	load.Wait()
	fmt.Printf("  killed: %v; now the shard must converge with %d instances\n", k.killed, finalSize)
	began := time.Now()
	if err := k.operator.Scale(ctx, group, finalSize); err != nil {
		return err
	}
	if err := awaitConverged(ctx, k.stack, k.operator, finalSize); err != nil {
		return err
	}
	fmt.Printf("kill9: ok: %d instances, each with one VM, record and agent, %.1f s after the load ended\n", finalSize,
		time.Since(began).Seconds())
	return nil
}

func (k *kill9) between(least, most time.Duration) time.Duration {
	return least + time.Duration(k.rng.Int64N(int64(most-least)))
}

func (k *kill9) start(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the shard did not start within a minute"))
	defer cancel()
	k.store = &supervised{start: k.stack.StartStore}
	if err := k.store.begin(ctx); err != nil {
		return err
	}
	if err := k.stack.PutConfig(ctx, func(c *config.Shard) {
		useShortTimes(c, finalSize)
		c.Server.GarbageCollection.DeletedRecordRetention = duration(time.Minute)
	}); err != nil {
		return err
	}
	for n := 1; n <= servers; n++ {
		k.servers[n] = &supervised{start: func(ctx context.Context) (*local.Process, error) {
			return k.stack.StartServer(ctx, n)
		}}
		if err := k.servers[n].begin(ctx); err != nil {
			return err
		}
	}
	if _, err := k.stack.AwaitLine(ctx, "serving as leader", 0); err != nil {
		return err
	}
	if k.operator, err = k.stack.Connect(ctx); err != nil {
		return err
	}
	_, err = k.operator.AwaitHealthy(ctx, finalSize)
	return err
}

// changeSize changes the size of the group about once a second.
func (k *kill9) changeSize(ctx context.Context, rng *rand.Rand) {
	for local.Pause(ctx, 500*time.Millisecond+time.Duration(rng.Int64N(int64(time.Second)))) == nil {
		// A failure does not matter: the next call sets another size, and the method run sets the final one.
		_ = k.operator.Scale(ctx, group, leastSize+rng.Uint32N(mostSize-leastSize+1))
	}
}

// killVMs kills a VM every few seconds.
func (k *kill9) killVMs(ctx context.Context, rng *rand.Rand) {
	for local.Pause(ctx, time.Second+time.Duration(rng.Int64N(int64(3*time.Second)))) == nil {
		_, _ = killVM(ctx, k.stack, rng) // there may be no VM at the moment
	}
}

// killProcess kills one random process, or all VMs at the same moment.
func (k *kill9) killProcess(ctx context.Context) (killed string, err error) {
	n := k.leader(ctx)
	var victim string
	switch dice := k.rng.IntN(10); {
	case dice < 3:
		victim = "leader"
	case dice < 5:
		victim, n = "standby", servers+1-n
	case dice < 7:
		victim = "object store"
	case dice < 9:
		victim = "VM"
	default:
		victim = "tmux server"
	}
	k.killed[victim]++
	switch victim {
	case "leader", "standby":
		killed, err = k.servers[n].kill(ctx, k.between(0, time.Second))
		return fmt.Sprintf("the %s, %s, %s", victim, local.ServerName(n), killed), err
	case "object store":
		killed, err = k.store.kill(ctx, k.between(0, 3*time.Second))
		return "the object store, " + killed, err
	case "VM":
		id, err := killVM(ctx, k.stack, k.rng)
		if errors.Is(err, errNoVM) {
			return "no VM, because none runs", nil
		}
		return "the VM of " + id.String(), err
	}
	text, err := k.stack.Tmux(ctx, "display-message", "-p", "#{pid}")
	if err != nil {
		return "", err
	}
	if text == "" {
		return "no tmux server, because none runs", nil
	}
	pid, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		return "", err
	}
	_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	return fmt.Sprintf("the tmux server, PID %d, and so all VMs", pid), nil
}

// leader returns the number of the server that the lock names, or 1 if the lock cannot be read.
func (k *kill9) leader(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if name, err := lockHolder(ctx, k.stack); err == nil && name == local.ServerName(2) {
		return 2
	}
	return 1
}

// lockHolder returns the ID of the server that the election lock names.
func lockHolder(ctx context.Context, stack *local.Stack) (string, error) {
	state, err := stack.State(ctx)
	if err != nil {
		return "", err
	}
	lock, _, err := state.ReadLock(ctx, local.Shard)
	return lock.LeaderID, err
}

// supervised is a process that is started again whenever it ends, as systemd would.
type supervised struct {
	start func(context.Context) (*local.Process, error)

	mu      sync.Mutex
	process *local.Process
	delay   time.Duration // before the next start
}

// begin starts the process for the first time.
func (s *supervised) begin(ctx context.Context) (err error) {
	s.process, err = s.start(ctx)
	return err
}

// kill waits until the process runs, sends SIGKILL, and sets the delay before the next start. It returns a text that
// describes this.
func (s *supervised) kill(ctx context.Context, delay time.Duration) (string, error) {
	for {
		s.mu.Lock()
		if s.process.Running() {
			break
		}
		s.mu.Unlock()
		if err := local.Pause(ctx, 10*time.Millisecond); err != nil {
			return "", err
		}
	}
	defer s.mu.Unlock()
	s.delay = delay
	_ = syscall.Kill(s.process.PID, syscall.SIGKILL) // it may have ended
	return fmt.Sprintf("PID %d, for %d ms", s.process.PID, delay.Milliseconds()), nil
}

// supervise starts the process again whenever it has ended, until ctx ends.
func (s *supervised) supervise(ctx context.Context) {
	for {
		s.mu.Lock()
		ended := s.process.Ended()
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-ended:
		}
		s.mu.Lock()
		delay := s.delay
		s.delay = 100 * time.Millisecond // RestartSec of systemd
		s.mu.Unlock()
		if local.Pause(ctx, delay) != nil {
			return
		}
		process, err := s.start(ctx)
		if err != nil && ctx.Err() == nil {
			fmt.Fprintf(os.Stderr, "  supervisor: %v\n", err)
		}
		if process == nil {
			continue // the program did not start; the next round tries again
		}
		s.mu.Lock()
		s.process = process
		s.mu.Unlock()
	}
}
