package system

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/dev/local"
	cloudfault "github.com/nstance-kit/nstance/tests/cloud/fakeaws/fault"
)

// failoverOptions are the flags of scripts/test.sh failover.
var failoverOptions struct {
	how        string
	promise    time.Duration
	records    int
	terminated bool
	attach     time.Duration
	idle       time.Duration
	most, slow time.Duration
	logs       string
}

func init() { //nolint:gochecknoinits // flags of a test must be defined before testing parses them
	o := &failoverOptions
	flag.StringVar(&o.how, "how", "kill,pause,stop", "how failover ends the leader: a list of kill, pause and stop")
	flag.DurationVar(&o.promise, "promise", time.Second, "peer_lease for failover; 0: there is no heir")
	flag.IntVar(&o.records, "records", 0, "instances for failover, in a fake EC2; 0: two in tmux")
	flag.BoolVar(&o.terminated, "terminated", false, "with -records, kill also terminates the machine of the leader")
	flag.DurationVar(&o.attach, "attach", 0,
		"with -records, how long the fake EC2 takes to attach or detach an interface")
	flag.DurationVar(&o.idle, "idle", 0, "afterwards count the requests of the idle shard for this long")
	flag.DurationVar(&o.most, "most", 0, "fail if the p99 of the first way is longer; 0: no limit")
	flag.DurationVar(&o.slow, "slow", 0, "keep the logs of rounds that took longer; 0: of none")
	flag.StringVar(&o.logs, "logs", "failover-logs", "directory for the logs of slow rounds")
}

// TestFailover measures how long a shard has no leader: it kills (kill -9), pauses (SIGSTOP) or stops (SIGTERM) the
// leader again and again. Each measurement begins with the signal. It ends when the other server logs that it became
// leader. A paused leader must notice that it has lost its leadership before it does anything else.
//
// With -records the VMs and the servers' machines are instances of a fake EC2. Each round then also loses one VM. The
// test measures the time until the new leader creates the replacement, and until the leader has the leader's network
// interface.
func TestFailover(t *testing.T) {
	f := &failover{ways: strings.Split(failoverOptions.how, ","), rounds: *roundsFlag}
	if f.rounds < 0 {
		f.rounds = 30
	}
	var trial local.Trial
	if failoverOptions.records > 0 && *binFlag != "" {
		cloud, err := newCloud(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := cloud.close(); err != nil {
				t.Error(err)
			}
		})
		f.cloud = cloud
		for _, action := range []string{"AttachNetworkInterface", "DetachNetworkInterface"} {
			cloud.Faults().Delay(cloudfault.Match{Service: "ec2", Action: action}, cloudfault.Forever,
				failoverOptions.attach)
		}
		trial.AccessKey, trial.Environment = cloud.access, cloud.environment
	}
	runShard(t, "scripts/test.sh failover", trial, func(ctx context.Context, stack *local.Stack) error {
		f.stack = stack
		if err := f.start(ctx); err != nil {
			return err
		}
		if err := f.measure(ctx); err != nil {
			return err
		}
		if failoverOptions.idle > 0 {
			return f.countIdleRequests(ctx)
		}
		return nil
	})
}

// failover is one run of TestFailover.
type failover struct {
	ways    []string
	rounds  int // of each way
	stack   *local.Stack
	cloud   *cloud // nil: the VMs are tmux windows
	store   *local.Process
	servers [servers + 1]*local.Process
	term    uint64
	round   int
}

// way is one way to take the leader out of service: kill, pause or stop it.
type way struct {
	name, signal string
	end          func(p *local.Process) error
	// restore makes server n, which was ended or paused, a standby. It is called after the other server has become
	// leader.
	restore func(ctx context.Context, n int) error
}

