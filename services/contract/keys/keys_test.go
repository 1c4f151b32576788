package keys_test

import (
	"bytes"
	"encoding/hex"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/keys"
)

const (
	instanceID = "01970a1c-e31e-7422-9cd5-e9651d11cc97-acc"
	operatorID = "01970a1c-e31e-7422-9cd5-e9651d11cc97-opr"
)

var issued = time.Date(2026, 1, 2, 15, 4, 5, 60_000_007, time.UTC)

// layout lists an example of every key in the bucket.
var layout = []struct {
	built  string
	key    string
	parsed keys.Key
}{
	{keys.ClusterCA(), "cluster/ca.crt", keys.Key{Kind: keys.KindClusterCA}},
	{keys.ClusterSecret("ca.key"), "cluster/secret/ca.key", keys.Key{Kind: keys.KindClusterSecret, Name: "ca.key"}},
	{
		keys.ClusterOperator("acme", operatorID), "cluster/operator/acme." + operatorID + ".json",
		keys.Key{Kind: keys.KindClusterOperator, Tenant: "acme", ID: operatorID},
	},
	{keys.AgentKey(bytes.Repeat([]byte{0xa}, 32)), "cluster/key/" + strings.Repeat("0a", 32) + ".json",
		keys.Key{Kind: keys.KindAgentKey, Name: strings.Repeat("0a", 32)}},
	{keys.ClusterJournal(issued, "a-9"), "cluster/journal/20260102T150405060000007Z.a-9.json",
		keys.Key{Kind: keys.KindClusterJournal, Time: issued, Name: "a-9"}},
	{keys.Config("dev-1"), "config/dev-1.jsonc", keys.Key{Kind: keys.KindConfig, Shard: "dev-1"}},
	{keys.Groups("dev-1"), "groups/dev-1.jsonc", keys.Key{Kind: keys.KindGroups, Shard: "dev-1"}},
	{keys.File("etc/motd"), "files/etc/motd", keys.Key{Kind: keys.KindFile, Name: "etc/motd"}},
	{keys.Leader("dev-1"), "shard/dev-1/leader.json", keys.Key{Kind: keys.KindLeader, Shard: "dev-1"}},
	{keys.Applied("dev-1"), "shard/dev-1/applied.jsonc", keys.Key{Kind: keys.KindApplied, Shard: "dev-1"}},
	{keys.Home("dev-1"), "shard/dev-1/home.json", keys.Key{Kind: keys.KindHome, Shard: "dev-1"}},
	{keys.ServerReport("dev-1"), "shard/dev-1/server-report.json", keys.Key{Kind: keys.KindServerReport,
		Shard: "dev-1"}},
	{
		keys.Rollout("dev-1", "acme", "web"), "shard/dev-1/rollout/acme.web.json",
		keys.Key{Kind: keys.KindRollout, Shard: "dev-1", Tenant: "acme", Name: "web"},
	},
	{
		keys.Instance("dev-1", "acme", instanceID), "shard/dev-1/instance/acme." + instanceID + ".json",
		keys.Key{Kind: keys.KindInstance, Shard: "dev-1", Tenant: "acme", ID: instanceID},
	},
	{
		keys.CertLog("dev-1", "acme", issued, instanceID), "shard/dev-1/certlog/acme.20260102T150405060000007Z." +
			instanceID + ".json",
		keys.Key{Kind: keys.KindCertLog, Shard: "dev-1", Tenant: "acme", ID: instanceID, Time: issued},
	},
	{keys.Journal("dev-1", issued, 7, 31), "shard/dev-1/journal/2026-01-02/7-31.jsonl", keys.Key{
		Kind: keys.KindJournal, Shard: "dev-1", Time: issued.Truncate(24 * time.Hour), Term: 7, First: 31}},
	{keys.Probe("dev-1", "a-9"), "shard/dev-1/probe/a-9", keys.Key{Kind: keys.KindProbe, Shard: "dev-1", Name: "a-9"}},
}

