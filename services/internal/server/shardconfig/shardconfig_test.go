package shardconfig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

const shardName = "a"

// document returns a valid configuration. The text in `more` is inserted at the top level, the text in `template` into
// the template t.
func document(more, template string) string {
	return fmt.Sprintf(`{
  "cluster": {"id": "example", "secrets": {"encryption_key": {"provider": "env"}}},
  "server": {"shard": "a", "provider": {"kind": "mock"}, "subnet_pools": {"p": ["s"]}},
  %[1]s
  "tenants": {"prod": {}},
  "templates": {"t": {"kind": "knd", "arch": "arm64", "subnet_pool": "p", "instance_type": "small", "vars": {"v": "t"}, "tenants": ["default", "prod"],
                      "dynamic": {"instance_types": ["large"]} %[2]s},
                "u": {"kind": "knc", "arch": "arm64", "subnet_pool": "p", "tenants": ["default", "prod"], "dynamic": {"args": ["/a"]}}},
  "groups": {"default": {"static": {"template": "t", "size": 3}}}
}`, more, template)
}

// bucket is the bucket of a shard, in memory.
type bucket struct {
	*mem.Store
	state *clusterstate.State
}

func newBucket(opts ...mem.Options) *bucket {
	store := mem.New(opts...)
	return &bucket{store, clusterstate.New(clusterstate.Options{Cluster: store, Shard: store, ClusterID: "example",
		ShardID: shardName,
		Secrets: secretstore.NewObjects(secretstore.Options{Bucket: mem.New()})})} // without a CA nothing is signed
}

// write stores a configuration as Terraform does.
func (b *bucket) write(t testing.TB, text string) {
	t.Helper()
	if _, err := b.Put(t.Context(), keys.Config(shardName), []byte(text), objstore.Always()); err != nil {
		t.Fatal(err)
	}
}

// leader is a Manager that leads. It records what the Manager passes to its applier.
type leader struct {
	*Manager
	mu      sync.Mutex
	shard   *config.Shard
	groups  map[config.GroupKey]config.Group
	applied int
	// changed has the argument of each call of ApplyGroups.
	changed [][]config.GroupKey
	ended   []string
}

func lead(t testing.TB, b *bucket, term uint64) *leader {
	t.Helper()
	l := &leader{Manager: New(b.state, shardName, slog.New(slog.DiscardHandler))}
	if err := l.Lead(t.Context(), term, l); err != nil {
		t.Fatal(err)
	}
	return l
}

// ApplyConfig implements Applier.
func (l *leader) ApplyConfig(shard *config.Shard, groups map[config.GroupKey]config.Group) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shard, l.groups = shard, maps.Clone(groups)
	l.applied++
}

// ApplyGroups implements Applier. It stores only the groups whose keys are in changed.
func (l *leader) ApplyGroups(groups map[config.GroupKey]config.Group, changed []config.GroupKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range changed {
		if group, ok := groups[key]; ok {
			l.groups[key] = group
		} else {
			delete(l.groups, key)
		}
	}
	l.changed = append(l.changed, changed)
}

// OverridesEnded implements Applier.
func (l *leader) OverridesEnded(_ config.GroupKey, lines []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = append(l.ended, lines...)
}

func (l *leader) refresh(t testing.TB, want Result) config.Problems {
	t.Helper()
	got, problems, err := l.Refresh(t.Context())
	if err != nil || got != want {
		t.Fatalf("refresh: result %d, problems %v, error %v; want result %d", got, problems, err, want)
	}
	return problems
}

func size(n int) func(*config.GroupSpec, bool) error {
	return func(spec *config.GroupSpec, _ bool) error {
		spec.Size = &n
		return nil
	}
}

func dynamicGroup(n int) func(*config.GroupSpec, bool) error {
	return func(spec *config.GroupSpec, _ bool) error {
		spec.Template, spec.Size = "u", &n
		return nil
	}
}

var (
	static  = config.GroupKey{Tenant: "default", Group: "static"}
	fleet   = config.GroupKey{Tenant: "prod", Group: "fleet"}
	invalid = `{"cluster": {"id": "example"}, "server": {"shard": "a"}, "nonsense": 1}`
)

