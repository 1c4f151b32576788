package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/internal/server/lead/peer"
	"github.com/nstance-kit/nstance/services/internal/server/shardconfig"
	"github.com/nstance-kit/nstance/services/store/keyring"
)

func TestRestartView(t *testing.T) {
	named := func(id string) election.Peer { return election.Peer{ID: id, Incarnation: id + "-1"} }
	old := peer.Standby{Peer: named("b"), Restarts: true, Config: "v1"}
	done := peer.Standby{Peer: named("b"), Restarts: true, Config: "v2"}
	refuses := peer.Standby{Peer: named("b"), Restarts: true, Config: "v1", RefusedVersion: "v2", Refusal: "no key"}
	earlier := peer.Standby{Peer: named("b")}
	other := func(s peer.Standby) peer.Standby {
		s.Peer = named("c")
		return s
	}
	for _, tc := range []struct {
		name     string
		standbys []peer.Standby
		expected string
		heir     string
		noHeirs  bool
		waited   time.Duration
		want     restartStep
		reason   string
	}{
		{name: "alone", want: restartNow},
		{name: "the standby has not restarted", standbys: []peer.Standby{old}, heir: "b", want: restartWait,
			reason: "b has not restarted"},
		{name: "the standby restarts", expected: "b", want: restartWait, reason: "b is not connected"},
		{name: "the standby is back", standbys: []peer.Standby{done}, want: restartWait,
			reason: "b has restarted, but is not the heir yet"},
		{name: "the standby is the heir", standbys: []peer.Standby{done}, heir: "b", want: restartNow},
		{name: "no heirs", standbys: []peer.Standby{done}, noHeirs: true, want: restartNow},
		{name: "no heirs, the standby has not restarted", standbys: []peer.Standby{old}, noHeirs: true,
			want: restartWait, reason: "b has not restarted"},
		{name: "the standby does not come back", expected: "b", waited: standbyPatience, want: restartNow,
			reason: "after 30s, b is not connected"},
		{name: "the standby comes back without it", standbys: []peer.Standby{old}, heir: "b", expected: "b",
			waited: standbyPatience, want: restartNow, reason: "after 30s, b has not restarted"},
		{name: "the standby does not become the heir", standbys: []peer.Standby{done}, waited: standbyPatience,
			want: restartNow, reason: "after 30s, b has restarted, but is not the heir yet"},
		{name: "the standby refuses", standbys: []peer.Standby{refuses}, heir: "b", waited: time.Hour,
			want: restartRefused, reason: "server b cannot run with it: no key"},
		{name: "it refused another version", standbys: []peer.Standby{{Peer: named("b"), Restarts: true, Config: "v1",
			RefusedVersion: "v0", Refusal: "no key"}}, want: restartWait, reason: "b has not restarted"},
		{name: "an earlier version of Nstance", standbys: []peer.Standby{earlier}, heir: "b", want: restartNow},
		{name: "one restarts, and one is of an earlier version", standbys: []peer.Standby{earlier}, expected: "c",
			want: restartWait, reason: "c is not connected"},
		{name: "the heir is ready, another refuses", standbys: []peer.Standby{other(refuses), done}, heir: "b",
			want: restartNow},
		{name: "one refuses, another is not ready yet", standbys: []peer.Standby{other(done), refuses}, heir: "b",
			want: restartRefused, reason: "server b cannot run with it: no key"},
		{name: "an earlier incarnation is the heir", standbys: []peer.Standby{{Peer: election.Peer{ID: "b",
			Incarnation: "b-2"}, Restarts: true, Config: "v2"}}, heir: "b", want: restartWait,
			reason: "not the heir yet"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := restartView{wanted: "v2", standbys: tc.standbys, heirs: !tc.noHeirs, waited: tc.waited}
			if tc.heir != "" {
				v.heir = named(tc.heir)
			}
			if tc.expected != "" {
				v.expected = []string{tc.expected}
			}
			if step, reason := v.next(); step != tc.want || !strings.Contains(reason, tc.reason) ||
				(reason == "") != (tc.reason == "") {
				t.Errorf("%d, %q; want %d, %q", step, reason, tc.want, tc.reason)
			}
		})
	}
}

// newKey is the encryption key after a rotation.
const newKey = "another key of thirty-two bytes."

// member is one of two servers of a shard, which is started again when it restarts for a configuration.
type member struct {
	shard *testShard
	n     int // from 1
	// keys are the encryption keys that the server can read.
	keys sync.Map

	mu  sync.Mutex
	run *run
}

// newPairShard returns a shard whose ports are also free for a second server.
func newPairShard(t *testing.T) *testShard {
	t.Helper()
	r := newTestShard(t)
	for i := range r.ports {
		for {
			first, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer first.Close() // until all are found
			host, port, _ := net.SplitHostPort(first.Addr().String())
			number, _ := strconv.Atoi(port)
			if second, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(number+10))); err == nil {
				defer second.Close()
				r.ports[i] = first.Addr().String()
				break
			}
		}
	}
	return r
}

