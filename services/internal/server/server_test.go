package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

const testKey = "thisisatest32bytekey123456789012"

// testShard is what the servers of a test share: a bucket, a cloud, ports.
type testShard struct {
	t        *testing.T
	bucket   objstore.Store
	provider *mock.Provider
	ports    []string
	// set, if not nil, changes how servers are started.
	set func(*Config)
}

func newTestShard(t *testing.T) *testShard {
	t.Helper()
	r := &testShard{t: t, bucket: mem.New(mem.Options{}), provider: mock.New(mock.Config{Now: time.Now})}
	for range 5 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		r.ports = append(r.ports, l.Addr().String())
	}
	return r
}

func (r *testShard) configure(change func(map[string]any)) {
	r.t.Helper()
	doc := map[string]any{
		"cluster": map[string]any{"id": "test", "secrets": map[string]any{
			"encryption_key": map[string]any{"provider": "env"}}},
		"server": map[string]any{
			"shard": "a", "provider": map[string]any{"kind": "mock"}, "subnet_pools": map[string]any{
				"p": []string{"s"}},
			"bind": map[string]any{"health_addr": r.ports[0], "election_addr": r.ports[1],
				"registration_addr": r.ports[2], "operator_addr": r.ports[3],
				"agent_addr": r.ports[4]},
		},
		"defaults":  map[string]any{"userdata": map[string]any{"content": "{{ .Nonce }}"}},
		"templates": map[string]any{"t": map[string]any{"kind": "tst", "arch": "amd64", "subnet_pool": "p"}},
		"groups":    map[string]any{"default": map[string]any{"g": map[string]any{"template": "t", "size": 2}}},
	}
	if change != nil {
		change(doc)
	}
	text, err := json.Marshal(doc)
	if err != nil {
		r.t.Fatal(err)
	}
	r.put(keys.Config("a"), text)
}

func (r *testShard) put(key string, body []byte) {
	r.t.Helper()
	if _, err := r.bucket.Put(r.t.Context(), key, body, objstore.Always()); err != nil {
		r.t.Fatal(err)
	}
}

func (r *testShard) get(key string) []byte {
	r.t.Helper()
	object, err := r.bucket.Get(r.t.Context(), key)
	if err != nil {
		r.t.Fatal(err)
	}
	return object.Body
}

// run is one server process.
type run struct {
	testShard *testShard
	stop      context.CancelFunc
	done      chan error
	log       *lockedBuffer
	// confirm delivers a person's confirmation of orphans.
	confirm chan os.Signal
	server  *server
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (r *testShard) start(key string) *run {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	log := &lockedBuffer{}
	p := &run{testShard: r, stop: cancel, done: make(chan error, 1), log: log, confirm: make(chan os.Signal)}
	started := make(chan struct{})
	dir := r.t.TempDir()
	cfg := Config{
		Options: Options{ID: "s", Shard: "a", CacheDir: dir, HealthAddr: r.ports[0],
			Location: objstore.Location{Provider: "mem"}},
		Log: slog.New(slog.NewJSONHandler(log, nil)), Bucket: r.bucket, ConfirmOrphans: p.confirm,
		Started: func(net.Addr) {
			close(started)
		},
		KeySources: []keyring.Source{{Name: config.EnvKeySource,
			Read: func(context.Context, config.KeySource) ([]byte, error) { return []byte(key), nil }}},
		Clouds: []infra.Cloud{mock.Cloud(r.provider, "machine")},
	}
	if r.set != nil {
		r.set(&cfg)
	}
	p.server = newServer(cfg)
	go func() { p.done <- p.server.main(ctx) }()
	select {
	case <-started:
	case err := <-p.done:
		p.done <- err
	}
	r.t.Cleanup(func() { _ = p.end() })
	return p
}

// end stops the server if it still runs, and returns the result of Run.
func (p *run) end() error {
	p.stop()
	return p.wait()
}

func (p *run) wait() error {
	err := <-p.done
	p.done <- err
	return err
}

func (p *run) get(addr string) (int, string) {
	resp, err := http.Get("http://" + addr + "/health")
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body)
}

