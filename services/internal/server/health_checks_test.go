package server

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/agent"
	"github.com/nstance-kit/nstance/services/internal/agent/number"
	"github.com/nstance-kit/nstance/services/internal/proof/foldertest"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
)

// quietMachine is a machine without addresses and metrics.
type quietMachine struct{}

func (quietMachine) Facts() agent.Facts { return agent.Facts{} }
func (quietMachine) Sample(context.Context) (*nstancev1.Metrics, time.Duration) {
	return &nstancev1.Metrics{}, time.Hour
}

// checkedFleet runs a real agent for each VM. The test can make the agents' health check fail.
type checkedFleet struct {
	shard *testShard
	ctx   context.Context
	wg    sync.WaitGroup

	mu      sync.Mutex
	started []ident.ID
	fails   map[ident.ID]bool
	ran     map[ident.ID]string // the command of the last run
	drain   func(command []string, environ ...string) (failure string)
}

// newCheckedFleet returns a fleet of the shard's VMs, which run until the end of the test.
func newCheckedFleet(r *testShard) *checkedFleet {
	ctx, cancel := context.WithCancel(context.Background())
	f := &checkedFleet{shard: r, ctx: ctx, fails: map[ident.ID]bool{}, ran: map[ident.ID]string{}}
	r.t.Cleanup(func() {
		cancel()
		f.wg.Wait()
	})
	r.provider = mock.New(mock.Config{Now: time.Now, Script: mock.OnCreate(f.boot)})
	return f
}

// boot starts the agent of a VM. The agent finds the files that the VM's boot script would write: the nonce and the CA.
func (f *checkedFleet) boot(c mock.Call) {
	nonce, ca, _ := bytes.Cut(c.Request.Userdata, []byte("\n"))
	id, memory := c.Instance, &[3]foldertest.Memory{}
	for name, content := range map[string][]byte{"nonce.jwt": nonce, "ca.crt": ca} {
		if err := memory[0].Write(name, content, 0o600); err != nil {
			f.shard.t.Error(err)
		}
	}
	f.mu.Lock()
	f.started = append(f.started, id)
	f.mu.Unlock()
	client := agent.New(agent.Options{ID: id, RegistrationAddrs: []string{f.shard.ports[2]},
		AgentAddrs: []string{f.shard.ports[4]}, Identity: &memory[0], Keys: &memory[1], Files: &memory[2],
		IdentityMode: 0o600, KeysMode: 0o640, FilesMode: 0o640, Machine: quietMachine{}, Version: "test",
		Log: slog.New(slog.DiscardHandler),
		Probe: func(_ context.Context, check *nstancev1.HealthCheck) string {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.ran[id] = strings.Join(check.GetExec().GetCommand(), " ")
			if f.fails[id] {
				return "exit status 1: out of order"
			}
			return ""
		}, Numbers: number.Local, DrainHook: func(_ context.Context, command []string, environ ...string) string {
			return f.drain(command, environ...)
		}})
	f.wg.Go(func() { _ = client.Run(f.ctx) })
}

// TestFailingHealthCheckIsReplaced makes the health check of a real agent fail. The leader must replace the instance,
// and state the check's name and reason in the deletion. Running agents must also receive a changed check.
func TestFailingHealthCheckIsReplaced(t *testing.T) {
	r := newTestShard(t)
	f := newCheckedFleet(r)
	configure := func(command string) {
		r.configure(func(doc map[string]any) {
			doc["server"].(map[string]any)["check_registration_address"] = false
			doc["defaults"] = map[string]any{"userdata": map[string]any{
				"content": "{{ .Nonce }}\n{{ .Cluster.CACert }}"}}
			doc["templates"].(map[string]any)["t"].(map[string]any)["health_checks"] = map[string]any{
				"web": map[string]any{"exec": []string{command}, "interval": "1s", "timeout": "1s",
					"failure_threshold": 1}}
			doc["groups"] = map[string]any{"default": map[string]any{"g": map[string]any{"template": "t", "size": 1,
				"drain_timeout": "0s"}}}
		})
	}
	configure("first")
	p := r.start(testKey)
	ran := func(n int, command string) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.started) > n && f.ran[f.started[n]] == command
	}
	p.await("the check to run", func() bool { return ran(0, "first") })

	configure("second")
	if _, _, err := p.server.manager.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.await("the changed check to run on the same VM", func() bool { return ran(0, "second") })
	f.mu.Lock()
	if len(f.started) != 1 {
		t.Errorf("a changed check made %d VMs", len(f.started))
	}
	first := f.started[0]
	f.fails[first] = true
	f.mu.Unlock()
	p.await("a replacement", func() bool { return ran(1, "second") })
	p.await("the first VM to end", func() bool {
		return strings.Contains(p.log.String(), "health check fails: web: exit status 1: out of order, and enough") &&
			r.running() == 1
	})
}

// TestDrainHookOfAnAgent lets a group shrink. The real agent of its VM runs the drain hook while the VM still runs, and
// the journal says how the hook ended.
func TestDrainHookOfAnAgent(t *testing.T) {
	r := newTestShard(t)
	f := newCheckedFleet(r)
	started, end := make(chan []string, 10), make(chan string)
	f.drain = func(command []string, environ ...string) string {
		started <- append(command, environ...)
		return <-end
	}
	configure := func(size int) {
		r.configure(func(doc map[string]any) {
			doc["server"].(map[string]any)["check_registration_address"] = false
			doc["defaults"] = map[string]any{"userdata": map[string]any{
				"content": "{{ .Nonce }}\n{{ .Cluster.CACert }}"}}
			doc["templates"].(map[string]any)["t"].(map[string]any)["drain"] = map[string]any{
				"exec": []string{"/usr/local/bin/drain", "-q"}, "timeout": "1m"}
			doc["groups"] = map[string]any{"default": map[string]any{"g": map[string]any{"template": "t", "size": size,
				"drain_timeout": "10m"}}}
		})
	}
	configure(1)
	p := r.start(testKey)
	p.await("a healthy VM", func() bool { return strings.Contains(p.log.String(), `"kind":"instance_healthy"`) })
	configure(0)
	if _, _, err := p.server.manager.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got []string
	p.await("the hook to run", func() bool {
		select {
		case got = <-started:
			return true
		default:
			return false
		}
	})
	if text := strings.Join(got, " "); !strings.HasPrefix(text, "/usr/local/bin/drain -q NSTANCE_DRAIN_REASON=") ||
		!strings.Contains(text, " NSTANCE_DRAIN_DEADLINE=20") || r.running() != 1 {
		t.Errorf("%q ran, with %d VMs", text, r.running())
	}
	end <- "exit status 1: no peers"
	p.await("the event", func() bool {
		return strings.Contains(p.log.String(), `"kind":"instance_drain_hook"`) &&
			strings.Contains(p.log.String(), "the drain hook failed: exit status 1: no peers")
	})
}
