package histories

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/internal/server/lead/lease"
)

// childVariable is the environment variable with a child's settings. If it is set, the test program runs as a candidate
// and runs no tests.
const childVariable = "NSTANCE_PROOF_CHILD"

// settings configure a child.
type settings struct {
	Name, URL, Access, Secret string
	// Clock makes the child only print the clock.
	Clock bool
}

func TestMain(m *testing.M) {
	if text := os.Getenv(childVariable); text != "" {
		if err := child(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child runs a candidate. While the candidate has authority, child prints the period of authority so far every few
// milliseconds.
func child(text string) error {
	var s settings
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	clock := lease.SystemClock()
	if s.Clock {
		_, err := fmt.Println(int64(clock.Now()))
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	store, err := openStore(ctx, s.URL, s.Access, s.Secret)
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	return lease.Run(ctx, lease.Config{
		Store: store, Key: lockKey, Options: options, Clock: clock, StopTimeout: time.Second,
		Log:         slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Self:        election.Identity{ID: s.Name, Incarnation: fmt.Sprintf("%s-%d", s.Name, os.Getpid())},
		HighestTerm: func(context.Context) (uint64, error) { return 0, nil },
		Lead: func(ctx context.Context, a *lease.Authority) error {
			now := reign{Process: s.Name, Term: a.Term()}
			var reported election.Instant
			act(ctx, clock, a, func(at election.Instant) {
				if now.From == 0 {
					now.From = at
				}
				if now.Last = at; at.Sub(reported) > 5*time.Millisecond {
					reported = at
					_ = out.Encode(now) // if the parent is gone, this process ends, too
				}
			})
			return nil
		},
	})
}

// process is a running child.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

func startChild(t *testing.T, s settings, onReign func(reign)) *process {
	t.Helper()
	raw, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+string(raw))
	cmd.Stderr = io.Discard
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			var r reign
			if err := json.Unmarshal(lines.Bytes(), &r); err != nil { // truncated, because the child was killed
				break
			}
			onReign(r)
		}
		_ = cmd.Wait() // the error says that it was killed
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.done
	})
	return p
}

// TestPause repeatedly stops the leader's process for longer than its lease. Another process leads meanwhile. The
// stopped process must not act as leader after it resumes.
func TestPause(t *testing.T) {
	if testing.Short() {
		t.Log("the real S3 server is left out of a short run")
		return
	}
	b := backend(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	seen := &reigns{}
	var mu sync.Mutex
	extend := map[string]func(election.Instant){}
	var leader reign
	onReign := func(r reign) {
		mu.Lock()
		defer mu.Unlock()
		id := fmt.Sprint(r.Process, r.Term)
		if extend[id] == nil {
			extend[id] = seen.begin(r.Process, r.Term)
			extend[id](r.From)
		}
		extend[id](r.Last)
		if r.Term >= leader.Term {
			leader = r
		}
	}
	current := func() reign {
		mu.Lock()
		defer mu.Unlock()
		return leader
	}
	children := map[string]*process{}
	for i := range 3 {
		name := fmt.Sprintf("server-%d", i)
		p := newProxy(t, strings.TrimPrefix(b.URL, "unix://"), seed+uint64(i), options.Lease)
		p.set(map[fault]int{none: 20, slow: 2, lost: 1, cut: 1})
		children[name] = startChild(t, settings{Name: name, URL: p.url, Access: b.Access, Secret: b.Secret}, onReign)
	}
	clock := lease.SystemClock()
	overtaken := 0
	for round := range 8 {
		if !within(30*options.Lease, func() bool {
			return clock.Now().Sub(current().Last) < options.Lease/8 && current().Term > 0
		}) {
			t.Fatalf("round %d: no server leads", round)
		}
		paused := current()
		victim := children[paused.Process].cmd.Process
		if err := victim.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if !within(30*options.Lease, func() bool {
			return current().Term > paused.Term && current().Process != paused.Process
		}) {
			t.Fatalf("round %d: no server took over from %s, which is stopped", round, paused.Process)
		}
		within(time.Duration(rng.Int64N(int64(2*options.Lease))), func() bool { return false })
		if err := victim.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		overtaken++
		// If the resumed process still acted as leader, it would do so within half a lease.
		within(options.Lease/2, func() bool { return false })
	}
	for _, p := range children {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
	}
	for name, p := range children {
		select {
		case <-p.done:
		case <-time.After(20 * options.Lease):
			t.Errorf("%s does not end", name)
		}
	}
	terms := seen.check(t)
	t.Logf("%d leaderships, %d leaders were stopped beyond their lease and overtaken", terms, overtaken)
}

// TestSuspendedTime checks that the clock of leases counts while a machine is suspended. Instead of a suspension, a
// time namespace (time_namespaces(7)) sets CLOCK_BOOTTIME ahead of all other clocks. The clock of leases must then be
// ahead, too.
func TestSuspendedTime(t *testing.T) {
	if testing.Short() {
		t.Log("namespaces are left out of a short run")
		return
	}
	raw, err := json.Marshal(settings{Clock: true})
	if err != nil {
		t.Fatal(err)
	}
	read := func(args ...string) time.Duration {
		t.Helper()
		args = append(args, os.Args[0])
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Env = append(os.Environ(), childVariable+"="+string(raw))
		out, err := cmd.Output()
		if exit := new(exec.ExitError); errors.As(err, &exit) {
			t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, exit.Stderr)
		}
		if err != nil {
			t.Fatal(err)
		}
		var ns int64
		if _, err := fmt.Sscan(string(out), &ns); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		return time.Duration(ns)
	}
	const asleep = 100_000 * time.Second
	before := read()
	slept := read(slices.Concat([]string{"unshare", "--user", "--map-root-user", "--time", "--fork", "--boottime",
		fmt.Sprint(int(asleep.Seconds()))})...)
	if gained := slept - before; gained < asleep || gained > asleep+time.Minute {
		t.Errorf("the clock gained %v while the machine was suspended for %v", gained, asleep)
	}
	if unmoved := read("unshare", "--user", "--map-root-user", "--time", "--fork", "--monotonic",
		fmt.Sprint(int(asleep.Seconds()))); unmoved-before > time.Minute {
		t.Errorf("the clock follows CLOCK_MONOTONIC, which stands still in suspension: it gained %v", unmoved-before)
	}
}
