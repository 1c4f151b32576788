package system

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/dev/local"
)

// servers is the number of servers of every shard. Servers are counted from 1, so an array with an element per server
// has an unused element 0.
const servers = 2

// group is the group of the shards, in the default tenant.
const group = "workers"

// convergeTimeout limits the time in which a shard must converge. The longest delay is a minute: a VM that is missing
// from the provider's list counts as lost only after that time.
const convergeTimeout = 3 * time.Minute

// These flags apply to several tests. For -rounds and -seed, each test has its own default.
var (
	binFlag    = flag.String("bin", "", "directory of the binaries; without it no shard is started")
	keepFlag   = flag.Bool("keep", false, "keep the directory of the shard")
	roundsFlag = flag.Int("rounds", -1, "how often something is broken; kill9: 10, failover: 30 of each way")
	seedFlag   = flag.Uint64("seed", 0, "seed of what kill9 kills and when; 0: a random seed")
)

// runShard runs fn on a stack in a temporary directory, and afterwards removes the stack. SIGINT and SIGTERM end the
// context of fn. The caller may set fields of "trial", such as Environment. runShard sets the name, the directories,
// the number of servers and Keep.
func runShard(t *testing.T, script string, trial local.Trial, fn func(context.Context, *local.Stack) error) {
	t.Helper()
	if *binFlag == "" {
		t.Log("run by " + script + ", which builds the binaries")
		return
	}
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	trial.Name, trial.Root, trial.Bin, trial.Servers, trial.Keep = "system", ".", *binFlag, servers, *keepFlag
	if err := local.WithStack(ctx, trial, func(stack *local.Stack) error { return fn(ctx, stack) }); err != nil {
		t.Fatal(err)
	}
}

// useShortTimes sets short intervals and timeouts for a shard, and the size of its group.
func useShortTimes(c *config.Shard, size int) {
	c.Server.HealthCheckInterval, c.Server.DefaultDrainTimeout = duration(time.Second), duration(2*time.Second)
	c.Server.LeaderElection.RenewInterval, c.Server.LeaderElection.LeaseDuration = duration(lease/3), duration(lease)
	c.Server.GarbageCollection = config.GarbageCollection{Interval: duration(2 * time.Second),
		RegistrationTimeout: duration(30 * time.Second), DeletedRecordRetention: duration(time.Hour)}
	c.Server.ErrorExitJitter = config.ErrorExitJitter{MinDelay: duration(0), MaxDelay: duration(100 * time.Millisecond)}
	spec := c.Groups[local.Tenant][group]
	spec.Size = &size
	c.Groups[local.Tenant][group] = spec
}

// lease is the lease duration of shards without an heir. It is three times the interval of renewals.
const lease = 3 * time.Second

func duration(d time.Duration) *config.Duration {
	c := config.Duration(d)
	return &c
}

// awaitConverged waits until exactly size instances exist, all are healthy, the stack is consistent, and every check
// succeeds, five times in a row.
func awaitConverged(ctx context.Context, stack *local.Stack, operator *local.Operator, size int,
	checks ...func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, convergeTimeout, fmt.Errorf("the shard did not converge within %v",
		convergeTimeout))
	defer cancel()
	checks = append(checks, func(ctx context.Context) error { return checkConsistent(ctx, stack) })
	var failed error // of the last checks
	for passed := 0; passed < 5; passed++ {
		if _, err := operator.AwaitHealthy(ctx, size); err != nil {
			return errors.Join(err, checkConsistent(context.WithoutCancel(ctx), stack))
		}
		var errs []error
		for _, check := range checks {
			errs = append(errs, check(ctx))
		}
		if failed = errors.Join(errs...); failed != nil {
			passed = -1
		}
		if err := local.Pause(ctx, 300*time.Millisecond); err != nil {
			return errors.Join(err, failed)
		}
	}
	return checkStartedOnce(stack)
}

// killVM kills the agent of a random VM that runs. It returns the instance of the VM.
func killVM(ctx context.Context, stack *local.Stack, rng *rand.Rand) (ident.ID, error) {
	agents, err := agentsOf(ctx, stack)
	if err != nil {
		return ident.ID{}, err
	}
	vms, err := stack.VMs()
	if err != nil {
		return ident.ID{}, err
	}
	vms = slices.DeleteFunc(vms, func(vm local.VM) bool {
		return !slices.ContainsFunc(agents, func(f local.Found) bool { return f.PID == vm.PID })
	})
	if len(vms) == 0 {
		return ident.ID{}, errNoVM
	}
	vm := vms[rng.IntN(len(vms))]
	_ = syscall.Kill(vm.PID, syscall.SIGKILL) // it may have ended
	return vm.Instance, nil
}

var errNoVM = errors.New("no VM runs")

// awaitReplaced waits until an instance is gone and the given number of others are healthy.
func awaitReplaced(ctx context.Context, operator *local.Operator, old ident.ID, size int) error {
	for {
		healthy, err := operator.AwaitHealthy(ctx, size)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(healthy, func(i *nstancev1.InstanceStatus) bool {
			return i.GetInstanceId() == old.String()
		}) {
			return nil
		}
		if err := local.Pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// blocks returns the code blocks of a language in a page.
func blocks(text, language string) (found []string) {
	for n, block := range strings.Split(text, "```") {
		if code, ok := strings.CutPrefix(block, language+"\n"); n%2 == 1 && ok {
			found = append(found, code)
		}
	}
	return found
}
