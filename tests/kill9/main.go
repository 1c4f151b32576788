// Command kill9 kills processes of a shard under load, at random moments, and then looks whether everything is as it
// should be: tests/kill9/run.sh.
//
// A supervisor's part is played for servers and object store (they are started again), not for agents: replacing those
// is the server's business. The seed repeats the order of events, not their interleaving: real processes have their
// own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/dev/local"
)

const (
	servers = 2
	group   = "workers"
	// Sizes under load, and the one that must be reached in the end.
	least, most, final = 3, 8, 5
	// calm is how long reaching it may take: the longest thing on the way is the minute for which a VM may be missing
	// from the provider's list.
	calm = 3 * time.Minute
)

func main() {
	root := flag.String("root", ".", "the repository")
	rounds := flag.Int("rounds", 10, "how many processes to kill")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano())%1_000_000, "seed of what is killed and when")
	keep := flag.Bool("keep", false, "keep the directory")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	fmt.Printf("kill9: %d rounds, -seed=%d\n", *rounds, *seed)
	if err := run(ctx, *root, *rounds, *seed, *keep); err != nil {
		fmt.Fprintf(os.Stderr, "\nkill9: FAILED (-rounds=%d -seed=%d): %v\n", *rounds, *seed, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, root string, rounds int, seed uint64, keep bool) (err error) {
	ports, release, err := local.ReservePorts(ctx, servers)
	if err != nil {
		return err
	}
	defer release()
	dir, err := os.MkdirTemp("", "nstance-kill9-")
	if err != nil {
		return err
	}
	stack, err := local.New(local.Options{Root: root, Dir: dir, Ports: ports})
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if err != nil && ctx.Err() == nil {
			stack.Tails(os.Stderr, 40)
		}
		if keep {
			fmt.Fprintf(os.Stderr, "kill9: %s is kept\n", dir)
			err = errors.Join(err, stack.KillAll(clean))
			return
		}
		err = errors.Join(err, stack.Clean(clean))
	}()
	t := &trial{stack: stack, rand: rand.New(rand.NewPCG(seed, 0)), dead: map[string]int{}}
	return t.run(ctx, rounds, seed)
}

// trial is one run.
type trial struct {
	stack    *local.Stack
	rand     *rand.Rand
	operator *local.Operator
	store    *supervised
	servers  [servers + 1]*supervised // counted from 1
	dead     map[string]int           // how often what was killed
}

