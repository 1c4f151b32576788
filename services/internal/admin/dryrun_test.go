package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/agent"
	"github.com/nstance-kit/nstance/services/internal/proof/foldertest"
	"github.com/nstance-kit/nstance/services/internal/server"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
)

// dryRuns has one entry for each command with the flag --dry-run. A command of a group or an instance runs against a
// real server: first with --dry-run, then with --yes. Commands of the bucket run on a bucket without a server.
var dryRuns = map[string]struct {
	// before are command lines that prepare the group "workers", which has two healthy instances.
	before []string
	// args are the arguments. INSTANCE stands for the older instance of the group, and CONFIG for a configuration with
	// three instances of another type.
	args string
	// says are lines of the dry run, without the name of the shard.
	says []string
	// bucket means that the command works on the bucket.
	bucket bool
	// elsewhere names the test that checks the dry run of the command, if this one cannot.
	elsewhere string
}{
	"group scale": {args: "workers 1", says: []string{"group workers: size 2 → 1 (configured 2), 2 there"}},
	"group scale +1": {args: "workers +1", says: []string{"group workers: size 2 → 3 (configured 2), 2 there",
		"1 instance would be created"}},
	"group reset": {before: []string{"group scale workers 3", "group set workers --set vars.a=new --yes"},
		args: "workers --field size", says: []string{"group workers: size 3 → 2 (configured), 3 there"}},
	"group reset all": {before: []string{"group scale workers 1 --yes", "group set workers --set vars.a=new --yes"},
		args: "workers",
		says: []string{"group workers: size 1 → 2 (configured), vars.a new → old (configured), 1 there"}},
	"group set": {args: "workers --set instance_type=large",
		says: []string{`group workers: instance_type small → large (configured "small"), 2 there`,
			"2 of 2 instances would be replaced, up to 1 at a time"}},
	"group roll": {args: "workers", says: []string{"2 of 2 instances would be replaced, up to 1 at a time"}},
	"group pause": {args: "workers",
		says: []string{"group workers: rollout.paused false → true (configured false), 2 there"}},
	"group resume": {before: []string{"group pause workers", "group roll workers --yes"}, args: "workers",
		says: []string{"group workers: rollout.paused true → false (configured), 2 there",
			"2 of 2 instances would be replaced, up to 1 at a time"}},
	"group create": {args: "batch --template t --size 2", says: []string{"group batch would be created with size 2",
		"2 instances would be created"}},
	"group delete": {before: []string{"group create batch --template t --size 1"}, args: "batch",
		says: []string{"group batch would be deleted with its 1 instance"}},
	"instance delete": {args: "INSTANCE", says: []string{"group workers: its settings stay; size 2, 2 there"}},
	"instance delete decrement": {args: "INSTANCE --decrement", says: []string{
		"group workers: size 2 → 1 (configured 2), 2 there"}},
	"instance drain":   {args: "INSTANCE"},
	"instance release": {elsewhere: "TestReleaseInstance of operatorapi"},
	"config push": {args: "CONFIG --refresh", says: []string{
		"group workers: size 2 → 3, instance_type small → large, 2 there",
		"2 of 2 instances would be replaced, up to 1 at a time", "1 instance would be created"}},
	"server step-down": {elsewhere: "TestExplainChange of operatorapi"},
	"orphans confirm":  {elsewhere: "TestExplainChange of operatorapi"},

	"cluster secret delete":      {args: "db.password", bucket: true},
	"cluster rotate-key":         {elsewhere: "TestBucketCommandsAsk"},
	"cluster rotate-ca":          {args: "--no-wait", bucket: true},
	"cluster rotate-workload-ca": {elsewhere: "TestBucketCommandsAsk"},
	"cluster operator remove":    {args: "OPERATOR", bucket: true},
	"cluster restore":            {elsewhere: "TestClusterRestore"},
}

// commandOf returns the name of the command in a key of dryRuns, which may have more words.
func commandOf(name string, commands map[string]bool) string {
	for name != "" && !commands[name] {
		name, _, _ = cutLast(name)
	}
	return name
}

func cutLast(text string) (before, after string, found bool) {
	n := strings.LastIndexByte(text, ' ')
	if n < 0 {
		return "", text, false
	}
	return text[:n], text[n+1:], true
}