func (r *testShard) newMember(n int) *member {
	m := &member{shard: r, n: n}
	m.keys.Store("NSTANCE_ENCRYPTION_KEY", testKey)
	m.keys.Store("NEW", newKey)
	return m
}

// start starts the server, and starts it again whenever it restarts for a configuration.
func (m *member) start() {
	begun := make(chan struct{})
	go func() {
		for first := true; ; first = false {
			own := *m.shard
			own.set = func(cfg *Config) {
				cfg.Options.ID, cfg.Options.Instance = fmt.Sprintf("s%d", m.n), m.n
				cfg.Options.HealthAddr, _ = shiftPort(cfg.Options.HealthAddr, cfg.Options.shift())
				cfg.Heir.HeirProbation = 100 * time.Millisecond
				cfg.KeySources = []keyring.Source{{Name: config.EnvKeySource,
					Read: func(_ context.Context, k config.KeySource) ([]byte, error) {
						if key, ok := m.keys.Load(k.Source); ok {
							return []byte(key.(string)), nil
						}
						return nil, errors.New(k.Source + " is not set")
					}}}
			}
			p := own.start(testKey)
			m.mu.Lock()
			m.run = p
			m.mu.Unlock()
			if first {
				close(begun)
			}
			if err := p.wait(); !errors.Is(err, ErrRestart) || m.shard.t.Context().Err() != nil {
				return
			}
		}
	}()
	<-begun
}

// now returns the present process.
func (m *member) now() *run {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.run
}

// kill ends the server. Its last writes are lost.
func (m *member) kill() { _ = m.now().end() }

// leads reports whether the server leads and the other one is its heir.
func (m *member) leads(heir *member) bool {
	s := m.now().server
	status := s.status.Load()
	return s.leading.Load() != nil && status != nil && status.Holder.Heir.Incarnation == heir.now().server.incarnation
}

func (m *member) term() uint64 {
	if l := m.now().server.leading.Load(); l != nil {
		return l.leader.State.Term()
	}
	return 0
}

// keysOf returns a change of the configuration to other encryption keys.
func keysOf(key string, earlier ...string) func(map[string]any) {
	return func(doc map[string]any) {
		source := func(name string) map[string]any { return map[string]any{"provider": "env", "source": name} }
		secrets := doc["cluster"].(map[string]any)["secrets"].(map[string]any)
		secrets["encryption_key"] = source(key)
		old := []any{}
		for _, name := range earlier {
			old = append(old, source(name))
		}
		secrets["old_encryption_keys"] = old
		doc["server"].(map[string]any)["leader_election"] = map[string]any{"lease_duration": "2s",
			"renew_interval": "500ms"}
	}
}

// startPair starts two servers with the old key, and waits until the first leads with the second as its heir.
func startPair(t *testing.T) (r *testShard, first, second *member) {
	t.Helper()
	r = newPairShard(t)
	r.configure(keysOf("NSTANCE_ENCRYPTION_KEY"))
	first, second = r.newMember(1), r.newMember(2)
	first.start()
	first.now().await("a leader", func() bool { return first.term() == 1 })
	second.start()
	first.now().await("an heir", func() bool { return first.leads(second) })
	return r, first, second
}

// change puts a configuration into the bucket and tells the leader.
func (m *member) change(change func(map[string]any), want shardconfig.Result) {
	m.shard.t.Helper()
	m.shard.configure(change)
	result, problems, err := m.now().server.leading.Load().operator.Refresh(m.shard.t.Context())
	if err != nil || result != want {
		m.shard.t.Fatalf("the refresh answers %d, %v, %v; want %d", result, problems, err, want)
	}
}

// inForce reports whether a server runs with the configuration of the bucket.
func (m *member) inForce() bool {
	_, token, err := m.now().server.state.ReadConfig(m.shard.t.Context(), "a")
	return err == nil && m.now().server.manager.Status().ETag == string(token)
}

// TestRestartChangesTheLeaderOnce changes the encryption keys two times. Each change restarts both servers, and changes
// the leader once.
func TestRestartChangesTheLeaderOnce(t *testing.T) {
	_, first, second := startPair(t)
	first.change(keysOf("NEW", "NSTANCE_ENCRYPTION_KEY"), shardconfig.Restart)
	first.now().await("what it waits for", func() bool {
		l := first.now().server.leading.Load()
		return l != nil && strings.HasPrefix(l.operator.Status().ConfigWaits, "s2 ")
	})
	second.now().await("the second server leads", func() bool { return second.leads(first) && second.inForce() })
	second.change(keysOf("NSTANCE_ENCRYPTION_KEY", "NEW"), shardconfig.Restart)
	first.now().await("the first server leads", func() bool { return first.leads(second) && first.inForce() })
	if term := first.term(); term != 3 || !second.inForce() {
		t.Errorf("term %d, want 3; the standby has the configuration: %t", term, second.inForce())
	}
}

