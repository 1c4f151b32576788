package shard

import (
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// TestHaltedGroups checks the warning about a group that does not run its configuration.
func TestHaltedGroups(t *testing.T) {
	bucket := mem.New()
	state := clusterstate.New(clusterstate.Options{Cluster: bucket, Shard: bucket, ClusterID: "c", ShardID: "s",
		Secrets: secretstore.NewObjects(secretstore.Options{Bucket: bucket})})
	halts := strings.Replace(sample, `{"template": "one"}`,
		`{"template": "one", "rollout": {"halt_on_failures": 1, "on_halt": "rollback"}}`, 1)
	group := func(text string) (*config.Shard, config.Group) {
		shard, problems := config.ParseStored("config", []byte(text))
		if err := problems.Err(); err != nil {
			t.Fatal(err)
		}
		shard = shard.WithDefaults()
		merged, _ := shard.Merged(config.Groups{})
		return shard, merged[config.GroupKey{Tenant: "default", Group: "w"}]
	}
	shard, good := group(halts)
	content := shard.GoodOf(good, nil, config.GroupSpec{}).Encode()
	bad := strings.Replace(halts, `"x": "1"`, `"x": "2"`, 1)
	_, failed := group(bad)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	if _, err := state.WriteRollout(t.Context(), clusterstate.StoredRollout{Rollout: record.Rollout{Term: 1,
		Tenant: "default", Group: "w",
		Halted: &record.Halted{At: at.Add(time.Hour), Reason: "its health check fails", Failed: failed.Version("")},
		Good:   &record.Good{At: at, Version: good.Version(""), Config: content}}}); err != nil {
		t.Fatal(err)
	}
	if diags := (&Resource{}).haltedGroups(t.Context(), state, "s", []byte(halts)); len(diags) > 0 {
		t.Errorf("the halt of another configuration: %v", diags)
	}
	diags := (&Resource{}).haltedGroups(t.Context(), state, "s", []byte(bad))
	if len(diags) != 1 {
		t.Fatalf("%v", diags)
	}
	text := diags[0].Summary() + " " + strings.Join(strings.Fields(diags[0].Detail()), " ")
	for _, want := range []string{"Group w runs its last good configuration",
		"runs the configuration of 2026-01-02T03:04:05Z",
		"because its rollout halted: its health check fails", "nstance-admin group resume w"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q lacks %q", text, want)
		}
	}
}
