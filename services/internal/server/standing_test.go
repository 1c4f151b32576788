package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/api/notleader"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/journal"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/internal/server/lead/lease"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// stopped is a store that refuses connections while down is set.
type stopped struct {
	objstore.Store
	down atomic.Bool
}

func (s *stopped) fail(op, key string) error {
	if s.down.Load() {
		return fmt.Errorf("%s %s: %w", op, key, syscall.ECONNREFUSED)
	}
	return nil
}

func (s *stopped) Get(ctx context.Context, key string) (objstore.Object, error) {
	if err := s.fail("get", key); err != nil {
		return objstore.Object{}, err
	}
	return s.Store.Get(ctx, key)
}

func (s *stopped) List(ctx context.Context, prefix string) ([]objstore.Entry, error) {
	if err := s.fail("list", prefix); err != nil {
		return nil, err
	}
	return s.Store.List(ctx, prefix)
}

func (s *stopped) Put(ctx context.Context, key string, body []byte, cond objstore.Condition) (objstore.Token, error) {
	if err := s.fail("put", key); err != nil {
		return "", err
	}
	return s.Store.Put(ctx, key, body, cond)
}

// details returns the answer of /health in JSON.
func (p *run) details() (answer struct {
	Ready   bool
	Says    string
	Details standing
}) {
	p.testShard.t.Helper()
	req, err := http.NewRequestWithContext(p.testShard.t.Context(), http.MethodGet,
		"http://"+p.testShard.ports[0]+"/health", http.NoBody)
	if err != nil {
		p.testShard.t.Fatal(err)
	}
	req.Header.Set("Accept", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		p.testShard.t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		p.testShard.t.Fatal(err)
	}
	return answer
}

// TestServerSaysThatTheBucketFails stops the store under a real leader, until its leadership has ended, and starts it
// again. At each moment the server says why it does not lead, and stays healthy, because another machine would not
// help.
func TestServerSaysThatTheBucketFails(t *testing.T) {
	r := newTestShard(t)
	r.configure(func(doc map[string]any) {
		doc["server"].(map[string]any)["leader_election"] = map[string]any{"renew_interval": "200ms",
			"lease_duration": "2s"}
	})
	store := &stopped{Store: r.bucket}
	r.bucket = store
	p := r.start(testKey)
	says := func(what, text string) {
		t.Helper()
		p.await(what, func() bool {
			code, body := p.get(r.ports[0])
			return code == 200 && strings.Contains(body, text)
		})
	}
	says("the leader", "ok: leads in term 1\n")
	store.down.Store(true)
	says("the failing bucket", "leads in term 1, but cannot write to the bucket since ")
	if got := p.details(); !got.Ready || got.Details.Role != "leader" || !strings.HasSuffix(got.Details.Bucket,
		": connection refused") || time.Since(*got.Details.BucketSince).Abs() > time.Minute {
		t.Errorf("%+v", got)
	}
	says("the end of the leadership", "no leader is known: cannot ")
	p.await("the standby", func() bool { return p.details().Details.Role == "standby" })
	got := p.details()
	if !got.Ready || got.Details.Role != "standby" || !strings.HasSuffix(got.Details.NoLeader,
		": connection refused") || !strings.Contains(got.Says, "; s led last, in term 1") {
		t.Errorf("%+v", got)
	}
	_, err := leaderOf(p.server, func(l *leadership) *leadership { return l })
	if text := status.Convert(err).Message(); !strings.HasPrefix(text, "this server does not lead: cannot ") ||
		!strings.HasSuffix(text, ": connection refused") || notleader.FromError(err).GetLeaderId() != "" {
		t.Errorf("an operator's call: %v", err)
	}
	if log := p.log.String(); !strings.Contains(log,
		`"reason":"the lease was not renewed in time: cannot write to the bucket since `) {
		t.Errorf("the log does not say why the leadership ended:\n%s", log)
	}
	p.await("an outage for the journal", func() bool {
		return time.Since(p.server.bucket.present(time.Now()).since) > shortestOutage
	})
	store.down.Store(false)
	says("the next term", "ok: leads in term 2\n")
	if err := p.end(); err != nil {
		t.Fatal(err)
	}
	parts, err := journal.ListParts(t.Context(), r.bucket, "a", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, part := range parts {
		events, err := journal.ReadPart(t.Context(), r.bucket, part)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Kind == record.EventLeaderStarted && e.Term == 2 {
				told = append(told, e.Message)
			}
		}
	}
	if len(told) != 1 || !strings.Contains(told[0], "; it could not ") ||
		!strings.HasSuffix(told[0], ": connection refused") {
		t.Errorf("the journal says %q", told)
	}
}

