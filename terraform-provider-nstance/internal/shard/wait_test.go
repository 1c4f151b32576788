package shard

import (
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/clusterstate"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/objstore/mem"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/contract/secretstore"
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
}
