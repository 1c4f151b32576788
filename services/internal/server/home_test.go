package server

import (
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

// copyBucket replaces the shard's bucket by a copy, as a replication or a restore elsewhere makes it.
func (r *testShard) copyBucket(as string) {
	r.t.Helper()
	original, other := r.bucket, mem.New(mem.Options{})
	entries, err := original.List(r.t.Context(), "")
	if err != nil {
		r.t.Fatal(err)
	}
	r.bucket = other
	for _, entry := range entries {
		object, err := original.Get(r.t.Context(), entry.Key)
		if err != nil {
			r.t.Fatal(err)
		}
		r.put(entry.Key, object.Body)
	}
	r.set = func(c *Config) { c.Options.Location.Bucket = as }
}

func (r *testShard) state() *clusterstate.State {
	return clusterstate.New(clusterstate.Options{Cluster: r.bucket, Shard: r.bucket, ShardID: "a"})
}

// TestServerWithACopyOfTheBucketDoesNotLead starts a server with a copy of the bucket after the real leader has gone.
// It must not lead, and must not touch a VM, before `cluster restore` makes the copy the home of the shard. From then
// on, even a single orphan waits for a confirmation, also with the next leader.
func TestServerWithACopyOfTheBucketDoesNotLead(t *testing.T) {
	r := newTestShard(t)
	r.configure(func(doc map[string]any) {
		doc["server"].(map[string]any)["garbage_collection"] = map[string]any{"interval": "1s",
			"registration_timeout": "1s"}
	})
	r.set = func(c *Config) { c.Options.Location.Bucket = "prod" }
	p := r.start(testKey)
	p.await("two VMs", func() bool { return r.running() == 2 })
	p.await("records", func() bool {
		left := p.server.leading.Load()
		return left != nil && len(left.leader.State.Orphans()) == 0
	})
	if err := p.end(); err != nil {
		t.Fatal(err)
	}
	home, err := record.Decode[record.Home](r.get(keys.Home("a")))
	if err != nil || len(home.Buckets) != 1 || home.Buckets[0].Name != "prod" || home.OrphansWait {
		t.Fatalf("home %+v, %v", home, err)
	}
	lock := r.get(keys.Leader("a"))

	r.copyBucket("copy")
	for _, entry := range must(r.bucket.List(t.Context(), keys.InstancePrefix("a")))(t)[:1] { // a VM becomes an orphan
		if err := r.bucket.Delete(t.Context(), entry.Key); err != nil {
			t.Fatal(err)
		}
	}
	p = r.start(testKey)
	p.awaitReason("may be a copy")
	<-time.After(2 * time.Second)
	if body := r.get(keys.Leader("a")); string(body) != string(lock) || p.server.leading.Load() != nil {
		t.Errorf("the server has taken over the copied lock: %s", body)
	}
	if n := r.running(); n != 2 {
		t.Errorf("%d VMs run", n)
	}
	if log := p.log.String(); !strings.Contains(log, "not standing for election") ||
		!strings.Contains(log, "nstance-admin cluster restore") {
		t.Errorf("the log does not tell why:\n%s", log)
	}

	if err := r.state().RestoreHome(t.Context()); err != nil {
		t.Fatal(err)
	}
	raised := func() bool {
		l := p.server.leading.Load()
		return l != nil && l.leader.State.Alerts()[plan.AlertOrphans] > 0
	}
	p.await("the alert about one orphan", raised)
	p.await("the replacement", func() bool { return r.running() == 3 })
	if err := p.end(); err != nil {
		t.Fatal(err)
	}
	p = r.start(testKey)
	p.await("the alert with the next leader", raised)
	if r.running() != 3 {
		t.Errorf("%d VMs run", r.running())
	}
	p.confirm <- nil
	p.await("the end of the orphan", func() bool { return r.running() == 2 })
	p.await("the end of the wait", func() bool {
		home, _, err := r.state().ReadHome(t.Context())
		return err == nil && !home.OrphansWait && home.Buckets[0].Name == "copy"
	})
}

// TestServerKnowsItsBucketByAnotherName starts a second server that reaches the leader's bucket by another name. The
// link with the leader proves that the bucket is the same.
func TestServerKnowsItsBucketByAnotherName(t *testing.T) {
	r := newTestShard(t)
	r.configure(nil)
	a := r.start(testKey)
	a.await("two VMs", func() bool { return r.running() == 2 })
	r.set = func(c *Config) {
		c.Options.ID, c.Options.Instance = "second", 2
		c.Options.HealthAddr, c.Options.Location.Endpoint = "127.0.0.1:0", "http://proxy:80"
	}
	b := r.start(testKey)
	b.await("the second name", func() bool {
		home, _, err := r.state().ReadHome(t.Context())
		return err == nil && len(home.Buckets) == 2 && home.Buckets[1].Endpoint == "http://proxy:80"
	})
	b.await("readiness", func() bool { return b.server.probe.IsReady() })
}

func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}
