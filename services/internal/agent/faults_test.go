package agent_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/internal/agent"
	"github.com/nstance-kit/nstance/services/internal/agent/folder"
)

// TestRefusal checks that an agent sends a refused nonce again only at long intervals, and that it registers when the
// cause of the refusal has gone, or when it gets a new nonce.
func TestRefusal(t *testing.T) {
	for _, code := range []codes.Code{
		codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.FailedPrecondition, codes.NotFound,
	} {
		t.Run(code.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &network{}
				s := newFakeServer(t, newID(t))
				s.refuse = status.Error(code, "nonce: expired")
				defer s.start(t, n.listen(address))()
				m := newMemories(t, s)
				lines := &logLines{}
				o := m.options(s, n)
				o.Log = slog.New(slog.NewTextHandler(lines, nil))
				client, stop := run(t, o)
				time.Sleep(24 * time.Hour)
				if calls := get(s, func() int { return len(s.registrations) }); calls < 100 || calls > 150 {
					t.Errorf("%d registrations in a day, want one in ten minutes", calls)
				}
				if err := client.Health(); err == nil || !strings.Contains(err.Error(), "nonce: expired") {
					t.Errorf("Health: %v", err)
				}
				if got := lines.String(); strings.Count(got, "\n") != 1 ||
					!strings.Contains(got, "refused the registration;") ||
					strings.Contains(got, "good.nonce.jwt") {
					t.Errorf("log: %s", got)
				}

				defer stop()
				s.set(func() { s.refuse = nil })
				time.Sleep(11 * time.Minute)
				s.next(t, "sequence 1", first)
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		s := newFakeServer(t, newID(t))
		defer s.start(t, n.listen(address))()
		m := newMemories(t, s)
		write := func(nonce string) {
			if err := m.identity.Write("nonce.jwt", []byte(nonce), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("bad.nonce.jwt")
		_, stop := run(t, m.options(s, n))
		defer stop()
		time.Sleep(time.Hour)
		write("good.nonce.jwt")
		time.Sleep(time.Minute)
		s.next(t, "sequence 1", first)
	})
}

// TestTransientFaultsOfProofs checks that an agent whose metadata service fails for a while registers with a proof when
// the service has recovered. A service that never answers must not prevent a registration that needs no proof.
func TestTransientFaultsOfProofs(t *testing.T) {
	for name, fault := range map[string]func(context.Context) error{
		"503":     func(context.Context) error { return errors.New("503 Service Unavailable") },
		"429":     func(context.Context) error { return errors.New("429 Too Many Requests") },
		"refused": func(context.Context) error { return syscall.ECONNREFUSED },
		"timeout": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		for _, required := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, required %t", name, required), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := &network{}
					s := newFakeServer(t, newID(t))
					s.needsProof = required
					defer s.start(t, n.listen(address))()
					o := newMemories(t, s).options(s, n)
					began := time.Now()
					o.Attest = func(ctx context.Context) ([]byte, error) {
						if !required || time.Since(began) < 2*time.Minute {
							return nil, fault(ctx)
						}
						return []byte("proof"), nil
					}
					client, stop := run(t, o)
					defer stop()
					if required {
						time.Sleep(time.Minute)
						if err := client.Health(); err == nil || !strings.Contains(err.Error(),
							"without a proof of this VM") {
							t.Errorf("Health: %v", err)
						}
						time.Sleep(2 * time.Minute)
					}
					s.next(t, "sequence 1", first)
				})
			})
		}
	}
}