func TestLayout(t *testing.T) {
	for _, row := range layout {
		t.Run(row.key, func(t *testing.T) {
			if row.built != row.key {
				t.Errorf("builder made %q", row.built)
			}
			parsed, err := keys.Parse(row.key)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(row.parsed, parsed); diff != "" {
				t.Errorf("parsed (-want +got):\n%s", diff)
			}
			if again := build(parsed); again != row.key {
				t.Errorf("built again: %q", again)
			}
		})
	}
}

// build makes a key with the builder of its kind, from the parts in k.
func build(k keys.Key) string {
	switch k.Kind {
	case keys.KindClusterCA:
		return keys.ClusterCA()
	case keys.KindClusterSecret:
		return keys.ClusterSecret(k.Name)
	case keys.KindClusterOperator:
		return keys.ClusterOperator(k.Tenant, k.ID)
	case keys.KindAgentKey:
		public, err := hex.DecodeString(k.Name)
		if err != nil {
			return err.Error()
		}
		return keys.AgentKey(public)
	case keys.KindClusterJournal:
		return keys.ClusterJournal(k.Time, k.Name)
	case keys.KindConfig:
		return keys.Config(k.Shard)
	case keys.KindGroups:
		return keys.Groups(k.Shard)
	case keys.KindFile:
		return keys.File(k.Name)
	case keys.KindLeader:
		return keys.Leader(k.Shard)
	case keys.KindApplied:
		return keys.Applied(k.Shard)
	case keys.KindHome:
		return keys.Home(k.Shard)
	case keys.KindServerReport:
		return keys.ServerReport(k.Shard)
	case keys.KindRollout:
		return keys.Rollout(k.Shard, k.Tenant, k.Name)
	case keys.KindInstance:
		return keys.Instance(k.Shard, k.Tenant, k.ID)
	case keys.KindCertLog:
		return keys.CertLog(k.Shard, k.Tenant, k.Time, k.ID)
	case keys.KindJournal:
		return keys.Journal(k.Shard, k.Time, k.Term, k.First)
	case keys.KindProbe:
		return keys.Probe(k.Shard, k.Name)
	}
	return ""
}

func TestPrefixesHoldTheirKeys(t *testing.T) {
	for prefix, key := range map[string]string{
		keys.AgentKeyPrefix():             keys.AgentKey(make([]byte, 32)),
		keys.ClusterJournalPrefix():       keys.ClusterJournal(issued, "a"),
		keys.SecretPrefix():               keys.ClusterSecret("x"),
		keys.OperatorPrefix():             keys.ClusterOperator("acme", operatorID),
		keys.OperatorTenantPrefix("acme"): keys.ClusterOperator("acme", operatorID),
		keys.FilePrefix():                 keys.File("x"),
		keys.RolloutPrefix("s"):           keys.Rollout("s", "acme", "web"),
		keys.InstancePrefix("s"):          keys.Instance("s", "acme", instanceID),
		keys.CertLogPrefix("s"):           keys.CertLog("s", "acme", issued, instanceID),
		keys.ProbePrefix("s"):             keys.Probe("s", "n"),
	} {
		if !strings.HasPrefix(key, prefix) || key == prefix {
			t.Errorf("%q is not under %q", key, prefix)
		}
	}
	if other := keys.ClusterOperator("acme-2", operatorID); strings.HasPrefix(other,
		keys.OperatorTenantPrefix("acme")) {
		t.Errorf("tenant acme lists %q of tenant acme-2", other)
	}
}

