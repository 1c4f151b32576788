package config

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestValidateHealthChecks has one case for each rule of health checks. Marks (@) show the position of the problem.
func TestValidateHealthChecks(t *testing.T) {
	checks := func(fields string) string { return with("", `, "health_checks": {`+fields+`}`, "", "") }
	many := ""
	for n := range MaxHealthChecks + 1 {
		many += fmt.Sprintf(`, "c%d": {"exec": ["x"]}`, n)
	}
	const web = `templates.t.health_checks.web`
	for _, tt := range []struct {
		name, src string
		want      []string
	}{
		{"right", checks(`"web": {"http": {"port": 8080, "path": "/healthz?x=1", "status": 204}, "interval": "1s",
			"timeout": "1s", "start_period": "2m"}, "db": {"exec": ["pg_isready", "-q", ""]}`), nil},
		{"neither", checks(`"web": @{}`), []string{web + `: has neither exec nor http`}},
		{"both", checks(`"web": @{"exec": ["x"], "http": {"port": 1}}`),
			[]string{web + `: has both exec and http: a check is one of them`}},
		{"no command", checks(`"web": {"exec": @[]}`), []string{web + `.exec: has no command`}},
		{"an empty command", checks(`"web": {"exec": @["", "x"]}`), []string{web + `.exec: has no command`}},
		{"zero byte", checks(`"web": {"exec": ["x", @"\u0000"]}`), []string{web + `.exec[1]: has a zero byte`}},
		{"no port", checks(`"web": {"http": @{}}`), []string{web + `.http.port: is required`}},
		{"port out of range", checks(`"web": {"http": {"port": @65536}}`),
			[]string{web + `.http.port: 65536 is not a port from 1 to 65535`}},
		{"negative port", checks(`"web": {"http": {"port": @-1}}`),
			[]string{web + `.http.port: -1 is not a port from 1 to 65535`}},
		{"status", checks(`"web": {"http": {"port": 1, "status": @42}}`),
			[]string{web + `.http.status: 42 is not a status from 100 to 599`}},
		{"path", checks(`"web": {"http": {"port": 1, "path": @"http://example.com/"}}`),
			[]string{web + `.http.path: "http://example.com/" is not a path such as "/healthz"`}},
		{"timeout", checks(`"web": {"exec": ["x"], "interval": "2s", "timeout": @"3s"}`),
			[]string{web + `.timeout: 3s is more than the interval of 2s`}},
		{"interval below the default timeout", checks(`"web": @{"exec": ["x"], "interval": "2s"}`),
			[]string{web + `.timeout: 5s is more than the interval of 2s`}},
		{"interval", checks(`"web": {"exec": ["x"], "interval": @"10ms", "timeout": "10ms"}`),
			[]string{web + `.interval: 10ms is less than 1s`}},
		{"thresholds", checks(`"web": {"exec": ["x"], "failure_threshold": @0, "success_threshold": @101}`), []string{
			web + `.failure_threshold: must be more than 0`, web + `.success_threshold: 101 is more than 100`}},
		{"name", checks(`@"Web": {"exec": ["x"]}`), []string{
			`templates.t.health_checks.Web: name "Web" may only have lower-case letters, digits and dashes`}},
		{"unknown field", checks(`"web": {"exec": ["x"], @"tcp": {}}`), []string{web + `.tcp: there is no such field ` +
			`(there are exec, http, interval, timeout, failure_threshold, success_threshold, start_period)`}},
		{"too many", with("", `, "health_checks": @{`+many[2:]+`}`, "", ""),
			[]string{`templates.t.health_checks: has 33 entries, at most 32 are allowed`}},
	} {
		src, want := marked(tt.src, tt.want)
		_, problems := Parse("f", []byte(src))
		if diff := cmp.Diff(want, lines(problems)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s\n%s", tt.name, diff, src)
		}
	}
}