type logLines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// The agent retries temporary errors with growing delays. It also waits for files that userdata has not written yet.
func TestTemporaryErrorsAreRetried(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted,
		codes.Internal, codes.Unknown} {
		t.Run(code.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &network{}
				s := newFakeServer(t, newID(t))
				s.refuse = status.Error(code, "later")
				defer s.start(t, n.listen(address))()
				client, stop := run(t, newMemories(t, s).options(s, n))
				defer stop()
				if got := n.delays(10 * time.Minute); len(got) < 20 || len(got) > 60 || got[5] < 250*time.Millisecond {
					t.Errorf("%d tries in ten minutes: %v", len(got), got)
				}
				if err := client.Health(); err == nil || !strings.Contains(err.Error(), "later") {
					t.Errorf("Health: %v", err)
				}
				s.set(func() { s.refuse = nil })
				s.next(t, "sequence 1", first)
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		s := newFakeServer(t, newID(t))
		defer s.start(t, n.listen(address))()
		complete := newMemories(t, s)
		m := &memories{}
		client, stop := run(t, m.options(s, n))
		defer stop()
		for _, name := range []string{"ca.crt", "nonce.jwt"} {
			time.Sleep(time.Minute)
			if err := client.Health(); err == nil || !strings.Contains(err.Error(), "nonce.jwt is missing") {
				t.Errorf("before %s: Health: %v", name, err)
			}
			content, err := complete.identity.Read(name)
			if err != nil {
				t.Fatal(err)
			}
			if err := m.identity.Write(name, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s.next(t, "sequence 1", first)
		n.mu.Lock()
		defer n.mu.Unlock()
		if len(n.dials) != 2 {
			t.Errorf("%d connections", len(n.dials))
		}
	})
}

var errCrash = errors.New("the process is dead")

// mortal simulates a process that dies during a write or removal in one of its three folders. The writes and removals
// are numbered from 1. Number `dies` and all later ones fail without effect. If half is set, number `dies` takes
// effect, but its caller still gets an error.
type mortal struct {
	mu          sync.Mutex
	steps, dies int
	half        bool
	dead        context.CancelFunc
}

func (m *mortal) step(do func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.steps++
	if m.dies > 0 && m.steps >= m.dies {
		if m.half && m.steps == m.dies {
			if err := do(); err != nil {
				return err
			}
		}
		m.dead()
		return errCrash
	}
	return do()
}

type mortalFolder struct {
	folder.Folder
	process *mortal
}

func (f mortalFolder) Write(name string, content []byte, mode fs.FileMode) error {
	return f.process.step(func() error { return f.Folder.Write(name, content, mode) })
}

func (f mortalFolder) Remove(name string) error {
	return f.process.step(func() error { return f.Folder.Remove(name) })
}

// The agent's process is killed at each durable write or removal, and started again. The new process has the same
// identity key and key pairs as before, and has consumed one nonce. Its files are either all old or all new.
func TestCrashAtEveryStep(t *testing.T) {
	const claim = 4 // the first steps: three removals and a write, with which the agent claims its folder
	steps := 0
	for dies := 1; dies <= max(steps, 1); dies++ {
		for _, half := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				n := &network{}
				s := newFakeServer(t, newID(t))
				defer s.start(t, n.listen(address))()
				s.firstAsk = &nstancev1.KeyGenRequestsResponse{Keys: []*nstancev1.KeyRequest{{Name: "a.pub"}}}
				s.firstFiles = batch("hash", map[string]string{"a.env": "A=1", "b.env": "B=1"})
				m := newMemories(t, s)

				live := func(p *mortal) bool {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					p.dead = cancel
					o := m.options(s, n)
					o.Identity, o.Keys, o.Files = mortalFolder{&m.identity, p}, mortalFolder{&m.keys, p},
						mortalFolder{&m.files, p}
					o.Hook = func(context.Context, []string) error { return nil }
					done := make(chan error, 1)
					go func() { done <- agent.New(o).Run(ctx) }()
					for len(s.reports) > 0 {
						<-s.reports
					}
					for timeout := time.After(time.Hour); ; {
						select {
						case <-timeout:
							t.Fatalf("step %d (%v): the process neither lives nor dies", dies, half)
						case <-done:
							return false
						case <-s.submitted:
						case report := <-s.reports:
							if report.GetRuntimeHash() == "hash" && len(report.GetKeys()) == 1 {
								synctest.Wait()
								lived := ctx.Err() == nil
								cancel()
								<-done
								return lived
							}
						}
					}
				}
				process := &mortal{dies: dies, half: half}
				if live(process) && process.steps >= dies {
					t.Errorf("step %d (%v): the process did not die", dies, half)
				}
				key, err := m.identity.Read("identity.key")
				if err != nil && dies > claim+1 {
					t.Errorf("step %d (%v): %v", dies, half, err)
				}
				process = &mortal{}
				if !live(process) {
					t.Fatalf("step %d (%v): the second process ended", dies, half)
				}
				if again, err := m.identity.Read("identity.key"); err != nil || key != nil && !cmp.Equal(key, again) {
					t.Errorf("step %d (%v): another key, or %v", dies, half, err)
				}
				if _, err := m.identity.Read("nonce.jwt"); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("step %d (%v): the nonce is still there: %v", dies, half, err)
				}
				// The second step after Claim stores the certificate. If it fails, the agent must register a second
				// time.
				want := 1
				if dies == claim+2 && !half {
					want = 2
				}
				if got := get(s, func() int { return len(s.registrations) }); got != want {
					t.Errorf("step %d (%v): %d registrations, want %d", dies, half, got, want)
				}
				if dies == 1 && half {
					steps = process.steps // the next process repeats every step
				}
			})
		}
	}
	if steps < 10 {
		t.Errorf("%d steps do not look like a life", steps)
	}
}

