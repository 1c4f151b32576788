// Command failover measures how long a shard is without a leader who may act: two real servers, of which the leader is killed (kill -9), paused
// (SIGSTOP) or stopped (SIGTERM) again and again while the other is its heir: tests/failover/run.sh. Times run from the signal to the moment at which
// the other server logs that it became leader, on this machine's clock. A paused leader that goes on must notice before it does anything.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/tests/local"
)

const servers = 2

func main() {
	root := flag.String("root", ".", "the repository")
	bin := flag.String("bin", "", "directory of the binaries, by default bin of the repository")
	rounds := flag.Int("rounds", 30, "how often the leader is killed, how often paused and how often stopped")
	idle := flag.Duration("idle", 0, "then count the requests of the idle shard for so long")
	most := flag.Duration("most", 0, "fail if the p99 after a kill is more; 0: whatever it is")
	keep := flag.Bool("keep", false, "keep the directory")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, *root, *bin, *rounds, *idle, *most, *keep); err != nil {
		fmt.Fprintf(os.Stderr, "\nfailover: FAILED: %v\n", err)
		os.Exit(1)
	}
}

// trial is one run.
type trial struct {
	stack   *local.Stack
	servers [servers + 1]*local.Process // counted from 1
	term    uint64
}

func run(ctx context.Context, root, bin string, rounds int, idle, most time.Duration, keep bool) (err error) {
	ports, release, err := local.ReservePorts(ctx, servers)
	if err != nil {
		return err
	}
	defer release()
	dir, err := os.MkdirTemp("", "nstance-failover-")
	if err != nil {
		return err
	}
	stack, err := local.New(local.Options{Root: root, Bin: bin, Dir: dir, Ports: ports})
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
			fmt.Fprintf(os.Stderr, "failover: %s is kept\n", dir)
			err = errors.Join(err, stack.KillAll(clean))
			return
		}
		err = errors.Join(err, stack.Clean(clean))
	}()
	t := &trial{stack: stack}
	if err := t.start(ctx); err != nil {
		return err
	}
	var waits []time.Duration
	for _, how := range []struct {
		name string
		end  func(p *local.Process) error
		// after has the server stand again, once the other leads.
		after func(ctx context.Context, n int) error
	}{
		{"kill -9", func(p *local.Process) error { return p.Kill() }, t.begin},
		{"SIGSTOP", func(p *local.Process) error { return syscall.Kill(p.PID, syscall.SIGSTOP) }, t.wake},
		{"SIGTERM", func(p *local.Process) error { return p.Stop(30 * time.Second) }, t.begin},
	} {
		var these []time.Duration
		for range rounds {
			took, err := t.round(ctx, how.end, how.after)
			if err != nil {
				return err
			}
			these = append(these, took)
		}
		if rounds == 0 {
			continue
		}
		fmt.Printf("%s of the leader → its heir may act, %d times: %s\n", how.name, rounds, summary(these))
		if waits == nil {
			waits = these
		}
	}
	if most > 0 && rounds > 0 && percentile(waits, 99) > most {
		return fmt.Errorf("p99 is %v, want at most %v", percentile(waits, 99), most)
	}
	if idle > 0 {
		return t.idle(ctx, idle)
	}
	return nil
}

func (t *trial) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the stack did not start within a minute"))
	defer cancel()
	if _, err := t.stack.StartStore(ctx); err != nil {
		return err
	}
	err := t.stack.PutConfig(ctx, func(s *config.Shard) {
		lease, interval := config.Duration(time.Second), config.Duration(250*time.Millisecond)
		s.Server.LeaderElection.PeerLease, s.Server.LeaderElection.PeerInterval = &lease, &interval
	})
	if err != nil {
		return err
	}
	for n := 1; n <= servers; n++ {
		if err := t.begin(ctx, n); err != nil {
			return err
		}
	}
	line, err := t.stack.AwaitLine(ctx, servers, "serving as leader", 0)
	t.term = line.Term
	return err
}

func (t *trial) begin(ctx context.Context, n int) (err error) {
	t.servers[n], err = t.stack.StartServer(ctx, n)
	return err
}

// page is what a server says of the election.
func (t *trial) page(ctx context.Context, n int, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+local.Address(t.stack.Ports.Health+10*(n-1))+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return string(body), err
}

