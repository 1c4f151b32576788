package admin

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
	"github.com/nstance-kit/nstance/services/internal/admin/serve/httpapi"
	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
)

// parity has one entry for each command that calls shards. args are the command's arguments. request is one or two HTTP
// requests with the same effect, and body is the body of the first one.
var parity = map[string]struct{ args, request, body string }{
	"status":           {"", "GET /status", ""},
	"server list":      {"", "GET /status", ""},
	"server step-down": {"--yes", "POST /server/step-down", ""},
	"orphans list":     {"", "GET /orphans", ""},
	"orphans confirm":  {"vm-1 --yes", "POST /orphans/confirm", `{"provider_ids": ["vm-1"]}`},
	"config status":    {"", "GET /config/status", ""},
	"config history":   {"", "GET /events?kinds=config_applied", ""},
	"config refresh":   {"", "POST /config/refresh", ""},
	"events":           {"--since 1h", "GET /events?since=2026-08-01T09:00:00Z", ""},
	"top":              {"", "GET /status, GET /groups", ""},
	"version --all":    {"", "GET /status, GET /instances", ""},
	"explain group":    {"workers", "GET /group/explain?group=workers", ""},
	"explain instance": {firstID, "GET /group/explain?instance_id=" + firstID, ""},
	"group list":       {"", "GET /groups", ""},
	"group describe":   {"workers", "GET /groups?group=workers", ""},
	"group history":    {"workers", "GET /group/scaling?group=workers", ""},
	"group wait":       {"workers", "GET /groups?group=workers", ""},
	"instance drain": {firstID + " --yes", "POST /instance/delete, GET /instance?instance_id=" + firstID,
		`{"instance_id": "` + firstID + `"}`},
	"instance console": {firstID, "GET /instance/console?instance_id=" + firstID, ""},
	"instance protect": {firstID, "POST /instance/protect", `{"instance_id": "` + firstID + `"}`},
	"group scale": {"workers 5", "POST /group?group=workers&must_exist=true, GET /groups?group=workers",
		`{"size": 5}`},
	"group scale --dry-run": {"workers 5",
		"POST /group?group=workers&must_exist=true&dry_run=true, GET /groups?group=workers", `{"size": 5}`},
	"group roll --dry-run": {"workers", "POST /group/roll?dry_run=true", `{"group": "workers"}`},
	"group pause":          {"workers", "POST /group/pause", `{"group": "workers"}`},
	"group resume":         {"workers", "POST /group/resume", `{"group": "workers"}`},
	"group roll":           {"workers --yes", "POST /group/roll", `{"group": "workers"}`},
	"group create": {"web --template worker", "POST /group?group=web&must_create=true",
		`{"template": "worker"}`},
	"group set": {"workers --set vars.a=b --yes", "POST /group?group=workers&must_exist=true",
		`{"vars": {"a": "b"}}`},
	"group reset": {"workers --yes", "POST /group?group=workers&must_exist=true, GET /groups?group=workers",
		`{"size": null}`},
	"group delete":      {"batch --yes", "POST /group/delete", `{"group": "batch"}`},
	"instance release":  {firstID + " --yes", "POST /instance/release", `{"instance_id": "` + firstID + `"}`},
	"instance list":     {"", "GET /instances", ""},
	"instance describe": {firstID, "GET /instance?instance_id=" + firstID, ""},
	"instance create":   {"workers", "POST /instance/create", `{"group": "workers"}`},
	"instance delete":   {firstID + " --yes", "POST /instance/delete", `{"instance_id": "` + firstID + `"}`},
}

// withoutRoute are the commands that call shards and have no HTTP request, with the reason.
var withoutRoute = map[string]string{
	"context show":      "it calls no shard; its flags are those whose values it shows",
	"serve":             "it serves the HTTP API",
	"ui":                "it serves the page and the HTTP API",
	"doctor":            "it works on the bucket without a leader; its --servers are ports to try",
	"support":           "it writes a file on the machine of the person who reports a fault, and reads the bucket",
	"cluster rotate-ca": "it works on the bucket without a leader; its --servers only name the shards",
	"config push":       "it writes to the bucket, which serve cannot; its --refresh is POST /config/refresh",
}

// withoutCommand are the calls of the operator API that no command makes, with the reason.
var withoutCommand = map[string]string{
	"AcknowledgeDrained": "only the Kubernetes operator drains nodes",
	"GetInstanceType":    "only the Kubernetes operator needs the size of a type",
	"RenewCertificate":   "cluster register-operator renews the identity",
	"FollowEvents":       "events --follow and GET /events/follow follow the journal, and do not end by themselves",
	"WatchGroups":        "only the page watches the state",
	"WatchInstances":     "only the page watches the state",
	"WatchErrors":        "only the page watches the state",
}

