package bench

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
	"github.com/nstance-kit/nstance/services/store/objstore/objstoretest"
)

// moments maps each log message to the time at which a server first logged it.
type moments struct {
	mu     sync.Mutex
	logged map[string]time.Time
}

func (m *moments) at(message string) (time.Time, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, ok := m.logged[message]
	return at, ok
}

// logger returns a logger that records moments and discards its output. With BENCH_LOG the output goes to standard
// error.
func (m *moments) logger() *slog.Logger {
	m.logged = map[string]time.Time{}
	return slog.New(noting{m, slog.NewTextHandler(os.Stderr, nil)})
}

type noting struct {
	*moments
	slog.Handler
}

func (n noting) Handle(ctx context.Context, r slog.Record) error {
	n.mu.Lock()
	if _, again := n.logged[r.Message]; !again {
		n.logged[r.Message] = r.Time
	}
	n.mu.Unlock()
	if os.Getenv("BENCH_LOG") == "" {
		return nil
	}
	return n.Handler.Handle(ctx, r)
}

// coldShard is a shard with a bucket and a provider, but without a running server.
type coldShard struct {
	b        testing.TB
	size     int
	latency  atomic.Int64
	store    *mem.Store
	counted  *objstoretest.Counted
	provider *mock.Provider
	entered  chan time.Time // times of create calls
}

const coldGroups = 10

// newColdShard lets a server make instances and then stops the server. It changes each instance's record as if an agent
// had registered for the instance.
func newColdShard(b testing.TB, size int) *coldShard {
	b.Helper()
	c := &coldShard{b: b, size: size, entered: make(chan time.Time, size+100)}
	c.store = mem.New(mem.Options{Sleep: pause, Inject: func(context.Context, mem.Request) mem.Fault {
		return mem.Fault{Before: time.Duration(c.latency.Load())}
	}})
	c.counted = objstoretest.NewCounted(c.store)
	c.provider = mock.New(mock.Config{Now: time.Now, Script: mock.OnCreate(func(call mock.Call) {
		c.entered <- call.At
	})})
	list := map[string]any{}
	for g := range coldGroups {
		list[fmt.Sprintf("g%d", g)] = map[string]any{"template": "t", "size": size / coldGroups}
	}
	local := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		return l.Addr().String()
	}
	text, err := json.Marshal(map[string]any{
		"cluster": map[string]any{"id": "bench", "secrets": map[string]any{"provider": "object-storage",
			"encryption_key": map[string]any{"provider": "env"}}},
		"server": map[string]any{"shard": "bench", "provider": map[string]any{"kind": "mock"},
			"subnet_pools": map[string]any{"p": []string{"a"}},
			"bind": map[string]any{"health_addr": local(), "election_addr": local(), "registration_addr": local(),
				"operator_addr": local(), "agent_addr": local()}},
		"defaults":  map[string]any{"userdata": map[string]any{"content": "{{ .Nonce }}"}},
		"templates": map[string]any{"t": map[string]any{"kind": "bnc", "arch": "amd64", "subnet_pool": "p"}},
		"groups":    map[string]any{"default": list},
	})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := c.store.Put(b.Context(), keys.Config("bench"), text, objstore.Always()); err != nil {
		b.Fatal(err)
	}
	stop, _ := c.start()
	for range size {
		<-c.entered
	}
	c.awaitRecords(record.Created)
	stop()
	c.register()
	return c
}

// start starts a server with an empty cache.
func (c *coldShard) start() (stop func(), m *moments) {
	ctx, cancel := context.WithCancel(context.Background())
	m = &moments{}
	stopped := make(chan error, 1)
	log, dir := m.logger(), c.b.TempDir()
	go func() {
		stopped <- server.Run(ctx, server.Config{
			Options: server.Options{ID: "bench", Shard: "bench", CacheDir: dir, HealthAddr: "127.0.0.1:0",
				Location: objstore.Location{Provider: "mem"}},
			Log: log, Bucket: c.counted, Started: func(addr net.Addr) { go c.probe(ctx, addr, m) },
			KeySources: []keyring.Source{{Name: config.EnvKeySource,
				Read: func(context.Context, config.KeySource) ([]byte, error) {
					return []byte("thisisatest32bytekey123456789012"), nil
				}}},
			Clouds: []infra.Cloud{mock.Cloud(c.provider, "bench")},
		})
	}()
	return func() {
		cancel()
		if err := <-stopped; err != nil {
			c.b.Errorf("server: %v", err)
		}
	}, m
}

