package shardconfig

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/envelope"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

var haltedAt = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// rollsBack returns a document in which the static group returns to its good configuration after a halt. The static
// group has a variable with the given value.
func rollsBack(value string) string {
	return strings.Replace(document("", `, "files": {"f": {"kind": "string", "content": "{{ .Vars.v }}"}}`),
		`"size": 3`, `"size": 3, "vars": {"v": "`+value+`"}, "instance_type": "`+value+
			`", "rollout": {"halt_on_failures": 1, "on_halt": "rollback"}`, 1)
}

func (l *leader) group(key config.GroupKey) config.Group { return l.Groups()[key] }

func (l *leader) halt(t *testing.T, key config.GroupKey) {
	t.Helper()
	g := l.group(key)
	if err := l.Halt(t.Context(), key, g.Version(""), "it failed", haltedAt); err != nil {
		t.Fatal(err)
	}
}

func (l *leader) keepGood(t *testing.T, key config.GroupKey) {
	t.Helper()
	g := l.group(key)
	err := l.KeepGood(t.Context(), key, g.Version(""), map[string]string{"debian": "ami-1"}, haltedAt)
	if err != nil {
		t.Fatal(err)
	}
}

// TestRollbackOutlivesLeaders stores a good configuration, halts a rollout, and lets other leaders take over. They must
// run the good configuration until the configuration changes.
func TestRollbackOutlivesLeaders(t *testing.T) {
	b := newBucket()
	b.write(t, rollsBack("one"))
	l := lead(t, b, 3)
	l.keepGood(t, static)
	good := l.group(static)

	b.write(t, rollsBack("two"))
	l.refresh(t, Updated)
	if g := l.group(static); g.Vars["v"] != "two" || g.Halt != nil || g.Good != good.Version("") {
		t.Fatalf("%+v", g)
	}
	l.halt(t, static)
	for term := range uint64(3) {
		g := l.group(static)
		if !g.RolledBack() || g.Vars["v"] != "one" || g.InstanceType != "one" || g.Size != 3 ||
			g.InfraHash != good.InfraHash || g.RuntimeHash != good.RuntimeHash || g.Images["debian"] != "ami-1" ||
			g.Wanted().Vars["v"] != "two" || !g.Halt.At.Equal(haltedAt) || g.Halt.Reason != "it failed" {
			t.Fatalf("after %d more leaders: %+v", term, g)
		}
		if l.groups[static].InfraHash != good.InfraHash {
			t.Fatal("the leader was not told")
		}
		l = lead(t, b, 4+term)
	}
	if _, err := l.Upsert(t.Context(), static, "", config.Caller{}, size(5)); err != nil {
		t.Fatal(err)
	}
	if g := l.group(static); !g.RolledBack() || g.Size != 5 {
		t.Errorf("another size ends the rollback: %+v", g)
	}
	b.write(t, rollsBack("three"))
	l.refresh(t, Updated)
	if g := l.group(static); g.RolledBack() || g.Vars["v"] != "three" || !g.Halt.Over {
		t.Errorf("another configuration does not end the rollback: %+v", g)
	}
	if err := l.EndHalt(t.Context(), static); err != nil {
		t.Fatal(err)
	}
	b.write(t, rollsBack("two"))
	l.refresh(t, Updated)
	if g := l.group(static); g.Halt != nil || g.Vars["v"] != "two" {
		t.Errorf("an ended halt is back: %+v", g)
	}
}

