package config

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

const cpuScaling = `"scaling": {"min": 2, "max": 8, "metrics": [{"cpu": {"target": "60%"}}]}`

// withGroupFields returns the sample fleet with more fields of its group, which has the size 3.
func withGroupFields(rest string) string {
	return strings.Replace(strings.Replace(fleet, "%s", "", 1), `"size": 3,`, `"size": 3, `+rest+",", 1)
}

// TestScaling checks which policies are refused, that a policy counts towards the quota, and that it is part of no
// hash.
func TestScaling(t *testing.T) {
	scaling := func(rest string) string {
		return withGroupFields(`"scaling": {"max": 8, "metrics": [{"cpu": {"target": "60%"}}]` + rest + "}")
	}
	metrics := func(list string) string { return withGroupFields(`"scaling": {"max": 8, "metrics": ` + list + "}") }
	for _, tt := range []struct{ src, problem string }{
		{withGroupFields(`"scaling": {"metrics": [{"cpu": {"target": "60%"}}]}`), "scaling.max: must be more than 0"},
		{withGroupFields(`"scaling": {"max": 8}`), "scaling.metrics: is required"},
		{metrics(`[]`), "scaling.metrics: is required"},
		{metrics(`[{}]`), "scaling.metrics[0]: want exactly one of cpu, memory, network, vm, query, url"},
		{metrics(`[{"cpu": {"target": "60%"}, "memory": {"target": "60%"}}]`), "want exactly one of"},
		{metrics(`[{"cpu": {"target": "60%"}}, {"cpu": {"target": "50%"}}]`), "scaling.metrics[1]: cpu is there twice"},
		{metrics(`[{"cpu": {"target": "60"}}]`), `scaling.metrics[0].cpu.target: "60" is not a percentage`},
		{metrics(`[{"cpu": {"target": "0%"}}]`), "is not a percentage"},
		{metrics(`[{"cpu": {"target": "101%"}}]`), "is not a percentage"},
		{metrics(`[{"cpu": {}}]`), "cpu.target: is required"},
		{metrics(`[{"network": {"target": 0}}]`), "network.target"},
		{metrics(`[{"procesor": {"target": "60%"}}]`), "there is no such field"},
		{scaling(`, "min": 9`), "scaling.min: 9 is more than 8, the largest size"},
		{scaling(`, "min": 0`), "scaling.min: is 0, but a group without instances tells no numbers"},
		{scaling(`, "min": -1`), "scaling.min: cannot be negative"},
		{scaling(`}, "schedules": [{"cron": "0 7 * * *", "size": 0}], "rollout": {`), "schedules[0].size: is 0, but a"},
		{metrics(`[{"vm": {"port": 70000, "metric": "a", "target": 1}}]`), "vm.port: 70000 is not a port"},
		{metrics(`[{"vm": {"metric": "a", "target": 1}}]`), "vm.port: is required"},
		{metrics(`[{"vm": {"port": 80, "target": 1}}]`), "vm: want exactly one of metric, json"},
		{metrics(`[{"vm": {"port": 80, "target": 1, "metric": "a", "json": "/a"}}]`), "want exactly one of metric, json"},
		{metrics(`[{"vm": {"port": 80, "target": 1, "metric": "a{b}"}}]`), `vm.metric: "a{b}" is not the name`},
		{metrics(`[{"vm": {"port": 80, "target": 1, "json": "a"}}]`), `vm.json: "a" is not a JSON pointer`},
		{metrics(`[{"vm": {"port": 80, "target": 0, "json": "/a"}}]`), "vm.target: must be more than 0"},
		{metrics(`[{"vm": {"port": 80, "target": 1, "json": "/a", "path": "x"}}]`), `vm.path: "x" is not a path`},
		{metrics(`[{"vm": {"name": "cpu", "port": 80, "target": 1, "json": "/a"}}]`), `vm.name: "cpu" is what other`},
		{metrics(`[{"vm": {"name": "A b", "port": 80, "target": 1, "json": "/a"}}]`), `vm.name: name "A b" may only`},
		{metrics(`[{"url": {"url": "https://a/b", "target": 1}}, {"url": {"url": "https://a/c", "target": 1}}]`),
			"scaling.metrics[1]: url is there twice (give each of them a name)"},
		{metrics(`[{"url": {"name": "x", "url": "https://a/b", "target": 1}},
			{"vm": {"name": "x", "port": 80, "metric": "a", "target": 1}}]`),
			`scaling.metrics[1].vm.name: "x" is the name of another metric`},
		{metrics(`[{"url": {"url": "http://a/b", "target": 1}}]`), "url.url: begins neither with https:// nor"},
		{metrics(`[{"url": {"url": "ftp://a/b", "target": 1}}]`), "url.url: begins neither with https:// nor"},
		{metrics(`[{"url": {"url": "https://me:pw@a/b", "target": 1}}]`), "url.url: has a user in it"},
		{metrics(`[{"url": {"url": "https://me:p w@a/b", "target": 1}}]`), "url.url: is not a URL such as"},
		{metrics(`[{"url": {"url": "/b", "target": 1}}]`), "url.url: is not a URL such as"},
		{metrics(`[{"url": {"url": "https:///b", "target": 1}}]`), "url.url: is not a URL such as"},
		{metrics(`[{"url": {"url": "https://a:99999/b", "target": 1}}]`), `url.url: "99999" is not a port`},
		{metrics(`[{"url": {"url": "https://a/b#c", "target": 1}}]`), "url.url: has a fragment"},
		{metrics(`[{"url": {"url": "https://a/b", "json": "c", "target": 1}}]`), `url.json: "c" is not a JSON pointer`},
		{metrics(`[{"url": {"url": "https://a/b", "target": 1, "token": {"kind": "text", "source": "x"}}}]`),
			`url.token.kind: "text" is none of secret`},
		{metrics(`[{"url": {"url": "https://a/b", "target": 1, "token": {"kind": "secret", "source": "ca.key"}}}]`),
			`url.token.source: "ca.key" is the cluster's own`},
		{metrics(`[{"query": {"prometheus": "https://p", "target": 1}}]`), "query.query: is required"},
		{metrics(`[{"query": {"prometheus": "http://10.0.0.1:9090", "query": "a", "target": 1}}]`),
			"query.prometheus: begins neither with"},
		{metrics(`[{"query": {"prometheus": "https://p", "query": "` + strings.Repeat("a", 2049) + `", "target": 1}}]`),
			"query.query: has 2049 bytes, at most 2048 are allowed"},
		{scaling(`, "min": 4`), "size: is 3, but the group scales between 4 and 8"},
		{scaling(`, "tolerance": "x"`), "scaling.tolerance"},
		{scaling(`, "up": {"max_step": "0%"}`), `scaling.up.max_step: "0%" permits no change`},
		{scaling(`, "down": {"max_step": "-1"}`), "scaling.down.max_step"},
		{scaling(`, "down": {"stabilization": "-1s"}`), "cannot be negative"},
		{scaling(`}, "schedules": [{"cron": "0 7 * * *", "size": 9}], "rollout": {`),
			"schedules[0].size: 9 is more than 8"},
	} {
		_, problems := Parse("a.jsonc", []byte(tt.src))
		if text := problems.Error(); len(problems) == 0 || !strings.Contains(text, tt.problem) {
			t.Errorf("%s: %q, want %q", tt.src, text, tt.problem)
		}
	}
	key := GroupKey{"default", "g"}
	group := func(src string) Group {
		merged, _ := mustParse(t, src).Merged(Groups{})
		return merged[key]
	}
	plain, scaled := group(withGroupFields(`"max_surge": 1`)), group(withGroupFields(cpuScaling))
	if scaled.InfraHash != plain.InfraHash || scaled.RuntimeHash != plain.RuntimeHash {
		t.Error("scaling changes a hash: it would replace the group")
	}
	if n := scaled.MostInstances(); n != 8 {
		t.Errorf("%d instances count towards the quota, want 8", n)
	}
	if n := MostInstances(mustParse(t, withGroupFields(cpuScaling)), key, GroupSpec{}); n != 8 {
		t.Errorf("%d instances count towards the quota, want 8", n)
	}
	if s := scaled.Scaling; *s.Min != 2 || s.Down.Stabilization.D() != 5*time.Minute || s.Up.MaxStep != "100%" ||
		s.Tolerance != "10%" {
		t.Errorf("defaults: %+v", s)
	}
}

