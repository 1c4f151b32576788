package agent_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/agent/notice"
)

const (
	powerOff    = nstancev1.StoppingReason_STOPPING_REASON_POWER_OFF
	unspecified = nstancev1.StoppingReason_STOPPING_REASON_UNSPECIFIED
)

func first(r *nstancev1.ReportHealthRequest) bool { return r.GetSequence() == 1 }

func sum(content string) string {
	digest := sha256.Sum256([]byte(content))
	return hex.EncodeToString(digest[:])
}

// TestLife runs an agent without faults: it registers, reports, makes keys, receives files, announces its stop, and
// ends.
func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		s := newFakeServer(t, newID(t))
		defer s.start(t, n.listen(address))()
		m := newMemories(t, s)
		client, stop := run(t, m.options(s, n))

		report := s.next(t, "sequence 1", first)
		want := &nstancev1.ReportHealthRequest{
			InstanceId: s.id.String(), Sequence: 1, Healthy: true, AgentVersion: "test", Ipv4: "10.0.0.7",
			Ipv6: "2001:db8::7", Hostname: "node-7",
			Metrics: &nstancev1.Metrics{Cpu: 0.5, MemoryUsedBytes: 1, MemoryTotalBytes: 2},
		}
		if diff := cmp.Diff(want, report, protocmp.Transform(), protocmp.IgnoreFields(report, "uptime")); diff != "" {
			t.Error(diff)
		}
		if report.GetUptime().AsDuration() != time.Hour {
			t.Errorf("uptime %v", report.GetUptime())
		}
		if facts := get(s, func() *nstancev1.RegisterAgentRequest {
			return s.facts
		}); facts.GetIpv4() != "10.0.0.7" || facts.GetHostname() != "node-7" {
			t.Errorf("registered with %v", facts)
		}
		if _, err := m.identity.Read("nonce.jwt"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the nonce is still there: %v", err)
		}
		synctest.Wait()
		if err := client.Health(); err != nil {
			t.Errorf("Health: %v", err)
		}

		// Nothing has changed since the first report. So the agent's next report has no files, and comes when the
		// report interval ends.
		before := time.Now()
		report = s.next(t, "sequence 2", func(r *nstancev1.ReportHealthRequest) bool { return r.GetSequence() == 2 })
		if !report.GetUnchanged() || len(report.GetFiles()) > 0 || time.Since(before) > time.Second {
			t.Errorf("after %v: %v", time.Since(before), report)
		}
		before = time.Now()
		s.next(t, "sequence 4", func(r *nstancev1.ReportHealthRequest) bool { return r.GetSequence() == 4 })
		if took := time.Since(before); took != 2*time.Second {
			t.Errorf("two intervals of a second took %v", took)
		}

		// New keys are submitted and reported immediately.
		before = time.Now()
		s.keyAsks <- &nstancev1.KeyGenRequestsResponse{Keys: []*nstancev1.KeyRequest{
			{Name: "kubelet.pub", Algorithm: nstancev1.KeyAlgorithm_KEY_ALGORITHM_ECDSA_P256}, {Name: "bad"},
		}}
		keys := <-s.submitted
		if len(keys) != 1 || keys[0].GetName() != "kubelet.pub" {
			t.Fatalf("submitted %v", keys)
		}
		report = s.next(t, "keys", func(r *nstancev1.ReportHealthRequest) bool { return len(r.GetKeys()) > 0 })
		if len(report.GetKeys()) != 2 || report.GetKeys()[0].GetError() == "" ||
			report.GetKeys()[1].GetSha256() != sum(string(keys[0].GetPkix())) ||
			report.GetUnchanged() || !time.Now().Equal(before) {
			t.Errorf("after %v: %v", time.Since(before), report)
		}

		// Changed files are reported immediately.
		s.sendFiles("hash-1", map[string]string{"a.env": "A=1", "b.sh": "no"})
		report = s.next(t, "files", func(r *nstancev1.ReportHealthRequest) bool { return len(r.GetFiles()) > 0 })
		wantFiles := []*nstancev1.FileState{{Name: "a.env", Sha256: sum("A=1")}, {Name: "b.sh"}}
		if diff := cmp.Diff(wantFiles, report.GetFiles(), protocmp.Transform(),
			protocmp.IgnoreFields(&nstancev1.FileState{}, "error")); diff != "" {
			t.Error(diff)
		}
		if report.GetRuntimeHash() != "" || report.GetFiles()[1].GetError() == "" {
			t.Errorf("a file was refused: %v", report)
		}
		s.sendFiles("hash-1", map[string]string{"a.env": "A=2"})
		report = s.next(t, "the hash", func(r *nstancev1.ReportHealthRequest) bool {
			return r.GetRuntimeHash() == "hash-1"
		})
		if content, err := m.files.Read("a.env"); err != nil || string(content) != "A=2" ||
			len(report.GetFiles()) != 1 {
			t.Errorf("%q, %v, %v", content, err, report)
		}

		// Announce returns after the server has confirmed the announcement.
		before = time.Now()
		if err := client.Announce(t.Context(), powerOff); err != nil || !time.Now().Equal(before) {
			t.Errorf("Announce: %v after %v", err, time.Since(before))
		}
		<-s.ends
		report = s.next(t, "the announcement", func(r *nstancev1.ReportHealthRequest) bool {
			return r.GetStopping() == powerOff
		})
		if !report.GetUnchanged() {
			t.Errorf("an announcement does not look at files first: %v", report)
		}
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
}

