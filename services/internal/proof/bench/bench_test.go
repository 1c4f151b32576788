package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/internal/server"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
	"github.com/nstance-kit/nstance/services/store/objstore/objstoretest"
)

const groups = 10

// entered is one create call, and the time at which the provider received it.
type entered struct {
	at  time.Time
	req infra.CreateRequest
}

// stack is a leading server with its provider, bucket and agents.
type stack struct {
	b        testing.TB
	fleet    *fleet
	provider *mock.Provider
	counted  *objstoretest.Counted
	creates  []chan entered // one channel per group
	stop     func()
	stopped  chan error
	ports    []string
	ca       string
	boot     bool // start an agent for every VM
	mu       sync.Mutex
	members  [][]string // IDs of the instances with agents, per group
	bucket   objstore.Store
	alone    bool          // the server runs in a separate process
	daemon   *daemon       // set if alone
	interval time.Duration // of reports; 0: the default
	spares   int           // per group
	// spareState is the state of the spares. wakes receives the time of each call that wakes one.
	spareState string
	wakes      chan time.Time
	nonces     []string // of instances without agents
	recorder   *recorder
}

const encryptionKey = "thisisatest32bytekey123456789012"

func freePorts(b testing.TB, n int) []string {
	b.Helper()
	var addrs []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs
}

// newStack starts a server with instances in ten groups. Each instance has a real agent unless withAgents is false.
// Every request to the bucket takes the time `latency`.
func newStack(b testing.TB, instances int, latency time.Duration, withAgents bool) *stack {
	b.Helper()
	s := &stack{b: b, boot: withAgents}
	s.open(instances, latency)
	return s
}

// newAlone is like newStack, but the server runs in a separate process. So the resource use of the server can be
// measured alone.
func newAlone(b testing.TB, instances int, latency time.Duration, withAgents bool) *stack {
	b.Helper()
	s := &stack{b: b, boot: withAgents, alone: true}
	s.open(instances, latency)
	return s
}