// TestScaledSize checks who owns the size of a group with scaling.
func TestScaledSize(t *testing.T) {
	key := GroupKey{"default", "g"}
	shard := mustParse(t, withGroupFields(cpuScaling)).WithDefaults()
	four := mustParse(t, strings.Replace(withGroupFields(cpuScaling), `"size": 3`, `"size": 4`, 1)).WithDefaults()
	unscaled := mustParse(t, withGroupFields(`"max_surge": 1`)).WithDefaults()
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	set := func(size int, by Caller) GroupSpec {
		by.At, by.Sets = at, []string{"size"}
		return shard.Recorded(key, GroupSpec{}, GroupSpec{Size: &size}, by)
	}
	merged := func(s *Shard, entry GroupSpec) Group {
		all, problems := s.Merged(Groups{Tenants: map[string]map[string]GroupSpec{"default": {"g": entry}}})
		if err := problems.Err(); err != nil {
			t.Fatal(err)
		}
		return all[key]
	}
	leader := set(7, Caller{Name: ByScaling, Pinned: true})
	for _, tt := range []struct {
		name  string
		shard *Shard
		entry GroupSpec
		size  int
		held  bool
	}{
		{"the first size", shard, GroupSpec{}, 3, false},
		{"of the leader", shard, leader, 7, false},
		{"of the leader, after another first size", four, leader, 7, false},
		{"of the leader, after scaling", unscaled, leader, 3, false},
		{"of the leader, reset", shard, shard.Reset(key, leader), 3, false},
		{"of a person", shard, set(5, Caller{Name: "alice"}), 5, false},
		{"pinned by a person", shard, set(5, Caller{Name: "alice", Pinned: true}), 5, true},
		{"of a person for a time", shard, set(5, Caller{Name: "alice", Until: at.Add(time.Hour)}), 5, true},
		{"more than max by now", shard, set(20, Caller{Name: ByScaling, Pinned: true}), 8, false},
	} {
		g := merged(tt.shard, tt.entry)
		if size, _ := g.SizeAt(at); size != tt.size || g.SizeHeld != tt.held {
			t.Errorf("%s: size %d, held %t, want %d, %t", tt.name, size, g.SizeHeld, tt.size, tt.held)
		}
	}
	for size, problem := range map[int]string{1: "scales between 2 and 8", 9: "scales between 2 and 8", 8: ""} {
		err := CheckUpsert(shard, key, GroupSpec{Size: &size})
		if problem == "" && err != nil || problem != "" && (err == nil || !strings.Contains(err.Error(), problem)) {
			t.Errorf("size %d: %v, want %q", size, err, problem)
		}
	}
	groups := Groups{Tenants: map[string]map[string]GroupSpec{"default": {"g": leader}}}
	kept, ended := Overridden(shard, four, groups)
	if !slices.Equal(kept, []string{"The change of size in group default/g from 3 to 4 has no effect: the leader has " +
		"scaled the group to 7."}) || len(ended) > 0 {
		t.Errorf("kept %q, ended %q", kept, ended)
	}
	kept, ended = Overridden(shard, unscaled, groups)
	if !slices.Equal(ended, []string{"Group default/g no longer has scaling: its size changes from 7 to 3."}) ||
		len(kept) > 0 {
		t.Errorf("kept %q, ended %q", kept, ended)
	}

	small := mustParse(t, strings.NewReplacer(`"max": 8`, `"max": 4`).Replace(withGroupFields(cpuScaling)))
	kept, ended = Overridden(shard, small, groups)
	if !slices.Equal(ended, []string{"Group default/g gets at most 4 instances: its size changes from 7 to 4."}) ||
		len(kept) > 0 {
		t.Errorf("kept %q, ended %q", kept, ended)
	}

	night := strings.Replace(withGroupFields(cpuScaling), `"size": 3,`,
		`"size": 3, "schedules": [{"cron": "0 7 * * *", `+
			`"size": 5}, {"cron": "0 19 * * *", "size": 2}],`, 1)
	g := merged(mustParse(t, night).WithDefaults(), GroupSpec{})
	if size, next := g.SizeAt(at); size != 5 || g.LeastAt(at) != 5 || next.Hour() != 19 {
		t.Errorf("by day: size %d until %s, at least %d", size, next, g.LeastAt(at))
	}
	if size, _ := g.SizeAt(at.Add(12 * time.Hour)); size != 3 || g.LeastAt(at.Add(12*time.Hour)) != 2 {
		t.Errorf("by night: size %d", size)
	}
}