func (p *run) await(what string, done func() bool) {
	p.testShard.t.Helper()
	for end := time.Now().Add(20 * time.Second); !done(); {
		if time.Now().After(end) {
			p.testShard.t.Fatalf("waited too long for %s; log:\n%s", what, p.log)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func (p *run) awaitReason(reason string) {
	p.testShard.t.Helper()
	p.await("503 with "+reason, func() bool {
		code, body := p.get(p.testShard.ports[0])
		return code == 503 && strings.Contains(body, reason)
	})
}

func (r *testShard) running() (n int) {
	for _, vm := range r.provider.VMs() {
		if vm.State.Alive() {
			n++
		}
	}
	return n
}

func TestLeadsAndCreates(t *testing.T) {
	r := newTestShard(t)
	r.configure(nil)
	p := r.start(testKey)
	p.await("two VMs", func() bool { return r.running() == 2 })
	p.await("200 ok", func() bool {
		code, body := p.get(r.ports[0])
		return code == 200 && body == "ok: leads in term 1\n"
	})
	if err := p.end(); err != nil {
		t.Fatal(err)
	}
	lock, err := r.bucket.Get(t.Context(), keys.Leader("a"))
	if err != nil {
		t.Fatal(err)
	}
	if l, err := record.DecodeLock(lock.Body); err != nil || !l.Released || l.Term != 1 {
		t.Errorf("after a clean stop the lock is %s (%v)", lock.Body, err)
	}
	if strings.Contains(p.log.String(), testKey) {
		t.Error("the encryption key is in the log")
	}
}

func TestLeaderEndpointIsPublic(t *testing.T) {
	r := newTestShard(t)
	r.configure(nil)
	p := r.start(testKey)
	page := func() (int, string) {
		resp, err := http.Get("http://" + r.ports[0] + "/leader")
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	p.await("the leader's page", func() bool { code, body := page(); return code == 200 && body == "leader term=1\n" })
	// The election port accepts only TLS connections with a server's certificate. The tests of
	// services/internal/server/lead/peer check which certificates it refuses.
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}}).DialContext(
		t.Context(), "tcp", r.ports[1])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err = conn.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("without a certificate: %v", err)
	}
	if resp, err := http.Get("http://" + r.ports[1] + "/"); err == nil {
		resp.Body.Close()
		t.Errorf("without TLS: %s", resp.Status)
	}
}

func TestConfigurationHeals(t *testing.T) {
	r := newTestShard(t)
	p := r.start(testKey)
	p.awaitReason("object not found")
	text, err := os.ReadFile(filepath.Join("..", "..", "contract", "testdata", "ten-mistakes.jsonc"))
	if err != nil {
		t.Fatal(err)
	}
	r.put(keys.Config("a"), text)
	p.awaitReason(`did you mean "worker"?`)
	r.configure(nil)
	p.await("two VMs", func() bool { return r.running() == 2 })
}

func TestInvalidConfigurationKeepsTheAppliedOne(t *testing.T) {
	r := newTestShard(t)
	r.configure(nil)
	p := r.start(testKey)
	p.await("two VMs", func() bool { return r.running() == 2 })
	_ = p.end()
	r.put(keys.Config("a"), []byte(`{"cluster": }`))
	next := r.start(testKey)
	next.await("the next leader", func() bool { return strings.Contains(next.log.String(), "serving as leader") })
	if n := r.running(); n != 2 {
		t.Errorf("%d VMs run under the applied configuration, want 2", n)
	}
}

