package histories

import (
	"cmp"
	"context"
	cryptorand "crypto/rand"
	"crypto/x509"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/internal/server/lead/lease"
	"github.com/nstance-kit/nstance/services/internal/server/lead/peer"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/s3"
	fakes3 "github.com/nstance-kit/nstance/tests/cloud/fakeaws/s3"
)

const (
	lockKey      = "shard/dev/leader.json"
	bucketName   = "lock"
	checkTimeout = time.Minute
)

var (
	// options make elections quick. The elector derives all other durations from Lease and Renew.
	options = election.Options{Lease: 800 * time.Millisecond, Renew: 200 * time.Millisecond}
	// peerOptions are options with heirs.
	peerOptions = election.Options{Lease: 800 * time.Millisecond, Renew: 200 * time.Millisecond,
		PeerLease:    250 * time.Millisecond,
		PeerInterval: 50 * time.Millisecond, HeirLease: 2400 * time.Millisecond, HeirRenew: 600 * time.Millisecond,
		HeirProbation: 300 * time.Millisecond}
)

// backend starts the real S3 server with an empty bucket.
func backend(t *testing.T) fakes3.Backend {
	t.Helper()
	for _, name := range []string{"AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"} {
		t.Setenv(name, filepath.Join(t.TempDir(), "none"))
	}
	for _, name := range []string{"AWS_PROFILE", "AWS_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3",
		"AWS_CA_BUNDLE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	tool := exec.CommandContext(t.Context(), "../../../../scripts/tool.sh", "versitygw")
	tool.Stderr = os.Stderr
	binary, err := tool.Output()
	if err != nil {
		t.Fatalf("build versitygw: %v", err)
	}
	dir := t.TempDir()
	b, stop, err := fakes3.Start(t.Context(), dir, strings.TrimSpace(string(binary)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if output := stop(); t.Failed() {
			t.Logf("versitygw: %s", output)
		}
	})
	// The posix backend treats every directory as a bucket.
	if err := os.Mkdir(filepath.Join(dir, "objects", bucketName), 0o700); err != nil {
		t.Fatal(err)
	}
	return b
}

func openStore(ctx context.Context, url, access, secret string) (*s3.Store, error) {
	return s3.New(ctx, objstore.Location{Bucket: bucketName, Region: "us-east-1", Endpoint: url, PathStyle: true},
		credentials.NewStaticCredentialsProvider(access, secret, ""))
}

// reign is a period in which a process had authority. The process checked its authority at the beginning of the period,
// many times during it, and at its end.
type reign struct {
	Process    string
	Term       uint64
	From, Last election.Instant
}

// reigns collects all observed periods of authority. It is safe for concurrent use.
type reigns struct {
	mu   sync.Mutex
	all  []reign
	last election.Instant // when any process last had authority
}

// begin adds a period of authority, and returns a function that moves its end to a later time.
func (r *reigns) begin(process string, term uint64) (extend func(at election.Instant)) {
	index := -1
	return func(at election.Instant) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if index < 0 {
			index = len(r.all)
			r.all = append(r.all, reign{Process: process, Term: term, From: at})
		}
		r.all[index].Last = at
		r.last = max(r.last, at)
	}
}

// since reports whether any process has had authority after the given instant.
func (r *reigns) since(at election.Instant) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last > at
}

// act checks the authority in a loop, and records the times at which the process had it. It reads the clock before each
// check. If the process has authority at the check, it also had it when the clock was read.
func act(ctx context.Context, clock lease.Clock, a *lease.Authority, extend func(election.Instant)) {
	ticker := time.NewTicker(500 * time.Microsecond)
	defer ticker.Stop()
	for {
		if at := clock.Now(); a.Remaining() > 0 {
			extend(at)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// check fails the test if two processes had authority at the same time, or if a later term has a lower number.
func (r *reigns) check(t *testing.T) (terms int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.SortFunc(r.all, func(a, b reign) int { return cmp.Compare(a.From, b.From) })
	for i := 1; i < len(r.all); i++ {
		before, after := r.all[i-1], r.all[i]
		if after.From <= before.Last {
			t.Errorf("two leaders at a time: %s in term %d until %d, %s in term %d from %d", before.Process,
				before.Term,
				before.Last, after.Process, after.Term, after.From)
		}
		if after.Term <= before.Term {
			t.Errorf("term %d of %s came after term %d of %s", after.Term, after.Process, before.Term, before.Process)
		}
	}
	return len(r.all)
}

// TestLock runs the election of three processes against a real S3 server, each with a separate unreliable network. It
// then checks that there was one leader at a time, and that the lock behaved like one register. In runs with peers, the
// processes also talk to each other over real, unreliable connections.
func TestLock(t *testing.T) {
	if testing.Short() {
		t.Log("the real S3 server is left out of a short run")
		return
	}
	b := backend(t)
	cluster := transporttest.New(t)
	for name, options := range map[string]election.Options{"alone": options, "peers": peerOptions} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := lease.SystemClock()
			e := &electionRun{options: options, clock: clock, seen: &reigns{},
				history: &history{clock: clock, key: "shard/" + name + "/leader.json"}}
			if options.PeerLease > 0 {
				e.cluster = cluster
			}
			e.play(t, b)
		})
	}
}