// The agent talks only to servers of its cluster.
func TestRefusesOthersThanItsServer(t *testing.T) {
	server := authority.Identity{Role: authority.RoleServer, Cluster: "example", Shard: "a", Server: "one"}
	for name, test := range map[string]struct {
		who   authority.Identity
		host  string
		other bool // use another CA
		want  string
	}{
		"a server":                 {server, "127.0.0.1", false, ""},
		"a server of another CA":   {server, "127.0.0.1", true, "unknown authority"},
		"a server of other name":   {server, "127.0.0.2", false, "127.0.0.2"},
		"an instance's own server": {authority.Identity{}, "127.0.0.1", false, "identity"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &network{}
				s := newFakeServer(t, newID(t))
				m := newMemories(t, s)
				if test.other {
					s = newFakeServer(t, s.id)
				}
				defer s.startAs(t, n.listen(address), test.who, test.host)()
				client, stop := run(t, m.options(s, n))
				defer stop()
				time.Sleep(time.Minute)
				synctest.Wait()
				err := client.Health()
				if test.want == "" && err != nil || test.want != "" &&
					(err == nil || !strings.Contains(err.Error(), test.want)) {
					t.Errorf("Health: %v, want %q", err, test.want)
				}
				if calls := get(s, func() int { return len(s.registrations) }); (calls > 0) != (test.want == "") {
					t.Errorf("%d registrations", calls)
				}
			})
		})
	}
}

// severed is a connection that can be cut silently: writes are lost, and reads block.
type severed struct {
	net.Conn
	cut    *atomic.Bool
	closed chan struct{}
	once   sync.Once
}

func (c *severed) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.cut.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *severed) Write(p []byte) (int, error) {
	if c.cut.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *severed) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// TestStoppedLeader checks that an agent soon finds the next leader when the process of its leader is suspended. The
// suspended process keeps its connections and accepts new ones. At first, the standby answers that the suspended server
// leads.
func TestStoppedLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const leader, standby = "127.0.0.1:1", "127.0.0.1:2"
		n := &network{}
		s := newFakeServer(t, newID(t))
		s.interval = "5s"
		next := newFakeServer(t, s.id)
		next.ca = s.ca
		notLeader, err := status.New(codes.Unavailable, "not leader").WithDetails(
			&nstancev1.NotLeader{RegistrationAddr: leader, AgentAddr: leader})
		if err != nil {
			t.Fatal(err)
		}
		next.refuse = notLeader.Err()
		defer s.start(t, n.listen(leader))()
		defer next.start(t, n.listen(standby))()
		stopped := &atomic.Bool{}
		o := newMemories(t, s).options(s, n)
		o.RegistrationAddrs, o.AgentAddrs = []string{leader, standby}, []string{leader, standby}
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			conn, err := n.dial(ctx, addr)
			if err != nil || addr != leader {
				return conn, err
			}
			return &severed{Conn: conn, cut: stopped, closed: make(chan struct{})}, nil
		}
		_, stop := run(t, o)
		defer stop()
		s.next(t, "sequence 1", first)
		time.Sleep(7 * time.Minute)
		stopped.Store(true)
		began := time.Now()
		time.Sleep(12 * time.Second)
		next.set(func() { next.refuse = nil })
		next.next(t, "sequence 1", first)
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("it reports to the next leader after %v", took)
		}
	})
}

// TestDeletedInstance checks that the agent of a deleted instance tries to connect only about every 30 s, but does not
// give up.
func TestDeletedInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		s := newFakeServer(t, newID(t))
		stopServer := s.start(t, n.listen(address))
		_, stop := run(t, newMemories(t, s).options(s, n))
		defer stop()
		s.next(t, "sequence 1", first)
		s.set(func() { s.refuse = status.Error(codes.NotFound, "the instance is deleted") })
		stopServer()
		defer s.start(t, n.listen(address))()
		if got := n.delays(10 * time.Minute); len(got) < 18 || len(got) > 22 {
			t.Errorf("%d tries in ten minutes: %v", len(got), got)
		}
		s.set(func() { s.refuse = nil })
		s.next(t, "sequence 1", first)
	})
}

// An agent detects a silently dead server within 15 s, even if it has nothing to send. A server that accepts
// connections but never answers does not block the agent.
func TestSilentServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		s := newFakeServer(t, newID(t))
		s.interval = "1h"
		defer s.start(t, n.listen(address))()
		cut := &atomic.Bool{}
		o := newMemories(t, s).options(s, n)
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			conn, err := n.dial(ctx, addr)
			if err != nil {
				return nil, err
			}
			return &severed{Conn: conn, cut: cut, closed: make(chan struct{})}, nil
		}
		_, stop := run(t, o)
		defer stop()
		s.next(t, "sequence 1", first)
		time.Sleep(7 * time.Minute)
		cut.Store(true)
		n.unlisten()
		if got := n.delays(time.Minute); len(got) == 0 || got[0] > 16*time.Second {
			t.Errorf("noticed after %v", got)
		}

		listener := n.listen(address)
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				go func() {
					for buffer := make([]byte, 512); ; {
						if _, err := conn.Read(buffer); err != nil {
							return
						}
					}
				}()
			}
		}()
		cut.Store(false)
		got := n.delays(10 * time.Minute)
		listener.Close()
		for i, delay := range got {
			if i > 0 && delay > 41*time.Second {
				t.Errorf("delays: %v", got)
			}
		}
		if len(got) < 12 {
			t.Errorf("%d tries in ten minutes", len(got))
		}
	})
}

