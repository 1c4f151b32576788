package admin

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// TestConfigPlan runs "config plan" and "config diff" with the first configuration of a shard, an unchanged one, one
// that rolls a group, and an invalid one.
func TestConfigPlan(t *testing.T) {
	b := newBucket(t, "file")
	b.init(t)
	path := exampleConfig(t)
	if got := parse[configPlan](t, b.must(t, b.args("config", "plan", path, "-o", "json")...)); !got.New ||
		got.Shard != "dev-1" {
		t.Errorf("%+v", got)
	}
	b.must(t, b.args("config", "push", path)...)
	if got := b.must(t, b.args("config", "plan", path)...); !strings.Contains(got, "has this configuration already") {
		t.Error(got)
	}
	if got := b.must(t, b.args("config", "diff", path)...); got != "" {
		t.Error(got)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), `"arch": "amd64"`, `"arch": "arm64"`, 1)
	writeFile(t, path, []byte(changed))
	got := parse[configPlan](t, b.must(t, b.args("config", "plan", path, "-o", "json")...))
	if len(got.RollingGroups) == 0 || !strings.HasPrefix(got.Effects[0], "Instances that were made from ") ||
		!strings.Contains(got.Effects[0], got.RollingGroups[0]) {
		t.Errorf("%+v", got)
	}
	if diff := b.must(t, b.args("config", "diff", path)...); !strings.Contains(diff, "\n-") ||
		!strings.Contains(diff, "\n+") || !strings.Contains(diff, `"arch": "arm64"`) {
		t.Error(diff)
	}
	if len(got.RestartingSettings) != 0 {
		t.Errorf("restarts for %q", got.RestartingSettings)
	}
	writeFile(t, path, []byte("{}"))
	b.fails(t, exitFailure, "not a valid configuration", b.args("config", "plan", path)...)
	if _, stderr, code := b.run(t, "config", "plan", exampleConfig(t)); code != exitUsage ||
		!strings.Contains(stderr, "add --storage-bucket BUCKET") {
		t.Errorf("without a bucket: exit code %d\n%s", code, stderr)
	}
}

// TestConfigPushNamesARestart checks that "config push", its dry run, and "config plan" print the changed settings that
// make the leader restart.
func TestConfigPushNamesARestart(t *testing.T) {
	b := newBucket(t, "file")
	b.init(t)
	b.must(t, b.args("config", "push", exampleConfig(t))...)
	path := exampleConfig(t, `"health_addr": "127.0.0.1:8990"`, `"health_addr": "127.0.0.1:9990"`)
	const want = "the servers restart one after the other, because these settings are read only at the start: " +
		"server.advertise"
	plan := parse[configPlan](t, b.must(t, b.args("config", "plan", path, "-o", "json")...))
	if !slices.Equal(plan.RestartingSettings, []string{"server.advertise"}) || len(plan.RollingGroups) != 0 {
		t.Errorf("%+v", plan)
	}
	for _, args := range [][]string{{"config", "plan", path}, {"config", "push", path, "--dry-run"},
		{"config", "push", path}} {
		stdout, stderr, code := b.run(t, b.args(args...)...)
		if code != exitOK || !strings.Contains(stdout+stderr, want) {
			t.Errorf("%q: exit code %d\n%s%s", args, code, stdout, stderr)
		}
	}
}

// overrideSize sets the size of the group workers at run time.
func overrideSize(t *testing.T, state *clusterstate.State, size int) {
	t.Helper()
	if _, err := state.WriteGroups(t.Context(), config.Groups{Term: 1, Revision: 1,
		Tenants: map[string]map[string]config.GroupSpec{"default": {"workers": {Size: &size}}}}, ""); err != nil {
		t.Fatal(err)
	}
}

// noEffect is a part of the warning of a change of the size from 2 to 3 that the size 5 of [overrideSize] overrides.
const noEffect = "The change of size in group default/workers from 2 to 3 has no effect: an operator set 5 and pinned it"

// TestConfigPlanWarnsOfOverride checks that "config plan", "config push" and its dry run warn of a changed size that has
// no effect, and name the command that ends the override.
func TestConfigPlanWarnsOfOverride(t *testing.T) {
	b := newBucket(t, "file")
	b.init(t)
	b.must(t, b.args("config", "push", exampleConfig(t))...)
	path := exampleConfig(t, `"size": 2`, `"size": 3`)
	for _, overridden := range []bool{false, true} {
		if overridden {
			overrideSize(t, b.state(t, encryptionKey), 5)
		}
		for _, args := range [][]string{{"config", "plan", path}, {"config", "plan", path, "-o", "json"},
			{"config", "push", path, "--dry-run"}} {
			stdout, stderr, code := b.run(t, b.args(args...)...)
			if code != exitOK || strings.Contains(stdout+stderr, noEffect) != overridden || overridden &&
				!strings.Contains(stdout+stderr, "nstance-admin group reset workers --shard dev-1") {
				t.Errorf("overridden %v, %q: exit code %d\n%s%s", overridden, args, code, stdout, stderr)
			}
		}
	}
	if _, stderr, code := b.run(t, b.args("config", "push", path)...); code != exitOK ||
		!strings.Contains(stderr, noEffect) {
		t.Errorf("push: exit code %d\n%s", code, stderr)
	}
}