// electionRun is a run in which candidates compete for one lock. It records when each of them had authority, and their
// requests for the lock.
type electionRun struct {
	options election.Options
	clock   lease.Clock
	seen    *reigns
	history *history
	cluster *transporttest.Cluster // nil: candidates do not talk to each other
}

func (e *electionRun) play(t *testing.T, b fakes3.Backend) {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	duration := 20 * time.Second
	if text := os.Getenv("PROOF_DURATION"); text != "" {
		var err error
		if duration, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()

	var running sync.WaitGroup
	var proxies []*proxy
	var relays []*relay
	for i := range 3 {
		c := &candidate{electionRun: e, id: fmt.Sprintf("server-%d", i), rng: rand.New(rand.NewPCG(seed, uint64(10+i)))}
		p := newProxy(t, strings.TrimPrefix(b.URL, "unix://"), seed+uint64(i), 2*e.options.Lease)
		proxies = append(proxies, p)
		store, err := openStore(ctx, p.url, b.Access, b.Secret)
		if err != nil {
			t.Fatal(err)
		}
		c.store = recorded{store, e.history, i}
		if e.cluster != nil {
			c.relay = newRelay(t)
			relays = append(relays, c.relay)
			if c.source, err = transport.NewSource(transport.Options{
				Identity: authority.Identity{Role: authority.RoleServer, Cluster: e.cluster.Name, Shard: "dev",
					Server: c.id}, Hosts: []string{"127.0.0.1"}, CA: e.cluster.CA,
				Bundle: []*x509.Certificate{e.cluster.CA.Certificate()}, Rand: cryptorand.Reader,
				Now: e.cluster.Clock.Now, Log: e.cluster.Log,
			}); err != nil {
				t.Fatal(err)
			}
		}
		running.Go(func() { c.stand(ctx) })
	}
	w := &weather{electionRun: e, proxies: proxies, relays: relays, rng: rand.New(rand.NewPCG(seed, 9))}
	w.play(duration)
	w.fair()
	// On a good network a candidate must lead soon, even if delayed requests from the bad network still arrive.
	from := e.clock.Now()
	_, before := e.history.heirs()
	if !within(20*e.options.Lease, func() bool { return e.seen.since(from.Add(e.options.Lease)) }) {
		t.Error("no server leads although the network works again")
	}
	// Every process restarts at least every ten seconds, and so does the leader. Therefore an heir must take over soon,
	// even on a good network.
	if e.cluster != nil && !within(30*time.Second, func() bool {
		_, inherited := e.history.heirs()
		return inherited > before
	}) {
		t.Error("no heir has taken over since the network is good again")
	}
	stop()
	running.Wait()
	terms := e.seen.check(t)
	if terms < 2 { // every process restarts within ten seconds
		t.Errorf("%d leaderships: the leader has not changed once", terms)
	}
	e.history.check(t)
	total := map[string]int64{}
	for _, p := range proxies {
		for f := range faultKinds {
			total[faultNames[f]] += p.counts[f].Load()
		}
	}
	t.Logf("%d leaderships in %v; requests: %v", terms, duration, total)
	if e.cluster == nil {
		return
	}
	between := map[string]int{}
	for _, r := range relays {
		for w, n := range r.counts {
			between[weatherNames[w]] += n
		}
	}
	named, inherited := e.history.heirs()
	t.Logf("heirs named: %d, leaderships inherited: %d; leaders cut off from heir and bucket: %d; weather between "+
		"them: %v", named, inherited, w.betrayed, between)
}

// candidate is one server.
type candidate struct {
	*electionRun
	id     string
	store  recorded
	rng    *rand.Rand
	relay  *relay
	source *transport.Source
}

// stand takes part in the election until ctx ends. Every few seconds it leaves and takes part again under a new
// incarnation, as a restarted process does.
func (c *candidate) stand(ctx context.Context) {
	for life := 0; ctx.Err() == nil; life++ {
		name := fmt.Sprintf("%s-%d", c.id, life)
		run, end := context.WithTimeout(ctx, 2*time.Second+time.Duration(c.rng.Int64N(int64(8*time.Second))))
		config := lease.Config{
			Store: c.store, Key: c.history.key, Options: c.options, Clock: c.clock, StopTimeout: time.Second,
			Log:         slog.New(slog.DiscardHandler),
			Self:        election.Identity{ID: c.id, Incarnation: name},
			HighestTerm: func(context.Context) (uint64, error) { return 0, nil },
			Lead: func(ctx context.Context, a *lease.Authority) error {
				act(ctx, c.clock, a, c.seen.begin(name, a.Term()))
				return nil
			},
		}
		hangUp := func() {}
		if c.relay != nil {
			config.Self.Addresses.Election = c.relay.addr
			config.Links, hangUp = c.connect(config.Self.Peer())
		}
		// Run returns an error if the release of the lock gets no answer. That is expected on this unreliable network.
		_ = lease.Run(run, config)
		hangUp()
		end()
	}
}

// connect opens the election port of a process and makes its relay forward to this port. It also connects the process
// to the ports of the others.
func (c *candidate) connect(self election.Peer) (lease.Links, func()) {
	log := slog.New(slog.DiscardHandler)
	network := peer.New(peer.Options{Self: self, Shard: "dev", Bucket: c.store.Store, Source: func() *transport.Source {
		return c.source
	}, Log: log,
		Sleep: func(ctx context.Context, d time.Duration) error {
			within(min(d, c.options.HeirProbation/4), func() bool { return ctx.Err() != nil })
			return ctx.Err()
		}})
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		panic(err) // there are no ports left
	}
	c.relay.to(listener.Addr().String())
	server := network.Server(c.source)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	running.Go(func() { network.Run(ctx) })
	return network, func() {
		stop()
		server.Stop()
		running.Wait()
	}
}