// measure runs all rounds, grouped by the way in which they end the leader.
func (f *failover) measure(ctx context.Context) error {
	ways := []way{
		{"kill", "kill -9", func(p *local.Process) error { return p.Kill() }, f.startServer},
		{"pause", "SIGSTOP", func(p *local.Process) error { return syscall.Kill(p.PID, syscall.SIGSTOP) }, f.resume},
		{"stop", "SIGTERM", func(p *local.Process) error { return p.Stop(30 * time.Second) }, f.startServer},
	}
	for i, name := range f.ways {
		at := slices.IndexFunc(ways, func(w way) bool { return w.name == name })
		if at < 0 {
			return fmt.Errorf("-how: %q is not kill, pause or stop", name)
		}
		var all figures
		for range f.rounds {
			one, err := f.runRound(ctx, ways[at])
			if err != nil {
				return err
			}
			all = append(all, one)
		}
		if f.rounds == 0 {
			continue
		}
		all.print(ways[at].signal, failoverOptions.promise > 0)
		if p99 := percentile(all.leading(), 99); i == 0 && failoverOptions.most > 0 && p99 > failoverOptions.most {
			return fmt.Errorf("p99 is %v, want at most %v", p99, failoverOptions.most)
		}
	}
	return nil
}

func (f *failover) start(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Minute, errors.New(
		"the shard did not start within ten minutes"))
	defer cancel()
	if f.store, err = f.stack.StartStore(ctx); err != nil {
		return err
	}
	if err := f.stack.PutConfig(ctx, func(c *config.Shard) {
		c.Server.LeaderElection.PeerLease = duration(failoverOptions.promise)
		c.Server.LeaderElection.PeerInterval = duration(250 * time.Millisecond)
		if f.cloud != nil {
			f.cloud.configure(c, failoverOptions.records)
		}
	}); err != nil {
		return err
	}
	for n := 1; n <= servers; n++ {
		if err := f.startServer(ctx, n); err != nil {
			return err
		}
	}
	line, err := f.stack.AwaitLine(ctx, "serving as leader", 0)
	if f.term = line.Term; err != nil || f.cloud == nil {
		return err
	}
	return f.registerAll(ctx)
}

func (f *failover) startServer(ctx context.Context, n int) (err error) {
	f.servers[n], err = f.stack.StartServer(ctx, n)
	return err
}

// awaitLeader waits for a leader whose heir is the other server. If -promise is 0, there is no heir, and the other
// server must be a follower. awaitLeader returns the number of the leader.
func (f *failover) awaitLeader(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New(
		"no leader with an heir or follower within two minutes"))
	defer cancel()
	if failoverOptions.promise > 0 {
		n, term, err := awaitLeaderWithHeir(ctx, f.stack)
		f.term = max(f.term, term) // a busy machine may change leaders between two rounds
		return n, err
	}
	for {
		for n := 1; n <= servers; n++ {
			text, err := page(ctx, f.stack, n, "/leader")
			if err != nil || !strings.HasPrefix(text, "leader term=") {
				continue
			}
			var term uint64
			if _, err := fmt.Sscanf(text, "leader term=%d", &term); err != nil {
				return 0, fmt.Errorf("%q: %w", text, err)
			}
			f.term = max(f.term, term)
			text, err = page(ctx, f.stack, servers+1-n, "/leader")
			if err == nil && strings.HasPrefix(text, "follower leader="+local.ServerName(n)) {
				return n, nil
			}
		}
		if err := local.Pause(ctx, 50*time.Millisecond); err != nil {
			return 0, err
		}
	}
}