// countingMachine counts the calls of Sample.
type countingMachine struct {
	plainMachine
	samples atomic.Int64
}

func (m *countingMachine) Sample(ctx context.Context) (*nstancev1.Metrics, time.Duration) {
	m.samples.Add(1)
	return m.plainMachine.Sample(ctx)
}

// TestKeyRequestsWithFiles checks that an agent accepts key requests on the stream of files. If the server announces
// such requests, the agent opens no separate stream for key requests. TestLife tests a server that does not announce
// them.
func TestKeyRequestsWithFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		s := newFakeServer(t, newID(t))
		s.keysWithFiles = true
		defer s.start(t, n.listen(address))()
		m := newMemories(t, s)
		_, stop := run(t, m.options(s, n))
		s.next(t, "sequence 1", first)
		request := &nstancev1.KeyGenRequestsResponse{Keys: []*nstancev1.KeyRequest{{Name: "a.pub"}}}
		s.fileSends <- &nstancev1.ReceiveFilesResponse{
			Event: &nstancev1.ReceiveFilesResponse_KeyRequests{KeyRequests: request}}
		if keys := <-s.submitted; len(keys) != 1 || keys[0].GetName() != "a.pub" {
			t.Errorf("submitted %v", keys)
		}
		s.sendFiles("hash-1", map[string]string{"a.env": "A=1"})
		s.next(t, "the hash", func(r *nstancev1.ReportHealthRequest) bool { return r.GetRuntimeHash() == "hash-1" })
		s.keyAsks <- request
		synctest.Wait()
		if len(s.keyAsks) != 1 {
			t.Error("the agent has opened a stream for key requests")
		}
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestNoticesAreStanding checks that termination notices are sent immediately, and that the first report of every
// stream repeats them.
func TestNoticesAreStanding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		s := newFakeServer(t, newID(t))
		s.interval = "1h"
		stopServer := s.start(t, n.listen(address))
		o := newMemories(t, s).options(s, n)
		looks := &countingMachine{}
		o.Machine = looks
		client, stop := run(t, o)
		defer stop()
		s.next(t, "sequence 1", first)
		synctest.Wait()

		before, looked := time.Now(), looks.samples.Load()
		ends := &nstancev1.TerminationNotice{Kind: "spot", Deadline: timestamppb.New(before.Add(2 * time.Minute))}
		client.Notice(notice.Notices{Termination: ends})
		report := s.next(t, "the notice", func(r *nstancev1.ReportHealthRequest) bool {
			return r.GetTermination() != nil
		})
		if diff := cmp.Diff(ends, report.GetTermination(), protocmp.Transform()); diff != "" ||
			!time.Now().Equal(before) || !report.GetUnchanged() {
			t.Errorf("after %v: %v", time.Since(before), report)
		}
		if looks.samples.Load() != looked || report.GetMetrics().GetCpu() != 0.5 {
			t.Error("a notice waited for new metrics")
		}
		if err := client.Announce(t.Context(), powerOff); err != nil {
			t.Fatal(err)
		}

		// The agent repeats the announcement and the termination notice on its next stream, although the server
		// confirmed the announcement.
		report = s.next(t, "sequence 1", first)
		if report.GetTermination() == nil || report.GetStopping() != powerOff {
			t.Errorf("%v", report)
		}
		// A stream to another server repeats the termination notice and the announcement.
		stopServer()
		defer s.start(t, n.listen(address))()
		report = s.next(t, "sequence 1", first)
		if report.GetTermination() == nil || report.GetStopping() != powerOff || report.GetUnchanged() {
			t.Errorf("%v", report)
		}

		// A notice that counts on the agent's clock is sent with the time that remains.
		client.Notice(notice.Notices{Termination: &nstancev1.TerminationNotice{Kind: "preemption",
			Remaining: durationpb.New(30 * time.Second), Deadline: timestamppb.New(time.Now().Add(30 * time.Second))}})
		for _, want := range []time.Duration{30 * time.Second, 25 * time.Second} {
			report = s.next(t, "the preemption", func(r *nstancev1.ReportHealthRequest) bool {
				return r.GetTermination().GetKind() == "preemption"
			})
			if got := report.GetTermination().GetRemaining().AsDuration(); got != want {
				t.Errorf("%v remain, want %v", got, want)
			}
			time.Sleep(5 * time.Second)
			if err := client.Announce(t.Context(), powerOff); err != nil { // causes another report
				t.Fatal(err)
			}
		}

		// Every report has the recommendation and the maintenance.
		client.Notice(notice.Notices{Recommendation: &nstancev1.Recommendation{Replace: true},
			Maintenance: &nstancev1.Maintenance{Kind: "system-reboot"}})
		s.next(t, "maintenance", func(r *nstancev1.ReportHealthRequest) bool {
			return r.GetTermination() == nil && r.GetRecommendation().GetReplace() &&
				r.GetMaintenance().GetKind() == "system-reboot"
		})

		// The termination notice and the announcement can be withdrawn.
		client.Notice(notice.Notices{Maintenance: &nstancev1.Maintenance{}})
		if err := client.Announce(t.Context(), unspecified); err != nil {
			t.Fatal(err)
		}
		s.next(t, "nothing standing", func(r *nstancev1.ReportHealthRequest) bool {
			return r.GetTermination() == nil && r.GetStopping() == unspecified && r.GetRecommendation() == nil &&
				r.GetMaintenance() != nil && r.GetMaintenance().GetKind() == ""
		})
	})
}