func TestLeadAppliesAndRecords(t *testing.T) {
	b := newBucket()
	b.write(t, document("", ""))
	l := lead(t, b, 3)
	if l.applied != 1 || l.groups[static].Size != 3 || l.shard.Server.HealthCheckInterval.D() == 0 {
		t.Errorf("handed on %d times: %v", l.applied, l.groups)
	}
	applied, err := b.state.ReadApplied(t.Context())
	if err != nil || applied.Term != 3 || string(applied.Body) != document("", "") ||
		applied.Source != l.Status().ETag {
		t.Errorf("applied: term %d, source %s, %v", applied.Term, applied.Source, err)
	}
	if s := l.Status(); s.Generation != 1 || s.Size != len(document("", "")) || s.ETag == "" || s.RefusedETag != "" {
		t.Errorf("status %+v", s)
	}
	l.refresh(t, Unchanged)
	b.write(t, document(`"images": {},`, ""))
	l.refresh(t, Updated)
	if s := l.Status(); s.Generation != 2 || l.applied != 2 {
		t.Errorf("generation %d, handed on %d times", s.Generation, l.applied)
	}
	l.Follow()
	b.write(t, document("", ""))
	l.refresh(t, Updated)
	if l.applied != 2 {
		t.Error("handed on after leading")
	}
}

// TestCertificateLongerThanTheLimit checks a configuration with a certificate whose ttl exceeds the limit. An older
// version of Nstance accepted such a ttl. The configuration must not stop a shard, even after another part of it has
// changed.
func TestCertificateLongerThanTheLimit(t *testing.T) {
	long := func(size int) string {
		return strings.Replace(document(`"certificates": {"c": {"kind": "server", "cn": "x", "ttl": 8760}},`, ""),
			`"size": 3`, fmt.Sprintf(`"size": %d`, size), 1)
	}
	b := newBucket()
	b.write(t, long(3))
	var logs bytes.Buffer
	l := &leader{Manager: New(b.state, shardName, slog.New(slog.NewTextHandler(&logs, nil)))}
	if err := l.Lead(t.Context(), 1, l); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(logs.String(), "certificates.c.ttl"); n != 1 || l.groups[static].Size != 3 {
		t.Errorf("%d warnings name the field, want 1:\n%s", n, &logs)
	}
	b.write(t, long(4))
	l.refresh(t, Updated)
	if next := lead(t, b, 2); next.groups[static].Size != 4 || next.Status().RefusedETag != "" {
		t.Errorf("the next leader: %v, status %+v", next.groups, next.Status())
	}
}

// TestEveryTermIsRecorded checks that each leader records its term before any other write, even if the configuration is
// the same. If the lock is then removed, the next lock has a higher term.
func TestEveryTermIsRecorded(t *testing.T) {
	b := newBucket()
	b.write(t, document("", ""))
	for _, term := range []uint64{3, 4, 9} {
		lead(t, b, term)
		if applied, err := b.state.ReadApplied(t.Context()); err != nil || applied.Term != term {
			t.Errorf("term %d: recorded %d, %v", term, applied.Term, err)
		}
		if highest, err := b.state.HighestTerm(t.Context()); err != nil || highest != term {
			t.Errorf("term %d: the highest is %d, %v", term, highest, err)
		}
	}
}

func TestInvalidConfigurationKeepsTheCurrentOne(t *testing.T) {
	b := newBucket()
	b.write(t, document("", ""))
	l := lead(t, b, 1)
	before := l.Status()
	b.write(t, invalid)
	for range 2 { // it stays refused
		problems := l.refresh(t, Invalid)
		if len(problems) < 3 || problems[0].Line == 0 || problems[0].Path == "" {
			t.Errorf("problems without place: %v", problems)
		}
		s := l.Status()
		if s.ETag != before.ETag || s.RefusedETag == "" || len(s.Problems) != len(problems) || l.applied != 1 {
			t.Errorf("status %+v", s)
		}
	}
	// The next leader must start from the applied configuration, even in a new process.
	next := lead(t, b, 2)
	if s := next.Status(); s.ETag != before.ETag || s.RefusedETag == "" || next.groups[static].Size != 3 {
		t.Errorf("next leader's status %+v", s)
	}
	standby := New(b.state, shardName, slog.New(slog.DiscardHandler))
	if err := standby.Load(t.Context()); err != nil || standby.Shard() == nil {
		t.Errorf("a standby does not start: %v", err)
	}
	b.write(t, document("", ""))
	next.refresh(t, Unchanged)
	if s := next.Status(); s.RefusedETag != "" || s.Problems != nil {
		t.Errorf("still refused: %+v", s)
	}
	next.Follow()
	b.write(t, invalid)
	next.refresh(t, Invalid)
	b.write(t, document("", `, "args": {"a": 1}`))
	if err := next.Lead(t.Context(), 3, next); err != nil {
		t.Fatal(err)
	}
	if s := next.Status(); s.RefusedETag != "" || s.Generation != 1 {
		t.Errorf("a valid configuration is led with, and yet %+v", s)
	}
}