// TestEveryDryRun runs each command with --dry-run, and compares what the dry run says with what the command then does.
// A command with --dry-run and without an entry in dryRuns fails the test.
func TestEveryDryRun(t *testing.T) {
	commands, covered := map[string]bool{}, map[string]bool{}
	walk(newApp("1", System()).command(), func(cmd *command) {
		if cmd.Flag("dry-run") != nil {
			commands[strings.TrimPrefix(cmd.CommandPath(), "nstance-admin ")] = true
		}
	})
	for name, row := range dryRuns {
		command := commandOf(name, commands)
		if command == "" {
			t.Errorf("there is no command with --dry-run of the entry %q", name)
			continue
		}
		covered[command] = true
		if row.elsewhere != "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			if row.bucket {
				dryRunOnBucket(t, strings.Fields(command), row.args)
				return
			}
			r := leadReal(t)
			for _, line := range row.before {
				r.must(t, strings.Fields(line)...)
				r.converge(t, strings.Contains(line, "pause") || strings.Contains(line, "roll"))
			}
			args := strings.Fields(command + " " + row.args)
			for n := range args {
				switch args[n] {
				case "INSTANCE":
					args[n] = slices.Sorted(maps.Keys(r.instances(t)))[0]
				case "CONFIG":
					args[n] = r.configuration(t, 3, "large")
				}
			}
			if command == "config push" {
				args = append(args, r.flags...)
			}
			r.compare(t, args, row.says, command)
		})
	}
	for name := range commands {
		if !covered[name] {
			t.Errorf("%s has --dry-run and no entry in dryRuns", name)
		}
	}
}

// real is a shard with a real server in this process, a bucket in a directory, a cloud in memory, and real agents.
type real struct {
	*bucket
	ports []string
	ctx   context.Context
	wg    sync.WaitGroup

	mu     sync.Mutex
	agents map[ident.ID]context.CancelFunc
}

// run runs a command line at the present time.
func (r *real) run(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	env := System()
	env.Stdin, env.Stdout, env.Stderr = strings.NewReader(""), &out, &errs
	env.Getenv = func(name string) string {
		if value, ok := r.env[name]; ok {
			return value
		}
		return os.Getenv(name)
	}
	code = Run(t.Context(), args, "1.2.3", env)
	return out.String(), errs.String(), code
}

func (r *real) must(t *testing.T, args ...string) string {
	t.Helper()
	stdout, stderr, code := r.run(t, args...)
	if code != exitOK {
		t.Fatalf("%s: exit code %d\n%s%s", strings.Join(args, " "), code, stdout, stderr)
	}
	return stdout
}