// healthy and leads are keys of moments. healthy is for the first health probe with status 200. leads is for the log
// message of a server that begins to lead, and has the text of this message.
const healthy, leads = "GET /health: 200", "serving as leader"

// probe polls the health endpoint as a load balancer does, but more often.
func (c *coldShard) probe(ctx context.Context, addr net.Addr, m *moments) {
	for pause(ctx, 2*time.Millisecond) == nil {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr.String()+"/health", nil)
		if err != nil {
			panic(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			continue
		}
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			m.mu.Lock()
			m.logged[healthy] = time.Now()
			m.mu.Unlock()
			return
		}
	}
}

func (c *coldShard) state() *clusterstate.State {
	return clusterstate.New(clusterstate.Options{Cluster: c.store, Shard: c.store, ClusterID: "bench",
		ShardID: "bench"})
}

func (c *coldShard) awaitRecords(state record.State) {
	c.b.Helper()
	await(c.b, fmt.Sprintf("%d records as %s", c.size, state), func() bool {
		n := 0
		err := c.state().LoadInstances(c.b.Context(), func(rec record.Instance, _ objstore.Token) {
			if rec.State == state {
				n++
			}
		})
		return err == nil && n == c.size
	})
}

// register changes each instance's record as the registration of an agent would.
func (c *coldShard) register() {
	c.b.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		c.b.Fatal(err)
	}
	var failed error // the first one
	err = c.state().LoadInstances(c.b.Context(), func(rec record.Instance, token objstore.Token) {
		if rec.State != record.Created || failed != nil {
			return
		}
		next, err := rec.Next(record.Registered, rec.Term, rec.Writer)
		if err == nil {
			next.RegisteredAt, next.PublicKey, next.NonceID = time.Now(), public, "bench-"+rec.ID.String()
			next.Certificate = &record.CertificateRef{Serial: "0123456789abcdef0123456789abcdef",
				NotAfter: time.Now().Add(24 * time.Hour)}
			_, err = c.state().PutInstance(c.b.Context(), next, token)
		}
		failed = err
	})
	if err := errors.Join(failed, err); err != nil {
		c.b.Fatal(err)
	}
}

// BenchmarkColdStart starts a server with an empty disk. Its shard has 5,000 instances and no leader, and a VM was lost
// while no server ran. Every request to the bucket takes 20 ms. The benchmark measures the times until the health
// endpoint answers 200, until the server leads, and until the create call that replaces the lost VM. With
// BENCH_PROFILE=DIR it writes a CPU profile to DIR.
func BenchmarkColdStart(b *testing.B) {
	const size = 5000
	c := newColdShard(b, size)
	var ready, leading, acting []time.Duration
	const latency = 20 * time.Millisecond
	for b.Loop() {
		for range 5 {
			lost := c.provider.VMs()[0]
			if err := c.provider.Terminate(lost.ProviderID); err != nil {
				b.Fatal(err)
			}
			before := c.counted.Counts()
			var profile bytes.Buffer
			if err := pprof.StartCPUProfile(&profile); err != nil {
				b.Fatal(err)
			}
			c.latency.Store(int64(latency))
			began := time.Now()
			stop, m := c.start()
			acting = append(acting, (<-c.entered).Sub(began))
			pprof.StopCPUProfile()
			var at [2]time.Time
			for i, what := range []string{healthy, leads} {
				await(b, what, func() (ok bool) { at[i], ok = m.at(what); return ok })
			}
			ready, leading = append(ready, at[0].Sub(began)), append(leading, at[1].Sub(began))
			b.ReportMetric(float64(c.counted.Counts().Sub(before).Total()), "requests")
			if dir := os.Getenv("BENCH_PROFILE"); dir != "" {
				if err := os.WriteFile(filepath.Join(dir, "cold.cpu"), profile.Bytes(), 0o600); err != nil {
					b.Fatal(err)
				}
			}
			stop()
			c.latency.Store(0)
			c.register()
		}
	}
	percentiles(b, "ready", ready)
	percentiles(b, "leading", leading)
	percentiles(b, "first-create", acting)
}
