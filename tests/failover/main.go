// Command failover measures how long a shard is without a leader who may act: two real servers, of which the leader is
// killed (kill -9), paused (SIGSTOP) or stopped (SIGTERM) again and again while the other is its heir, or only a
// follower: tests/failover/run.sh. Times run from the signal to the moment at which the other server logs that it
// became leader, on this machine's clock. A paused leader that goes on must notice before it does anything. With
// records the servers are instances of a fake EC2, and so are the shard's VMs, of which one is lost with each leader:
// then the time until it is asked for again is measured, too, and apart from that when the leader's network interface
// is attached.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/dev/local"
)

const servers = 2

// options are the command line's.
type options struct {
	root, bin  string
	rounds     int
	how        []string
	promise    time.Duration
	records    int
	terminated bool
	idle       time.Duration
	most, slow time.Duration
	logs       string
	keep       bool
}

func main() {
	var o options
	flag.StringVar(&o.root, "root", ".", "the repository")
	flag.StringVar(&o.bin, "bin", "", "directory of the binaries, by default bin of the repository")
	flag.IntVar(&o.rounds, "rounds", 30, "how often the leader is ended in each way")
	how := flag.String("how", "kill,pause,stop", "the ways")
	flag.DurationVar(&o.promise, "promise", time.Second, "peer_lease; 0: there is no heir")
	flag.IntVar(&o.records, "records", 0, "number of the shard's instances, in a fake EC2; 0: two in tmux")
	flag.BoolVar(&o.terminated, "terminated", false, "with records: kill ends the leader's machine, too")
	flag.DurationVar(&o.idle, "idle", 0, "then count the requests of the idle shard for so long")
	flag.DurationVar(&o.most, "most", 0, "fail if the first way's p99 is more; 0: whatever it is")
	flag.DurationVar(&o.slow, "slow", 0, "keep the logs of rounds that took longer; 0: of none")
	flag.StringVar(&o.logs, "logs", "failover-logs", "where to keep them")
	flag.BoolVar(&o.keep, "keep", false, "keep the directory")
	flag.Parse()
	o.how = strings.Split(*how, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintf(os.Stderr, "\nfailover: FAILED: %v\n", err)
		os.Exit(1)
	}
}

// trial is one run.
type trial struct {
	options
	stack   *local.Stack
	cloud   *cloud // nil: instances are windows of tmux
	store   *local.Process
	servers [servers + 1]*local.Process // counted from 1
	term    uint64
	number  int // of the round
}

func run(ctx context.Context, o options) (err error) {
	ports, release, err := local.ReservePorts(ctx, servers)
	if err != nil {
		return err
	}
	defer release()
	dir, err := os.MkdirTemp("", "nstance-failover-")
	if err != nil {
		return err
	}
	t := &trial{options: o}
	if o.records > 0 {
		if t.cloud, err = newCloud(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, t.cloud.close()) }()
	}
	environment := func(name string) []string {
		if t.cloud == nil {
			return nil
		}
		return t.cloud.environment(name)
	}
	stack, err := local.New(local.Options{Root: o.root, Bin: o.bin, Dir: dir, Ports: ports, Environment: environment})
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	t.stack = stack
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if err != nil && ctx.Err() == nil {
			stack.Tails(os.Stderr, 40)
		}
		if o.keep {
			fmt.Fprintf(os.Stderr, "failover: %s is kept\n", dir)
			err = errors.Join(err, stack.KillAll(clean))
			return
		}
		err = errors.Join(err, stack.Clean(clean))
	}()
	if err := t.start(ctx); err != nil {
		return err
	}
	if err := t.measure(ctx); err != nil {
		return err
	}
	if o.idle > 0 {
		return t.idleRequests(ctx)
	}
	return nil
}

// measure plays the rounds of each way.
func (t *trial) measure(ctx context.Context) error {
	ways := []way{
		{"kill", "kill -9", func(p *local.Process) error { return p.Kill() }, t.begin},
		{"pause", "SIGSTOP", func(p *local.Process) error { return syscall.Kill(p.PID, syscall.SIGSTOP) }, t.wake},
		{"stop", "SIGTERM", func(p *local.Process) error { return p.Stop(30 * time.Second) }, t.begin},
	}
	for i, name := range t.how {
		at := slices.IndexFunc(ways, func(w way) bool { return w.name == name })
		if at < 0 {
			return fmt.Errorf("-how: there is no %q", name)
		}
		var all figures
		for range t.rounds {
			f, err := t.round(ctx, ways[at])
			if err != nil {
				return err
			}
			all = append(all, f)
		}
		if t.rounds == 0 {
			continue
		}
		all.print(ways[at].signal, t.promise > 0)
		if p99 := percentile(all.leading(), 99); i == 0 && t.most > 0 && p99 > t.most {
			return fmt.Errorf("p99 is %v, want at most %v", p99, t.most)
		}
	}
	return nil
}

func (t *trial) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Minute, errors.New(
		"the stack did not start within ten minutes"))
	defer cancel()
	var err error
	if t.store, err = t.stack.StartStore(ctx); err != nil {
		return err
	}
	err = t.stack.PutConfig(ctx, func(s *config.Shard) {
		promise, interval := config.Duration(t.promise), config.Duration(250*time.Millisecond)
		s.Server.LeaderElection.PeerLease, s.Server.LeaderElection.PeerInterval = &promise, &interval
		if t.cloud != nil {
			t.cloud.configure(s, t.records)
		}
	})
	if err != nil {
		return err
	}
	for n := 1; n <= servers; n++ {
		if err := t.begin(ctx, n); err != nil {
			return err
		}
	}
	line, err := t.stack.AwaitLine(ctx, "serving as leader", 0)
	if t.term = line.Term; err != nil || t.cloud == nil {
		return err
	}
	return t.awaitRecords(ctx)
}

func (t *trial) begin(ctx context.Context, n int) (err error) {
	t.servers[n], err = t.stack.StartServer(ctx, n)
	return err
}