// weather sets the quality of all connections, to the bucket and between the servers.
type weather struct {
	*electionRun
	proxies  []*proxy
	relays   []*relay
	rng      *rand.Rand
	betrayed int // number of leaders that lost their heir and the bucket at the same time
}

// play changes the quality of the connections about once per second. If leaders have heirs, half of the changes cut a
// leader off from its heir and from the bucket at the same time. Promises must then prevent two leaders.
func (w *weather) play(duration time.Duration) {
	for end := time.Now().Add(duration); time.Now().Before(end); {
		if len(w.relays) > 0 && w.rng.IntN(2) == 0 {
			w.betray()
		} else {
			w.change()
		}
	}
}

// fair makes all connections good.
func (w *weather) fair() {
	for _, p := range w.proxies {
		p.set(map[fault]int{none: 1})
	}
	for _, r := range w.relays {
		r.set(fair, w.rng, w.options.PeerLease)
	}
}

// wait waits for a random time between `least` and `most`.
func (w *weather) wait(least, most time.Duration) {
	within(least+time.Duration(w.rng.Int64N(int64(most-least))), func() bool { return false })
}

// change draws the faults of each server's path to the bucket: none, one kind, all kinds, or no answers at all. If
// servers are connected to each other, change also draws the faults of these connections, three times in a row.
func (w *weather) change() {
	for _, p := range w.proxies {
		odds := map[fault]int{none: 6}
		switch w.rng.IntN(4) {
		case 0:
		case 1:
			odds[fault(1+w.rng.IntN(int(faultKinds)-1))] = 6
		case 2:
			for f := slow; f < faultKinds; f++ {
				odds[f] = 1
			}
		case 3:
			odds = w.nothing()
		}
		p.set(odds)
	}
	if len(w.relays) == 0 {
		w.wait(time.Second, 3*time.Second)
		return
	}
	for range 3 {
		for _, r := range w.relays {
			r.set(max(fair, w.rng.IntN(2*weathers)-weathers), w.rng, w.options.PeerLease)
		}
		w.wait(w.options.HeirProbation/2, 3*w.options.HeirProbation)
	}
}

// nothing returns fault weights for a path to the bucket. With them, no request on the path is answered.
func (w *weather) nothing() map[fault]int {
	return map[fault]int{[]fault{cut, halfOpen, lost, late}[w.rng.IntN(4)]: 1}
}

// betray waits for a leader with an heir. It then cuts the leader off from its heir and the bucket. In half of the
// cases, it first slows down the connections between the servers, so that promises arrive late.
func (w *weather) betray() {
	w.fair()
	if w.rng.IntN(2) == 0 {
		for _, r := range w.relays {
			r.set(slowPeers, w.rng, w.options.PeerLease)
		}
	}
	var lock record.Lock
	if !within(4*w.options.HeirLease, func() bool {
		lock = w.history.lock()
		return lock.Heir != election.Peer{} && !lock.Released
	}) {
		return
	}
	w.wait(0, w.options.PeerLease)
	for i := range w.proxies {
		if fmt.Sprintf("server-%d", i) == lock.LeaderID {
			w.betrayed++
			w.proxies[i].set(w.nothing())
			w.relays[i].set([]int{deaf, mute, silent, closed}[w.rng.IntN(4)], w.rng, w.options.PeerLease)
		}
	}
	w.wait(w.options.PeerLease, w.options.HeirLease)
}

// within polls until the condition holds or the time is over, and reports whether it held.
func within(patience time.Duration, holds func() bool) bool {
	end := time.NewTimer(patience)
	defer end.Stop()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		if holds() {
			return true
		}
		select {
		case <-end.C:
			return holds()
		case <-ticker.C:
		}
	}
}