// If there is no session, an announcement ends the wait before the next connection attempt.
func TestAnnouncementDoesNotWaitForBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		s := newFakeServer(t, newID(t))
		stopServer := s.start(t, n.listen(address))
		client, stop := run(t, newMemories(t, s).options(s, n))
		defer stop()
		s.next(t, "sequence 1", first)
		stopServer()
		time.Sleep(10 * time.Minute) // synctest time
		defer s.start(t, n.listen(address))()
		before := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := client.Announce(ctx, powerOff); err != nil || !time.Now().Equal(before) {
			t.Errorf("Announce: %v after %v", err, time.Since(before))
		}
	})
}

// TestUnconfirmedAnnouncement checks that the agent drops an announcement that the server has not confirmed in time.
func TestUnconfirmedAnnouncement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		s := newFakeServer(t, newID(t))
		s.mute = true
		defer s.start(t, n.listen(address))()
		client, stop := run(t, newMemories(t, s).options(s, n))
		defer stop()
		s.next(t, "sequence 1", first)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := client.Announce(ctx, powerOff); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Announce: %v", err)
		}
		s.next(t, "the announcement", func(r *nstancev1.ReportHealthRequest) bool {
			return r.GetStopping() == powerOff
		})
		s.set(func() { s.mute = false })
		if report := s.next(t, "sequence 1", first); report.GetStopping() != unspecified {
			t.Errorf("the next stream announces %s, although Announce failed", report.GetStopping())
		}
	})
}

// TestBackoff checks that the delays between connection attempts grow from 250 ms to 30 s, with jitter. A session
// resets the delay to the minimum, unless the session ended immediately.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		s := newFakeServer(t, newID(t))
		s.interval = "10m"
		stopServer := s.start(t, n.listen(address))
		client, stop := run(t, newMemories(t, s).options(s, n))
		defer stop()
		s.next(t, "sequence 1", first)
		time.Sleep(time.Minute)

		stopServer()
		n.unlisten()
		got := n.delays(10 * time.Minute)
		if len(got) < 20 || len(got) > 60 {
			t.Errorf("%d tries in ten minutes: %v", len(got), got)
		}
		different := map[time.Duration]bool{}
		for i, d := range got {
			if d < 250*time.Millisecond || d > 30*time.Second || i == 0 && d > 500*time.Millisecond {
				t.Errorf("delay %d is %v", i, d)
			}
			different[d] = true
		}
		if len(different) < len(got)-1 || got[len(got)-1] < 15*time.Second {
			t.Errorf("no jitter or no growth: %v", got)
		}
		if client.Health() == nil || client.Connected() {
			t.Error("ten minutes without a session, and well")
		}

		// A server that accepts and then drops agents gets fewer than four connections a second.
		s.set(func() { s.drop = true })
		stopServer = s.start(t, n.listen(address))
		if got := n.delays(10 * time.Minute); len(got) > 45 {
			t.Errorf("%d tries in ten minutes: %v", len(got), got)
		}
		s.set(func() { s.drop = false })
		time.Sleep(time.Minute)
		synctest.Wait()
		if err := client.Health(); err != nil || !client.Connected() {
			t.Errorf("back in touch: %v", err)
		}
		stopServer()
		n.unlisten()
		if got := n.delays(time.Minute); got[0] > 500*time.Millisecond {
			t.Errorf("the first delay after a session is %v", got[0])
		}
		if err := client.Health(); err != nil || client.Connected() {
			t.Errorf("a minute without a session: %v", err)
		}
	})
}