// leadReal starts a server of the shard "a" with a group "workers" that has two healthy instances.
func leadReal(t *testing.T) *real {
	t.Helper()
	r := &real{bucket: newBucket(t, "file"), agents: map[ident.ID]context.CancelFunc{}}
	r.ports = freePorts(t, 5)
	var cancel context.CancelFunc
	r.ctx, cancel = context.WithCancel(context.Background())
	identity := t.TempDir()
	r.env = map[string]string{envServers: "a=" + r.ports[3], envIdentity: identity}
	r.must(t, r.args("cluster", "init", "--cluster-id", "example")...)
	r.must(t, r.args("config", "push", r.configuration(t, 2, "small"))...)
	r.must(t, r.args("cluster", "register-operator", "--cluster-id", "example", "--role", "admin", "--output-dir",
		identity)...)
	provider := mock.New(mock.Config{Now: time.Now, Script: func(_ context.Context, c mock.Call) mock.Outcome {
		switch c.Kind {
		case mock.Create:
			r.boot(t, c)
		case mock.Delete:
			r.mu.Lock()
			if stop := r.agents[c.Instance]; stop != nil {
				stop()
			}
			r.mu.Unlock()
		default:
		}
		return mock.Outcome{}
	}})
	ended := make(chan error, 1)
	go func() {
		ended <- server.Run(r.ctx, server.Config{Options: server.Options{ID: "one", Shard: "a", CacheDir: t.TempDir(),
			HealthAddr: r.ports[0], Location: r.location}, Log: slog.New(slog.DiscardHandler), Bucket: r.store,
			Clouds: []infra.Cloud{mock.Cloud(provider, "machine")}})
	}()
	t.Cleanup(func() {
		cancel()
		r.wg.Wait()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	r.converge(t, false)
	return r
}

// freePorts returns addresses that nobody listens on.
func freePorts(t *testing.T, n int) (addrs []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs
}

// boot starts the agent of a VM.
func (r *real) boot(t *testing.T, c mock.Call) {
	nonce, ca, _ := bytes.Cut(c.Request.Userdata, []byte("\n"))
	memory := &[3]foldertest.Memory{}
	for name, content := range map[string][]byte{"nonce.jwt": nonce, "ca.crt": ca} {
		if err := memory[0].Write(name, content, 0o600); err != nil {
			t.Error(err)
		}
	}
	ctx, cancel := context.WithCancel(r.ctx)
	r.mu.Lock()
	r.agents[c.Instance] = cancel
	r.mu.Unlock()
	client := agent.New(agent.Options{ID: c.Instance, RegistrationAddrs: []string{r.ports[2]},
		AgentAddrs: []string{r.ports[4]}, Identity: &memory[0], Keys: &memory[1], Files: &memory[2],
		IdentityMode: 0o600, KeysMode: 0o640, FilesMode: 0o640, Machine: quiet{}, Version: "test",
		Log: slog.New(slog.DiscardHandler)})
	r.wg.Go(func() { _ = client.Run(ctx) })
}

// quiet is a VM that has nothing to report.
type quiet struct{}

func (quiet) Facts() agent.Facts { return agent.Facts{IPv4: "127.0.0.1"} }
func (quiet) Sample(context.Context) (*nstancev1.Metrics, time.Duration) {
	return &nstancev1.Metrics{}, time.Hour
}

// configuration writes a configuration to a file, and returns the path of the file.
func (r *real) configuration(t *testing.T, size int, instanceType string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.jsonc")
	text := fmt.Sprintf(`{
  "cluster": {"id": "example", "secrets": {"encryption_key": {"provider": "env"}}},
  "server": {"shard": "a", "provider": {"kind": "mock"}, "subnet_pools": {"p": ["s"]},
    "check_registration_address": false, "default_drain_timeout": "0s",
    "bind": {"health_addr": %q, "election_addr": %q, "registration_addr": %q, "operator_addr": %q, "agent_addr": %q}},
  "defaults": {"userdata": {"content": "{{ .Nonce }}\n{{ .Cluster.CACert }}"}},
  "templates": {"t": {"kind": "tst", "arch": "amd64", "subnet_pool": "p", "args": {"Name": "{{ .Vars.a }}"},
    "vars": {"a": "old"}, "dynamic": {"vars": ["a"], "instance_types": ["large"]}}},
  "groups": {"default": {"workers": {"template": "t", "size": %d, "instance_type": %q}}}
}`, r.ports[0], r.ports[1], r.ports[2], r.ports[3], r.ports[4], size, instanceType)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// groups returns the groups as the leader sees them; nil while it does not answer.
func (r *real) groups(t *testing.T) []*nstancev1.GroupStatus {
	stdout, _, code := r.run(t, "group", "list", "--output", "json")
	if code != exitOK {
		return nil
	}
	var answer struct {
		Shards []struct {
			Groups []struct {
				Group                               string
				Size, ActualSize, Healthy, Outdated uint32
				Actual                              uint32 `json:"actual_size"`
				Deleting, Paused                    bool
			}
		}
	}
	if err := json.Unmarshal([]byte(stdout), &answer); err != nil {
		t.Fatal(err)
	}
	groups := []*nstancev1.GroupStatus{}
	for _, g := range answer.Shards[0].Groups {
		groups = append(groups, &nstancev1.GroupStatus{Group: g.Group, Size: g.Size, ActualSize: g.Actual,
			Healthy: g.Healthy, Outdated: g.Outdated, Deleting: g.Deleting, Paused: g.Paused})
	}
	return groups
}

// instances returns the IDs of the instances that are not deleted, each with its group.
func (r *real) instances(t *testing.T) map[string]string {
	t.Helper()
	var answer struct {
		Shards []struct {
			Instances []struct {
				ID    string `json:"instance_id"`
				Group string
			}
		}
	}
	if err := json.Unmarshal([]byte(r.must(t, "instance", "list", "--output", "json")), &answer); err != nil {
		t.Fatal(err)
	}
	ids := map[string]string{}
	for _, i := range answer.Shards[0].Instances {
		ids[i.ID] = i.Group
	}
	return ids
}

// converge waits until each group has its size, all instances are healthy and, unless a rollout waits, none is
// outdated.
func (r *real) converge(t *testing.T, waits bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		groups := r.groups(t)
		settled := len(groups) > 0
		total := 0
		for _, g := range groups {
			settled = settled && !g.GetDeleting() && g.GetActualSize() == g.GetSize() &&
				g.GetHealthy() == g.GetSize() && (waits || g.GetOutdated() == 0)
			total += int(g.GetSize())
		}
		if settled && len(r.instances(t)) == total {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("waited too long for the groups: %v", groups)
		}
	}
}

// compare runs a command with --dry-run and with --yes. It compares the plan with the changes of the instances.
func (r *real) compare(t *testing.T, args, says []string, command string) {
	t.Helper()
	before := r.instances(t)
	said := r.must(t, append(slices.Clone(args), "--dry-run")...)
	for _, line := range says {
		if !strings.Contains("\n"+said, "\na: "+line+"\n") {
			t.Errorf("the dry run does not say %q:\n%s", line, said)
		}
	}
	if now := r.instances(t); !maps.Equal(now, before) {
		t.Errorf("the dry run has changed the instances from %v to %v", before, now)
	}
	// What the dry run says, line by line.
	gone, made := map[string]bool{}, 0
	replaced := 0
	for line := range strings.Lines(said) {
		var id, what string
		var n, of int
		if k, _ := fmt.Sscanf(line, "a: instance %s would be %s", &id, &what); k == 2 && what != "preserved:" {
			gone[id] = true
		}
		if k, _ := fmt.Sscanf(line, "a: %d of %d", &n, &of); k == 2 {
			replaced += n
		}
		if _, err := fmt.Sscanf(line, "a: %d instance", &n); err == nil &&
			strings.Contains(line, "would be created\n") {
			made += n
		}
	}
	if strings.Contains(said, "the rollout of group workers would wait: the rollout is paused") {
		replaced = 0
	}
	done := slices.Clone(args)
	if !slices.Contains([]string{"group create", "group pause", "group resume"}, command) {
		done = append(done, "--yes")
	}
	r.must(t, done...)
	var after map[string]string
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		after = r.instances(t)
		var ended, began int
		for id := range before {
			if _, ok := after[id]; !ok {
				ended++
			}
		}
		for id := range after {
			if _, ok := before[id]; !ok {
				began++
			}
		}
		if ended == len(gone)+replaced && began == made+replaced {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the dry run said that %v end, %d are made and %d replaced; of %v became %v:\n%s", gone, made,
				replaced, before, after, said)
		}
	}
	for id := range gone {
		if _, ok := after[id]; ok {
			t.Errorf("the dry run said that %s ends, and it is still there", id)
		}
	}
	if !strings.HasPrefix(command, "group delete") {
		r.converge(t, command == "group pause")
	}
	if now := r.instances(t); len(now) != len(after) {
		t.Errorf("the number of instances still changes: %v, then %v", after, now)
	}
}