func TestWrongEncryptionKeyChangesNothing(t *testing.T) {
	r := newTestShard(t)
	r.configure(nil)
	p := r.start(testKey)
	p.await("two VMs", func() bool { return r.running() == 2 })
	_ = p.end()
	before, err := r.bucket.Get(t.Context(), keys.ClusterSecret("ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	other := r.start("other is a key of 32 bytes too..")
	other.awaitReason("sealed with another encryption key")
	_ = other.end()
	after, err := r.bucket.Get(t.Context(), keys.ClusterSecret("ca.key"))
	if err != nil || !bytes.Equal(before.Body, after.Body) {
		t.Errorf("the CA was touched (%v)", err)
	}
	if n := r.running(); n != 2 {
		t.Errorf("%d VMs run", n)
	}
}

// careless is a store that ignores conditions.
type careless struct{ objstore.Store }

func (c careless) Put(ctx context.Context, key string, body []byte, _ objstore.Condition) (objstore.Token, error) {
	return c.Store.Put(ctx, key, body, objstore.Always())
}

func TestStoreWithoutConditionsIsRefused(t *testing.T) {
	r := newTestShard(t)
	r.configure(nil)
	r.bucket = careless{r.bucket}
	p := r.start(testKey)
	err := p.wait()
	if !errors.Is(err, objstore.ErrUnconditional) {
		t.Fatalf("got %v", err)
	}
	if _, err := r.bucket.Get(t.Context(), keys.Leader("a")); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("the lock was written: %v", err)
	}
}

// TestTakenPort checks that a server does not exit while another process uses one of its ports. The server reports the
// port, and serves once the port is free.
func TestTakenPort(t *testing.T) {
	for i, name := range []string{"health", "election", "registration", "operators", "agents"} {
		t.Run(name, func(t *testing.T) {
			r := newTestShard(t)
			r.configure(nil)
			// Start another server first, which creates the cluster's CA. The tested server then opens the services'
			// ports at its start.
			if i > 1 {
				free := newTestShard(t)
				free.bucket, free.provider = r.bucket, r.provider
				free.configure(nil)
				p := free.start(testKey)
				p.await("a leader", func() bool { return strings.Contains(p.log.String(), "serving as leader") })
				_ = p.end()
				r.configure(nil)
			}
			l, err := net.Listen("tcp", r.ports[i])
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			want := fmt.Sprintf("listen on %s for %s: the port is taken", r.ports[i], name)
			if i == 0 { // without this port there is no status page
				r.set = func(cfg *Config) { cfg.Log = slog.New(closeOnLog{cfg.Log.Handler(), want, l}) }
			}
			p := r.start(testKey)
			if i > 0 {
				p.awaitReason(want)
				_ = l.Close()
			}
			p.await("two VMs", func() bool { return r.running() == 2 })
			p.await("readiness", func() bool { code, _ := p.get(r.ports[0]); return code == http.StatusOK })
			if !strings.Contains(p.log.String(), want) {
				t.Errorf("the log lacks %q:\n%s", want, p.log)
			}
		})
	}
}

// closeOnLog closes a listener when an error with a certain text is logged.
type closeOnLog struct {
	slog.Handler
	text     string
	listener net.Listener
}

func (h closeOnLog) Handle(ctx context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if strings.Contains(a.Value.String(), h.text) {
			_ = h.listener.Close()
		}
		return true
	})
	return h.Handler.Handle(ctx, r)
}

// TestLeaderWithTakenPortHandsOver checks that a new leader that cannot serve releases the lock and reports why.
func TestLeaderWithTakenPortHandsOver(t *testing.T) {
	r := newTestShard(t)
	r.configure(nil)
	l, err := net.Listen("tcp", r.ports[4])
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := r.start(testKey)
	p.await("the handover", func() bool { return strings.Contains(p.log.String(), `"leadership given up"`) })
	p.awaitReason("the port is taken")
	lock, err := r.bucket.Get(t.Context(), keys.Leader("a"))
	if err != nil {
		t.Fatal(err)
	}
	if decoded, err := record.DecodeLock(lock.Body); err != nil || decoded.Term == 1 && !decoded.Released {
		t.Errorf("the lock is %s (%v), want it released", lock.Body, err)
	}
	if log := p.log.String(); strings.Contains(log, `"reason":null`) {
		t.Errorf("the log has no reason for the end of the term:\n%s", log)
	}
	_ = l.Close()
	p.await("two VMs", func() bool { return r.running() == 2 })
	p.await("readiness", func() bool { code, _ := p.get(r.ports[0]); return code == http.StatusOK })
}

// outage is a store that cannot be reached until a given time of a fake clock.
type outage struct {
	objstore.Store
	now  *time.Time
	over time.Time
}

func (o outage) Put(ctx context.Context, key string, body []byte, c objstore.Condition) (objstore.Token, error) {
	if o.now.Before(o.over) {
		return "", fmt.Errorf("put %s: %w", key, syscall.ECONNREFUSED)
	}
	return o.Store.Put(ctx, key, body, c)
}