// TestChanged checks that one look notices each new document, and that the leader examines each document once: also one
// that it refuses, or for which it restarts.
func TestChanged(t *testing.T) {
	b := newBucket()
	b.write(t, document("", ""))
	l := lead(t, b, 1)
	changed := func(what string, want bool) {
		t.Helper()
		if got, err := l.Changed(t.Context()); err != nil || got != want {
			t.Errorf("%s: changed = %v, %v, want %v", what, got, err, want)
		}
	}
	changed("in force", false)
	for what, text := range map[string]string{
		"in place": document(`"files": {},`, ""), "invalid": "{", "with a restart": strings.Replace(document("", ""),
			`"kind": "mock"`, `"kind": "mock", "zone": "z"`, 1),
		"without problems": document(`"certificates": {},`, ""),
	} {
		b.write(t, text)
		changed(what, true)
		if _, _, err := l.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		changed(what+", after a check", false)
	}
	good := document("", `, "args": {"v": 1}`)
	b.write(t, good)
	changed("another document", true)
	l.refresh(t, Updated)
	b.write(t, invalid)
	changed("an invalid one", true)
	l.refresh(t, Invalid)
	b.write(t, good)
	changed("the document in force again", true)
	l.refresh(t, Unchanged)
	changed("the document in force again, after a check", false)
}

func TestInvalidFromTheStart(t *testing.T) {
	b := newBucket()
	m := New(b.state, shardName, slog.New(slog.DiscardHandler))
	if err := m.Load(t.Context()); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("no configuration: %v", err)
	}
	b.write(t, invalid)
	var problems config.Problems
	if err := m.Load(t.Context()); !errors.As(err, &problems) || len(problems) < 3 {
		t.Errorf("invalid: %v", err)
	}
	if err := m.Lead(t.Context(), 1, &leader{}); !errors.As(err, &problems) {
		t.Errorf("invalid: %v", err)
	}
	if _, err := b.state.ReadApplied(t.Context()); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("an invalid configuration was recorded as applied: %v", err)
	}
}

func TestRestart(t *testing.T) {
	b := newBucket()
	b.write(t, document("", ""))
	l := lead(t, b, 1)
	was := l.Status().ETag
	b.write(t, strings.Replace(document("", ""), `"provider": {"kind": "mock"}`,
		`"provider": {"kind": "mock", "zone": "z"}`, 1))
	l.refresh(t, Restart)
	if l.applied != 1 || l.Status().ETag != was {
		t.Error("what needs a restart was applied in place")
	}
	if s := l.Status(); s.RestartETag == "" || s.RestartETag == was {
		t.Errorf("the configuration that waits for a restart has the ETag %q", s.RestartETag)
	}
	if next := l.Pending(); next == nil || next.Server.Provider.Zone != "z" {
		t.Errorf("the configuration that waits for a restart is %v", next)
	}
	// No leader has run with the configuration yet, so servers do not fall back to it.
	if applied, err := b.state.ReadApplied(t.Context()); err != nil || applied.Source != was {
		t.Errorf("recorded as applied: %s (%v), want %s", applied.Source, err, was)
	}
	if next := lead(t, b, 2); next.shard.Server.Provider.Zone != "z" {
		t.Error("the process after the restart has an older configuration")
	}
	b.write(t, invalid)
	if next := lead(t, b, 3); next.shard.Server.Provider.Zone != "z" {
		t.Error("the next leader does not fall back to the configuration that a leader ran with")
	}
}

