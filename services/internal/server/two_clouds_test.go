package server

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/agent"
	"github.com/nstance-kit/nstance/services/internal/proof/foldertest"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// cuttable is a bucket in another cloud. While it is cut off, requests get no answer until their timeout.
type cuttable struct {
	objstore.Store
	cut atomic.Bool
}

func (c *cuttable) wait(ctx context.Context) error {
	if c.cut.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (c *cuttable) Get(ctx context.Context, key string) (objstore.Object, error) {
	if err := c.wait(ctx); err != nil {
		return objstore.Object{}, err
	}
	return c.Store.Get(ctx, key)
}

func (c *cuttable) Put(ctx context.Context, key string, body []byte, cond objstore.Condition) (objstore.Token, error) {
	if err := c.wait(ctx); err != nil {
		return "", err
	}
	return c.Store.Put(ctx, key, body, cond)
}

func (c *cuttable) List(ctx context.Context, prefix string) ([]objstore.Entry, error) {
	if err := c.wait(ctx); err != nil {
		return nil, err
	}
	return c.Store.List(ctx, prefix)
}

// memoryNet is the network of one server, in memory.
type memoryNet struct {
	mu        sync.Mutex
	listeners map[string]*bufconn.Listener
}

// memoryListener frees its address when it is closed.
type memoryListener struct {
	*bufconn.Listener
	close func()
}

func (l memoryListener) Close() error {
	l.close()
	return l.Listener.Close()
}

func (n *memoryNet) Listen(_ context.Context, addr string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[addr] != nil {
		return nil, syscall.EADDRINUSE
	}
	l := bufconn.Listen(1 << 20)
	n.listeners[addr] = l
	return memoryListener{l, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.listeners, addr)
	}}, nil
}

func (n *memoryNet) Dial(ctx context.Context, addr string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[addr]
	n.mu.Unlock()
	if l == nil {
		return nil, syscall.ECONNREFUSED
	}
	return l.DialContext(ctx)
}

// virtualClock is the time of a synctest bubble.
type virtualClock struct{ start time.Time }

func (c virtualClock) Now() election.Instant { return election.Instant(time.Since(c.start)) + 1 }

// twoClouds is a shard in virtual time, with the default intervals. The cluster's bucket is in another cloud.
type twoClouds struct {
	*testShard
	cluster *cuttable
	start   time.Time
	network atomic.Pointer[memoryNet] // of the server that agents reach

	agents sync.WaitGroup
	mu     sync.Mutex
	vms    map[ident.ID]*simulatedVM
}

type simulatedVM struct {
	end   context.CancelFunc
	files *foldertest.Memory
}

const clusterSecret = "cluster-secret"