// TestParity runs every command that calls shards, and the HTTP request that does the same. Both make the same calls
// to the shard. A new command, route or call without its counterpart fails the test.
func TestParity(t *testing.T) {
	covered := map[string]bool{}
	commands, routes, calls := map[string]bool{}, map[string]bool{}, map[string]bool{}
	walk(newApp("1", System()).command(), func(cmd *command) {
		if !cmd.HasSubCommands() && cmd.Flag("servers") != nil {
			commands[strings.TrimPrefix(cmd.CommandPath(), "nstance-admin ")] = true
		}
	})
	for name, row := range parity {
		command, _, _ := strings.Cut(name, " --")
		covered[command] = true
		if !commands[command] {
			t.Errorf("there is no command %q that calls shards", command)
		}
		for request := range strings.SplitSeq(row.request, ", ") {
			path, _, _ := strings.Cut(request, "?")
			routes[path] = true
		}
		t.Run(name, func(t *testing.T) {
			byCommand, byRequest := callsOfCommand(t, name, row.args), callsOfRequest(t, row.request, row.body)
			if diff := cmp.Diff(byCommand, byRequest); diff != "" || len(byCommand) == 0 {
				t.Errorf("%s and %s call the shard differently: %s", name, row.request, diff)
			}
			for _, call := range byCommand {
				calls[call] = true
			}
		})
	}
	for name := range commands {
		if !covered[name] && withoutRoute[name] == "" {
			t.Errorf("%s has no HTTP request", name)
		}
	}
	for _, route := range documented(t) {
		if !routes[route] &&
			!slices.Contains([]string{"GET /health", "GET /openapi.json", "GET /events/follow"}, route) {
			t.Errorf("no command does what %s does", route)
		}
	}
	for _, method := range nstancev1.OperatorService_ServiceDesc.Methods {
		if !calls[method.MethodName] && withoutCommand[method.MethodName] == "" {
			t.Errorf("no command calls %s", method.MethodName)
		}
	}
	for _, stream := range nstancev1.OperatorService_ServiceDesc.Streams {
		if !calls[stream.StreamName] && withoutCommand[stream.StreamName] == "" {
			t.Errorf("no command calls %s", stream.StreamName)
		}
	}
	for call := range withoutCommand {
		if calls[call] {
			t.Errorf("a command calls %s: take it out of the list", call)
		}
	}
}

// parityShard returns a fake shard, and a context in which one command or request runs. The context ends when all event
// streams are open, or when the command `top` has printed its table twice.
func parityShard(t *testing.T) (context.Context, *fleettest.Shard) {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	shard := fixture("us-a")
	shard.Drained = true
	shard.Instances[1].PreservedAt = ago(time.Hour)
	shard.Groups[0].ActualSize, shard.Groups[0].Healthy = 3, 3
	shard.Orphans = []*nstancev1.Orphan{{ProviderId: "vm-1", InstanceId: firstID}}
	streams := map[string]bool{}
	groups := 0
	shard.Before = func(method string) error {
		if method == "ListGroups" {
			if groups++; groups > 4 { // top has drawn twice
				cancel()
			}
		}
		if strings.HasPrefix(method, "Watch") {
			if streams[method] = true; len(streams) == 3 {
				cancel()
			}
		}
		return nil
	}
	return ctx, shard
}

// callsOf returns the names of the methods that were called on a shard, without repetitions.
func callsOf(shard *fleettest.Shard) (calls []string) {
	shard.Do(func() { calls = slices.Compact(slices.Sorted(slices.Values(shard.Calls))) })
	return calls
}

func callsOfCommand(t *testing.T, name, args string) []string {
	t.Helper()
	ctx, shard := parityShard(t)
	c := fleettest.NewCluster(t, "example")
	addr, _ := c.Serve(t, "us-a", shard)
	cli := terminalless{ctx: ctx, env: map[string]string{envServers: "us-a=" + addr,
		envIdentity: c.Identity(t, "default", fleettest.Now, 30*24*time.Hour)}}
	if _, stderr, code := cli.run(t, append(strings.Fields(name), strings.Fields(args)...)...); code != exitOK {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	return callsOf(shard)
}

func callsOfRequest(t *testing.T, line, body string) []string {
	t.Helper()
	ctx, shard := parityShard(t)
	c := fleettest.NewCluster(t, "example")
	addr, _ := c.Serve(t, "us-a", shard)
	api := parityAPI(t, "us-a="+addr, c.Identity(t, "default", fleettest.Now, 30*24*time.Hour))
	for request := range strings.SplitSeq(line, ", ") {
		method, path, _ := strings.Cut(request, " ")
		req := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
		req.Host = "localhost"
		if body != "" {
			req.Header.Set("Content-Type", "application/json")
		}
		w := httptest.NewRecorder()
		if api.ServeHTTP(w, req); w.Code != http.StatusOK {
			t.Errorf("%s: %d %s", request, w.Code, w.Body)
		}
		body = ""
	}
	return callsOf(shard)
}

func parityAPI(t *testing.T, servers, identity string) http.Handler {
	t.Helper()
	parsed, err := endpoints.Parse(servers)
	if err != nil {
		t.Fatal(err)
	}
	f := fleet.New(fleet.Options{Servers: parsed, IdentityDir: identity, Timeout: 10 * time.Second,
		Now: fleettest.Clock, Rand: fleettest.Rand(1)})
	t.Cleanup(f.Close)
	return httpapi.New(httpapi.Options{Fleet: f, Version: "1", Timeout: 20 * time.Second,
		Log: slog.New(slog.DiscardHandler)})
}

// documented returns the routes in the OpenAPI document, as "METHOD /path".
func documented(t *testing.T) (routes []string) {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/openapi.json", nil)
	req.Host = "localhost"
	w := httptest.NewRecorder()
	parityAPI(t, "us-a=127.0.0.1:1", t.TempDir()).ServeHTTP(w, req)
	var document struct{ Paths map[string]map[string]any }
	if err := json.Unmarshal(w.Body.Bytes(), &document); err != nil {
		t.Fatal(err)
	}
	for path, methods := range document.Paths {
		for method := range maps.Keys(methods) {
			routes = append(routes, strings.ToUpper(method)+" "+path)
		}
	}
	return routes
}