// dryRunOnBucket runs a command of the bucket with --dry-run, which changes nothing, and with --yes, which does.
func dryRunOnBucket(t *testing.T, command []string, args string) {
	t.Helper()
	b := newBucket(t, "file")
	b.init(t)
	b.must(t, b.args("config", "push", exampleConfig(t))...)
	b.stdin = "secret"
	b.must(t, b.args("cluster", "secret", "set", "db.password")...)
	if args == "OPERATOR" {
		registered := b.must(t, b.args("cluster", "register-operator", "--cluster-id", "example", "--output-dir",
			t.TempDir())...)
		for _, word := range strings.Fields(registered) {
			if strings.HasPrefix(word, "opr") {
				args = strings.Trim(word, ",.:")
			}
		}
	}
	line := b.args(slices.Concat(command, strings.Fields(args))...)
	before := b.contents(t)
	if said := b.must(t, append(slices.Clone(line), "--dry-run")...); !strings.HasPrefix(said, "Would do: ") {
		t.Errorf("%v --dry-run says %q", command, said)
	}
	if b.contents(t) != before {
		t.Errorf("%v --dry-run has changed the bucket", command)
	}
	b.must(t, append(slices.Clone(line), "--yes")...)
	if b.contents(t) == before {
		t.Errorf("%v --yes has not changed the bucket", command)
	}
}