// The hook runs after a change, and gets the names of the changed files. Two runs never overlap. After a restart, the
// hook runs for the changes that it missed. The agent reports a failed run.
func TestHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		s := newFakeServer(t, newID(t))
		defer s.start(t, n.listen(address))()
		m := newMemories(t, s)
		o := m.options(s, n)
		runs, result := make(chan []string, 10), make(chan error)
		o.Hook = func(ctx context.Context, changed []string) error {
			runs <- changed
			select {
			case err := <-result:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		_, stop := run(t, o)
		s.next(t, "sequence 1", first)
		synctest.Wait()
		if len(runs) > 0 {
			t.Errorf("nothing changed, and the hook ran for %v", <-runs)
		}
		s.sendFiles("1", map[string]string{"a.env": "A=1"})
		if changed := <-runs; !slices.Equal(changed, []string{"a.env"}) {
			t.Errorf("hook for %v", changed)
		}
		// Two more files change while the hook runs for a.env.
		s.sendFiles("2", map[string]string{"b.env": "B=1"}, "a.env")
		s.sendFiles("3", map[string]string{"c.env": "C=1"}, "b.env")
		s.next(t, "hash 3", func(r *nstancev1.ReportHealthRequest) bool { return r.GetRuntimeHash() == "3" })
		if len(runs) > 0 {
			t.Error("the hook runs twice at a time")
		}
		result <- errors.New("exit status 1")
		report := s.next(t, "the failure", func(r *nstancev1.ReportHealthRequest) bool { return r.GetMessage() != "" })
		if report.GetMessage() != "hook: exit status 1" || !report.GetHealthy() {
			t.Errorf("%v", report)
		}
		// While the hook ran for a.env, the agent stored b.env and c.env, and removed a.env.
		if changed := <-runs; !slices.Equal(changed, []string{"a.env", "b.env", "c.env"}) {
			t.Errorf("hook for %v", changed)
		}
		stop()

		_, stop = run(t, o)
		defer stop()
		if changed := <-runs; !slices.Equal(changed, []string{"a.env", "b.env", "c.env"}) {
			t.Errorf("after a restart: hook for %v", changed)
		}
		result <- nil
		s.next(t, "no failure", func(r *nstancev1.ReportHealthRequest) bool {
			return r.GetMessage() == "" && r.GetSequence() > 1
		})
		synctest.Wait()
		if len(runs) > 0 {
			t.Errorf("hook for %v", <-runs)
		}
	})
}

// TestCopiedDisk checks that an agent on a copied disk makes keys of its own: on a copy with the whole identity of
// another instance, on one with its key alone, and on one with a key that only the server knows from another instance.
func TestCopiedDisk(t *testing.T) {
	for name, without := range map[string][]string{"whole": nil, "key": {"identity.crt"},
		"key of an earlier agent": {"identity.crt", "instance"}, "refused key": {"identity.crt"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &network{}
				first1 := newFakeServer(t, newID(t))
				stopServer := first1.start(t, n.listen(address))
				m := newMemories(t, first1)
				_, stop := run(t, m.options(first1, n))
				first1.next(t, "sequence 1", first)
				_ = stop()
				stopServer()
				old, err := m.identity.Read("identity.key")
				if err != nil {
					t.Fatal(err)
				}
				if err := m.keys.Write("node.key", []byte("private"), 0o600); err != nil {
					t.Fatal(err)
				}
				s := newFakeServer(t, newID(t))
				s.ca = first1.ca
				if name == "refused key" {
					if err := m.identity.Write("instance", []byte(s.id.String()), 0o600); err != nil {
						t.Fatal(err)
					}
					s.foreign = get(first1, func() ed25519.PublicKey { return first1.spentBy })
				}
				for _, file := range without {
					if err := m.identity.Remove(file); err != nil {
						t.Fatal(err)
					}
				}
				if err := m.identity.Write("nonce.jwt", []byte("good.nonce.jwt"), 0o600); err != nil {
					t.Fatal(err)
				}
				defer s.start(t, n.listen(address))()
				_, stop = run(t, m.options(s, n))
				s.next(t, "sequence 1", first)
				_ = stop()
				if now, err := m.identity.Read("identity.key"); err != nil || bytes.Equal(now, old) {
					t.Errorf("the agent kept the key of another instance (%v)", err)
				}
				if _, err := m.keys.Read("node.key"); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("the agent kept a key pair of another instance: %v", err)
				}
			})
		})
	}
}
