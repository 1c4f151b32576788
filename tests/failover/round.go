package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/dev/local"
)

// way is one way in which a leader ends.
type way struct {
	name, signal string
	end          func(p *local.Process) error
	// after has the server stand again, once the other leads.
	after func(ctx context.Context, n int) error
}

// page is what a server says of the election.
func (t *trial) page(ctx context.Context, n int, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+local.Address(t.stack.Ports.Health+10*(n-1))+
		path, nil)
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

// leader waits until a server leads that has the other as its heir, or where there is none as its follower, and returns
// its number.
func (t *trial) leader(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New(
		"no leader with an heir, or a follower, within two minutes"))
	defer cancel()
	for {
		for n := 1; n <= servers; n++ {
			other := servers + 1 - n
			text, err := t.page(ctx, n, "/leader")
			if err != nil || !strings.HasPrefix(text, "leader term=") {
				continue
			}
			var term uint64
			if _, err := fmt.Sscanf(text, "leader term=%d", &term); err != nil {
				return 0, fmt.Errorf("%q: %w", text, err)
			}
			t.term = max(t.term, term) // a busy machine may have changed leaders meanwhile
			if strings.Contains(text, "heir="+local.ServerName(other)) {
				return n, nil
			}
			if text, err = t.page(ctx, other, "/leader"); err == nil && t.promise == 0 &&
				strings.HasPrefix(text, "follower leader="+local.ServerName(n)) {
				return n, nil
			}
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return 0, err
		}
	}
}

// round ends the leader at a random moment, waits for its successor and starts it again.
func (t *trial) round(ctx context.Context, how way) (f figure, err error) {
	t.number++
	var leader, still int
	moment := time.Second
	if t.promise == 0 {
		moment = 6 * time.Second // renewals are five seconds apart
	}
	for leader == 0 || leader != still {
		if leader, err = t.leader(ctx); err != nil {
			return f, err
		}
		if err := pause(ctx, rand.N(moment)); err != nil {
			return f, err
		}
		if still, err = t.leader(ctx); err != nil { // a busy machine may have cost it its heir meanwhile
			return f, err
		}
	}
	var watch *watch
	if t.cloud != nil {
		if watch, err = t.cloud.lose(ctx, leader, t.terminated && how.name == "kill"); err != nil {
			return f, err
		}
	}
	successor := t.servers[servers+1-leader]
	before := t.used(ctx, successor)
	began := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- how.end(t.servers[leader]) }()
	patience, cancel := context.WithTimeoutCause(ctx, 3*time.Minute, errors.New(
		"nobody took over within three minutes"))
	defer cancel()
	line, err := t.stack.AwaitLine(patience, "became leader", t.term)
	if err := errors.Join(err, <-ended); err != nil {
		return f, err
	}
	t.term, f.leads = line.Term, line.Time.Sub(began)
	fmt.Printf("  %s: term %d after %v", local.ServerName(leader), line.Term, f.leads.Round(100*time.Microsecond))
	if f.heirless, err = t.heirless(leader); err != nil {
		return f, err
	}
	if f.heirless {
		fmt.Print(", the last lock of the one before named no heir")
	}
	if watch != nil {
		if err := watch.wait(patience, local.ServerName(servers+1-leader)); err != nil {
			return f, err
		}
		f.acts, f.attached, f.used = watch.created.Sub(began), watch.attached.Sub(began),
			t.used(ctx, successor).less(before)
		fmt.Printf(", the lost VM asked for after %v, the interface attached after %v; %v",
			f.acts.Round(time.Millisecond), f.attached.Round(time.Millisecond), f.used)
	}
	fmt.Println()
	if t.slow > 0 && max(f.leads, f.acts) > t.slow {
		if err := t.keepLogs(how.name); err != nil {
			return f, err
		}
	}
	return f, how.after(patience, leader)
}

// heirless says whether the last lock of a leader that has ended, as its successor knew it, named nobody. The successor
// logs who was the heir of whom.
func (t *trial) heirless(leader int) (bool, error) {
	if t.promise == 0 {
		return false, nil
	}
	lines, err := t.stack.Lines(local.ServerName(leader))
	if err != nil {
		return false, err
	}
	for i := len(lines) - 1; i >= 0; i-- {
		if lines[i].Msg == "heir" {
			return lines[i].Heir == "", nil
		}
	}
	return true, nil
}

// keepLogs copies all logs, and the lock as it is now.
func (t *trial) keepLogs(name string) error {
	dir := filepath.Join(t.logs, fmt.Sprintf("%s-%d", name, t.number))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	paths, err := filepath.Glob(filepath.Join(t.stack.Dir, "log", "*.log"))
	if err != nil {
		return err
	}
	for _, path := range append(paths, filepath.Join(t.stack.StoreDir(),
		filepath.FromSlash(keys.Leader(local.Shard)))) {
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
