package admin

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
)

// TestMistakes makes the mistakes of newcomers at the command line. Each error says what is wrong, and what to do next.
// testdata/mistakes.txt has all of them.
func TestMistakes(t *testing.T) {
	c := fleettest.NewCluster(t, "example")
	a, b := fixture("us-west-2a"), fixture("us-west-2b")
	addrA, _ := c.Serve(t, "us-west-2a", a)
	addrB, _ := c.Serve(t, "us-west-2b", b)
	b.Instances = b.Instances[:1]
	b.Instances[0].InstanceId = "wrk06gx5zsg2nrrqcrz000000000g"
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	webAddr := strings.TrimPrefix(web.URL, "http://")
	agents, registration := c.ServePort(t, "us-west-2a", authority.RoleAgent), c.ServePort(t, "us-west-2a", "")
	identity := c.Identity(t, "default", fleettest.Now, month)
	expired := c.Identity(t, "default", fleettest.Now.Add(-2*month), month)
	foreign := fleettest.NewCluster(t, "other").Identity(t, "default", fleettest.Now, month)
	empty := t.TempDir()
	replace := strings.NewReplacer(addrA, "10.0.0.1:8993", addrB, "10.0.0.2:8993", webAddr, "10.0.0.1:8990",
		registration, "10.0.0.1:8992", agents, "10.0.0.1:8994", identity, "/identity", expired, "/expired", foreign,
		"/foreign", empty, "/empty", "127.0.0.1:", "10.0.0.1:")
	roles := func(method string) error {
		return status.Errorf(codes.PermissionDenied,
			"%s needs the role operator: register the operator with --role operator", method)
	}
	both := "us-west-2a=" + addrA + ",us-west-2b=" + addrB
	var out strings.Builder
	for _, mistake := range []struct {
		args string
		env  string // a variable that differs, as NAME=value
		with func(string) error
	}{
		{args: "instances-list"},
		{args: "group lst"},
		{args: "grop list"},
		{args: "instance list --gruop workers"},
		{args: "instance list workers"},
		{args: "explain workers"},
		{args: "context add prod"},
		{args: "group reset workers --field sise"},
		{args: "group scale --dryrun workers 3"},
		{args: "group scale workers +2 --total"},
		{args: "group scale workers 3 --until yesterday"},
		{args: "group scale workers 3 --until -2h"},
		{args: "group create batch --set size"},
		{args: "group set workers --set size=two"},
		{args: "instance delete a b"},
		{args: "group list --output xml"},
		{args: "group list --shard us-west-2a --all-shards"},
		{args: "group pause workers"},
		{args: "group list --shard us-west-2c"},
		{args: "group list --shard west"},
		{args: "group status worker --shard us-west-2a"},
		{args: "group status website --shard us-west-2a"},
		{args: "group status Workers --shard us-west-2a"},
		{args: "group status prod/workers --shard us-west-2a"},
		{args: "group scale workers"},
		{args: "group scale workers two --shard us-west-2a"},
		{args: "group scale workers 1 --shard us-west-2a"},
		{args: "group scale workers -9 --shard us-west-2a --yes"},
		{args: "group scale workers 4 --all-shards"},
		{args: "group scale workers 4 --shard us-west-2a --wait --timeout 5"},
		{args: "group scale workers 4 --shard us-west-2a", with: roles},
		{args: "instance describe wr"},
		{args: "instance describe wrk06"},
		{args: "instance describe wrk06gx5zsg2nrrqcrz000000001"},
		{args: "instance describe i-404"},
		{args: "instance describe wrk06gx5zsg2nrrqcrz000000000r"},
		{args: "instance describe opr06gx5zsg2nrrqcrz0000000000"},
		{args: "events --since yesterday --shard us-west-2a"},
		{args: "events --since 2x --shard us-west-2a"},
		{args: "events --limit many --shard us-west-2a"},
		{args: "status", env: envServers + "="},
		{args: "status", env: envServers + "=10.0.0.1"},
		{args: "status", env: envServers + "=us-west-2a=10.0.0.1"},
		{args: "status", env: envServers + "=us-west-2a=http://10.0.0.1:8993"},
		{args: "status", env: envServers + "=us-west-2a=10.0.0.1:http"},
		{args: "status", env: envServers + "=us-west-2a=127.0.0.1:1"},
		{args: "status", env: envServers + "=us-west-2a=" + webAddr},
		{args: "status", env: envServers + "=us-west-2a=" + registration},
		{args: "status", env: envServers + "=us-west-2a=" + agents},
		{args: "status", env: envServers + "=us-west-2b=" + addrA},
		{args: "status --via us-west-2a=laptop"},
		{args: "status --via us-west-2c=127.0.0.1:1"},
		{args: "status --via us-west-2a=ssh:-oProxyCommand=x"},
		{args: "status --shard us-west-2a --via us-west-2a=127.0.0.1:1"},
		{args: "status --shard us-west-2b --via us-west-2b=" + addrA},
		{args: "status", env: envIdentity + "="},
		{args: "status", env: envIdentity + "=" + empty},
		{args: "status --shard us-west-2a", env: envIdentity + "=" + expired},
		{args: "status --shard us-west-2a", env: envIdentity + "=" + foreign},
		{args: "status", env: envContext + "=prod"},
		{args: "context use prod"},
		{args: "config validate /nonexistent.jsonc"},
		{args: "cluster operators"},
	} {
		cli := terminalless{env: map[string]string{envServers: both, envIdentity: identity, "HOME": empty}}
		name, value, changed := strings.Cut(mistake.env, "=")
		if changed {
			cli.env[name] = value
			out.WriteString("# " + replace.Replace(mistake.env) + "\n")
		}
		a.Do(func() { a.Before = mistake.with })
		text := cli.transcript(t, replace, strings.Fields(mistake.args)...)
		out.WriteString(strings.Replace(text, "--- stderr\n", "", 1) + "\n")
		if !strings.Contains(text, "\nError: ") || !strings.Contains(text, "\nNext:  ") {
			t.Errorf("no error, or no next step:\n%s", text)
		}
	}
	golden(t, filepath.Join("testdata", "mistakes.txt"), out.String())
}
