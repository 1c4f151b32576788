package shard

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

const sample = `{
  "cluster": {"id": "c", "secrets": {"encryption_key": {"provider": "env"}}},
  "server": {"shard": "s", "provider": {"kind": "mock"}, "subnet_pools": {"p": ["a"]}},
  "templates": {
    "one": {"kind": "aaa", "arch": "amd64", "subnet_pool": "p", "vars": {"x": "1"}},
    "two": {"kind": "bbb", "arch": "amd64", "subnet_pool": "p", "args": {"a": 1}}
  },
  "groups": {"default": {"w": {"template": "one"}, "v": {"template": "two", "args": {"a": 2}}}}
}`

// TestCheckApplied checks the warning about a configuration that is not in force. A leader that applies a version first
// writes applied.jsonc. The lock contains that version only after the next renewal.
func TestCheckApplied(t *testing.T) {
	bucket := mem.New()
	state := clusterstate.New(clusterstate.Options{Cluster: bucket, Shard: bucket, ClusterID: "c", ShardID: "s",
		Secrets: secretstore.NewObjects(secretstore.Options{Bucket: bucket})})
	lock, err := record.EncodeLock(record.Lock{LeaderID: "server", Incarnation: "x", Term: 1, Revision: 1,
		LeaseMS: 4000, RenewMS: 1000, AppliedETag: "first"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bucket.Put(t.Context(), keys.Leader("s"), lock, objstore.IfAbsent()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		inBucket, applied objstore.Token
		warning           string
	}{
		{"first", "first", ""},
		{"second", "first", "the bucket has version second, and server leads in term 1 and has applied version first"},
		{"second", "second", ""},
	} {
		if err := state.WriteApplied(t.Context(), []byte(sample), c.applied, 1); err != nil {
			t.Fatal(err)
		}
		diags := (&Resource{}).checkApplied(t.Context(), state, "s", c.inBucket)
		if c.warning == "" && len(diags) > 0 || c.warning != "" && (len(diags) != 1 || !strings.Contains(
			strings.Join(strings.Fields(diags[0].Detail()), " "), c.warning)) {
			t.Errorf("version %s in the bucket, %s applied: %v, want %q", c.inBucket, c.applied, diags, c.warning)
		}
	}
	if _, err := bucket.Put(t.Context(), keys.Leader("s"), []byte("{"), objstore.Always()); err != nil {
		t.Fatal(err)
	}
	if diags := (&Resource{}).checkApplied(t.Context(), state, "s", "second"); diags.HasError() || len(diags) != 1 ||
		!strings.Contains(diags[0].Summary(), "cannot be read") {
		t.Errorf("a damaged lock: %v", diags)
	}
	if err := bucket.Delete(t.Context(), keys.Leader("s")); err != nil {
		t.Fatal(err)
	}
	if diags := (&Resource{}).checkApplied(t.Context(), state, "s", "third"); len(diags) > 0 {
		t.Errorf("without a leader: %v", diags)
	}
}

// TestLeaderless checks when a shard certainly has no leader, so that its objects may be deleted.
func TestLeaderless(t *testing.T) {
	lock := record.Lock{LeaderID: "server", Term: 1, LeaseMS: 4000, RenewMS: 1000, AppliedETag: "first"}
	released := lock
	released.Released = true
	for name, test := range map[string]struct {
		watch      leaderWatch
		leaderless bool
		text       string
	}{
		"no lock":  {leaderWatch{}, true, "no server has led"},
		"a leader": {leaderWatch{there: true, lock: lock, since: time.Now()}, false, "has applied version first"},
		"late": {leaderWatch{there: true, lock: lock, since: time.Now().Add(-4500 * time.Millisecond)}, false,
			"leads in term 1"},
		"gone": {leaderWatch{there: true, lock: lock, since: time.Now().Add(-5100 * time.Millisecond)}, true,
			"stopped renewing"},
		"released": {leaderWatch{there: true, lock: released, since: time.Now()}, true, "resigned"},
		"a copy":   {leaderWatch{there: true, lock: lock, since: time.Now(), copied: true}, true, "stopped renewing"},
	} {
		if got := test.watch.leaderless(); got != test.leaderless || !strings.Contains(test.watch.String(), test.text) {
			t.Errorf("%s: leaderless %v, %q", name, got, &test.watch)
		}
		if got := test.watch.applied("first"); got != test.watch.there || test.watch.applied("second") {
			t.Errorf("%s: version first is applied: %v", name, got)
		}
	}
}

// TestReadLock checks that the time without a change begins again with each new version of the lock, and only then.
func TestReadLock(t *testing.T) {
	bucket := mem.New()
	w := leaderWatch{state: clusterstate.New(clusterstate.Options{Cluster: bucket, Shard: bucket, ClusterID: "c",
		ShardID: "s"}), shard: "s"}
	read := func(revision uint64) {
		t.Helper()
		body, err := record.EncodeLock(record.Lock{LeaderID: "server", Incarnation: "x", Term: 1, Revision: revision,
			LeaseMS: 4000, RenewMS: 1000})
		if err == nil {
			_, err = bucket.Put(t.Context(), keys.Leader("s"), body, objstore.Always())
		}
		if err == nil {
			err = w.readLock(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	long := time.Now().Add(-time.Hour)
	read(1)
	w.since = long
	if read(1); w.since != long || !w.leaderless() {
		t.Errorf("the same version: %v", w.since)
	}
	if read(2); w.since == long || w.leaderless() {
		t.Errorf("a new version: %v", w.since)
	}
	if err := bucket.Delete(t.Context(), keys.Leader("s")); err != nil {
		t.Fatal(err)
	}
	if err := w.readLock(t.Context()); err != nil || !w.leaderless() {
		t.Errorf("a lock that was deleted: %v", err)
	}
}

// TestReleaseOf checks which subnets an apply waits for, and whether it waits for the leader's network interface.
func TestReleaseOf(t *testing.T) {
	parse := func(pools, network string) *config.Shard {
		t.Helper()
		s := new(config.Shard)
		text := fmt.Appendf(nil, `{"server": {"subnet_pools": %s%s}}`, pools, network)
		if err := json.Unmarshal(text, s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	eni := func(id string) string { return fmt.Sprintf(`, "leader_network": {"interface_id": %q}`, id) }
	before := parse(`{"p": ["b", "a"], "q": ["c"]}`, eni("eni-1"))
	for name, test := range map[string]struct {
		before, after *config.Shard
		subnets       []string
		network       bool
	}{
		"new":               {nil, before, nil, false},
		"deleted":           {before, nil, nil, false},
		"unchanged":         {before, before, nil, false},
		"moved":             {before, parse(`{"r": ["c", "b", "a"]}`, eni("eni-1")), nil, false},
		"two removed":       {before, parse(`{"q": ["c", "d"]}`, eni("eni-1")), []string{"a", "b"}, false},
		"another interface": {before, parse(`{"p": ["a", "b", "c"]}`, eni("eni-2")), nil, true},
		"no interface":      {before, parse(`{"p": ["a", "b", "c"]}`, ""), nil, true},
		"a first interface": {parse(`{"p": ["a"]}`, ""), parse(`{"p": ["a"]}`, eni("eni-1")), nil, false},
		"another kind":      {parse(`{"p": ["a"]}`, eni("")), parse(`{"p": ["a"]}`, eni("eni-1")), nil, false},
	} {
		got := releaseOf(test.before, test.after)
		if !slices.Equal(got.subnets, test.subnets) || got.leaderInterface != test.network ||
			got.isEmpty() != (test.subnets == nil && !test.network) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	in := release{subnets: []string{"a", "b"}}
	if err := in.heldBy([]record.Instance{{SubnetID: "c"}}); err != nil {
		t.Errorf("an instance elsewhere: %v", err)
	}
	if err := in.heldBy([]record.Instance{{SubnetID: "c"}, {SubnetID: "b", Group: "web"}}); err == nil ||
		!strings.Contains(err.Error(), "in a, b, 1 instances are left") {
		t.Errorf("an instance in subnet b: %v", err)
	}
}