// TestScalingFromZero checks that a group can have no instances if the leader reads one of its metrics itself, and how
// metrics are called.
func TestScalingFromZero(t *testing.T) {
	const metrics = `[{"cpu": {"target": "60%"}},
		{"query": {"prometheus": "http://127.0.0.1:9090/prefix", "query": "sum(a)", "target": 3}},
		{"url": {"url": "http://[::1]:80/b?c=d", "target": 1, "token": {"kind": "secret", "source": "jobs"}}},
		{"url": {"name": "waiting", "url": "https://a.example/b", "json": "/c/0", "target": 2}},
		{"vm": {"port": 9100, "metric": "http_inflight", "target": 4}},
		{"vm": {"name": "queue", "port": 9100, "json": "/queue", "target": 5}}]`
	shard := mustParse(t, withGroupFields(`"scaling": {"min": 0, "max": 8, "metrics": `+metrics+
		`}, "schedules": [{"cron": "0 7 * * *", "size": 0}]`)).WithDefaults()
	merged, _ := shard.Merged(Groups{})
	g := merged[GroupKey{"default", "g"}]
	var names []string
	var targets []int
	for _, m := range g.Scaling.Metrics {
		names, targets = append(names, m.Name()), append(targets, m.Target())
	}
	if !slices.Equal(names, []string{"cpu", "query", "url", "waiting", "vm", "queue"}) ||
		!slices.Equal(targets, []int{60, 3, 1, 2, 4, 5}) {
		t.Errorf("names %q, targets %d", names, targets)
	}
	if path := g.Scaling.Metrics[4].VM.Path; path != "/metrics" {
		t.Errorf("path %q", path)
	}
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	if least := g.LeastAt(at); least != 0 {
		t.Errorf("at least %d", least)
	}
	none := 0
	if err := CheckUpsert(shard, g.GroupKey, GroupSpec{Size: &none}); err != nil {
		t.Error(err)
	}
}

