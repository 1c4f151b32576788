package config_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/config"
)

var overridden = config.GroupKey{Tenant: "default", Group: "w"}

// shardWith returns a shard in which the group "w" has additional fields.
func shardWith(t *testing.T, fields string) *config.Shard {
	t.Helper()
	return parseSample(t, strings.Replace(changeSample, `"w": {"template": "one"}`,
		`"w": {"template": "one"`+fields+`}`, 1)).WithDefaults()
}

// TestEnded checks the texts about values that have ended because of the configuration, and because of the time.
func TestEnded(t *testing.T) {
	at := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	two, six := shardWith(t, `, "size": 2`), shardWith(t, `, "size": 6`)
	size := 4
	entry := two.Recorded(overridden, config.GroupSpec{}, config.GroupSpec{Size: &size},
		config.Caller{Name: "alice", At: at, Until: at.Add(time.Hour)})
	const of = "size 4, set by alice at 2026-11-29T12:00:00Z, ends: "
	for name, tt := range map[string]struct {
		shard *config.Shard
		now   time.Time
		want  []string
	}{
		"not yet":       {two, at, nil},
		"time":          {two, at.Add(time.Hour), []string{of + "its time is over; configured: 2"}},
		"configuration": {six, time.Time{}, []string{of + "the configuration has another value now; configured: 6"}},
	} {
		if got := tt.shard.Ended(overridden, entry, tt.now); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// TestOverride checks when the value of an operator ends, and what a record of it says.
func TestOverride(t *testing.T) {
	at := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	two := shardWith(t, `, "size": 2, "vars": {"x": "1"}, "rollout": {"revision": "r"}`)
	six := shardWith(t, `, "size": 6, "vars": {"x": "2"}, "rollout": {"revision": "r", "paused": true}`)
	patch := func(text string) config.Patch {
		p, problems := config.ParsePatch("", []byte(text))
		if err := problems.Err(); err != nil {
			t.Fatal(err)
		}
		return p
	}
	change := func(s *config.Shard, before config.GroupSpec, text string, by config.Caller) config.GroupSpec {
		t.Helper()
		p := patch(text)
		after, err := p.Apply(before)
		if err != nil {
			t.Fatal(err)
		}
		set, removed := p.Paths()
		by.Name, by.At, by.Sets = "alice", at, set
		return s.Recorded(overridden, before, s.Unset(overridden, after, removed), by)
	}
	merged := func(s *config.Shard, entry config.GroupSpec) config.Group {
		t.Helper()
		groups := config.Groups{Tenants: map[string]map[string]config.GroupSpec{"default": {"w": entry}}}
		// The bucket must keep what the entry says.
		groups, problems := config.ParseGroups("", config.EncodeGroups(groups))
		if err := problems.Err(); err != nil {
			t.Fatal(err)
		}
		all, problems := s.Merged(groups)
		if err := problems.Err(); err != nil {
			t.Fatal(err)
		}
		return all[overridden]
	}
	const all = `{"size": 4, "vars": {"x": "9", "y": "8"}, "rollout": {"revision": "now"}}`
	for _, tt := range []struct {
		name                 string
		entry                config.GroupSpec
		sizeTwo, sizeSix     int
		varSix, revisionSix  string
		pausedTwo, pausedSix bool
	}{
		{"none", config.GroupSpec{}, 2, 6, "2", "r", false, true},
		{"a changed configuration ends it", change(two, config.GroupSpec{}, all, config.Caller{}), 4, 6, "2",
			"r+now", false, true},
		{"pinned", change(two, config.GroupSpec{}, all, config.Caller{Pinned: true}), 4, 4, "9", "r+now", false, true},
		{"the configured value", change(two, config.GroupSpec{}, `{"size": 2}`, config.Caller{}), 2, 6, "2", "r", false,
			true},
		{"pinned at the configured value", change(two, config.GroupSpec{}, `{"size": 2}`, config.Caller{Pinned: true}),
			2, 2, "2", "r", false, true},
		{"pinned later", change(two, change(two, config.GroupSpec{}, all, config.Caller{}), `{"size": 4}`,
			config.Caller{Pinned: true}), 4, 4, "2", "r+now", false, true},
		{"another field later", change(two, change(two, config.GroupSpec{}, `{"size": 4}`, config.Caller{Pinned: true}),
			`{"vars": {"x": "7"}}`, config.Caller{}), 4, 4, "2", "r", false, true},
		{"removed", change(two, change(two, config.GroupSpec{}, all, config.Caller{}),
			`{"size": null, "vars": null, "rollout": {"paused": null}}`, config.Caller{}), 2, 6, "2", "r+now", false,
			true},
		{"paused", change(two, config.GroupSpec{}, `{"rollout": {"paused": true}}`, config.Caller{}), 2, 6, "2", "r",
			true, true},
		{"a pause removed", change(two, change(two, config.GroupSpec{}, `{"rollout": {"paused": true}}`,
			config.Caller{}), `{"rollout": {"paused": null}}`, config.Caller{}), 2, 6, "2", "r", false, true},
		{"of an earlier server", config.GroupSpec{Size: new(4), Rollout: &config.Rollout{Revision: "now"}}, 4, 4, "2",
			"r+now", false, false},
		{"of an earlier server, changed later", change(two, config.GroupSpec{Size: new(4)}, `{"vars": {"x": "9"}}`,
			config.Caller{}), 4, 4, "2", "r", false, true},
		{"reset", two.Reset(overridden, change(two, config.GroupSpec{}, all, config.Caller{Pinned: true})), 2, 6, "2",
			"r+now", false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := merged(two, tt.entry), merged(six, tt.entry)
			if a.Size != tt.sizeTwo || b.Size != tt.sizeSix {
				t.Errorf("sizes %d and %d, want %d and %d", a.Size, b.Size, tt.sizeTwo, tt.sizeSix)
			}
			if b.Vars["x"] != tt.varSix || b.Rollout.Revision != tt.revisionSix {
				t.Errorf("variable %q, revision %q, want %q and %q", b.Vars["x"], b.Rollout.Revision, tt.varSix,
					tt.revisionSix)
			}
			if a.Rollout.Paused != tt.pausedTwo || b.Rollout.Paused != tt.pausedSix {
				t.Errorf("paused %t and %t, want %t and %t", a.Rollout.Paused, b.Rollout.Paused, tt.pausedTwo,
					tt.pausedSix)
			}
			if got := six.Current(overridden, six.Current(overridden, tt.entry, at), at); !cmp.Equal(got,
				six.Current(overridden, tt.entry, at)) {
				t.Errorf("Current is not stable: %+v", got)
			}
		})
	}
	entry := change(two, config.GroupSpec{}, all, config.Caller{})
	want := []config.SetField{
		{Path: "rollout.revision", Value: "now", Configured: "r", Override: config.Override{By: "alice",
			At: "2026-11-29T12:00:00Z"}},
		{Path: "size", Value: 4.0, Configured: 2.0, Override: config.Override{Configured: 2.0, By: "alice",
			At: "2026-11-29T12:00:00Z"}},
		{Path: "vars.x", Value: "9", Configured: "1", Override: config.Override{Configured: "1", By: "alice",
			At: "2026-11-29T12:00:00Z"}},
		{Path: "vars.y", Value: "8", Override: config.Override{By: "alice", At: "2026-11-29T12:00:00Z"}},
	}
	if diff := cmp.Diff(want, two.SetFields(overridden, entry, at)); diff != "" {
		t.Errorf("SetFields (-want +got):\n%s", diff)
	}

	until := at.Add(2 * time.Hour)
	entry = change(two, config.GroupSpec{}, `{"size": 4}`, config.Caller{Until: until})
	g := merged(two, entry)
	for now, size := range map[time.Time]int{at: 4, until.Add(-1): 4, until: 2} {
		if got, next := g.SizeAt(now); got != size || size == 4 && !next.Equal(until) || size == 2 && !next.IsZero() {
			t.Errorf("%s: size %d until %s, want %d", now, got, next, size)
		}
	}
	if got := two.Current(overridden, entry, until); !got.Empty() {
		t.Errorf("after its end: %+v", got)
	}
	if g.MostInstances() != 4 || config.MostInstances(two, overridden, entry) != 4 ||
		config.MostInstances(six, overridden, entry) != 6 {
		t.Error("the largest size does not count both sizes")
	}
}