// standby returns the Manager of a server that has loaded the present configuration.
func standby(t *testing.T, b *bucket) *leader {
	t.Helper()
	l := &leader{Manager: New(b.state, shardName, slog.New(slog.DiscardHandler))}
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

// TestTakeoverBeforeTheRestart checks that a standby leads with the applied configuration, if it takes over before any
// server has restarted for a new one.
func TestTakeoverBeforeTheRestart(t *testing.T) {
	b := newBucket()
	b.write(t, document("", ""))
	was := lead(t, b, 1).Status().ETag
	s := standby(t, b)
	b.write(t, inZone("z"))
	if err := s.Lead(t.Context(), 2, s); err != nil {
		t.Fatal(err)
	}
	if now := s.Status(); s.applied != 1 || now.ETag != was || now.RestartETag == "" || s.Pending() == nil ||
		s.Pending().Server.Provider.Zone != "z" {
		t.Errorf("applied %d times, %+v, pending is %v", s.applied, now, s.Pending())
	}
	if applied, err := b.state.ReadApplied(t.Context()); err != nil || applied.Source != was || applied.Term != 2 {
		t.Errorf("recorded as applied: %+v, %v", applied, err)
	}
	if changed, err := s.Changed(t.Context()); changed || err != nil {
		t.Errorf("the configuration counts as new: %v", err)
	}
	s.refresh(t, Restart)
	b.write(t, document("", ""))
	s.refresh(t, Unchanged)
	if now := s.Status(); now.RestartETag != "" || s.Pending() != nil {
		t.Errorf("a configuration that was taken back still waits: %+v", now)
	}
}

// TestTakeoverAfterTheRestart checks that a standby restarts instead of leading, if a leader has already applied a
// configuration that needs a restart of the standby.
func TestTakeoverAfterTheRestart(t *testing.T) {
	for name, newest := range map[string]string{"applied": inZone("z"), "another one waits": inZone("y"),
		"a corrupt one came": invalid} {
		t.Run(name, func(t *testing.T) {
			b := newBucket()
			b.write(t, document("", ""))
			lead(t, b, 1)
			s := standby(t, b)
			b.write(t, inZone("z"))
			lead(t, b, 2)
			b.write(t, newest)
			if err := s.Lead(t.Context(), 3, s); !errors.Is(err, ErrRestart) {
				t.Errorf("got %v", err)
			}
			if s.applied != 0 {
				t.Error("what needs a restart was handed on")
			}
		})
	}
}

// TestRefusePending refuses a configuration that waits for a restart, as a leader does whose standby cannot run it.
func TestRefusePending(t *testing.T) {
	b := newBucket()
	b.write(t, document("", ""))
	l := lead(t, b, 1)
	b.write(t, inZone("z"))
	l.refresh(t, Restart)
	l.RefusePending("server two cannot run with it")
	l.refresh(t, Invalid)
	if now := l.Status(); now.RefusedETag != now.RestartETag || !strings.Contains(now.Problems.Error(), "two cannot") {
		t.Errorf("%+v", now)
	}
	l.RefusePending("")
	l.refresh(t, Restart)
	if now := l.Status(); now.RefusedETag != "" || len(now.Problems) > 0 {
		t.Errorf("%+v", now)
	}
	l.RefusePending("server two cannot run with it")
	b.write(t, document("", ""))
	l.refresh(t, Unchanged)
	if now := l.Status(); now.RefusedETag != "" || now.RestartETag != "" {
		t.Errorf("%+v", now)
	}
}

func TestExamine(t *testing.T) {
	b := newBucket()
	b.write(t, document("", ""))
	lead(t, b, 1)
	s := standby(t, b)
	s.SetTrial(refuseZone("bad", new(int)))
	for _, step := range []struct {
		name, text, problem string
		want                Result
	}{
		{"nothing new", document("", ""), "", Unchanged},
		{"in place", strings.Replace(document("", ""), `"size": 3`, `"size": 4`, 1), "", Updated},
		{"restart", inZone("z"), "", Restart},
		{"this server cannot run it", inZone("bad"), "there is no zone bad", Invalid},
		{"corrupt", invalid, "", Invalid},
	} {
		if step.want != Unchanged {
			b.write(t, step.text)
		}
		before := s.Status()
		result, problems, err := s.Examine(t.Context())
		if result != step.want || err != nil || !strings.Contains(problems.Error(), step.problem) {
			t.Errorf("%s: %d, %v, %v", step.name, result, problems, err)
		}
		if now := s.Status(); !reflect.DeepEqual(now, before) {
			t.Errorf("%s: the state changes from %+v to %+v", step.name, before, now)
		}
	}
}

func TestStorageFailureChangesNothing(t *testing.T) {
	var fail func(mem.Request) bool
	b := newBucket(mem.Options{Inject: func(_ context.Context, r mem.Request) mem.Fault {
		if fail != nil && fail(r) {
			return mem.Fault{Err: errors.New("out of order")}
		}
		return mem.Fault{}
	}})
	b.write(t, document("", ""))
	l := lead(t, b, 1)
	before := l.Status()
	b.write(t, document(`"images": {},`, ""))
	for _, key := range []string{keys.Config(shardName), keys.Groups(shardName), keys.Applied(shardName)} {
		fail = func(r mem.Request) bool { return r.Key == key }
		if result, problems, err := l.Refresh(t.Context()); err == nil || result != Unchanged || problems != nil {
			t.Errorf("%s cannot be read: result %d, %v, %v", key, result, problems, err)
		}
		if s := l.Status(); s.ETag != before.ETag || l.applied != 1 {
			t.Errorf("%s cannot be read: %+v", key, s)
		}
	}
	if _, err := l.Upsert(t.Context(), fleet, "", config.Caller{}, dynamicGroup(1)); err != nil {
		t.Errorf("groups cannot be written while only applied is out of order: %v", err)
	}
	fail = func(r mem.Request) bool { return r.Key == keys.Groups(shardName) }
	if _, err := l.Upsert(t.Context(), fleet, "", config.Caller{}, size(2)); err == nil || l.groups[fleet].Size != 1 {
		t.Errorf("size %d, %v", l.groups[fleet].Size, err)
	}
	fail = nil
	l.refresh(t, Updated)
}

func TestStaticOverride(t *testing.T) {
	b := newBucket()
	b.write(t, document("", ""))
	l := lead(t, b, 1)
	etag := l.etag(static)
	g, err := l.Upsert(t.Context(), static, etag, config.Caller{}, size(5))
	if err != nil || g.Size != 5 || !g.Static || l.groups[static].Size != 5 {
		t.Fatalf("%+v, %v", g, err)
	}
	if _, err := l.Upsert(t.Context(), static, etag, config.Caller{}, size(6)); !errors.Is(err, ErrGroupChanged) {
		t.Errorf("an old ETag passes: %v", err)
	}
	var refused *RefusedError
	_, err = l.Upsert(t.Context(), static, "", config.Caller{}, func(spec *config.GroupSpec, exists bool) error {
		if !exists || spec.Size == nil || *spec.Size != 5 {
			t.Errorf("given %+v, exists %t", spec, exists)
		}
		spec.Template = "u"
		return nil
	})
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "template") {
		t.Errorf("a restricted field passes: %v", err)
	}
	restored, err := l.Delete(t.Context(), static, "")
	if err != nil || !restored || l.groups[static].Size != 3 {
		t.Errorf("restored %t, size %d, %v", restored, l.groups[static].Size, err)
	}
	if _, err := l.Delete(t.Context(), static, ""); !errors.Is(err, ErrStaticGroup) {
		t.Errorf("a static group was deleted: %v", err)
	}
}