func newTwoClouds(t *testing.T) *twoClouds {
	t.Helper()
	c := &twoClouds{testShard: &testShard{t: t, bucket: mem.New(mem.Options{}),
		ports: []string{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4", "127.0.0.1:5"}},
		cluster: &cuttable{Store: mem.New(mem.Options{})}, start: time.Now(), vms: map[ident.ID]*simulatedVM{}}
	c.provider = mock.New(mock.Config{Now: time.Now, Script: mock.OnCreate(c.boot)})
	ring := keyring.Ring{Current: must(keyring.Parse([]byte(testKey)))(t)}
	secrets := secretstore.NewObjects(secretstore.Options{Bucket: c.cluster, Cluster: "test", Ring: ring,
		Rand: rand.Reader})
	if err := secrets.Put(t.Context(), clusterSecret, secretstore.NewValue([]byte("1")), secretstore.Any); err != nil {
		t.Fatal(err)
	}
	c.configure("first")
	t.Cleanup(func() {
		for _, vm := range c.vms {
			vm.end()
		}
		c.agents.Wait()
	})
	return c
}

// configure sets a configuration. Its VMs have a file with the given text and one with a secret.
func (c *twoClouds) configure(text string) {
	c.t.Helper()
	c.testShard.configure(func(doc map[string]any) {
		doc["cluster"].(map[string]any)["storage"] = map[string]any{"provider": "s3", "bucket": "elsewhere"}
		doc["server"].(map[string]any)["check_registration_address"] = false
		doc["defaults"] = map[string]any{"userdata": map[string]any{"content": "{{ .Nonce }}\n{{ .Cluster.CACert }}"}}
		doc["templates"].(map[string]any)["t"].(map[string]any)["files"] = map[string]any{
			"text.txt":   map[string]any{"kind": "string", "content": text},
			"secret.txt": map[string]any{"kind": "secret", "source": clusterSecret}}
	})
}

// boot starts the agent of a VM.
func (c *twoClouds) boot(call mock.Call) {
	nonce, ca, _ := bytes.Cut(call.Request.Userdata, []byte("\n"))
	memory := &[3]foldertest.Memory{}
	for name, content := range map[string][]byte{"nonce.jwt": nonce, "ca.crt": ca} {
		if err := memory[0].Write(name, content, 0o600); err != nil {
			c.t.Error(err)
		}
	}
	ctx, end := context.WithCancel(context.Background())
	c.mu.Lock()
	c.vms[call.Instance] = &simulatedVM{end, &memory[2]}
	c.mu.Unlock()
	client := agent.New(agent.Options{ID: call.Instance, RegistrationAddrs: []string{c.ports[2]},
		AgentAddrs: []string{c.ports[4]}, Identity: &memory[0], Keys: &memory[1], Files: &memory[2],
		IdentityMode: 0o600, KeysMode: 0o640, FilesMode: 0o640, Machine: quietMachine{}, Version: "test",
		Extensions: []string{".txt"}, Log: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context, addr string) (net.Conn, error) { return c.network.Load().Dial(ctx, addr) }})
	c.agents.Go(func() { _ = client.Run(ctx) })
}

// kill ends a VM as a failure of its host does.
func (c *twoClouds) kill(id ident.ID) {
	c.t.Helper()
	vm, ok := c.provider.Instance(id)
	if !ok {
		c.t.Fatalf("there is no VM of %s", id)
	}
	if err := c.provider.Kill(vm.ProviderID); err != nil {
		c.t.Fatal(err)
	}
	c.vms[id].end()
}

// virtualServer is one server process in virtual time.
type virtualServer struct {
	*server
	net  *memoryNet
	log  *lockedBuffer
	stop context.CancelFunc
	done chan error
}

func (c *twoClouds) serve(id string) *virtualServer {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &virtualServer{net: &memoryNet{listeners: map[string]*bufconn.Listener{}}, log: &lockedBuffer{}, stop: cancel,
		done: make(chan error, 1)}
	p.server = newServer(Config{
		Options: Options{ID: id, Shard: "a", CacheDir: c.t.TempDir(), HealthAddr: c.ports[0],
			Location: objstore.Location{Provider: "mem"}},
		Log: slog.New(slog.NewJSONHandler(p.log, nil)), Bucket: c.bucket, ClusterBucket: c.cluster,
		Listen: p.net.Listen,
		KeySources: []keyring.Source{{Name: config.EnvKeySource,
			Read: func(context.Context, config.KeySource) ([]byte, error) { return []byte(testKey), nil }}},
		Clouds: []infra.Cloud{mock.Cloud(c.provider, "machine")},
	})
	p.server.clock = virtualClock{c.start}
	go func() { p.done <- p.server.main(ctx) }()
	c.t.Cleanup(func() {
		p.end(c.t)
		if c.t.Failed() {
			c.t.Logf("--- %s\n%s", id, p.log)
		}
	})
	return p
}

// end stops the server, if it still runs.
func (p *virtualServer) end(t *testing.T) {
	t.Helper()
	p.stop()
	err := <-p.done
	p.done <- nil
	if err != nil {
		t.Error(err)
	}
}

// health returns the answer of the server at /health.
func (p *virtualServer) health(t *testing.T) (code int, says string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) { return p.net.Dial(ctx, addr) }}}
	resp, err := client.Get("http://127.0.0.1:1/health")
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body)
}

// healthy returns the IDs of the shard's VMs, sorted, if this server leads and all of them are registered and healthy.
func (p *virtualServer) healthy(c *twoClouds) []string {
	l := p.leading.Load()
	if l == nil {
		return nil
	}
	for _, id := range c.alive() {
		view, ok := l.leader.State.Instance(must(ident.ParseID(id))(c.t))
		if !ok || view.Record.RegisteredAt.IsZero() || view.Plan.LastReport.IsZero() ||
			time.Since(view.Plan.LastReport) > 2*time.Minute {
			return nil
		}
	}
	return c.alive()
}

// alive returns the IDs of the running VMs, sorted.
func (c *twoClouds) alive() (ids []string) {
	for _, vm := range c.provider.VMs() {
		if vm.State.Alive() {
			ids = append(ids, vm.Tags.Instance.String())
		}
	}
	slices.Sort(ids)
	return ids
}

// files returns the content of a file on each running VM, by ID.
func (c *twoClouds) files(name string) map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := map[string]string{}
	for id, vm := range c.vms {
		if one, ok := c.provider.Instance(id); ok && one.State.Alive() {
			content, _ := vm.files.Read(name)
			found[id.String()] = string(content)
		}
	}
	return found
}

// haveAll reports whether all VMs have a file with the given content.
func haveAll(files map[string]string, content string) bool {
	for _, one := range files {
		if one != content {
			return false
		}
	}
	return len(files) > 0
}

// await lets virtual time pass until done returns true.
func (c *twoClouds) await(what string, within time.Duration, done func() bool) {
	c.t.Helper()
	for began := time.Now(); !done(); time.Sleep(time.Second) {
		if time.Since(began) > within {
			c.t.Fatalf("not within %s: %s", within, what)
		}
	}
}

// during checks every ten seconds of a time that the same VMs run, and that each server is healthy.
func (c *twoClouds) during(d time.Duration, want []string, servers ...*virtualServer) {
	c.t.Helper()
	for began := time.Now(); time.Since(began) < d; time.Sleep(10 * time.Second) {
		if now := c.alive(); !slices.Equal(now, want) {
			c.t.Fatalf("after %s the VMs are %v, want %v", time.Since(began), now, want)
		}
		for _, p := range servers {
			if code, says := p.health(c.t); code != http.StatusOK {
				c.t.Fatalf("after %s the server is not healthy: %s", time.Since(began), says)
			}
		}
	}
}