// TestWhyNoLeader checks the sentences of a server that does not lead.
func TestWhyNoLeader(t *testing.T) {
	s := newServer(Config{Options: Options{ID: "s", Shard: "a"}})
	s.env.Now = func() time.Time { return time.Date(2026, 11, 29, 2, 10, 28, 0, time.UTC) }
	now := s.clock.Now()
	in := func(d time.Duration) election.Instant { return now.Add(d) }
	holder := record.Lock{LeaderID: "server-1", Incarnation: "i", Term: 7}
	released := holder
	released.Released = true
	own := holder
	own.Incarnation = s.incarnation
	for _, test := range []struct {
		status lease.Status
		idle   string
		want   string
	}{
		{lease.Status{}, "", "no leader is known: the lock was not read yet, or no server has led the shard"},
		{lease.Status{Holder: holder}, "", "ok: server-1 leads in term 7"},
		{lease.Status{Holder: released}, "", "no leader is known: server-1 has released the lock"},
		{lease.Status{Holder: own}, "", "no leader is known: the leadership of this server has ended"},
		{lease.Status{Holder: holder, Wait: election.Wait{Unusable: true}}, "",
			"no leader is known: the lock in the bucket cannot be used: this server's log says why"},
		{lease.Status{Holder: holder, Wait: election.Wait{Late: true, LeaseEnds: in(82 * time.Second),
			Takeover: in(87 * time.Second)}}, "", "no leader is known: server-1 has not renewed its lock, and its " +
			"lease ends at 02:11:50; a takeover is possible from 02:11:55"},
		{lease.Status{Wait: election.Wait{Late: true, Takeover: in(96 * time.Second)}}, "",
			"no leader is known: the lock was deleted; a takeover is possible from 02:12:04"},
		{lease.Status{Holder: holder}, "it waits", "no leader is known: it waits"},
		{lease.Status{Role: election.Stopping, Holder: own}, "",
			"no leader is known: the leadership of this server ends"},
		{lease.Status{Role: election.Leader, Term: 8, Holder: own}, "", "ok: becomes the leader of term 8"},
	} {
		s.status.Store(&test.status)
		s.idle.Store(nil)
		if test.idle != "" {
			s.idle.Store(&test.idle)
		}
		if got := s.standing().says; got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
	// An heir whose last request failed makes no more requests while it hears the leader.
	s.bucket.observe("put", time.Second, syscall.ECONNREFUSED, s.env.Now())
	s.idle.Store(nil)
	for late, want := range map[bool]string{false: "ok: server-1 leads in term 7", true: "no leader is known: cannot " +
		"write to the bucket since 02:10:27: connection refused; server-1 led last, in term 7"} {
		s.status.Store(&lease.Status{Holder: holder, Wait: election.Wait{Late: late}})
		if got := s.standing().says; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestOutageOfTheBucket checks when an outage begins and ends.
func TestOutageOfTheBucket(t *testing.T) {
	var b bucketWatch
	at := func(seconds int) time.Time { return time.Unix(1000, 0).Add(time.Duration(seconds) * time.Second) }
	b.observe("get", time.Second, context.Canceled, at(1))
	b.observe("get", time.Second, objstore.ErrNotFound, at(2))
	if o := b.present(at(2)); !o.since.IsZero() {
		t.Errorf("%+v", o)
	}
	b.observe("put", time.Second, syscall.ECONNREFUSED, at(11))
	b.observe("put", time.Second, context.DeadlineExceeded, at(13))
	b.observe("get", time.Second, syscall.ECONNREFUSED, at(14))
	if o := b.present(at(14)); !o.since.Equal(at(10)) || o.what != "write to the bucket" ||
		o.cause != "no answer in time" {
		t.Errorf("%+v", o)
	}
	b.observe("put", time.Second, objstore.ErrConflict, at(20))
	if o := b.present(at(20)); !o.since.Equal(at(13)) || o.what != "read the bucket" {
		t.Errorf("%+v", o)
	}
	if o := b.present(at(14).Add(outageKnown)); !o.since.IsZero() {
		t.Errorf("a server that sends no requests: %+v", o)
	}
	b.observe("list", time.Second, nil, at(16)) // too short for the journal
	if o := b.ended(); !b.present(at(20)).since.IsZero() || !o.since.Equal(at(10)) || !o.until.Equal(at(20)) {
		t.Errorf("%+v", o)
	}
	if o := b.ended(); !o.since.IsZero() {
		t.Errorf("told twice: %+v", o)
	}
}

// TestOutageRaisesAnAlert checks that a leader reports that the bucket does not answer, and later that it does again.
func TestOutageRaisesAnAlert(t *testing.T) {
	r := newTestShard(t)
	r.configure(nil)
	p := r.start(testKey)
	p.await("a leader", func() bool { return p.server.leading.Load() != nil })
	const active = `nstance_alert_active{cluster="test",kind="storage",shard="a"}`
	p.await("the alert", func() bool { // a request of the leader may succeed in between
		p.server.bucket.observe("get", shortestOutage, errors.New("out of order"), time.Now())
		return p.metric(active) == "1"
	})
	if events := p.server.leading.Load().leader.State.Standing(""); len(events) != 1 ||
		!strings.HasPrefix(events[0].Message, "cannot read the bucket since ") {
		t.Errorf("%+v", events)
	}
	p.await("its end", func() bool {
		p.server.bucket.observe("get", 0, nil, time.Now())
		return p.metric(active) == "0"
	})
}