// TestFindsTheLeader checks that the agent tries several addresses in turn. If a standby answers that another server
// leads, the agent tries that server.
func TestFindsTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const standby, dead, leader = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"
		n := &network{}
		s := newFakeServer(t, newID(t))
		other := newFakeServer(t, s.id)
		other.ca = s.ca
		notLeader, err := status.New(codes.Unavailable, "not leader").WithDetails(
			&nstancev1.NotLeader{RegistrationAddr: leader, AgentAddr: leader})
		if err != nil {
			t.Fatal(err)
		}
		other.refuse = notLeader.Err()
		defer s.start(t, n.listen(leader))()
		defer other.start(t, n.listen(standby))()
		o := newMemories(t, s).options(s, n)
		o.RegistrationAddrs, o.AgentAddrs = []string{dead, standby}, []string{dead, standby}
		_, stop := run(t, o)
		defer stop()
		s.next(t, "sequence 1", first)
		var addrs []string
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, d := range n.dials {
			addrs = append(addrs, d.addr)
		}
		if diff := cmp.Diff([]string{dead, standby, leader, dead, standby, leader}, addrs); diff != "" {
			t.Error(diff)
		}
	})
}

// TestLeaderMoves checks that an agent stores the addresses that a leader announces. The agent uses these addresses
// when the leader's address changes, even if the agent has restarted. It does not forget the configured addresses.
func TestLeaderMoves(t *testing.T) {
	const before, after, third = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		s := newFakeServer(t, newID(t))
		s.endpoints = before + "," + after
		stopServer := s.start(t, n.listen(before))
		m := newMemories(t, s)
		o := m.options(s, n)
		o.RegistrationAddrs, o.AgentAddrs = []string{before}, []string{before}
		_, stop := run(t, o)
		s.next(t, "sequence 1", first)
		synctest.Wait() // the agent has the header

		// The next leader has another address, and announces only that address.
		stopServer()
		s.set(func() { s.endpoints = after })
		stopServer = s.start(t, n.listen(after))
		s.next(t, "sequence 1 at the new address", first)
		synctest.Wait()
		if stored, err := m.identity.Read("servers"); err != nil || string(stored) != after+"\n" {
			t.Errorf("stored %q, %v", stored, err)
		}
		stop()

		// The agent starts again.
		_, stop = run(t, o)
		s.next(t, "sequence 1 after a restart", first)
		stop()
		stopServer()

		// No server answers at the stored address, so the agent tries the configured one too.
		o.AgentAddrs = []string{third}
		stopServer = s.start(t, n.listen(third))
		_, stop = run(t, o)
		s.next(t, "sequence 1 at the configured address", first)
		stop()
		stopServer()
	})
}

// TestLeaderHintIsUsedImmediately checks that the agent calls the leader as soon as another server says where the
// leader is. It does so even after a long time without a session. If two servers each say that the other one leads, the
// agent does not call them immediately.
func TestLeaderHintIsUsedImmediately(t *testing.T) {
	const standby, leader = "127.0.0.1:1", "127.0.0.1:3"
	hint := func(addr string) error {
		t.Helper()
		notLeader, err := status.New(codes.Unavailable, "not leader").WithDetails(
			&nstancev1.NotLeader{RegistrationAddr: addr, AgentAddr: addr})
		if err != nil {
			t.Fatal(err)
		}
		return notLeader.Err()
	}
	for name, registered := range map[string]bool{"registration": false, "session": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &network{}
				s := newFakeServer(t, newID(t))
				other := newFakeServer(t, s.id)
				other.ca = s.ca
				other.refuse = status.Error(codes.Unavailable, "no server leads this shard yet")
				defer s.start(t, n.listen(leader))()
				defer other.start(t, n.listen(standby))()
				o := newMemories(t, s).options(s, n)
				o.RegistrationAddrs, o.AgentAddrs = []string{standby}, []string{standby}
				if registered {
					o.RegistrationAddrs = []string{leader}
				}
				_, stop := run(t, o)
				defer stop()
				if long := n.delays(10 * time.Minute); long[len(long)-1] < 15*time.Second {
					t.Fatalf("delays %v", long)
				}

				s.set(func() { s.refuse = hint(standby) })
				other.set(func() { other.refuse = hint(leader) })
				if waits := n.delays(10 * time.Minute); waits[1] > 500*time.Millisecond ||
					waits[len(waits)-1] < 15*time.Second {
					t.Errorf("who was named was asked after %v, two that name each other every %v in the end", waits[1],
						waits[len(waits)-1])
				}

				s.set(func() { s.refuse = nil })
				s.next(t, "sequence 1", first)
			})
		})
	}
}