// TestRollbackOutlivesARotationOfTheCA rotates the CA, which signs what is stored about rollouts. A leader begins after
// each step, as it does when it follows the rotation, and must keep the rollback and the good configuration.
func TestRollbackOutlivesARotationOfTheCA(t *testing.T) {
	key, err := envelope.NewKey(make([]byte, envelope.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	store := mem.New()
	secrets := secretstore.NewObjects(secretstore.Options{Bucket: store, Cluster: "example",
		Ring: keyring.Ring{Current: key}, Rand: rand.Reader})
	open := func() *bucket {
		return &bucket{store, clusterstate.New(clusterstate.Options{Cluster: store, Shard: store, ClusterID: "example",
			ShardID: shardName, Secrets: secrets, Rand: rand.Reader, Now: time.Now})}
	}
	b := open()
	if _, _, err := b.state.EnsureCA(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.write(t, rollsBack("one"))
	l := lead(t, b, 3)
	l.keepGood(t, static)
	b.write(t, rollsBack("two"))
	l.refresh(t, Updated)
	l.halt(t, static)
	signed := func() string {
		t.Helper()
		all, err := open().state.ReadRollouts(t.Context())
		if err != nil || len(all) != 1 || all[0].Err != nil || all[0].Good == nil || all[0].Halted == nil {
			t.Fatalf("%+v, %v", all, err)
		}
		return all[0].Trust
	}
	trusts := map[string]bool{signed(): true}
	rotation := open().state
	for term, step := range []func(context.Context) (clusterstate.Rotation, error){rotation.AnnounceCA,
		rotation.IssueFromNewCA, rotation.RemoveOldCA} {
		r, err := step(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		signed()
		l = lead(t, open(), uint64(4+term))
		if g := l.group(static); !g.RolledBack() || g.Vars["v"] != "one" || g.Wanted().Vars["v"] != "two" {
			t.Fatalf("after the step %s: %+v", r.Step, g)
		}
		trusts[signed()] = true
	}
	if len(trusts) < 3 {
		t.Errorf("it was not signed again in the steps of the rotation: %v", trusts)
	}
	if err := l.EndHalt(t.Context(), static); err != nil {
		t.Fatal(err)
	}
}

// TestResumeTriesAgain checks that the end of a halt puts the present configuration in force.
func TestResumeTriesAgain(t *testing.T) {
	b := newBucket()
	b.write(t, rollsBack("one"))
	l := lead(t, b, 3)
	l.keepGood(t, static)
	b.write(t, rollsBack("two"))
	l.refresh(t, Updated)
	l.halt(t, static)
	l.halt(t, static) // the good one fails too
	if h := l.group(static).Halt; h.GoodFailed != "it failed" || h.Reason != "it failed" {
		t.Errorf("%+v", h)
	}
	if err := l.EndHalt(t.Context(), static); err != nil {
		t.Fatal(err)
	}
	if g := l.group(static); g.Vars["v"] != "two" || g.Halt != nil {
		t.Errorf("%+v", g)
	}
}

// TestHaltKeepsTheConfiguration checks halts that cannot return a group to another configuration.
func TestHaltKeepsTheConfiguration(t *testing.T) {
	keep := func(t *testing.T, l *leader) { l.keepGood(t, static) }
	for name, c := range map[string]struct {
		prepare func(t *testing.T, l *leader)
		next    string
		want    string
	}{
		"stop":          {next: document("", "")},
		"no good one":   {next: rollsBack("two"), want: "no rollout of the group has finished yet"},
		"the same one":  {keep, rollsBack("one"), "same configuration"},
		"the pool left": {keep, strings.ReplaceAll(rollsBack("two"), `"p"`, `"q"`), `no subnet pool "p"`},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBucket()
			b.write(t, rollsBack("one"))
			l := lead(t, b, 3)
			if c.prepare != nil {
				c.prepare(t, l)
			}
			b.write(t, c.next)
			l = lead(t, b, 4)
			l.halt(t, static)
			g := l.group(static)
			if g.Halt == nil || g.RolledBack() || g.Halt.Over || !strings.Contains(g.Halt.Kept, c.want) {
				t.Errorf("%+v", g.Halt)
			}
		})
	}
}

// TestRollbackNeedsPermission checks that a group does not return to what the configuration no longer permits its
// operators to choose.
func TestRollbackNeedsPermission(t *testing.T) {
	b := newBucket()
	b.write(t, document("", ""))
	l := lead(t, b, 3)
	choose := func(instanceType string) {
		t.Helper()
		_, err := l.Upsert(t.Context(), fleet, "", config.Caller{}, func(spec *config.GroupSpec, _ bool) error {
			spec.Template, spec.InstanceType = "t", instanceType
			spec.Rollout = &config.Rollout{HaltOnFailures: 1, OnHalt: config.OnHaltRollback}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	choose("large")
	l.keepGood(t, fleet)
	choose("small")
	l.halt(t, fleet)
	if g := l.group(fleet); g.InstanceType != "large" {
		t.Fatalf("%+v", g)
	}
	b.write(t, strings.Replace(document("", ""), `"large"`, `"medium"`, 1))
	l.refresh(t, Updated)
	if g := l.group(fleet); g.InstanceType != "small" || !strings.Contains(g.Halt.Kept, "large") {
		t.Errorf("%+v: %+v", g.Halt, g)
	}
}

// TestForgottenGroupLeavesNothing checks that a new group does not get the rollout of a former group with its name.
func TestForgottenGroupLeavesNothing(t *testing.T) {
	b := newBucket()
	b.write(t, document("", ""))
	l := lead(t, b, 3)
	if _, err := l.Upsert(t.Context(), fleet, "", config.Caller{}, dynamicGroup(1)); err != nil {
		t.Fatal(err)
	}
	l.keepGood(t, fleet)
	if _, err := l.Delete(t.Context(), fleet, ""); err != nil {
		t.Fatal(err)
	}
	if err := l.Forget(t.Context(), fleet); err != nil {
		t.Fatal(err)
	}
	_, err := b.Get(t.Context(), keys.Rollout(shardName, fleet.Tenant, fleet.Group))
	if !errors.Is(err, objstore.ErrNotFound) {
		t.Error(err)
	}
}

// TestRolloutsOfTwoLeaders checks that a former leader overwrites nothing that its successor stored, and that damaged
// documents and those of missing groups do not stop a leader.
func TestRolloutsOfTwoLeaders(t *testing.T) {
	b := newBucket()
	b.write(t, rollsBack("one"))
	former := lead(t, b, 3)
	former.keepGood(t, static)
	later := lead(t, b, 4)
	later.halt(t, static)
	var superseded *SupersededError
	if err := former.EndHalt(t.Context(), static); err != nil {
		t.Error("the former leader knows of no halt:", err)
	}
	g := former.group(static)
	if err := former.Halt(t.Context(), static, g.Version(""), "late", haltedAt); !errors.As(err, &superseded) {
		t.Errorf("the former leader wrote: %v", err)
	}
	if h := lead(t, b, 5).group(static).Halt; h == nil || h.Reason != "it failed" {
		t.Errorf("%+v", h)
	}
	for _, group := range []string{"static", "gone"} {
		key := keys.Rollout(shardName, "default", group)
		if _, err := b.Put(t.Context(), key, []byte(`{"schema": 1}`), objstore.Always()); err != nil {
			t.Fatal(err)
		}
	}
	l := lead(t, b, 6)
	if g := l.group(static); g.Halt != nil {
		t.Errorf("%+v", g.Halt)
	}
	l.halt(t, static)
	if h := lead(t, b, 7).group(static).Halt; h == nil {
		t.Error("a damaged document cannot be replaced")
	}
}

// TestHaltOfAnotherVersion checks that neither a halt nor a good configuration is stored for a configuration that the
// group no longer has.
func TestHaltOfAnotherVersion(t *testing.T) {
	b := newBucket()
	b.write(t, rollsBack("one"))
	l := lead(t, b, 3)
	g := l.group(static)
	one := g.Version("")
	b.write(t, rollsBack("two"))
	l.refresh(t, Updated)
	if err := l.Halt(t.Context(), static, one, "late", haltedAt); err != nil {
		t.Fatal(err)
	}
	if err := l.KeepGood(t.Context(), static, one, nil, haltedAt); err != nil {
		t.Fatal(err)
	}
	if g := l.group(static); g.Halt != nil || g.Good.InfraHash != "" {
		t.Errorf("%+v", g)
	}
}