func (t *trial) run(ctx context.Context, rounds int, seed uint64) error {
	supervising, retire := context.WithCancel(ctx)
	var supervisors sync.WaitGroup
	defer supervisors.Wait()
	defer retire()
	if err := t.start(ctx); err != nil {
		return err
	}
	defer t.operator.Close()
	for _, p := range append(t.servers[1:], t.store) {
		supervisors.Go(func() { p.supervise(supervising) })
	}
	loadCtx, stop := context.WithCancel(ctx)
	defer stop()
	var load sync.WaitGroup
	load.Go(func() { t.operator.Watch(loadCtx) })
	load.Go(func() { t.scale(loadCtx, rand.New(rand.NewPCG(seed, 1))) })
	load.Go(func() { t.lose(loadCtx, rand.New(rand.NewPCG(seed, 2))) })
	for round := 1; round <= rounds; round++ {
		if err := pause(ctx, t.between(300*time.Millisecond, 4*time.Second)); err != nil {
			return err
		}
		what, err := t.kill(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("  round %2d: killed %s\n", round, what)
	}
	stop()
	load.Wait()
	fmt.Printf("  killed: %v; now it must come to rest with %d instances\n", t.dead, final)
	began := time.Now()
	if err := t.rest(ctx); err != nil {
		return err
	}
	fmt.Printf(
		"kill9: ok: %d instances, each with its VM, record and agent and nothing beside them, %.1f s after the load "+
			"ended\n", final, time.Since(began).Seconds())
	return nil
}

func (t *trial) between(least, most time.Duration) time.Duration {
	return least + time.Duration(t.rand.Int64N(int64(most-least)))
}

func (t *trial) start(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the stack did not start within a minute"))
	defer cancel()
	t.store = &supervised{start: t.stack.StartStore}
	if err := t.store.begin(ctx); err != nil {
		return err
	}
	err = t.stack.PutConfig(ctx, func(s *config.Shard) {
		d := func(d time.Duration) *config.Duration { c := config.Duration(d); return &c }
		s.Server.HealthCheckInterval, s.Server.DefaultDrainTimeout = d(time.Second), d(2*time.Second)
		s.Server.LeaderElection.RenewInterval, s.Server.LeaderElection.LeaseDuration = d(time.Second), d(3*time.Second)
		s.Server.GarbageCollection = config.GarbageCollection{Interval: d(2 * time.Second),
			RegistrationTimeout: d(20 * time.Second), DeletedRecordRetention: d(time.Minute)}
		s.Server.ErrorExitJitter = config.ErrorExitJitter{MinDelay: d(0), MaxDelay: d(100 * time.Millisecond)}
		spec, size := s.Groups[local.Tenant][group], final
		spec.Size = &size
		s.Groups[local.Tenant][group] = spec
	})
	if err != nil {
		return err
	}
	for n := 1; n <= servers; n++ {
		t.servers[n] = &supervised{start: func(ctx context.Context) (*local.Process, error) {
			return t.stack.StartServer(ctx, n)
		}}
		if err := t.servers[n].begin(ctx); err != nil {
			return err
		}
	}
	if _, err := t.stack.AwaitLine(ctx, "serving as leader", 0); err != nil {
		return err
	}
	if t.operator, err = t.stack.Connect(ctx); err != nil {
		return err
	}
	_, err = t.operator.AwaitHealthy(ctx, final)
	return err
}

// scale changes the group's size about once a second.
func (t *trial) scale(ctx context.Context, rand *rand.Rand) {
	for pause(ctx, 500*time.Millisecond+time.Duration(rand.Int64N(int64(time.Second)))) == nil {
		// Whoever leads may be dead: the next one is asked again, and in the end only the last size counts.
		_ = t.operator.Scale(ctx, group, least+rand.Uint32N(most-least+1))
	}
}

// lose kills an agent, which is a VM, every few seconds.
func (t *trial) lose(ctx context.Context, rand *rand.Rand) {
	for pause(ctx, time.Second+time.Duration(rand.Int64N(int64(3*time.Second)))) == nil {
		if agents, err := t.stack.Agents(ctx); err == nil && len(agents) > 0 {
			_ = syscall.Kill(agents[rand.IntN(len(agents))].PID, syscall.SIGKILL)
		}
	}
}

// kill kills one process.
func (t *trial) kill(ctx context.Context) (what string, err error) {
	n := t.leader(ctx)
	var victim string
	switch k := t.rand.IntN(10); {
	case k < 3:
		victim = "leader"
	case k < 5:
		victim, n = "standby", 3-n
	case k < 7:
		victim = "object store"
	case k < 9:
		victim = "agent"
	default:
		victim = "tmux server, all VMs at once"
	}
	t.dead[victim]++
	switch victim {
	case "leader", "standby":
		what, err = t.servers[n].kill(ctx, t.between(0, time.Second))
		return fmt.Sprintf("the %s, %s, %s", victim, local.ServerName(n), what), err
	case "object store":
		what, err = t.store.kill(ctx, t.between(0, 3*time.Second))
		return "the object store, " + what, err
	case "agent":
		agents, err := t.stack.Agents(ctx)
		if err != nil || len(agents) == 0 {
			return "no agent: there is none", err
		}
		pid := agents[t.rand.IntN(len(agents))].PID
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		return fmt.Sprintf("an agent, PID %d", pid), nil
	}
	text, err := t.stack.Tmux(ctx, "display-message", "-p", "#{pid}")
	if err != nil {
		return "", err
	}
	if text == "" {
		return "no tmux server: there is none", nil
	}
	pid, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		return "", err
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	return fmt.Sprintf("the tmux server, PID %d: every VM at once", pid), nil
}

// leader is the number of the server that leads, as far as can be told.
func (t *trial) leader(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if state, err := t.stack.State(ctx); err == nil {
		if lock, _, err := state.ReadLock(ctx, local.Shard); err == nil && lock.LeaderID == local.ServerName(2) {
			return 2
		}
	}
	return 1
}

// rest waits until the shard has the final size and nothing else, and looks once more whether it stays so.
func (t *trial) rest(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, calm, errors.New("it did not come to rest within "+calm.String()))
	defer cancel()
	if err := t.operator.Scale(ctx, group, final); err != nil {
		return err
	}
	for quiet := 0; quiet < 5; quiet++ {
		if _, err := t.operator.AwaitHealthy(ctx, final); err != nil {
			return errors.Join(err, t.stack.CheckConsistent(context.WithoutCancel(ctx)))
		}
		if err := t.stack.CheckConsistent(ctx); err != nil {
			if ctx.Err() != nil {
				return errors.Join(context.Cause(ctx), err)
			}
			quiet = -1
		}
		if err := pause(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
	return t.oneLife()
}

// oneLife checks in the provider's journal that no instance ID ever started two machines.
func (t *trial) oneLife() error {
	calls, err := t.stack.Calls()
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

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