// TestReadySoonAfterTheStoreReturns starts a server while the store is down.
func TestReadySoonAfterTheStoreReturns(t *testing.T) {
	for _, down := range []time.Duration{20 * time.Second, 150 * time.Second, time.Hour} {
		r := newTestShard(t)
		r.configure(nil)
		began := time.Now()
		now := began
		store := outage{r.bucket, &now, began.Add(down)}
		s := newServer(Config{
			Options: Options{ID: "s", Shard: "a", CacheDir: t.TempDir(), Location: objstore.Location{Provider: "mem"}},
			Log:     slog.New(slog.DiscardHandler), Bucket: store,
			KeySources: []keyring.Source{{Name: config.EnvKeySource,
				Read: func(context.Context, config.KeySource) ([]byte, error) { return []byte(testKey), nil }}},
			Clouds: []infra.Cloud{mock.Cloud(r.provider, "machine")},
		})
		s.env.Sleep = func(_ context.Context, d time.Duration) error {
			now = now.Add(d)
			return nil
		}
		if err := errors.Join(s.openBucket(t.Context()), s.prepare(t.Context())); err != nil {
			t.Fatal(err)
		}
		if took := now.Sub(store.over); took > 12*time.Second {
			t.Errorf("after an outage of %v the server needed %v, want at most 12 s", down, took)
		}
	}
}

func TestManyOrphansWaitForConfirmation(t *testing.T) {
	r := newTestShard(t)
	four := func(doc map[string]any) {
		doc["groups"] = map[string]any{"default": map[string]any{"g": map[string]any{"template": "t", "size": 4}}}
	}
	r.configure(four)
	p := r.start(testKey)
	p.await("four VMs", func() bool { return r.running() == 4 })
	_ = p.end()
	entries, err := r.bucket.List(t.Context(), "shard/a/instance/")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if err := r.bucket.Delete(t.Context(), entry.Key); err != nil {
			t.Fatal(err)
		}
	}
	next := r.start(testKey)
	confirmed := func() int { return strings.Count(next.log.String(), `"orphan confirmed"`) }
	next.await("a stopped garbage collection", func() bool {
		return next.metric(`nstance_alerts_total{cluster="test",kind="orphans",shard="a"}`) == "1" &&
			next.metric(`nstance_alert_active{cluster="test",kind="orphans",shard="a"}`) == "1"
	})
	next.confirm <- nil
	next.await("four orphans to be confirmed", func() bool { return confirmed() == 4 })
	// After the garbage collection there are no orphans to confirm.
	next.await("nothing to be confirmed", func() bool {
		next.confirm <- nil
		return strings.Contains(next.log.String(), `"orphans confirmed","count":0`)
	})
}

func TestImagesAreLookedUp(t *testing.T) {
	r := newTestShard(t)
	asked := make(chan infra.ImageQuery, 100)
	made := make(chan map[string]any, 100)
	r.provider = mock.New(mock.Config{Now: time.Now, Script: mock.OnCreate(func(c mock.Call) {
		made <- c.Request.Args
	}), Images: func(q infra.ImageQuery) (string, error) {
		asked <- q
		if q.Filters["name"][0] == "gone-*" {
			return "", infra.NotFound
		}
		return "image-7", nil
	}})
	r.configure(func(doc map[string]any) {
		image := func(name string) map[string]any {
			return map[string]any{"provider": "mock", "owners": []string{"o"}, "fallback": "image-1",
				"filters": []map[string]any{{"name": "name", "values": []string{name}}}}
		}
		doc["images"] = map[string]any{"debian": image("debian-*"), "gone": image("gone-*")}
		doc["defaults"].(map[string]any)["args"] = map[string]any{"image": "{{ .Image.debian }}",
			"other": "{{ .Image.gone }}"}
	})
	p := r.start(testKey)
	p.await("two VMs", func() bool { return r.running() == 2 })
	for range 2 {
		if args := <-made; args["image"] != "image-7" || args["other"] != "image-1" {
			t.Errorf("a VM was asked for with %v", args)
		}
	}
	if q := <-asked; len(q.Owners) != 1 || q.Sort != "creation-date" || !q.Newest {
		t.Errorf("asked for %+v", q)
	}
}