// TestLeaseLeftWithAnHeir checks that operators see the time until the lease in the bucket ends, not the time until the
// heir's promise ends, which is always less than a second.
func TestLeaseLeftWithAnHeir(t *testing.T) {
	_, first, _ := startPair(t)
	left := first.now().server.leading.Load().operator.Status().LeaseLeft
	if left == nil || *left < 50*time.Second || *left > 90*time.Second {
		t.Errorf("left are %v, want 55 s to 90 s", left)
	}
	server := first.now().server
	server.bucket.observe("get", time.Second, errors.New("out of order"), time.Now())
	says := server.standing().says
	_, until, _ := strings.Cut(says, "it leads until ")
	at, err := time.Parse(time.TimeOnly, until)
	now, _ := time.Parse(time.TimeOnly, time.Now().UTC().Format(time.TimeOnly))
	if in := (at.Sub(now) + 24*time.Hour) % (24 * time.Hour); err != nil || in < 50*time.Second || in > 90*time.Second {
		t.Errorf("%s; that is in %v", says, in)
	}
}

// TestStandbyRefusesTheConfiguration changes to a key that only the leader can read. The leader must stay and report
// the reason. When the standby can read the key, it is restarted, and the configuration comes into force.
func TestStandbyRefusesTheConfiguration(t *testing.T) {
	_, first, second := startPair(t)
	second.keys.Delete("NEW")
	first.change(keysOf("NEW", "NSTANCE_ENCRYPTION_KEY"), shardconfig.Restart)
	first.now().await("a refusal", func() bool { return first.now().metric(configRefused) == "1" })
	status := first.now().server.manager.Status()
	if text := status.Problems.Error(); !strings.Contains(text, "server s2 cannot run with it") ||
		!strings.Contains(text, "NEW is not set") || status.RefusedETag != status.RestartETag {
		t.Errorf("%+v", status)
	}
	if first.term() != 1 || !first.leads(second) {
		t.Errorf("term %d; the standby is the heir: %t", first.term(), first.leads(second))
	}
	second.keys.Store("NEW", newKey)
	second.kill()
	second.start()
	second.now().await("the second server leads", func() bool { return second.leads(first) && second.inForce() })
	if term := second.term(); term != 2 || second.now().metric(configRefused) != "0" {
		t.Errorf("term %d, want 2; refused: %s", term, second.now().metric(configRefused))
	}
}

// TestConfigurationTakenBackWhileItWaits puts the former configuration back while the standby cannot run the new one.
func TestConfigurationTakenBackWhileItWaits(t *testing.T) {
	_, first, second := startPair(t)
	second.keys.Delete("NEW")
	first.change(keysOf("NEW", "NSTANCE_ENCRYPTION_KEY"), shardconfig.Restart)
	first.now().await("a refusal", func() bool { return first.now().metric(configRefused) == "1" })
	first.shard.configure(keysOf("NSTANCE_ENCRYPTION_KEY"))
	if result, _, err := first.now().server.leading.Load().operator.Refresh(t.Context()); err != nil ||
		result == shardconfig.Restart || result == shardconfig.Invalid {
		t.Errorf("%d, %v", result, err)
	}
	first.now().await("no refusal", func() bool {
		return first.now().metric(configRefused) == "0" &&
			strings.Contains(first.now().log.String(), "no configuration needs a restart any more")
	})
	if term := first.term(); term != 1 {
		t.Errorf("term %d, want 1", term)
	}
}

// TestLeaderEndsWhileAConfigurationWaits ends the leader before and after the standby has restarted. In both cases the
// standby takes over, and in the end both servers run with the configuration.
func TestLeaderEndsWhileAConfigurationWaits(t *testing.T) {
	for name, tc := range map[string]struct {
		// ready tells when to end the leader.
		ready func(second *run) func(second *member) bool
		terms uint64
	}{
		// The standby leads with the former configuration until the first server is back with the new one.
		"before the standby restarts": {func(*run) func(*member) bool {
			return func(*member) bool { return true }
		}, 3},
		"while the standby restarts": {func(before *run) func(*member) bool {
			return func(second *member) bool { return second.now() != before }
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			_, first, second := startPair(t)
			ready := tc.ready(second.now())
			first.change(keysOf("NEW", "NSTANCE_ENCRYPTION_KEY"), shardconfig.Restart)
			second.now().await("the moment", func() bool { return ready(second) })
			first.kill()
			second.now().await("the standby leads", func() bool { return second.term() == 2 })
			if second.inForce() != (tc.terms == 2) {
				t.Errorf("the next leader runs with the configuration: %t", second.inForce())
			}
			first.start()
			leader, heir := second, first
			if tc.terms == 3 {
				leader, heir = first, second
			}
			leader.now().await("both servers to run with the configuration", func() bool {
				return leader.leads(heir) && leader.inForce() && heir.inForce()
			})
			if term := leader.term(); term != tc.terms {
				t.Errorf("term %d, want %d", term, tc.terms)
			}
		})
	}
}