func (s *stack) open(instances int, latency time.Duration) {
	b := s.b
	b.Helper()
	s.ports, s.members = freePorts(b, 5), make([][]string, groups)
	s.recorder = startRecorder()
	b.Cleanup(s.recorder.stop)
	for range groups {
		s.creates = append(s.creates, make(chan entered, 4*instances/groups+100))
	}
	if s.boot {
		s.fleet = startFleet(b)
	}
	s.wakes = make(chan time.Time, 4*instances)
	s.provider = mock.New(mock.Config{Now: time.Now, Script: func(_ context.Context, c mock.Call) mock.Outcome {
		switch c.Kind {
		case mock.Create:
			var g int
			_, _ = fmt.Sscanf(c.Request.Tags.Group, "g%d", &g)
			s.creates[g] <- entered{c.At, *c.Request}
		case mock.Wake:
			s.wakes <- c.At
		}
		return mock.Outcome{}
	}})
	store := mem.New(mem.Options{Inject: func(context.Context, mem.Request) mem.Fault {
		return mem.Fault{Before: latency}
	}, Sleep: pause})
	s.counted = objstoretest.NewCounted(store)
	s.bucket = s.counted
	if _, err := store.Put(context.Background(), keys.Config("bench"), s.config(b, instances),
		objstore.Always()); err != nil {
		b.Fatal(err)
	}
	s.start()
	b.Cleanup(s.shutDown)
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func (s *stack) config(b testing.TB, instances int) []byte {
	b.Helper()
	list := map[string]any{}
	for g := range groups {
		list[fmt.Sprintf("g%d", g)] = map[string]any{"template": "t", "size": instances / groups,
			"spares": map[string]any{"count": s.spares, "state": cmp.Or(s.spareState, config.SparesRunning)}}
	}
	text, err := json.Marshal(map[string]any{
		"cluster": map[string]any{"id": "bench", "secrets": map[string]any{"provider": "object-storage",
			"encryption_key": map[string]any{"provider": "env"}}},
		"server": map[string]any{
			"shard": "bench", "provider": map[string]any{"kind": "mock"},
			"subnet_pools": map[string]any{"p": []string{"a"}},
			"bind": map[string]any{"health_addr": s.ports[0], "election_addr": s.ports[1],
				"registration_addr": s.ports[2], "operator_addr": s.ports[3],
				"agent_addr": s.ports[4]},
			"default_drain_timeout": "0s", "health_check_interval": cmp.Or(s.interval, time.Minute).String(),
		},
		"defaults": map[string]any{"userdata": map[string]any{"content": "{{ .Nonce }}"}},
		"templates": map[string]any{"t": map[string]any{"kind": "bnc", "arch": "amd64", "subnet_pool": "p",
			"files": map[string]any{"app.env": map[string]any{"kind": "env",
				"vars": map[string]any{"ID": "{{ .Instance.ID }}"}}}}},
		"groups": map[string]any{"default": list},
	})
	if err != nil {
		b.Fatal(err)
	}
	if _, problems := config.Parse("bench", text); problems.Err() != nil {
		b.Fatal(problems)
	}
	return text
}

// gcPercent is GOGC in nstance-server.service.
const gcPercent = 50

func (s *stack) start() {
	if s.alone {
		s.daemon = startDaemon(s.b, s.counted, s.provider, s.ports[0])
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stop, s.stopped = cancel, make(chan error, 1)
	dir := s.b.TempDir()
	debug.SetGCPercent(gcPercent)
	go func() {
		s.stopped <- server.Run(ctx, server.Config{
			Options: server.Options{ID: "bench", Shard: "bench", CacheDir: dir, HealthAddr: s.ports[0],
				Location: objstore.Location{Provider: "mem"}},
			Log: logger(), Bucket: s.counted,
			KeySources: []keyring.Source{{Name: config.EnvKeySource,
				Read: func(context.Context, config.KeySource) ([]byte, error) { return []byte(encryptionKey), nil }}},
			Clouds: []infra.Cloud{mock.Cloud(s.provider, "bench")},
		})
	}()
}

func (s *stack) shutDown() {
	if s.alone {
		if err := s.daemon.shutDown(); err != nil {
			s.b.Errorf("server's process: %v", err)
		}
		return
	}
	s.stop()
	if err := <-s.stopped; err != nil {
		s.b.Errorf("server: %v", err)
	}
}

// fill waits for the provider's create calls in every group, and starts an agent for each call. It returns when each
// group has n instances.
func (s *stack) fill(n int) {
	s.b.Helper()
	var all sync.WaitGroup
	for g := range groups {
		all.Go(func() {
			for len(s.members[g]) < n {
				s.startAgent(g, <-s.creates[g])
			}
		})
	}
	all.Wait()
	if s.boot {
		s.fleet.awaitUp(s.b, n*groups)
		<-time.After(10 * time.Second) // wait until the burst of files, keys and first reports is over
	}
}

func (s *stack) startAgent(g int, e entered) {
	id := e.req.Tags.Instance.String()
	s.members[g] = append(s.members[g], id)
	if !s.boot {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.nonces = append(s.nonces, string(e.req.Userdata))
		return
	}
	s.fleet.orders <- order{Op: "start", ID: id, Nonce: string(e.req.Userdata), CA: s.caBundle(),
		Registration: s.ports[2], Agent: s.ports[4], Spare: e.req.Tags.Spare}
}

func (s *stack) caBundle() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ca == "" {
		object, err := s.bucket.Get(context.Background(), keys.ClusterCA())
		if err != nil {
			panic(err)
		}
		s.ca = string(object.Body)
	}
	return s.ca
}

// percentiles reports the 50th and 99th percentile and the maximum of the durations, in milliseconds.
func percentiles(b *testing.B, name string, took []time.Duration) {
	b.Helper()
	slices.Sort(took)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	b.ReportMetric(ms(took[len(took)/2]), name+"-p50-ms")
	b.ReportMetric(ms(took[len(took)*99/100]), name+"-p99-ms")
	b.ReportMetric(ms(took[len(took)-1]), name+"-max-ms")
	b.ReportMetric(0, "ns/op")
}

// losses causes the loss of one instance of every group every 150 ms. If gone is true, it first ends the VM. Then it
// sends an order of the kind op to the agents' process. It returns the time from each loss to the create call for the
// replacement.
func (s *stack) losses(op string, rounds int, deleted bool) []time.Duration {
	all, _ := s.losing(op, rounds, 150*time.Millisecond, deleted)
	return all
}

// losing is like losses, but with the given period. took has the time from each loss to the create call. agents has the
// first part of that time: until the kernel received the first byte of the agent's message.
func (s *stack) losing(op string, rounds int, period time.Duration, deleted bool) (took, agents []time.Duration) {
	var mu sync.Mutex
	var all sync.WaitGroup
	began := time.Now()
	for g := range groups {
		all.Go(func() {
			// Keep a constant rate without bursts. Every group has its own offset in the period, so that groups that
			// were slow together do not stay synchronized.
			slot := began.Add(period * time.Duration(g) / groups)
			for range rounds {
				for ; time.Until(slot) < 0; slot = slot.Add(period) {
				}
				<-time.After(time.Until(slot) + rand.N(period/groups))
				slot = slot.Add(period)
				s.startPending(g)
				id := s.members[g][0]
				s.members[g] = s.members[g][1:]
				if deleted {
					s.end(id)
				}
				s.fleet.orders <- order{Op: op, ID: id}
				e := <-s.creates[g]
				at := s.fleet.sentAt(s.b, id)
				s.recorder.slow(s.fleet, at, e.at)
				mu.Lock()
				took, agents = append(took, e.at.Sub(at.began)), append(agents, at.wrote.Sub(at.began))
				mu.Unlock()
				s.startAgent(g, e)
			}
		})
	}
	all.Wait()
	return took, agents
}

// startPending starts agents for the create calls that no loss of this benchmark caused. For example, the server may
// have replaced an instance whose agent was disconnected for too long.
func (s *stack) startPending(g int) {
	for {
		select {
		case e := <-s.creates[g]:
			s.startAgent(g, e)
		default:
			return
		}
	}
}

// end ends the VM of an instance at the provider, although the server made no delete call.
func (s *stack) end(id string) {
	instance, err := ident.ParseID(id)
	if err != nil {
		panic(err)
	}
	vm, _ := s.provider.Instance(instance)
	if err := s.provider.Terminate(vm.ProviderID); err != nil {
		panic(err)
	}
}

// measureLosses causes the loss of 1,000 instances, 25 per second. It reports the time from each loss to the create
// call, and the part of that time that passed in the agents' process.
func (s *stack) measureLosses(b *testing.B, name, op string, deleted bool) {
	b.Helper()
	took, agents := s.losing(op, 100, 400*time.Millisecond, deleted)
	percentiles(b, name, took)
	percentiles(b, "agents-part", agents)
}

// BenchmarkPowerOff measures how long it takes from an agent's announcement of a power-off until the server calls the
// provider's create method.
func BenchmarkPowerOff(b *testing.B) {
	for _, agents := range []int{1000, 5000} {
		b.Run(fmt.Sprintf("agents=%d", agents), func(b *testing.B) {
			s := newStack(b, agents, 20*time.Millisecond, true)
			s.fill(agents / groups)
			for b.Loop() {
				s.measureLosses(b, "signal-to-create", "power_off", false)
			}
		})
	}
}

// BenchmarkKilledConnection ends a VM and then closes its agent's connection. It measures the time until the create
// call for the replacement. The server first asks the provider whether the VM is gone. The fake provider answers
// immediately.
func BenchmarkKilledConnection(b *testing.B) {
	s := newStack(b, 1000, 20*time.Millisecond, true)
	s.fill(1000 / groups)
	for b.Loop() {
		s.measureLosses(b, "killed-to-create", "kill", true)
	}
}

// BenchmarkLostAtOnce ends 1,000 VMs of ten groups at the same moment, and measures the time to the last create call.
// Every request to the bucket takes 20 ms.
func BenchmarkLostAtOnce(b *testing.B) {
	s := newStack(b, 1000, 20*time.Millisecond, true)
	s.fill(1000 / groups)
	for b.Loop() {
		lists := s.provider.Count(mock.List)
		gets := s.provider.Count(mock.Get)
		var lost []string
		for g := range groups {
			lost = append(lost, s.members[g]...)
			s.members[g] = nil
		}
		for _, vm := range s.provider.VMs() {
			if err := s.provider.Terminate(vm.ProviderID); err != nil {
				b.Fatal(err)
			}
		}
		began := time.Now()
		for _, id := range lost {
			s.fleet.orders <- order{Op: "kill", ID: id}
		}
		var last time.Time
		for g := range groups {
			for range 1000 / groups {
				e := <-s.creates[g]
				if e.at.After(last) {
					last = e.at
				}
			}
		}
		b.ReportMetric(last.Sub(began).Seconds(), "all-creates-s")
		b.ReportMetric(float64(s.provider.Count(mock.List)-lists), "list-calls")
		b.ReportMetric(float64(s.provider.Count(mock.Get)-gets), "get-calls")
		b.ReportMetric(0, "ns/op")
	}
}

// BenchmarkIdleStorage measures how many bucket requests per hour a shard with one server causes while nothing happens.
func BenchmarkIdleStorage(b *testing.B) {
	s := newStack(b, 100, 0, true)
	s.fill(100 / groups)
	<-time.After(10 * time.Second)
	for b.Loop() {
		const span = 6 * time.Minute
		before := s.counted.Counts()
		<-time.After(span)
		spent := s.counted.Counts().Sub(before)
		scale := float64(time.Hour) / float64(span)
		b.ReportMetric(float64(spent.Total())*scale, "requests/h")
		b.ReportMetric(float64(spent.Put)*scale, "puts/h")
		b.ReportMetric(float64(spent.Get)*scale, "gets/h")
		b.ReportMetric(0, "ns/op")
	}
}

// BenchmarkHandOver stops a server, and measures the time until the next one leads.
func BenchmarkHandOver(b *testing.B) {
	s := newStack(b, 100, 5*time.Millisecond, false)
	s.fill(100 / groups)
	for b.Loop() {
		began := time.Now()
		s.shutDown()
		released := time.Since(began)
		s.start()
		s.awaitTerm(b)
		b.ReportMetric(released.Seconds()*1000, "stop-ms")
		b.ReportMetric(time.Since(began).Seconds()*1000, "stop-to-lead-ms")
		b.ReportMetric(0, "ns/op")
	}
}

// awaitTerm waits until the server that was started last has become leader.
func (s *stack) awaitTerm(b testing.TB) {
	b.Helper()
	await(b, "the next leader", func() bool {
		response, err := http.Get("http://" + s.ports[0] + "/leader")
		if err != nil {
			return false
		}
		return response.Body.Close() == nil && response.StatusCode == http.StatusOK
	})
}
