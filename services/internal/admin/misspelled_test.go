package admin

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
)

// TestMisspelledSettings misspells ten settings of a group on the command line, in a file, in a request of the HTTP
// API, and in a shard's configuration. Each is refused with its path and a hint before any shard is called.
func TestMisspelledSettings(t *testing.T) {
	shard := fixture("us-a")
	c := fleettest.NewCluster(t, "example")
	addr, _ := c.Serve(t, "us-a", shard)
	identity := c.Identity(t, "default", fleettest.Now, 30*24*time.Hour)
	cli := terminalless{env: map[string]string{envServers: "us-a=" + addr, envIdentity: identity}}
	api := parityAPI(t, "us-a="+addr, identity)
	for _, test := range []struct{ path, value, hint string }{
		{"max_unhealth", `"3"`, "max_unhealthy"},
		{"rollout.canry", `1`, "canary"},
		{"rollout.bake_tme", `"1m"`, "bake_time"},
		{"disruption.window", `[]`, "windows"},
		{"disruption.max_perhour", `1`, "max_per_hour"},
		{"purchase.spot_precent", `50`, "spot_percent"},
		{"drain_timout", `"5m"`, "drain_timeout"},
		{"instance_typ", `"m7g.large"`, "instance_type"},
		{"load_balancer", `["www"]`, "load_balancers"},
		{"max_surges", `1`, "max_surge"},
	} {
		want := fmt.Sprintf("%s: there is no such field (did you mean %q?)", test.path, test.hint)
		names := strings.Split(test.path, ".")
		doc := fmt.Sprintf("{%q: %s}", names[len(names)-1], test.value)
		if len(names) == 2 {
			doc = fmt.Sprintf("{%q: %s}", names[0], doc)
		}
		file := filepath.Join(t.TempDir(), "group.jsonc")
		if err := os.WriteFile(file, []byte("// a group\n"+doc), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{
			{"set", "workers", "--yes", "--set", test.path + "=" + test.value},
			{"set", "workers", "--yes", "--unset", test.path},
			{"set", "workers", "--yes", "--file", file},
			{"create", "web", "--template", "worker", "--set", test.path + "=" + test.value},
			{"create", "web", "--template", "worker", "--file", file},
		} {
			_, stderr, code := cli.run(t, append([]string{"group"}, args...)...)
			if code != exitUsage && code != exitFailure || !strings.Contains(stderr, want) {
				t.Errorf("%v: exit code %d: %s", args, code, stderr)
			}
			if args[0] == "create" && strings.Contains(stderr, file) && !strings.Contains(stderr, file+":2:") {
				t.Errorf("%v: the line is missing: %s", args, stderr)
			}
		}
		for _, path := range []string{"/group?group=web&must_create=true",
			"/group?group=workers&must_exist=true"} {
			r := httptest.NewRequestWithContext(t.Context(), "POST", path, strings.NewReader(doc))
			r.Host = "localhost"
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			api.ServeHTTP(w, r)
			if text := strings.ReplaceAll(w.Body.String(), `\"`, `"`); w.Code != 400 || !strings.Contains(text, want) {
				t.Errorf("%s %s: %d %s", path, doc, w.Code, text)
			}
		}
		_, problems := config.Parse("shard.jsonc", []byte(`{"groups": {"default": {"workers": `+doc+`}}}`))
		if text := problems.Error(); !strings.Contains(text, "groups.default.workers."+want) {
			t.Errorf("config push of %s: %s", doc, text)
		}
	}
	if calls := callsOf(shard); len(calls) > 0 {
		t.Errorf("called %v", calls)
	}
}