// runRound kills, pauses or stops the leader at a random moment, and waits for its successor. Then it makes the former
// leader a standby.
func (f *failover) runRound(ctx context.Context, how way) (result figure, err error) {
	f.round++
	longest := time.Second
	if failoverOptions.promise == 0 {
		longest = 6 * time.Second // a renewal is due every five seconds
	}
	var leader, still int
	for leader == 0 || leader != still {
		if leader, err = f.awaitLeader(ctx); err != nil {
			return result, err
		}
		if err := local.Pause(ctx, rand.N(longest)); err != nil {
			return result, err
		}
		if still, err = f.awaitLeader(ctx); err != nil { // on a busy machine the leader may have lost its heir
			return result, err
		}
	}
	var loss *loss
	if f.cloud != nil {
		if loss, err = f.cloud.loseVM(ctx, leader, failoverOptions.terminated && how.name == "kill"); err != nil {
			return result, err
		}
	}
	successor := f.servers[servers+1-leader]
	before := f.cpuTimes(ctx, successor)
	began := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- how.end(f.servers[leader]) }()
	waiting, cancel := context.WithTimeoutCause(ctx, 3*time.Minute, errors.New("no takeover within three minutes"))
	defer cancel()
	line, err := f.stack.AwaitLine(waiting, "became leader", f.term)
	if err := errors.Join(err, <-ended); err != nil {
		return result, err
	}
	f.term, result.leads = line.Term, line.Time.Sub(began)
	fmt.Printf("  %s: term %d after %v", local.ServerName(leader), line.Term, result.leads.Round(100*time.Microsecond))
	if result.heirless, err = f.hadNoHeir(leader); err != nil {
		return result, err
	}
	if result.heirless {
		fmt.Print(", its last lock named no heir")
	}
	if loss != nil {
		if err := loss.await(waiting, local.ServerName(servers+1-leader)); err != nil {
			return result, err
		}
		result.acts, result.attached = loss.created.Sub(began), loss.attached.Sub(began)
		result.used = f.cpuTimes(ctx, successor).minus(before)
		fmt.Printf(", replacement requested after %v, interface attached after %v; %v",
			result.acts.Round(time.Millisecond), result.attached.Round(time.Millisecond), result.used)
	}
	fmt.Println()
	if failoverOptions.slow > 0 && max(result.leads, result.acts) > failoverOptions.slow {
		if err := f.keepLogs(how.name); err != nil {
			return result, err
		}
	}
	return result, how.restore(waiting, leader)
}

// hadNoHeir reports whether the former leader had no heir when its leadership ended, according to its log.
func (f *failover) hadNoHeir(leader int) (bool, error) {
	if failoverOptions.promise == 0 {
		return false, nil
	}
	lines, err := f.stack.Lines(local.ServerName(leader))
	if err != nil {
		return false, err
	}
	for _, line := range slices.Backward(lines) {
		if line.Msg == "heir" {
			return line.Heir == "", nil
		}
	}
	return true, nil
}

// keepLogs copies all logs and the current lock to a directory of this round.
func (f *failover) keepLogs(name string) error {
	dir := filepath.Join(failoverOptions.logs, fmt.Sprintf("%s-%d", name, f.round))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	paths, err := filepath.Glob(filepath.Join(f.stack.Dir, "log", "*.log"))
	if err != nil {
		return err
	}
	lock := filepath.Join(f.stack.StoreDir(), filepath.FromSlash(keys.Leader(local.Shard)))
	for _, path := range append(paths, lock) {
		text, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(path)), text, 0o600)
		}
		if err != nil {
			return err
		}
	}
	fmt.Printf("  the logs of this round are in %s\n", dir)
	return nil
}

// resume continues a paused server. The server must lose its leadership before it acts.
func (f *failover) resume(ctx context.Context, n int) error {
	before, err := f.stack.Lines(local.ServerName(n))
	if err != nil {
		return err
	}
	if err := local.Pause(ctx, rand.N(2*time.Second)); err != nil {
		return err
	}
	if err := syscall.Kill(f.servers[n].PID, syscall.SIGCONT); err != nil {
		return err
	}
	for {
		lines, err := f.stack.Lines(local.ServerName(n))
		if err != nil {
			return err
		}
		for _, line := range lines[len(before):] {
			switch line.Msg {
			case "acting":
				return fmt.Errorf("%s acted after its pause, in term %d", local.ServerName(n), line.Term)
			case "lost leadership":
				return nil
			}
		}
		if err := local.Pause(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("%s does not lose its leadership after its pause: %w", local.ServerName(n), err)
		}
	}
}