// TestTenantsChooseNoURL checks that the leader reads only URLs of the shard config.
func TestTenantsChooseNoURL(t *testing.T) {
	shard := mustParse(t, withGroupFields(`"max_surge": 1`)).WithDefaults()
	shard.Groups["default"]["other"] = shard.Groups["default"]["g"]
	dynamic := func(metrics string) GroupSpec {
		spec, problems := ParseGroup("", []byte(`{"template": "`+shard.Groups["default"]["g"].Template+
			`", "scaling": {"max": 8, "metrics": [`+metrics+`]}}`))
		if err := problems.Err(); err != nil {
			t.Fatal(err)
		}
		return spec
	}
	vm := `{"vm": {"port": 80, "metric": "a", "target": 1}}`
	fresh := GroupKey{"default", "new"}
	if err := CheckUpsert(shard, fresh, dynamic(vm)); err != nil {
		t.Error(err)
	}
	for kind, metric := range map[string]string{
		"query": `{"query": {"prometheus": "https://p", "query": "a", "target": 1}}`,
		"url":   `{"url": {"url": "https://a/b", "target": 1}}`,
	} {
		spec := dynamic(vm + "," + metric)
		want := "scaling.metrics[1]." + kind + ": is only for groups in the shard's configuration"
		var denied *DeniedError
		if err := CheckUpsert(shard, fresh, spec); !errors.As(err, &denied) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if err := CheckUpsert(shard, GroupKey{"default", "g"}, spec); err == nil {
			t.Errorf("an operator set a %s of a static group", kind)
		}
		groups, _ := shard.Merged(Groups{Tenants: map[string]map[string]GroupSpec{"default": {"new": spec}}})
		if g := groups[fresh]; !strings.Contains(g.Refused, "is only for groups in the shard's configuration") {
			t.Errorf("a %s in groups/ is not refused: %q", kind, g.Refused)
		}
	}
}

// TestScalingChange checks what is said about a change of a policy, in a plan of Terraform too.
func TestScalingChange(t *testing.T) {
	shard := func(scaling string) *Shard {
		return mustParse(t, withGroupFields(scaling))
	}
	policy := func(limits, rest string) string {
		return `"scaling": {` + limits + `, "metrics": [{"cpu": {"target": "60%"}}]` + rest + `}`
	}
	wide, none := shard(policy(`"min": 2, "max": 40`, "")), shard(`"max_surge": 1`)
	for _, tt := range []struct {
		before, after *Shard
		want          string
	}{
		{none, wide, "In group default/g, the leader chooses the size from now on, between 2 and 40."},
		{wide, none, "In group default/g, the leader no longer chooses the size."},
		{wide, shard(policy(`"min": 2, "max": 4`, "")),
			"In group default/g, the leader chooses the size between 2 and 4 instead of between 2 and 40."},
		{wide, shard(policy(`"min": 2, "max": 40`, `, "down": {"stabilization": "1h"}, "tolerance": "5%"`)),
			"In group default/g, the leader chooses the size by another down, tolerance."},
		{wide, wide, ""},
	} {
		summary, detail := ChangeOf(tt.before, tt.after, false).Warning()
		if detail != tt.want || (summary == "The leader will choose sizes in another way") != (tt.want != "") {
			t.Errorf("%s: %q, want %q", summary, detail, tt.want)
		}
	}
}