// TestDynamicGroupBecomesStatic adds a dynamic group to the shard's configuration. The fields that were set through the
// API must become an override of the static group. The override can still be changed.
func TestDynamicGroupBecomesStatic(t *testing.T) {
	b := newBucket()
	b.write(t, strings.Replace(document("", ""), `"static"`, `"other"`, 1))
	l := lead(t, b, 1)
	if _, err := l.Upsert(t.Context(), static, "", config.Caller{}, dynamicGroup(7)); err != nil {
		t.Fatal(err)
	}
	b.write(t, document("", ""))
	l.refresh(t, Updated)
	if g := l.groups[static]; !g.Static || g.Size != 7 || g.Template != "t" {
		t.Fatalf("%+v", g)
	}
	if g, err := l.Upsert(t.Context(), static, "", config.Caller{}, size(8)); err != nil || g.Size != 8 {
		t.Errorf("%+v, %v", g, err)
	}
	if spec, _ := l.Override(static); spec.Template != "" {
		t.Errorf("the entry still has %+v", spec)
	}
}

func TestDynamicGroupsLife(t *testing.T) {
	b := newBucket()
	b.write(t, document("", ""))
	l := lead(t, b, 1)
	_, err := l.Upsert(t.Context(), fleet, "anything", config.Caller{}, dynamicGroup(2))
	if !errors.Is(err, ErrGroupChanged) {
		t.Errorf("an ETag of what does not exist passes: %v", err)
	}
	if _, err := l.Delete(t.Context(), fleet, ""); !errors.Is(err, ErrNoGroup) {
		t.Errorf("what does not exist was deleted: %v", err)
	}
	g, err := l.Upsert(t.Context(), fleet, "", config.Caller{}, dynamicGroup(2))
	if err != nil || g.Static || g.Kind != "knc" {
		t.Fatalf("%+v, %v", g, err)
	}
	// An Upsert that changes nothing must not write the groups.
	_, token, _, err := b.state.ReadGroups(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if again, err := l.Upsert(t.Context(), fleet, l.etag(fleet), config.Caller{}, dynamicGroup(2)); err != nil ||
		l.etag(again.GroupKey) != l.etag(fleet) {
		t.Errorf("%+v, %v", again, err)
	}
	if _, now, _, _ := b.state.ReadGroups(t.Context()); now != token {
		t.Error("written although nothing changed")
	}
	if restored, err := l.Delete(t.Context(), fleet, l.etag(fleet)); err != nil || restored {
		t.Fatalf("restored %t, %v", restored, err)
	}
	if g := l.groups[fleet]; !g.Deleted || g.Size != 0 {
		t.Errorf("%+v", g)
	}
	if _, err := l.Delete(t.Context(), fleet, ""); err != nil {
		t.Errorf("deleted twice: %v", err)
	}
	// The next leader must know that the group is being deleted. A new definition of the group cancels the deletion.
	// After that, a call of Forget must not remove the group.
	next := lead(t, b, 2)
	if !next.groups[fleet].Deleted {
		t.Error("the next leader does not know that the group is on its way out")
	}
	if g, err := next.Upsert(t.Context(), fleet, "", config.Caller{}, func(spec *config.GroupSpec, exists bool) error {
		if exists || spec.Size != nil {
			t.Errorf("given %+v, exists %t", spec, exists)
		}
		return dynamicGroup(4)(spec, exists)
	}); err != nil || g.Deleted || g.Size != 4 {
		t.Errorf("%+v, %v", g, err)
	}
	if err := next.Forget(t.Context(), fleet); err != nil || next.groups[fleet].Size != 4 {
		t.Errorf("a group that lives was forgotten: %v", err)
	}
	if _, err := next.Delete(t.Context(), fleet, ""); err != nil {
		t.Fatal(err)
	}
	if err := next.Forget(t.Context(), fleet); err != nil {
		t.Fatal(err)
	}
	if _, there := next.groups[fleet]; there {
		t.Error("not forgotten")
	}
	if err := next.Forget(t.Context(), fleet); err != nil {
		t.Error(err)
	}
	groups, _, _, err := b.state.ReadGroups(t.Context())
	if err != nil || len(groups.Tenants) != 0 || groups.Term != 2 || groups.Revision != 5 {
		t.Errorf("%+v, %v", groups, err)
	}
}

func TestRefusedGroups(t *testing.T) {
	b := newBucket()
	b.write(t, document("", ""))
	l := lead(t, b, 1)
	boom := errors.New("boom")
	for name, test := range map[string]struct {
		key    config.GroupKey
		change func(*config.GroupSpec, bool) error
		want   string
	}{
		"template": {fleet, size(1), "template: is required"},
		"tenant":   {config.GroupKey{Tenant: "nobody", Group: "g"}, dynamicGroup(1), "nobody"},
		"name":     {config.GroupKey{Tenant: "prod", Group: "UPPER"}, dynamicGroup(1), "UPPER"},
		"negative": {fleet, dynamicGroup(-1), "size: cannot be negative"},
		"too much": {fleet, func(spec *config.GroupSpec, _ bool) error {
			spec.Template, spec.Args = "u", map[string]any{"a": strings.Repeat("x", maxGroups)}
			return nil
		}, "at most"},
		"caller": {fleet, func(*config.GroupSpec, bool) error { return boom }, "boom"},
	} {
		_, err := l.Upsert(t.Context(), test.key, "", config.Caller{}, test.change)
		var refused *RefusedError
		if err == nil || !strings.Contains(err.Error(), test.want) || errors.As(err, &refused) == errors.Is(err, boom) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := b.Get(t.Context(), keys.Groups(shardName)); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("something was written: %v", err)
	}
}

// TestConfigThatBreaksADynamicGroup checks that a configuration that removes the template of a dynamic group is
// refused. If the group already has that problem, the leader accepts the configuration.
func TestConfigThatBreaksADynamicGroup(t *testing.T) {
	b := newBucket()
	b.write(t, document("", ""))
	l := lead(t, b, 1)
	if _, err := l.Upsert(t.Context(), fleet, "", config.Caller{}, dynamicGroup(2)); err != nil {
		t.Fatal(err)
	}
	without := strings.Replace(document("", ""), `"u":`, `"w":`, 1)
	b.write(t, without)
	problems := l.refresh(t, Invalid)
	if len(problems) != 1 || problems[0].Path != "prod.fleet.template" || problems[0].File != "groups" {
		t.Errorf("%v", problems)
	}
	if g := l.groups[fleet]; g.Size != 2 || g.Kind != "knc" {
		t.Errorf("%+v", g)
	}
	if next := lead(t, b, 2); next.groups[fleet].Kind != "knc" || next.Status().RefusedETag == "" {
		t.Errorf("the next leader takes it: %+v", next.Status())
	}
	// Without an applied configuration, the leader must use the configuration that breaks the group. It must also apply
	// a later change of another group.
	if err := b.Store.Delete(t.Context(), keys.Applied(shardName)); err != nil {
		t.Fatal(err)
	}
	poor := lead(t, b, 3)
	if g, ok := poor.groups[fleet]; !ok || g.Size != 2 || poor.groups[static].Size != 3 {
		t.Errorf("%+v", poor.groups)
	}
	b.write(t, strings.Replace(without, `"size": 3`, `"size": 4`, 1))
	poor.refresh(t, Updated)
	if poor.groups[static].Size != 4 {
		t.Error("not applied")
	}
}

// TestConfigThatForbidsADynamicGroup checks that a configuration that no longer permits an existing group is refused.
// If a leader has no other configuration, it must use this one, but must mark the group as refused.
func TestConfigThatForbidsADynamicGroup(t *testing.T) {
	b := newBucket()
	b.write(t, document("", ""))
	l := lead(t, b, 1)
	if _, err := l.Upsert(t.Context(), fleet, "", config.Caller{}, dynamicGroup(2)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Upsert(t.Context(), static, "", config.Caller{}, size(5)); err != nil {
		t.Fatal(err)
	}
	forbidding := strings.NewReplacer(`"dynamic": {"args": ["/a"]}`, `"dynamic": {"max_size": 1}`,
		`"dynamic": {"instance_types": ["large"]}`, `"dynamic": {"max_size": 1}`).Replace(document("", ""))
	b.write(t, forbidding)
	var paths []string
	for _, p := range l.refresh(t, Invalid) {
		paths = append(paths, p.File+": "+p.Path)
	}
	slices.Sort(paths)
	if want := []string{"groups: default.static.size", "groups: prod.fleet.size"}; !slices.Equal(paths, want) {
		t.Errorf("problems of %q, want %q", paths, want)
	}
	if g := l.groups[fleet]; g.Size != 2 || g.Refused != "" {
		t.Errorf("%+v", g)
	}
	if err := b.Store.Delete(t.Context(), keys.Applied(shardName)); err != nil {
		t.Fatal(err)
	}
	next := lead(t, b, 2)
	for key, size := range map[config.GroupKey]int{fleet: 2, static: 5} {
		if g := next.groups[key]; g.Size != size || !strings.Contains(g.Refused, "the largest permitted size") {
			t.Errorf("%+v", g)
		}
	}
	_, err := next.Upsert(t.Context(), fleet, "", config.Caller{}, size(1))
	if err != nil || next.groups[fleet].Refused != "" {
		t.Errorf("the group is still refused after a change: %v, %+v", err, next.groups[fleet])
	}
}

func TestGroupsWrittenByOthers(t *testing.T) {
	b := newBucket()
	b.write(t, document("", ""))
	l := lead(t, b, 5)
	if _, err := l.Upsert(t.Context(), fleet, "", config.Caller{}, dynamicGroup(2)); err != nil {
		t.Fatal(err)
	}
	other := config.GroupKey{Tenant: "prod", Group: "other"}

	// A leader of an earlier term writes the groups before this leader does. The changes of both leaders must be kept.
	groups, token, _, err := b.state.ReadGroups(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	one := 1
	groups = with(groups, other, &config.GroupSpec{Template: "t", Size: &one})
	groups.Term, groups.Revision = 4, groups.Revision+1
	if _, err := b.state.WriteGroups(t.Context(), groups, token); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Upsert(t.Context(), fleet, "", config.Caller{}, size(3)); err != nil {
		t.Fatal(err)
	}
	if l.groups[fleet].Size != 3 || l.groups[other].Size != 1 {
		t.Errorf("%v", l.groups)
	}

	// A refresh must also apply a change that the leader of the earlier term wrote.
	groups, token, _, _ = b.state.ReadGroups(t.Context())
	groups = with(groups, other, nil)
	groups.Revision++
	if _, err := b.state.WriteGroups(t.Context(), groups, token); err != nil {
		t.Fatal(err)
	}
	l.refresh(t, Updated)
	if _, there := l.groups[other]; there {
		t.Error("not taken")
	}

	// If the document of the groups is missing, the groups must stay. The next change must write the document again.
	if err := b.Store.Delete(t.Context(), keys.Groups(shardName)); err != nil {
		t.Fatal(err)
	}
	l.refresh(t, Unchanged)
	if l.groups[fleet].Size != 3 {
		t.Error("the groups went with their document")
	}
	if _, err := l.Upsert(t.Context(), other, "", config.Caller{}, dynamicGroup(1)); err != nil {
		t.Fatal(err)
	}
	groups, token, _, err = b.state.ReadGroups(t.Context())
	if err != nil || len(groups.Tenants["prod"]) != 2 {
		t.Errorf("%+v, %v", groups, err)
	}

	// After a leader with a higher term has written the groups, this leader must refuse changes.
	groups.Term, groups.Revision = 6, groups.Revision+1
	if _, err := b.state.WriteGroups(t.Context(), groups, token); err != nil {
		t.Fatal(err)
	}
	var superseded *SupersededError
	_, err = l.Upsert(t.Context(), fleet, "", config.Caller{}, size(9))
	if !errors.As(err, &superseded) || superseded.Term != 6 || !errors.Is(err, objstore.ErrConflict) {
		t.Errorf("%v", err)
	}
	l.refresh(t, Updated)
	if _, err := l.Delete(t.Context(), fleet, ""); !errors.As(err, &superseded) {
		t.Errorf("%v", err)
	}
}

func TestOnlyChangedGroupsAreApplied(t *testing.T) {
	b := newBucket()
	b.write(t, document("", ""))
	l := lead(t, b, 1)
	for n := range 3 {
		if _, err := l.Upsert(t.Context(), fleet, "", config.Caller{}, dynamicGroup(n)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Upsert(t.Context(), static, "", config.Caller{}, size(5)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Upsert(t.Context(), static, "", config.Caller{}, size(5)); err != nil { // changes nothing
		t.Fatal(err)
	}
	want := [][]config.GroupKey{{fleet}, {fleet}, {fleet}, {static}}
	if !reflect.DeepEqual(l.changed, want) || l.applied != 1 {
		t.Errorf("%d times a configuration was applied, want once; changed groups %v, want %v", l.applied, l.changed,
			want)
	}
}

// TestConcurrentChanges checks that no parallel write is lost.
func TestConcurrentChanges(t *testing.T) {
	b := newBucket()
	b.write(t, document("", ""))
	l := lead(t, b, 1)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			key := config.GroupKey{Tenant: "prod", Group: fmt.Sprintf("g%d", i)}
			if _, err := l.Upsert(t.Context(), key, "", config.Caller{}, dynamicGroup(i)); err != nil {
				t.Error(err)
			}
			if _, _, err := l.Refresh(t.Context()); err != nil {
				t.Error(err)
			}
			_, _ = l.Status(), l.Groups()
		})
	}
	wg.Wait()
	groups, _, _, err := b.state.ReadGroups(t.Context())
	if err != nil || len(groups.Tenants["prod"]) != 20 || groups.Revision != 20 {
		t.Errorf("%d groups, revision %d, %v", len(groups.Tenants["prod"]), groups.Revision, err)
	}
	for i := range 20 {
		if g := l.groups[config.GroupKey{Tenant: "prod", Group: fmt.Sprintf("g%d", i)}]; g.Size != i {
			t.Errorf("g%d has size %d", i, g.Size)
		}
	}
}

func (l *leader) etag(key config.GroupKey) string { return l.Manager.view().etag(l.groups[key]) }

func TestGroupETag(t *testing.T) {
	b := newBucket()
	b.write(t, document("", ""))
	l := lead(t, b, 1)
	seen := map[string]string{l.etag(static): "as configured"}
	for name, change := range map[string]func(*config.GroupSpec){
		"size": func(s *config.GroupSpec) { n := 9; s.Size = &n },
		"type": func(s *config.GroupSpec) { s.InstanceType = "large" },
		"vars": func(s *config.GroupSpec) { s.Vars = map[string]string{"v": "other"} },
	} {
		_, err := l.Upsert(t.Context(), static, "", config.Caller{}, func(spec *config.GroupSpec, _ bool) error {
			*spec = config.GroupSpec{}
			change(spec)
			return nil
		})
		if err != nil {
			t.Fatal(name, err)
		}
		if other, there := seen[l.etag(static)]; there {
			t.Errorf("%s has the ETag of %s", name, other)
		}
		seen[l.etag(static)] = name
	}
	if _, err := l.Delete(t.Context(), static, ""); err != nil {
		t.Fatal(err)
	}
	if seen[l.etag(static)] != "as configured" {
		t.Error("the same definition has another ETag")
	}
}

// TestOverridesEnd checks that a leader is told of values that end because of the configuration, and because of the
// time, and that the values leave the bucket.
func TestOverridesEnd(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	b := newBucket()
	b.write(t, document("", ""))
	l := lead(t, b, 3)
	scale := func(n int, by config.Caller) {
		t.Helper()
		by.Name, by.At = "alice", at
		if _, err := l.Upsert(t.Context(), static, "", by, size(n)); err != nil {
			t.Fatal(err)
		}
	}
	scale(5, config.Caller{})
	b.write(t, strings.Replace(document("", ""), `"size": 3`, `"size": 4`, 1))
	l.refresh(t, Updated)
	scale(6, config.Caller{Until: at.Add(time.Hour)})
	l.DropEnded(t.Context(), at)
	if _, ok := l.Override(static); !ok {
		t.Error("the size ended before its time")
	}
	l.DropEnded(t.Context(), at.Add(time.Hour))
	if entry, ok := l.Override(static); ok {
		t.Errorf("the ended size stays: %+v", entry)
	}
	if g := l.group(static); g.Size != 4 {
		t.Errorf("size %d", g.Size)
	}
	want := []string{
		"size 5, set by alice at 2026-01-02T03:04:05Z, ends: the configuration has another value now; configured: 4",
		"size 6, set by alice at 2026-01-02T03:04:05Z, ends: its time is over; configured: 4"}
	if !slices.Equal(l.ended, want) {
		t.Errorf("got %q, want %q", l.ended, want)
	}
	l.Follow()
	l.DropEnded(t.Context(), at)
}