// TestValidateDrainHook has one case for each rule of drain hooks.
func TestValidateDrainHook(t *testing.T) {
	const hook = `templates.t.drain`
	in := func(server, fields, group string) string { return with(server, `, "drain": {`+fields+`}`, group, "") }
	short := func(timeout string) string { return in("", `"exec": ["x"]`, `, "drain_timeout": `+timeout) }
	for _, tt := range []struct {
		name, src string
		want      []string
	}{
		{"right", in("", `"exec": ["/usr/local/bin/drain", "-q", ""], "timeout": "5m"`, ""), nil},
		{"as long as the drain", in("", `"exec": ["x"], "timeout": "90s"`, `, "drain_timeout": "90s"`), nil},
		{"the default timeout of a short drain", short(`"10s"`), nil},
		{"no command", with("", `, "drain": @{"timeout": "1m"}`, "", ""), []string{hook + `.exec: is required`}},
		{"an empty list", in("", `"exec": @[]`, ""), []string{hook + `.exec: is required`}},
		{"an empty command", in("", `"exec": @["", "x"]`, ""), []string{hook + `.exec: has no command`}},
		{"zero byte", in("", `"exec": ["x", @"\u0000"]`, ""), []string{hook + `.exec[1]: has a zero byte`}},
		{"too long", in("", `"exec": @["`+strings.Repeat("x", 4097)+`"]`, ""), []string{
			hook + `.exec: has 1 words with 4097 bytes, at most 64 words with 4096 bytes are allowed`}},
		{"no timeout", in("", `"exec": ["x"], "timeout": @"0s"`, ""), []string{hook + `.timeout: must be more than 0`}},
		{"unknown field", in("", `"exec": ["x"], @"http": {}`, ""), []string{
			hook + `.http: there is no such field (there are exec, timeout)`}},
		{"a short drain", in("", `"exec": ["x"], "timeout": "91s"`, `, "drain_timeout": @"90s"`), []string{
			`groups.default.g.drain_timeout: 1m30s is less than 1m31s, the timeout of the drain hook of template t`}},
		{"a short drain of the shard", strings.Replace(in(`, "default_drain_timeout": "1m"`,
			`"exec": ["x"], "timeout": "3m"`, ""), `"g": {`, `"g": @{`, 1), []string{
			`groups.default.g.drain_timeout: 1m is less than 3m, the timeout of the drain hook of template t`}},
		{"no drain", short(`@"0s"`), []string{
			`groups.default.g.drain_timeout: is 0: the drain hook of template t would have no time`}},
	} {
		src, want := marked(tt.src, tt.want)
		_, problems := Parse("f", []byte(src))
		if diff := cmp.Diff(want, lines(problems)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s\n%s", tt.name, diff, src)
		}
	}
	s := mustParse(t, in("", `"exec": ["x"], "timeout": "4m"`, ""))
	minute := Duration(time.Minute)
	err := CheckUpsert(s, GroupKey{"default", "new"}, GroupSpec{Template: "t", DrainTimeout: &minute})
	if err == nil || !strings.Contains(err.Error(), "drain_timeout: 1m is less than 4m") {
		t.Errorf("a dynamic group: %v", err)
	}
}