// TestOtherCloudUnreachableForTenMinutes cuts a shard off from the cluster's bucket for ten minutes, in virtual time and
// with the default intervals. The leader leads on and replaces nothing but a lost VM, new configurations are applied,
// and everything that waits is done when the bucket answers again.
func TestOtherCloudUnreachableForTenMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTwoClouds(t)
		p := c.serve("one")
		c.network.Store(p.net)
		c.await("two healthy VMs", 2*time.Minute, func() bool { return len(p.healthy(c)) == 2 })
		first := c.alive()
		c.during(9*time.Minute, first, p)
		c.configure("before") // The server reads the secret, and remembers it for five minutes.
		c.during(time.Minute, first, p)
		if got := c.files("text.txt"); !haveAll(got, "before") {
			t.Errorf("before the cut the files are %q", got)
		}

		c.cluster.cut.Store(true)
		c.configure("second")
		c.during(2*time.Minute, first, p)
		if got := c.files("text.txt"); !haveAll(got, "second") {
			t.Errorf("with the remembered secret the files are %q", got)
		}
		const outage = "leads in term 1, but cannot read the cluster's bucket since "
		if _, says := p.health(t); !strings.Contains(says, outage) {
			t.Errorf("the server says %q, want %q", says, outage)
		}
		if raised := p.leading.Load().leader.State.Alerts()[plan.AlertStorage]; raised != 1 {
			t.Errorf("%d alerts", raised)
		}
		c.during(3*time.Minute, first, p)
		c.configure("third") // The secret is in the server's memory no more: agents keep the file that has it.
		c.during(2*time.Minute, first, p)
		if got := c.files("text.txt"); !haveAll(got, "third") || !haveAll(c.files("secret.txt"), "1") {
			t.Errorf("without the secret the files are %q, %q", got, c.files("secret.txt"))
		}
		lost := must(ident.ParseID(first[0]))(t)
		c.kill(lost)
		c.await("the lost VM is replaced", time.Minute, func() bool {
			now := c.alive()
			return len(now) == 2 && !slices.Contains(now, first[0])
		})
		now := c.alive()
		c.during(2*time.Minute, now, p)
		if len(p.healthy(c)) != 0 {
			t.Error("a new VM has registered without the cluster's bucket")
		}

		c.cluster.cut.Store(false)
		c.await("the new VM registers", 2*time.Minute, func() bool { return slices.Equal(p.healthy(c), now) })
		c.await("all files on the new VM", 6*time.Minute, func() bool {
			return haveAll(c.files("text.txt"), "third") && haveAll(c.files("secret.txt"), "1")
		})
		c.await("the end of the alert", 2*time.Minute, func() bool {
			_, says := p.health(t)
			return says == "ok: leads in term 1\n" &&
				p.leading.Load().leader.State.Alerts()[plan.AlertStorage] == 0
		})
		c.during(10*time.Minute, now, p)
	})
}

// TestFailOverWhileOtherCloudIsUnreachable stops the leader while the shard is cut off from the cluster's bucket. No
// server can lead for ten minutes, and the servers say why. Nothing happens to the VMs, then and later.
func TestFailOverWhileOtherCloudIsUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTwoClouds(t)
		one := c.serve("one")
		c.network.Store(one.net)
		c.await("two healthy VMs", 2*time.Minute, func() bool { return len(one.healthy(c)) == 2 })
		vms := c.alive()
		two := c.serve("two")
		c.during(10*time.Minute, vms, one)

		c.cluster.cut.Store(true)
		c.during(time.Minute, vms, one, two)
		one.end(t)
		c.network.Store(two.net)
		three := c.serve("three")
		c.during(10*time.Minute, vms, two)
		if two.leading.Load() != nil || three.leading.Load() != nil {
			t.Error("a server leads without the cluster's keys")
		}
		const reason = "cluster.storage: load nonce key: "
		c.await("the standby says why it does not lead", time.Minute, func() bool {
			_, says := two.health(t)
			return strings.HasPrefix(says, "no leader is known: this server gave up its leadership") &&
				strings.Contains(says, reason)
		})
		c.await("a server that starts says why it is not ready", time.Minute, func() bool {
			code, says := three.health(t)
			return code == http.StatusServiceUnavailable && strings.HasPrefix(says, "cluster.storage: ")
		})

		c.cluster.cut.Store(false)
		c.await("another leader", 2*time.Minute, func() bool {
			for _, p := range []*virtualServer{two, three} {
				if p.leading.Load() != nil {
					c.network.Store(p.net)
					return true
				}
			}
			return false
		})
		c.during(time.Minute, vms, two)
		c.during(10*time.Minute, vms, two, three)
		if !slices.Equal(two.healthy(c), vms) && !slices.Equal(three.healthy(c), vms) {
			t.Error("not all VMs are healthy")
		}
	})
}