// TestConfigPlanWithApplied checks that a plan compares with the applied configuration if the newest one is not valid.
// A push of the applied configuration needs no confirmation.
func TestConfigPlanWithApplied(t *testing.T) {
	b := newBucket(t, "file")
	b.init(t)
	path := exampleConfig(t)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b.put(t, keys.Config("dev-1"), []byte("{}"))
	if got := b.must(t, b.args("config", "plan", path)...); !strings.Contains(got, "no valid configuration") {
		t.Error(got)
	}
	content, err := record.Applied{Schema: record.AppliedSchema, Revision: 1, Term: 7, Source: "e1",
		Body: text}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	b.put(t, keys.Applied("dev-1"), content)
	if got := b.must(t, b.args("config", "plan", path)...); !strings.Contains(got, "compares with the applied one") ||
		!strings.Contains(got, "nothing happens to running instances") {
		t.Error(got)
	}
	rolls := exampleConfig(t, `"arch": "amd64"`, `"arch": "arm64"`)
	if got := parse[configPlan](t, b.must(t, b.args("config", "plan", rolls, "-o", "json")...)); got.New ||
		!got.ComparedWithApplied || len(got.RollingGroups) == 0 {
		t.Errorf("%+v", got)
	}
	b.fails(t, exitUsage, "add --yes", b.args("config", "push", rolls)...)
	b.must(t, b.args("config", "push", path)...)
}

// TestClusterJournalRetention checks that a command that changes the bucket deletes journal entries older than 30 days,
// and no others.
func TestClusterJournalRetention(t *testing.T) {
	b := newBucket(t, "file")
	b.init(t)
	for n, later := range []time.Duration{10 * 24 * time.Hour, clusterJournalRetention + time.Minute} {
		b.later, b.stdin, b.rand = later, "value", byte(20+n)
		b.must(t, b.args("cluster", "secret", "set", "db.password")...)
	}
	got := parse[struct{ Events []record.ClusterEvent }](t, b.must(t, b.args("cluster", "journal", "-o", "json")...))
	if len(got.Events) != 2 || got.Events[0].Kind != "secret_set" || got.Events[1].Kind != "secret_set" {
		t.Errorf("%+v: want the two newer entries", got.Events)
	}
}

// TestClusterJournal runs every command that changes the bucket, and checks that the journal has each change and no
// secret.
func TestClusterJournal(t *testing.T) {
	b := newBucket(t, "file")
	b.env = map[string]string{"USER": "alice"}
	b.init(t)
	b.stdin = "a-very-secret-value"
	b.must(t, b.args("cluster", "secret", "set", "db.password")...)
	b.rand = 9
	b.must(t, b.args("cluster", "secret", "delete", "db.password", "--yes")...)
	nonce := b.must(t, b.args("cluster", "nonce")...)
	dir := t.TempDir()
	b.must(t, b.args("cluster", "register-operator", "--output-dir", dir, "--name", "bob", "--role", "viewer")...)
	listed := parse[operatorList](t, b.must(t, b.args("cluster", "operator", "list", "-o", "json")...))
	b.rand = 11
	b.must(t, b.args("cluster", "operator", "remove", listed.Operators[0].ID, "--yes")...)
	b.must(t, b.args("config", "push", exampleConfig(t))...)
	out := b.must(t, b.args("cluster", "journal", "-o", "json")...)
	events := parse[struct{ Events []record.ClusterEvent }](t, out).Events
	var kinds []string
	for _, e := range events {
		kinds = append(kinds, e.Kind)
		if !strings.HasPrefix(e.Actor, "alice at ") || e.At.IsZero() {
			t.Errorf("%+v", e)
		}
	}
	for _, want := range []string{"keys_made", "secret_set", "secret_deleted", "nonce_made", "operator_registered",
		"operator_removed", "config_pushed"} {
		if !strings.Contains(" "+strings.Join(kinds, " ")+" ", " "+want+" ") {
			t.Errorf("%s is not in %v", want, kinds)
		}
	}
	for _, secret := range []string{"a-very-secret-value", strings.TrimSpace(nonce), encryptionKey} {
		if strings.Contains(out, secret) {
			t.Errorf("the journal has a secret")
		}
	}
	table := b.must(t, b.args("cluster", "journal", "--since", "1h")...)
	if !strings.Contains(table, "secret deleted") || !strings.Contains(table, "db.password") {
		t.Error(table)
	}
	b.must(t, b.args("cluster", "verify")...)

	// The command `cluster verify` reports an object that has the prefix of the journal's entries but is not an entry.
	if _, err := b.store.Put(t.Context(), keys.ClusterJournalPrefix()+"x", []byte("x"), objstore.Always()); err != nil {
		t.Fatal(err)
	}
	b.fails(t, exitFailure, "1 problem in the bucket", b.args("cluster", "verify")...)

	// With a wrong key, no object is damaged.
	t.Setenv("NSTANCE_OTHER_KEY", strings.Repeat("k", 32))
	b.env["NSTANCE_OTHER_KEY"] = strings.Repeat("k", 32)
	b.fails(t, exitFailure, "Next:  give the key that sealed it", b.args("cluster", "verify", "--key-source",
		"NSTANCE_OTHER_KEY")...)
}