// heir waits until a server leads that has the other as its heir, and returns its number.
func (t *trial) heir(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("no leader with an heir within two minutes"))
	defer cancel()
	for {
		for n := 1; n <= servers; n++ {
			text, err := t.page(ctx, n, "/leader")
			if err == nil && strings.HasPrefix(text, "leader term=") && strings.Contains(text, "heir="+local.ServerName(servers+1-n)) {
				return n, nil
			}
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return 0, err
		}
	}
}

// round ends the leader at a random moment, waits for its heir and starts it again.
func (t *trial) round(ctx context.Context, end func(p *local.Process) error, after func(ctx context.Context, n int) error) (time.Duration, error) {
	var leader, still int
	for leader == 0 || leader != still {
		var err error
		if leader, err = t.heir(ctx); err != nil {
			return 0, err
		}
		if err := pause(ctx, rand.N(time.Second)); err != nil {
			return 0, err
		}
		if still, err = t.heir(ctx); err != nil { // a busy machine may have cost it its heir meanwhile
			return 0, err
		}
	}
	began := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- end(t.servers[leader]) }()
	patience, cancel := context.WithTimeoutCause(ctx, 3*time.Minute, errors.New("nobody took over within three minutes"))
	defer cancel()
	line, err := t.stack.AwaitLine(patience, servers, "became leader", t.term)
	if err := errors.Join(err, <-ended); err != nil {
		return 0, err
	}
	t.term = line.Term
	fmt.Printf("  %s: term %d after %v\n", local.ServerName(leader), line.Term, line.Time.Sub(began).Round(100*time.Microsecond))
	return line.Time.Sub(began), after(patience, leader)
}

// wake lets a paused server go on: it must lose its leadership before it does anything.
func (t *trial) wake(ctx context.Context, n int) error {
	before, err := t.stack.Lines(local.ServerName(n))
	if err != nil {
		return err
	}
	if err := pause(ctx, rand.N(2*time.Second)); err != nil {
		return err
	}
	if err := syscall.Kill(t.servers[n].PID, syscall.SIGCONT); err != nil {
		return err
	}
	for {
		lines, err := t.stack.Lines(local.ServerName(n))
		if err != nil {
			return err
		}
		for _, line := range lines[len(before):] {
			switch line.Msg {
			case "acting":
				return fmt.Errorf("%s acts after its pause, in term %d", local.ServerName(n), line.Term)
			case "lost leadership":
				return nil
			}
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("%s does not lose its leadership after its pause: %w", local.ServerName(n), err)
		}
	}
}

// idle counts the requests to the bucket while nothing happens.
func (t *trial) idle(ctx context.Context, d time.Duration) error {
	if _, err := t.heir(ctx); err != nil {
		return err
	}
	if err := pause(ctx, time.Minute); err != nil { // what came with the change of leader is over
		return err
	}
	before, err := t.requests(ctx)
	if err != nil {
		return err
	}
	if err := pause(ctx, d); err != nil {
		return err
	}
	after, err := t.requests(ctx)
	if err != nil {
		return err
	}
	var sum float64
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if made := after[name] - before[name]; made > 0 {
			fmt.Printf("  %s: %.0f\n", name, made)
			sum += made
		}
	}
	fmt.Printf("requests of the idle shard, both servers, in %v: %.0f, that is %.0f an hour\n", d, sum, sum*float64(time.Hour)/float64(d))
	return nil
}

// requests are how many each server has made of each kind.
func (t *trial) requests(ctx context.Context) (map[string]float64, error) {
	made := map[string]float64{}
	for n := 1; n <= servers; n++ {
		text, err := t.page(ctx, n, "/metrics")
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(text) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && strings.HasPrefix(name, "nstance_storage_requests_total{") {
				number, err := strconv.ParseFloat(value, 64)
				if err != nil {
					return nil, err
				}
				made[local.ServerName(n)+" "+strings.TrimPrefix(name, "nstance_storage_requests_total")] = number
			}
		}
	}
	if len(made) == 0 {
		return nil, errors.New("the servers do not say how many requests they made")
	}
	return made, nil
}

func percentile(waits []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(waits))
	return sorted[(len(sorted)*p+99)/100-1]
}

func summary(waits []time.Duration) string {
	ms := func(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }
	return fmt.Sprintf("p50 %s, p99 %s, most %s", ms(percentile(waits, 50)), ms(percentile(waits, 99)), ms(slices.Max(waits)))
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
