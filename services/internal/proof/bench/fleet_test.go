// Package bench measures the figures on the page "Performance" of the documentation. A real server runs in this
// process, and real agents with one TLS connection each run in another process. The provider and the bucket are in
// memory. `make bench` runs the benchmarks. `go test` alone runs only the tests of hostile clients, in a short form.
package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/agent"
	"github.com/nstance-kit/nstance/services/internal/agent/notice"
	"github.com/nstance-kit/nstance/services/internal/proof/foldertest"
)

// agentsEnv is the environment variable that makes this program run as the agents' process.
const agentsEnv = "NSTANCE_BENCH_AGENTS"

func TestMain(m *testing.M) {
	if os.Getenv(agentsEnv) != "" {
		runAgents(os.Stdin, os.Stdout)
		os.Exit(0)
	}
	if os.Getenv(serverEnv) != "" {
		if err := runServer(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "server's process:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(registrantsEnv) != "" {
		if err := runRegistrants(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "registrants:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(floorEnv) != "" {
		if err := runFloor(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "floor's process:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(attackersEnv) != "" {
		runAttackers(os.Stdin, os.Stdout)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// order is one line that the benchmark sends to the agents' process. note is one line from that process. Times are in
// Unix nanoseconds. Both processes use the same clock.
type order struct {
	// Op is "start", "power_off", "kill", "count", "trace" or "report". "trace" writes a trace to the file whose name
	// is in the field ID. After "report", each agent sends as many reports as Times says, at intervals of Every.
	Op           string `json:"op"`
	ID           string `json:"id"`
	Nonce        string `json:"nonce,omitempty"`
	CA           string `json:"ca,omitempty"`
	Registration string `json:"registration,omitempty"`
	Agent        string `json:"agent,omitempty"`
	// Spare makes the agent say when its instance becomes a member.
	Spare bool `json:"spare,omitempty"`

	Times int           `json:"times,omitempty"`
	Every time.Duration `json:"every,omitempty"`
}

type note struct {
	Op string `json:"op"` // sent, up, member
	ID string `json:"id,omitempty"`
	At int64  `json:"at,omitempty"`
	Up int    `json:"up,omitempty"`
	// Wrote is set only if Op is "sent". It is the time at which the kernel received the first byte of the agent's
	// message.
	Wrote int64 `json:"wrote,omitempty"`
}

// member is one agent in the agents' process.
type member struct {
	client *agent.Client
	cancel context.CancelFunc
	mu     sync.Mutex
	conns  []net.Conn
	// wrote is the time of the connection's first write since wrote was set to zero, in Unix nanoseconds.
	wrote atomic.Int64
}

// wire is a connection that stores the time of its next write if wrote is zero.
type wire struct {
	net.Conn
	wrote *atomic.Int64
}

func (w wire) Write(p []byte) (int, error) {
	if w.wrote.Load() == 0 {
		w.wrote.CompareAndSwap(0, time.Now().UnixNano())
	}
	return w.Conn.Write(p)
}

func (m *member) dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	m.conns = append(m.conns, conn)
	m.mu.Unlock()
	return wire{conn, &m.wrote}, nil
}

// hangUp closes the agent's connections, as the kernel does when a process is killed.
func (m *member) hangUp() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, conn := range m.conns {
		_ = conn.Close()
	}
}

// machine is a VM that has nothing to report.
type machine struct{}

func (machine) Facts() agent.Facts { return agent.Facts{IPv4: "10.0.0.1"} }
func (machine) Sample(context.Context) (*nstancev1.Metrics, time.Duration) {
	return &nstancev1.Metrics{Cpu: 0.1, MemoryUsedBytes: 1 << 30, MemoryTotalBytes: 4 << 30}, time.Hour
}

// runAgents reads orders from in, and carries them out until in ends.
func runAgents(in io.Reader, out io.Writer) {
	var mu sync.Mutex
	encoder := json.NewEncoder(out)
	say := func(n note) {
		mu.Lock()
		defer mu.Unlock()
		_ = encoder.Encode(n)
	}
	members := map[string]*member{}
	var membersMu sync.Mutex
	recorder := startRecorder()
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	log := slog.New(slog.DiscardHandler)
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			panic(err)
		}
		membersMu.Lock()
		m := members[o.ID]
		membersMu.Unlock()
		switch o.Op {
		case "count":
			up := 0
			membersMu.Lock()
			for _, m := range members {
				if m.client.Health() == nil {
					up++
				}
			}
			membersMu.Unlock()
			say(note{Op: "up", Up: up})
		case "trace":
			recorder.write(o.ID)
		case "start":
			id, err := ident.ParseID(o.ID)
			if err != nil {
				panic(err)
			}
			identity := &foldertest.Memory{}
			if err := identity.Write("ca.crt", []byte(o.CA), 0o600); err != nil {
				panic(err)
			}
			if err := identity.Write("nonce.jwt", []byte(o.Nonce), 0o600); err != nil {
				panic(err)
			}
			m := &member{}
			m.client = agent.New(agent.Options{ID: id, RegistrationAddrs: []string{o.Registration},
				AgentAddrs: []string{o.Agent}, Identity: identity,
				Keys: &foldertest.Memory{}, Files: &foldertest.Memory{},
				IdentityMode: 0o600, KeysMode: 0o600, FilesMode: 0o600,
				Machine: machine{}, Dial: m.dial, Member: func(_ context.Context, member bool) error {
					if o.Spare && member {
						say(note{Op: "member", ID: o.ID, At: time.Now().UnixNano()})
					}
					return nil
				},
				Version: "bench", Log: log})
			ctx, cancel := context.WithCancel(context.Background())
			m.cancel = cancel
			membersMu.Lock()
			members[o.ID] = m
			membersMu.Unlock()
			go func() { _ = m.client.Run(ctx) }()
		case "report":
			go func() {
				for range o.Times {
					next := time.After(o.Every)
					membersMu.Lock()
					for _, m := range members {
						m.client.Notice(notice.Notices{}) // there is no notice: this repeats the report
					}
					membersMu.Unlock()
					<-next
				}
			}()
		case "power_off":
			go func() {
				at := time.Now()
				m.wrote.Store(0)
				// The server may delete the instance before it answers the announcement. Then the answer never comes.
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				_ = m.client.Announce(ctx, nstancev1.StoppingReason_STOPPING_REASON_POWER_OFF)
				cancel()
				say(note{Op: "sent", ID: o.ID, At: at.UnixNano(), Wrote: m.wrote.Load()})
				m.cancel()
			}()
			forget(&membersMu, members, o.ID)
		case "kill":
			at := time.Now()
			m.hangUp()
			m.cancel()
			say(note{Op: "sent", ID: o.ID, At: at.UnixNano(), Wrote: time.Now().UnixNano()})
			forget(&membersMu, members, o.ID)
		}
	}
}

func forget(mu *sync.Mutex, members map[string]*member, id string) {
	mu.Lock()
	defer mu.Unlock()
	delete(members, id)
}

// fleet is the benchmark's connection to the agents' process.
type fleet struct {
	orders chan order

	mu   sync.Mutex
	sent map[string]chan sending
	up   int
	// joined receives the spares that become members.
	joined chan note
}

// sending contains the time at which an agent began to send a message, and the time at which the kernel received the
// first byte of the message.
type sending struct{ began, wrote time.Time }

func startFleet(b testing.TB) *fleet {
	b.Helper()
	f := &fleet{orders: make(chan order, 1024), sent: map[string]chan sending{},
		joined: make(chan note, 1024)}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), agentsEnv+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	var readers sync.WaitGroup
	stopped := make(chan struct{})
	go func() {
		encoder := json.NewEncoder(in)
		for {
			select {
			case o := <-f.orders:
				_ = encoder.Encode(o)
			case <-stopped:
				_ = in.Close()
				return
			}
		}
	}()
	readers.Go(func() {
		decoder := json.NewDecoder(out)
		for {
			var n note
			if decoder.Decode(&n) != nil {
				return
			}
			if n.Op == "member" {
				f.joined <- n
				continue
			}
			if n.Op == "sent" {
				f.sendingOf(n.ID) <- sending{time.Unix(0, n.At), time.Unix(0, n.Wrote)}
				continue
			}
			f.mu.Lock()
			f.up = n.Up
			f.mu.Unlock()
		}
	})
	b.Cleanup(func() {
		close(stopped)
		readers.Wait()
		if err := cmd.Wait(); err != nil {
			b.Errorf("agents' process: %v", err)
		}
	})
	return f
}

// awaitUp waits until n agents have a session.
func (f *fleet) awaitUp(b testing.TB, n int) {
	b.Helper()
	asked := time.Time{}
	await(b, fmt.Sprintf("%d agents with a session", n), func() bool {
		if time.Since(asked) > 200*time.Millisecond { // the fleet takes some time to count
			asked = time.Now()
			f.orders <- order{Op: "count"}
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.up >= n
	})
}

func (f *fleet) sendingOf(id string) chan sending {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sent[id] == nil {
		f.sent[id] = make(chan sending, 1)
	}
	return f.sent[id]
}

// sentAt waits until the agent has sent the message that the last order demands. It returns the times of that message.
func (f *fleet) sentAt(b testing.TB, id string) sending {
	b.Helper()
	select {
	case s := <-f.sendingOf(id):
		return s
	case <-time.After(3 * time.Minute):
		b.Errorf("no word of agent %s", id)
		return sending{}
	}
}

func await(b testing.TB, what string, done func() bool) {
	b.Helper()
	for end := time.Now().Add(3 * time.Minute); !done(); {
		if time.Now().After(end) {
			b.Fatalf("waited too long for %s", what)
		}
		<-time.After(2 * time.Millisecond)
	}
}