// TestValidateLoadBalancerHealth has one case for each rule of load_balancer_health.
func TestValidateLoadBalancerHealth(t *testing.T) {
	const on = `, "load_balancer_health": true`
	in := func(kind, template, group, rest string) string {
		src := with("", template, group, rest)
		if kind != "" {
			src = strings.Replace(src, `{"kind": "mock"}`, kind, 1)
		}
		fields := `"arch": "arm64", "instance_type": "x"`
		if strings.Contains(kind, "gcp") {
			fields += `, "args": ` + images[onGCP]
		} else if strings.Contains(kind, "aws") {
			fields += `, "args": ` + images[onAWS]
		}
		return strings.Replace(src, `"arch": "arm64"`, fields, 1)
	}
	const aws, gcp = `{"kind": "aws", "region": "us-west-2", "zone": "us-west-2a"}`,
		`{"kind": "gcp", "region": "us-central1", "zone": "us-central1-a"}`
	const balanced = `, "load_balancers": ["a", "b"]`
	instanceGroups := func(services string) string {
		return `, "load_balancers": {"a": {"provider": "gcp", "instance_group_name": "a"` + services + `},
			"b": {"provider": "gcp", "instance_group_name": "b", "backend_service_names": ["b-http", "b-https"]}}`
	}
	targetGroups := `, "load_balancers": {"a": {"provider": "aws", "target_group_arns": ["x"]},
		"b": {"provider": "aws", "target_group_arns": ["y"]}}`
	for _, tt := range []struct {
		name, src string
		want      []string
	}{
		{"target groups", in(aws, on, balanced, targetGroups), nil},
		{"backend services", in(gcp, on, balanced, instanceGroups(`, "backend_service_names": ["a-http"]`)), nil},
		{"without the option", in(gcp, "", balanced, instanceGroups("")), nil},
		{"no backend services", in(gcp, on, strings.Replace(balanced, `"a"`, `@"a"`, 1), instanceGroups("")), []string{
			`groups.default.g.load_balancers[0]: load balancer a needs backend_service_names: ` +
				`template t has load_balancer_health`}},
		{"names of backend services", in(gcp, "", "", instanceGroups(`, "backend_service_names": ["x", @"X", @"x"]`)),
			[]string{`load_balancers.a.backend_service_names[1]: "X" is not a name of Compute Engine: at most 63 ` +
				`lower-case letters, digits and dashes, beginning with a letter`,
				`load_balancers.a.backend_service_names[2]: "x" is there twice`}},
		{"no load balancer", strings.Replace(in(aws, on, "", targetGroups), `"g": {`, `"g": @{`, 1), []string{
			`groups.default.g.load_balancers: is required: template t has load_balancer_health`}},
		{"no load balancers", in(`{"kind": "tmux"}`, strings.Replace(on, "true", "@true", 1), "", ""), []string{
			`templates.t.load_balancer_health: provider tmux has no load balancers that tell the health of instances`}},
	} {
		src, want := marked(tt.src, tt.want)
		_, problems := Parse("f", []byte(src))
		if diff := cmp.Diff(want, lines(problems)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s\n%s", tt.name, diff, src)
		}
	}
}

// TestHealthChecksOfAGroup checks that a group has the checks of its template with their defaults, and that a change of
// them changes only the runtime hash.
func TestHealthChecksOfAGroup(t *testing.T) {
	merged := func(checks string) Group {
		return mustMerge(t, mustParse(t, with("", checks, "", "")), Groups{})[GroupKey{"default", "g"}]
	}
	none, some := merged(""), merged(`, "health_checks": {"web": {"http": {"port": 80}}}`)
	second, three, one := Duration(time.Second), 3, 1
	interval, timeout := 10*second, 5*second
	want := map[string]HealthCheck{"web": {HTTP: &HealthRequest{Port: 80, Path: "/", Status: 200}, Interval: &interval,
		Timeout: &timeout, FailureThreshold: &three, SuccessThreshold: &one}}
	if diff := cmp.Diff(want, some.HealthChecks); diff != "" {
		t.Error(diff)
	}
	if none.InfraHash != some.InfraHash {
		t.Error("a health check changes the infra hash: it would replace the instances")
	}
	if none.RuntimeHash == some.RuntimeHash || some.HealthChecksVersion() == "" || none.HealthChecksVersion() != "" {
		t.Errorf("runtime hashes %s and %s, versions %q and %q", none.RuntimeHash, some.RuntimeHash,
			none.HealthChecksVersion(), some.HealthChecksVersion())
	}
	written := merged(`, "health_checks": {"web": {"http": {"port": 80, "path": "/"}, "interval": "10s"}}`)
	if written.RuntimeHash != some.RuntimeHash {
		t.Error("a default that is written out changes the runtime hash")
	}
}
