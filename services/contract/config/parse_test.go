package config

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const testdata = "../testdata"

func read(t testing.TB, path string) []byte {
	t.Helper()
	src, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// mustParse parses a config that must be valid.
func mustParse(t testing.TB, src string) *Shard {
	t.Helper()
	s, problems := Parse("test.jsonc", []byte(src))
	if len(problems) > 0 {
		t.Fatalf("unexpected problems:\n%v", problems)
	}
	return s
}

// minimal is the smallest valid config, with placeholders for more fields.
const minimal = `{
  "cluster": {"id": "example", "secrets": {"encryption_key": {"provider": "env"}}},
  "server": {"shard": "a", "provider": {"kind": "mock"}, "subnet_pools": {"p": ["s"]}%s},
  "templates": {"t": {"kind": "knd", "arch": "arm64", "subnet_pool": "p"%s}},
  "groups": {"default": {"g": {"template": "t"%s}}}%s
}`

// with fills in the placeholders of the constant `minimal`: more fields for the server, the template, the group and the
// document.
func with(server, template, group, rest string) string {
	return fmt.Sprintf(minimal, server, template, group, rest)
}

func lines(ps Problems) []string {
	var out []string
	for _, p := range ps {
		out = append(out, p.String())
	}
	return out
}

func TestTenMistakes(t *testing.T) {
	s, problems := Parse("ten-mistakes.jsonc", read(t, testdata+"/ten-mistakes.jsonc"))
	if s != nil {
		t.Error("a config with mistakes was returned")
	}
	want := []string{
		`ten-mistakes.jsonc:4:11: cluster.id: name "Example" may only have lower-case letters, digits and dashes`,
		`ten-mistakes.jsonc:10:53: server.subnet_pools.other[0]: "b" is in pool "local" too`,
		`ten-mistakes.jsonc:11:24: server.request_timeout: "-5s": a duration cannot be negative`,
		`ten-mistakes.jsonc:12:67: server.leader_election.lease_duration: 6s is less than twice the renew_interval of 5s`,
		`ten-mistakes.jsonc:14:15: tenants.Prod: name "Prod" may only have lower-case letters, digits and dashes`,
		`ten-mistakes.jsonc:16:37: certificates.app.cn: template: line 1:12: there is no .Instance.Name; .Instance has ID, Kind, Arch, Type, Group, Tenant, Hostname, FQDN, IP4, IP6 (rendered for group default/web)`,
		`ten-mistakes.jsonc:22:7: templates.worker.subnet_pol: there is no such field (did you mean "subnet_pool"?)`,
		`ten-mistakes.jsonc:25:47: templates.worker.files["app.env"].content: is not for files of kind env (those have vars)`,
		`ten-mistakes.jsonc:31:45: groups.default.web.size: want a whole number, have a text (leave the quotes out)`,
		`ten-mistakes.jsonc:32:27: groups.default.api.template: there is no template "wroker" (did you mean "worker"?)`,
	}
	if diff := cmp.Diff(want, lines(problems)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := problems.Error(); got != strings.Join(want, "\n") {
		t.Errorf("Error() = %s", got)
	}
}

func TestSyntax(t *testing.T) {
	for _, tt := range []struct{ src, want string }{
		{"", "f:1:1: syntax error: parsing value: unexpected EOF"},
		{"// nothing", "f:1:11: syntax error: parsing value: unexpected EOF"},
		{"{", "f:1:2: syntax error: parsing value: unexpected EOF"},
		{"{\n  \"é\": 1 \"b\"",
			`f:2:10: syntax error: invalid character '"' after object value (expecting ',' or '}')`},
		{"{} x", "f:1:4: syntax error: invalid character 'x' after top-level value"},
		{"{}{}", "f:1:3: syntax error: invalid character '{' after top-level value"},
		{"{'a': 1}", `f:1:2: syntax error: invalid character '\'' at start of value`},
		{"{\"a\": 01}", "f:1:7: syntax error: invalid literal: 01"},
		{"{\"\xff\": 1}", "f:1:3: the document is not valid UTF-8"},
		{"\ufeff{}", `f:1:1: syntax error: invalid character '\ufeff' at start of value`},
		{strings.Repeat(`{"a":`, 70), "f:1:321: objects and lists are nested deeper than 64"},
		{`{"x": "[[[\"[", /* ` + strings.Repeat("[", 100) + " */ // " + strings.Repeat("[", 100) + "\n 1",
			"f:2:2: syntax error: invalid character '1' at start of object name"},
		{strings.Repeat(" ", MaxSize+1), "f:1:1: the document has 4194305 bytes, at most 4194304 are allowed"},
	} {
		s, problems := Parse("f", []byte(tt.src))
		if s != nil {
			t.Errorf("%.40q was accepted", tt.src)
		}
		if diff := cmp.Diff([]string{tt.want}, lines(problems)); diff != "" {
			t.Errorf("%.40q: (-want +got)\n%s", tt.src, diff)
		}
	}
}

func TestTypes(t *testing.T) {
	for _, tt := range []struct {
		src  string
		want []string
	}{
		{`@[]`, []string{`want an object, have a list`}},
		{`@null`, []string{`want an object, have null (leave the field out)`}},
		{with("", "", "", `, "terminating": @"true"`),
			[]string{`terminating: want true or false, have a text (leave the quotes out)`}},
		{with("", "", "", `, "terminating": @null`),
			[]string{`terminating: want true or false, have null (leave the field out)`}},
		{with("", "", "", `, "tenants": @["a"]`), []string{`tenants: want an object, have a list`}},
		{with("", "", `, "size": @1.5`, ""),
			[]string{`groups.default.g.size: 1.5 is not a whole number, or too large`}},
		{with("", "", `, "size": @99999999999`, ""),
			[]string{`groups.default.g.size: 99999999999 is not a whole number, or too large`}},
		{with("", "", `, "size": @{}`, ""), []string{`groups.default.g.size: want a whole number, have an object`}},
		{with("", "", `, "vars": {"a": @1}`, ""),
			[]string{`groups.default.g.vars.a: want a text, have a number (put it in quotes: "1")`}},
		{with("", "", `, "load_balancers": @"www"`, ""),
			[]string{`groups.default.g.load_balancers: want a list, have a text`}},
		{with("", "", `, "instance_type": "b", "instance_types": ["a", @2]`, ""),
			[]string{`groups.default.g.instance_types[1]: want a text, have a number (put it in quotes: "2")`}},
		{with("", "", `, "drain_timeout": @5`, ""),
			[]string{
				`groups.default.g.drain_timeout: want a text such as "30s", have a number (put it in quotes: "5")`}},
		{with("", "", `, "drain_timeout": @""`, ""),
			[]string{`groups.default.g.drain_timeout: "" is not a duration such as "30s", "1h30m" or "21d"`}},
		{with("", "", `, "args": {"a": @12345678901234567890, "b": @1e999}`, ""), []string{
			`groups.default.g.args.a: 12345678901234567890 is too large to be kept exactly (put it in quotes)`,
			`groups.default.g.args.b: 1e999 is too large to be kept exactly (put it in quotes)`}},
		{with("", "", `, "size": 1, @"size": 2`, ""),
			[]string{`groups.default.g.size: the field is there twice, first in line 5`}},
		{with("", "", `, "args": {"a": {"b": 1, @"b": 2}}`, ""), []string{
			`groups.default.g.args.a.b: the field is there twice, first in line 5`}},
		{with("", "", `, @"Size": 1`, ""),
			[]string{`groups.default.g.Size: there is no such field (did you mean "size"?)`}},
		{with("", "", "", `, "tenants": {"prod": {@"quota": 1}}`), []string{
			`tenants.prod.quota: there is no such field (there are max_instances, max_groups)`}},
		{with(`, "bind": {@"port": 1}`, "", "", ""),
			[]string{
				`server.bind.port: there is no such field (there are health_addr, election_addr, registration_addr, operator_addr, agent_addr)`}},
	} {
		src, want := marked(tt.src, tt.want)
		_, problems := Parse("f", []byte(src))
		if diff := cmp.Diff(want, lines(problems)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", src, diff)
		}
	}
}

// marked removes the marks (@) from a document and adds their positions to the expected problems, in order. A problem
// that starts with = has the position of the problem before it.
func marked(src string, want []string) (string, []string) {
	var out []string
	at := ""
	for _, message := range want {
		message, same := strings.CutPrefix(message, "=")
		if !same {
			before, after, _ := strings.Cut(src, "@")
			at = fmt.Sprintf("f:%d:%d: ", strings.Count(before, "\n")+1,
				len(before)-strings.LastIndexByte(before, '\n'))
			src = before + after
		}
		out = append(out, at+message)
	}
	return src, out
}

func TestPositionsCountCharacters(t *testing.T) {
	_, problems := Parse("f", []byte("{\n\t\"cluster\": {\"é\": 1, \"日本\": 1}}"))
	want := []string{
		`f:1:1: server.shard: is required`,
		`f:1:1: server.provider.kind: is required`,
		`f:1:1: server.subnet_pools: is required`,
		`f:2:13: cluster.id: is required`,
		`f:2:14: cluster["é"]: there is no such field (there are id, storage, secrets)`,
		`f:2:22: cluster["日本"]: there is no such field (there are id, storage, secrets)`,
	}
	if diff := cmp.Diff(want, lines(problems)); diff != "" {
		t.Error(diff)
	}
}

func TestManyProblems(t *testing.T) {
	var src strings.Builder
	src.WriteString("{")
	for i := range 200_000 {
		fmt.Fprintf(&src, "\"x%d\":1,", i)
	}
	src.WriteString("}")
	_, problems := Parse("f", []byte(src.String()))
	if len(problems) != 1001 || problems[1000].Message != "from here on there are 199000 problems more" {
		t.Errorf("%d problems, the last is %v", len(problems), problems[len(problems)-1])
	}
}

func TestGoldenConfig(t *testing.T) {
	s := mustParse(t, string(read(t, testdata+"/v1/config.jsonc")))
	golden(t, testdata+"/v1/config.canonical.json", Encode(s))
	again, problems := Parse("canonical", Encode(s))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if diff := cmp.Diff(s, again, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("the canonical form reads as something else:\n%s", diff)
	}
	groups, problems := ParseGroups("groups.jsonc", read(t, testdata+"/v1/groups.jsonc"))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	golden(t, testdata+"/v1/groups.canonical.json", EncodeGroups(groups))

	merged, problems := s.Merged(groups)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	golden(t, testdata+"/v1/merged.canonical.json", encode(byName(merged), "  "))
}

// byName replaces the keys of merged groups by texts, because JSON cannot encode keys of type GroupKey.
func byName(merged map[GroupKey]Group) map[string]Group {
	out := map[string]Group{}
	for key, g := range merged {
		out[key.String()] = g
	}
	return out
}

func TestStoredConfigurationWithALongCertificate(t *testing.T) {
	document := func(hours int) []byte {
		return []byte(with("", "", "", fmt.Sprintf(
			`, "certificates": {"c": {"kind": "server", "cn": "x", "ttl": %d}}`, hours)))
	}
	const year = 365 * 24
	for name, parse := range map[string]func(string, []byte) (*Shard, Problems){
		"stored": ParseStored, "applied": ParseApplied,
	} {
		shard, problems := parse("f", document(year))
		if shard == nil || len(problems) != 1 || !problems[0].Warning || problems[0].Path != "certificates.c.ttl" ||
			!strings.Contains(problems[0].Message, "90 days") {
			t.Errorf("%s: a year: %v", name, problems)
		}
		if shard, problems := parse("f", document(10*year+1)); shard != nil {
			t.Errorf("%s: more than a former version accepted: %v", name, problems)
		}
	}
	if shard, _ := Parse("f", document(year)); shard != nil {
		t.Error("a new configuration with a certificate for a year is accepted")
	}
}

func TestExampleIsRight(t *testing.T) {
	s := mustParse(t, string(read(t, root+"/examples/config-tmux.jsonc")))
	if s.Cluster.ID != "example-cluster" || s.Server.Provider.Kind != "tmux" || s.Server.Provider.Zone != "deva" ||
		*s.Groups["default"]["workers"].Size != 2 {
		t.Errorf("not the server of the development page: %+v", s)
	}
}

func TestWithDefaults(t *testing.T) {
	s := mustParse(t,
		with(`, "create_rate_limit": "1s", "default_drain_timeout": "0s", "bind": {"agent_addr": "127.0.0.1:1"}, "advertise": {"operator_addr": ":2"}, "leader_election": {"enabled": false}`,
			"", `, "size": 0`, ""))
	written := cloned(s)
	d := s.WithDefaults()
	if diff := cmp.Diff(written, s); diff != "" {
		t.Errorf("WithDefaults changed its receiver:\n%s", diff)
	}
	seconds := func(n int) *Duration { v := Duration(time.Duration(n) * time.Second); return &v }
	off, on := false, true
	want := Server{
		Shard: "a", Provider: Provider{Kind: "mock"},
		Bind:        Addresses{"0.0.0.0:8990", "0.0.0.0:8991", "0.0.0.0:8992", "0.0.0.0:8993", "127.0.0.1:1"},
		Advertise:   Addresses{"0.0.0.0:8990", "0.0.0.0:8991", "0.0.0.0:8992", ":2", "127.0.0.1:1"},
		SubnetPools: map[string][]string{"p": {"s"}}, RequestTimeout: seconds(30), CreateRateLimit: seconds(1),
		CheckRegistrationAddress: &on, HealthCheckInterval: seconds(60),
		DefaultDrainTimeout: seconds(0), JournalRetention: seconds(30 * 24 * 3600), ImageRefresh: seconds(6 * 3600),
		ShutdownTimeout:   seconds(10),
		ShutdownGrace:     seconds(0),
		GarbageCollection: GarbageCollection{seconds(120), seconds(300), seconds(1800)},
		LeaderElection: LeaderElection{Enabled: &off, RenewInterval: seconds(5), LeaseDuration: seconds(10),
			PeerLease: seconds(1)},
		ErrorExitJitter: ErrorExitJitter{seconds(10), seconds(40)},
	}
	quarter := Duration(250 * time.Millisecond)
	want.LeaderElection.PeerInterval = &quarter
	if diff := cmp.Diff(want, d.Server); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if g := d.Groups["default"]["g"]; *g.Size != 0 || *g.MaxSurge != 1 || g.MaxUnhealthy != "40%" ||
		g.DrainTimeout != nil {
		t.Errorf("group: %+v", g)
	}
	if tmpl := d.Templates["t"]; *tmpl.Size != 1 {
		t.Errorf("template: %+v", tmpl)
	}
	if sec := d.Cluster.Secrets; sec.Provider != "object-storage" || sec.EncryptionKey.Source != DefaultKeyVariable ||
		*sec.CacheTTL != *seconds(300) {
		t.Errorf("secrets: %+v", sec)
	}
	if diff := cmp.Diff(d, d.WithDefaults()); diff != "" {
		t.Errorf("defaults of defaults differ:\n%s", diff)
	}
	if problems := validate(d); len(problems) > 0 {
		t.Errorf("the defaults are not valid:\n%v", problems)
	}
}

func FuzzParse(f *testing.F) {
	for _, path := range []string{"/v1/config.jsonc", "/v1/groups.jsonc", "/ten-mistakes.jsonc"} {
		f.Add(read(f, testdata+path))
	}
	f.Add([]byte(with("", "", "", "")))
	for _, s := range []string{"", "{}", "[", `{"server":{"bind":{"health_addr":"x"}}}`,
		`{"templates":{"a":{"args":{"x":[1,{"y":"{{"}]}}}}`, `{"":{"":1}}`, "{\"a\":\"\\ud800\"}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		before := bytes.Clone(src)
		s, problems := Parse("f", src)
		if !bytes.Equal(before, src) {
			t.Error("the source was changed")
		}
		if (s == nil) != (len(problems.Errors()) > 0) {
			t.Errorf("shard %v with problems %v", s, problems)
		}
		for _, p := range problems {
			if p.Line < 1 || p.Col < 1 || p.Message == "" {
				t.Errorf("a problem without a position or message: %+v", p)
			}
			if elements, err := SplitPath(p.Path); err != nil || JoinPath(elements...) != p.Path {
				t.Errorf("%q is no path: %v", p.Path, err)
			}
		}
		if s == nil {
			return
		}
		encoded := Encode(s)
		again, problems := Parse("f", encoded)
		if len(problems) > 0 {
			t.Fatalf("the canonical form has problems:\n%v\n%s", problems, encoded)
		}
		if diff := cmp.Diff(encoded, Encode(again)); diff != "" {
			t.Errorf("the canonical form of the canonical form differs:\n%s", diff)
		}
		if problems := validate(again); len(problems) > 0 {
			t.Errorf("Validate finds what Parse does not:\n%v", problems)
		}
		one, problems := s.Merged(Groups{})
		other, _ := again.Merged(Groups{})
		if diff := cmp.Diff(one, other, cmpopts.EquateEmpty()); diff != "" || len(problems) > 0 {
			t.Errorf("merged groups differ, or %v:\n%s", problems, diff)
		}
	})
}

func FuzzParseGroups(f *testing.F) {
	f.Add(read(f, testdata+"/v1/groups.jsonc"))
	for _, s := range []string{"", "{}", `{"$term": 18446744073709551615}`, `{"default": {"a": {}}}`, `{"default": {}}`,
		`{"$x": 1}`, `{"a--b": {"c": {"size": -1}}}`} {
		f.Add([]byte(s))
	}
	shard := mustParse(f, string(read(f, testdata+"/v1/config.jsonc")))
	f.Fuzz(func(t *testing.T, src []byte) {
		g, problems := ParseGroups("f", src)
		for _, p := range problems {
			if p.Line < 1 || p.Col < 1 || p.Message == "" {
				t.Errorf("a problem without a position or message: %+v", p)
			}
		}
		if len(problems.Errors()) > 0 {
			return
		}
		encoded := EncodeGroups(g)
		again, problems := ParseGroups("f", encoded)
		if len(problems) > 0 {
			t.Fatalf("the canonical form has problems:\n%v\n%s", problems, encoded)
		}
		if diff := cmp.Diff(encoded, EncodeGroups(again)); diff != "" {
			t.Errorf("the canonical form of the canonical form differs:\n%s", diff)
		}
		merged, _ := shard.Merged(g)
		for key, group := range merged {
			if group.GroupKey != key || group.Size < 0 || group.RuntimeHash == "" || group.InfraHash == "" {
				t.Errorf("%s: %+v", key, group)
			}
		}
	})
}