func TestCertLogSortsByTime(t *testing.T) {
	at := []time.Time{issued, issued.Add(time.Nanosecond), issued.Add(time.Second),
		issued.In(time.FixedZone("", 7200)).Add(time.Hour)}
	var made []string
	for _, when := range at {
		made = append(made, keys.CertLog("s", "acme", when, instanceID))
	}
	if !slices.IsSorted(made) {
		t.Errorf("not sorted: %q", made)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, key := range []string{
		"", "/", "cluster", "cluster/", "cluster/ca.crt/", "/cluster/ca.crt", "cluster/ca.key", "other/x",
		"cluster/secret/", "cluster/secret/a/b", "cluster/secret/..", "cluster/secret/.a", "cluster/secret/" +
			strings.Repeat("a", 129),
		"cluster/key/", "cluster/key/0a.json", "cluster/key/" + strings.Repeat("0A", 32) + ".json", "cluster/key/" +
			strings.Repeat("0a", 32),
		"cluster/operator/acme." + instanceID + ".json", "cluster/operator/acme..json", "cluster/operator/acme." +
			operatorID,
		"cluster/operator/" + strings.Repeat("a", 31) + "." + operatorID + ".json",
		"config/", "config/.jsonc", "config/a.json", "config/A.jsonc", "config/a--b.jsonc", "config/-a.jsonc",
		"config/a/b.jsonc",
		"config/" + strings.Repeat("a", 33) + ".jsonc", "config/a\n.jsonc", "config/a.jsonc\n", "groups/a.jsonc.jsonc",
		"files/", "files/../x", "files/a//b", "files/./a", "files/a/", "files/a\x00", "files/a\\b", "files/\xff",
		"files/" + strings.Repeat("a", 201), "files/" + strings.Repeat("ab/", 170) + "cde", "files/a\x7f",
		"shard", "shard/", "shard//leader.json", "shard/a", "shard/a/", "shard/a/leader.jsonc", "shard/a/instance/",
		"shard/a/leader.json/x",
		"shard/a/instance/acme." + operatorID + ".json", "shard/a/instance/" + instanceID + ".json",
		"shard/a/instance/acme." + strings.ToUpper(instanceID) + ".json",
		"shard/a/instance/acme.01970a1c-e31e-4422-9cd5-e9651d11cc97-acc.json",
		"shard/a/instance/acme.01970a1c-e31e-7422-1cd5-e9651d11cc97-acc.json",
		"shard/a/instance/acme.x." + instanceID + ".json",
		"shard/a/certlog/acme.20260102T150405Z." + instanceID + ".json",
		"shard/a/certlog/acme.20261302T150405000000000Z." + instanceID + ".json",
		"shard/a/certlog/acme.20260102T150405+00000000Z." + instanceID + ".json",
		"shard/a/certlog/acme.20260102T150405000000000." + instanceID + ".json",
		"shard/a/probe/", "shard/a/probe/a/b", "shard/a/probe/" + strings.Repeat("a", 65),
	} {
		if k, err := keys.Parse(key); err == nil {
			t.Errorf("Parse(%q) = %+v, want an error", key, k)
		} else if k != (keys.Key{}) {
			t.Errorf("Parse(%q) fails and returns %+v", key, k)
		}
	}
}

func TestParseLongestNames(t *testing.T) {
	for _, key := range []string{"cluster/secret/" + strings.Repeat("a", 128), "files/" + strings.Repeat("a", 200),
		"files/" + strings.Repeat("ab/", 170) + "cd", "files/a b"} {
		if k, err := keys.Parse(key); err != nil || build(k) != key {
			t.Errorf("%q: %+v, %v", key, k, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, row := range layout {
		f.Add(row.key)
	}
	f.Add("shard/a/certlog/acme.00000101T000000000000000Z." + instanceID + ".json")
	f.Fuzz(func(t *testing.T, key string) {
		k, err := keys.Parse(key)
		if err != nil {
			return
		}
		if again := build(k); again != key {
			t.Errorf("%q was parsed, and built again as %q", key, again)
		}
		if strings.HasPrefix(key, "/") || strings.Contains(key, "//") ||
			slices.Contains(strings.Split(key, "/"), "..") {
			t.Errorf("%q is accepted", key)
		}
	})
}
