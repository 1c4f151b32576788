package tmux

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/tmux"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/render"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

var testOwner = infra.Owner{Cluster: "c", Shard: "s"}

func newRequest(t testing.TB, script string) infra.CreateRequest {
	t.Helper()
	id, err := ident.NewID("tst", time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return infra.CreateRequest{Tags: infra.Tags{Owner: testOwner, Instance: id, Group: "g"}, Userdata: []byte(script)}
}

func create(t testing.TB, p *Provider, req infra.CreateRequest) infra.VM {
	t.Helper()
	vm, err := p.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return vm
}

func get(t *testing.T, p *Provider, vm infra.VM) infra.VM {
	t.Helper()
	vm, err := p.Get(t.Context(), vm.ProviderID)
	if err != nil {
		t.Fatal(err)
	}
	return vm
}

func wantState(t *testing.T, p *Provider, vm infra.VM, want infra.State) {
	t.Helper()
	if got := get(t, p, vm); got.State != want {
		t.Errorf("VM is %s, want %s", got.State, want)
	}
}

// fifo makes a named pipe for messages from scripts. wait blocks until a message arrives.
func fifo(t *testing.T) (path string, wait func() string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "fifo")
	if out, err := exec.Command("mkfifo", path).CombinedOutput(); err != nil {
		t.Fatalf("mkfifo: %v: %s", err, out)
	}
	return path, func() string {
		t.Helper()
		raw, err := os.ReadFile(path) // blocks until a writer has opened and closed the pipe
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
}

// TestDefaultUserdataBootsAnAgent boots a VM with the userdata of examples/userdata-tmux.sh.tmpl. Instead of the agent,
// the VM runs a command that prints the agent's environment.
func TestDefaultUserdataBootsAnAgent(t *testing.T) {
	t.Setenv("NSTANCE_ENCRYPTION_KEY", "the server's own secret")
	t.Setenv("TMUX", "/nonexistent,1,0")
	text, err := os.ReadFile("../../../../../examples/userdata-tmux.sh.tmpl")
	if err != nil {
		t.Fatal(err)
	}
	pipe, wait := fifo(t)
	options := testOptions(t)
	options.Command = "env > " + quote(pipe) + "; pwd; exec sleep 1000000"
	options.NodesDir = filepath.Join(t.TempDir(), "nodes")
	p := open(t, options)

	req := newRequest(t, "")
	req.Args = map[string]any{"env": map[string]any{"NSTANCE_DEBUG": "it's on"}}
	data := render.Sample()
	data.Instance.ID, data.Instance.Kind = req.Tags.Instance.String(), "tst"
	data.Server.RegistrationAddr = "[::1]:8992"
	compiled, err := render.CompileUserdata("userdata", string(text))
	if err != nil {
		t.Fatal(err)
	}
	script, err := compiled.Execute(data, "nonce.of.jwt")
	if err != nil {
		t.Fatal(err)
	}
	req.Userdata = []byte(script)
	vm := create(t, p, req)
	if vm.State != infra.Running || vm.IPv4 != "127.0.0.1" || vm.Hostname != req.Tags.Instance.String() {
		t.Errorf("VM: %+v", vm)
	}

	env := map[string]string{}
	for line := range strings.Lines(wait()) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		env[name] = value
	}
	dir := filepath.Join(options.Dir, req.Tags.Instance.String())
	want := map[string]string{
		"NSTANCE_IDENTITY_DIR":             dir + "/identity",
		"NSTANCE_KEYS_DIR":                 dir + "/keys",
		"NSTANCE_RECV_DIR":                 dir + "/recv",
		"NSTANCE_INSTANCE_ID":              req.Tags.Instance.String(),
		"NSTANCE_INSTANCE_KIND":            "tst",
		"NSTANCE_INSTANCE_HOSTNAME":        req.Tags.Instance.String(),
		"NSTANCE_INSTANCE_FQDN":            req.Tags.Instance.String(),
		"NSTANCE_INSTANCE_IPV4":            "127.0.0.1",
		"NSTANCE_PROVIDER":                 "none",
		"NSTANCE_POWER_OFF_ON_SIGTERM":     "true",
		"NSTANCE_SERVER_REGISTRATION_ADDR": "[::1]:8992",
		"NSTANCE_SERVER_AGENT_ADDR":        data.Server.AgentAddr,
		"NSTANCE_DEBUG":                    "it's on",
		"TERM":                             "screen-256color",
		"PATH":                             os.Getenv("PATH"),
	}
	for name, value := range env {
		if _, wanted := want[name]; !wanted && (strings.HasPrefix(name, "NSTANCE_") ||
			strings.HasPrefix(name, "TMUX")) {
			t.Errorf("the agent inherits %s=%q", name, value)
		}
	}
	for name, value := range want {
		if env[name] != value {
			t.Errorf("%s=%q, want %q", name, env[name], value)
		}
	}
	for name, content := range map[string]string{"identity/ca.crt": data.Cluster.CACert,
		"identity/nonce.jwt": "nonce.of.jwt"} {
		path := filepath.Join(dir, name)
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if raw, err := os.ReadFile(path); err != nil || string(raw) != content || info.Mode().Perm() != 0o600 {
			t.Errorf("%s (%s) holds %q, %v", name, info.Mode(), raw, err)
		}
	}

	// The console shows what the userdata print, so only its owner may read it.
	if info, err := os.Stat(filepath.Join(dir, consoleLog)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the console log: %v, %v", info, err)
	}
	if out, err := p.session.run(t.Context(), "show-environment", "-g"); err != nil ||
		strings.Contains(out, "NSTANCE_") {
		t.Errorf("the tmux server inherits %s, %v", out, err)
	}

	var n struct {
		Kind     string
		Metadata struct{ Name string }
		Spec     struct{ ProviderID string }
		Status   struct {
			Conditions []struct{ Type, Status string }
			Addresses  []struct{ Type, Address string }
		}
	}
	nodeFile := filepath.Join(options.NodesDir, req.Tags.Instance.String()+".json")
	raw, err := os.ReadFile(nodeFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &n); err != nil || n.Kind != "Node" || n.Metadata.Name != vm.Tags.Instance.String() ||
		n.Spec.ProviderID != vm.ProviderID || len(n.Status.Conditions) != 1 || n.Status.Conditions[0].Type != "Ready" ||
		n.Status.Conditions[0].Status != "True" || len(n.Status.Addresses) != 2 ||
		n.Status.Addresses[0].Address != vm.IPv4 || n.Status.Addresses[1].Address != vm.Hostname {
		t.Errorf("node %s, %v", raw, err)
	}

	// A node that cannot be removed must not count as removed. One that was removed already counts.
	if err := errors.Join(os.Remove(nodeFile), os.MkdirAll(filepath.Join(nodeFile, "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := p.Delete(t.Context(), vm); infra.ClassOf(err) != infra.Indeterminate {
		t.Errorf("with a node that stays: %v", err)
	}
	if err := os.RemoveAll(nodeFile); err != nil {
		t.Fatal(err)
	}

	if err := p.Delete(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(nodeFile); !os.IsNotExist(err) {
		t.Errorf("the node is still there: %v", err)
	}
	left := entries(t, dir)
	if diff := cmp.Diff([]string{"console.log", "vm.json"}, left); diff != "" {
		t.Errorf("a deleted VM leaves (-want +got):\n%s", diff)
	}
	if strings.Contains(tree(t, options.Dir), "nonce.of.jwt") {
		t.Error("a deleted VM leaves its nonce")
	}
}

func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// tree returns the content of all files below dir.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		all.Write(raw)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

func TestClosedWindowLosesTheVM(t *testing.T) {
	options := testOptions(t)
	p := open(t, options)
	vm, other := create(t, p, newRequest(t, "")), create(t, p, newRequest(t, ""))
	machine := p.document(t, vm).process()
	if _, err := p.session.run(t.Context(), "kill-window", "-t", "=test:=nstance-agent-"+
		vm.Tags.Instance.String()); err != nil {
		t.Fatal(err)
	}
	if s := get(t, p, vm).State; s.Alive() {
		t.Errorf("the VM is %s although its window was closed", s)
	}
	if !machine.awaitExit(t.Context(), time.Minute) {
		t.Fatal("its process stays")
	}
	wantState(t, p, vm, infra.Stopped)
	wantState(t, p, other, infra.Running)
	if _, err := p.session.run(t.Context(), "kill-server"); err != nil {
		t.Fatal(err)
	}
	if !p.document(t, other).process().awaitExit(t.Context(), time.Minute) {
		t.Fatal("its process stays")
	}
	wantState(t, p, other, infra.Stopped)
	wantState(t, p, create(t, p, newRequest(t, "")), infra.Running) // the provider recreates the session
}

// TestProcessesThatIgnoreSIGHUP checks a VM whose processes ignore SIGHUP. When their window is closed, the VM is
// Stopping. Deleting the VM ends the processes.
func TestProcessesThatIgnoreSIGHUP(t *testing.T) {
	pipe, wait := fifo(t)
	options := testOptions(t)
	// Start a child in a separate process group, as the reload tool air does.
	options.Command = "trap '' HUP TERM; set -m; sh -c 'echo $$ > " + pipe +
		"; while :; do sleep 1000; done' & while :; do wait; done"
	p := open(t, options)
	vm := create(t, p, newRequest(t, ""))
	var child int
	if _, err := fmt.Sscan(wait(), &child); err != nil {
		t.Fatal(err)
	}
	childProcess, ok := identify(child)
	if !ok {
		t.Fatal("no child")
	}
	options.Command = "exec sleep 1000000"
	other := create(t, open(t, options), newRequest(t, ""))
	if _, err := p.session.run(t.Context(), "kill-window", "-t", "=test:=nstance-agent-"+
		vm.Tags.Instance.String()); err != nil {
		t.Fatal(err)
	}
	wantState(t, p, vm, infra.Stopping)
	wantState(t, p, other, infra.Running)
	if err := p.Delete(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	wantState(t, p, vm, infra.Deleted)
	if !childProcess.awaitExit(t.Context(), time.Minute) {
		t.Error("a child survives its machine")
	}
}

func TestFailingUserdata(t *testing.T) {
	p := open(t, testOptions(t))
	vm := create(t, p, newRequest(t, "#!/bin/sh\necho to the console\nexit 7\n"))
	if !p.document(t, vm).process().awaitExit(t.Context(), time.Minute) {
		t.Fatal("the machine runs")
	}
	wantState(t, p, vm, infra.Stopped)
	if err := p.Delete(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	// The console log outlives the machine. The provider does not wait for the program that writes the log.
	var console []byte
	for tick := time.NewTicker(time.Millisecond); !bytes.Contains(console, []byte("failed with status 7")); <-tick.C {
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
		console, _ = os.ReadFile(filepath.Join(p.state.vmDir(vm.Tags.Instance), consoleLog)) // may not exist yet
	}
	if !bytes.Contains(console, []byte("to the console")) {
		t.Errorf("console: %s", console)
	}
	if read, err := p.ReadConsole(t.Context(), vm); err != nil || !bytes.Contains(read, []byte("to the console")) {
		t.Errorf("console: %s, %v", read, err)
	}
}

// TestRoom checks that no more VMs run than max_vms permits, and that the end of a VM makes room for another one.
func TestRoom(t *testing.T) {
	options := testOptions(t)
	options.MaxVMs = 1
	p := open(t, options)
	const script = "#!/bin/sh\nexec sleep 600\n"
	vm := create(t, p, newRequest(t, script))
	if _, err := p.Create(t.Context(), newRequest(t, script)); infra.ClassOf(err) != infra.Capacity {
		t.Fatalf("a second VM: %v, want no capacity", err)
	}
	if err := p.Delete(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	vm = create(t, p, newRequest(t, script))
	p.kill(t, vm)
	vm = create(t, p, newRequest(t, script))
	if err := p.Delete(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	// A VM without a process takes room while a create call may still start it, and not after it was deleted.
	starting := newRequest(t, script)
	d := newDocument(starting, "digest", time.Now(), time.Now())
	if err := errors.Join(p.prepare(d, starting), p.state.write(d)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Create(t.Context(), newRequest(t, script)); infra.ClassOf(err) != infra.Capacity {
		t.Errorf("beside a VM that starts: %v, want no capacity", err)
	}
	if err := p.Delete(t.Context(), infra.Target(d.owner(), d.Instance, providerID(d.Instance))); err != nil {
		t.Fatal(err)
	}
	create(t, p, newRequest(t, script))
}

// TestResolve checks that the options refer to the same files after a VM has changed its working directory.
func TestResolve(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	agent := filepath.Join(dir, "bin", "nstance-agent")
	if err := errors.Join(os.Mkdir("bin", 0o700), os.WriteFile(agent, []byte("#!/bin/sh\n"), 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ in, want contract.Options }{
		{contract.Options{Dir: "vms", NodesDir: "nodes", Socket: "./socket", Agent: "./bin/nstance-agent"},
			contract.Options{Dir: filepath.Join(dir, "vms"), NodesDir: filepath.Join(dir, "nodes"),
				Socket: filepath.Join(dir, "socket"), Agent: agent}},
		{contract.Options{Dir: "vms", Socket: "name"},
			contract.Options{Dir: filepath.Join(dir, "vms"), Socket: "name", Agent: agent}},
		{contract.Options{Dir: dir, Command: "x"}, contract.Options{Dir: dir, Command: "x"}},
	} {
		if err := resolve(&test.in); err != nil || test.in != test.want {
			t.Errorf("got %+v, %v, want %+v", test.in, err, test.want)
		}
	}
}

// TestSharedServer runs VMs in a tmux server that has another session. That session and its windows are not VMs.
func TestSharedServer(t *testing.T) {
	p := open(t, testOptions(t))
	if err := p.session.close(t.Context(), "@1"); err != nil {
		t.Errorf("without a server: %v", err)
	}
	s := session{name: "other", socket: p.session.socket, env: p.session.env}
	if _, err := s.open(t.Context(), "web", os.DevNull, []string{"sleep", "1000000"}); err != nil {
		t.Fatal(err)
	}
	vm := create(t, p, newRequest(t, ""))
	wantState(t, p, vm, infra.Running)
	if err := p.session.close(t.Context(), "@99"); err != nil {
		t.Errorf("a window that does not exist: %v", err)
	}
	if err := p.Delete(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	if panes, err := s.panes(t.Context()); err != nil || len(panes) != 1 {
		t.Errorf("the other session has %v, %v", panes, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.session.close(ended, "@1"); err == nil {
		t.Error("close reports no error although it could not call tmux")
	}
}

// TestUnreachableServer asks for VMs when tmux cannot connect to its server. The VMs must not count as ended.
func TestUnreachableServer(t *testing.T) {
	p := open(t, testOptions(t))
	vm := create(t, p, newRequest(t, ""))
	broken := *p
	broken.session = &session{name: "test", socket: filepath.Join(p.state.dir, "lock", "x"), env: p.session.env}
	if vms, err := broken.List(t.Context(), testOwner); infra.ClassOf(err) != infra.Indeterminate {
		t.Errorf("List: %v, %v", vms, err)
	}
	if vm, err := broken.Get(t.Context(), vm.ProviderID); infra.ClassOf(err) != infra.Indeterminate {
		t.Errorf("Get: %v, %v", vm, err)
	}
	if err := broken.Delete(t.Context(), vm); infra.ClassOf(err) != infra.Indeterminate {
		t.Errorf("Delete: %v", err)
	}
}

// TestPaneOfAnEndedProcess finds the pane of a VM whose process has ended, so that the PID may be that of any process.
func TestPaneOfAnEndedProcess(t *testing.T) {
	p := open(t, testOptions(t))
	d := newDocument(newRequest(t, ""), "digest", time.Now(), time.Now())
	name := windowPrefix + d.Instance.String()
	for _, found := range []pane{{name: name, pid: os.Getpid(), dead: true}, {name: name, pid: 1 << 30}} {
		machine, started := p.started(d, []pane{found})
		if !started || machine.alive() || machine.Start == "" {
			t.Errorf("%+v: %+v, %t", found, machine, started)
		}
	}
}

func TestUserdataIsRunOnce(t *testing.T) {
	pipe, wait := fifo(t)
	options := testOptions(t)
	p := open(t, options)
	req := newRequest(t, "#!/bin/sh\necho ran > "+pipe+"\n")
	vm := create(t, p, req)
	if got := wait(); got != "ran\n" {
		t.Fatalf("output of userdata: %q", got)
	}
	p.kill(t, vm)
	again := create(t, p, req)
	if again.State != infra.Stopped {
		t.Errorf("a repeat for a killed VM answers %s", again.State)
	}
	// The boot script itself refuses a second start.
	out, err := exec.Command("sh", filepath.Join(p.state.vmDir(vm.Tags.Instance), "boot.sh")).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "started before") {
		t.Errorf("the boot script ran again: %v, %s", err, out)
	}
}

func TestCrashesOnTheWay(t *testing.T) {
	now := time.Now()
	setup := func(t *testing.T) (p *Provider, req infra.CreateRequest, d document) {
		t.Helper()
		p = open(t, testOptions(t))
		p.now = func() time.Time { return now }
		req = newRequest(t, "#!/bin/sh\nexit 0\n")
		digest, err := req.Digest()
		if err != nil {
			t.Fatal(err)
		}
		d = newDocument(req, digest, now, now)
		if err := p.prepare(d, req); err != nil {
			t.Fatal(err)
		}
		return p, req, d
	}
	listed := func(t *testing.T, p *Provider) []infra.VM {
		t.Helper()
		vms, err := p.List(t.Context(), testOwner)
		if err != nil {
			t.Fatal(err)
		}
		return vms
	}
	t.Run("before the document", func(t *testing.T) {
		p, req, _ := setup(t)
		if vms := listed(t, p); len(vms) != 0 {
			t.Errorf("there is %v", vms)
		}
		wantState(t, p, create(t, p, req), infra.Running)
	})
	t.Run("before the window, repeated", func(t *testing.T) {
		p, req, d := setup(t)
		if err := p.state.write(d); err != nil {
			t.Fatal(err)
		}
		if vms := listed(t, p); len(vms) != 1 || vms[0].State != infra.Pending {
			t.Errorf("there is %v", vms)
		}
		vm := create(t, p, req)
		wantState(t, p, vm, infra.Running)
		if vms := listed(t, p); len(vms) != 1 {
			t.Errorf("there is %v", vms)
		}
	})
	t.Run("before the window, abandoned", func(t *testing.T) {
		p, req, d := setup(t)
		if err := p.state.write(d); err != nil {
			t.Fatal(err)
		}
		p.now = func() time.Time { return now.Add(bootGrace + 1) }
		if vms := listed(t, p); len(vms) != 1 || vms[0].State != infra.Failed {
			t.Errorf("there is %v", vms)
		}
		vm := create(t, p, req)
		if vm.State != infra.Failed {
			t.Errorf("a failed VM became %s", vm.State)
		}
		if err := p.Delete(t.Context(), vm); err != nil {
			t.Fatal(err)
		}
		wantState(t, p, vm, infra.Deleted)
	})
	t.Run("waited long for its turn", func(t *testing.T) {
		p, req, _ := setup(t)
		first := true
		p.now = func() time.Time {
			if first {
				first = false
				return now
			}
			return now.Add(time.Hour)
		}
		vm := create(t, p, req)
		wantState(t, p, vm, infra.Running)
		if !vm.LaunchedAt.Equal(now) {
			t.Errorf("launched at %s, want when it was asked for, %s", vm.LaunchedAt, now)
		}
	})
	t.Run("after the window", func(t *testing.T) {
		p, req, d := setup(t)
		if err := p.state.write(d); err != nil {
			t.Fatal(err)
		}
		pid, err := p.session.open(t.Context(), windowPrefix+d.Instance.String(), filepath.Join(t.TempDir(), "log"),
			[]string{"sleep", "1000000"})
		if err != nil {
			t.Fatal(err)
		}
		if vms := listed(t, p); len(vms) != 1 || vms[0].State != infra.Running {
			t.Errorf("there is %v", vms)
		}
		vm := create(t, p, req)
		if got := p.document(t, vm).PID; got != pid || get(t, p, vm).State != infra.Running {
			t.Errorf("the repeat found process %d, want %d", got, pid)
		}
		if err := p.Delete(t.Context(), vm); err != nil {
			t.Fatal(err)
		}
		if _, alive := identify(pid); alive {
			t.Error("the process survives")
		}
	})
	t.Run("after the window, deleted", func(t *testing.T) {
		p, _, d := setup(t)
		if err := p.state.write(d); err != nil {
			t.Fatal(err)
		}
		pipe, wait := fifo(t)
		pid, err := p.session.open(t.Context(), windowPrefix+d.Instance.String(), filepath.Join(t.TempDir(), "log"),
			[]string{"sh", "-c", "trap '' HUP; echo > " + pipe + "; while :; do sleep 1000; done"})
		if err != nil {
			t.Fatal(err)
		}
		wait()
		if err := p.Delete(t.Context(), infra.Target(d.owner(), d.Instance, providerID(d.Instance))); err != nil {
			t.Fatal(err)
		}
		if _, alive := identify(pid); alive {
			t.Error("the process survives")
		}
	})
	t.Run("after the machine began and ended", func(t *testing.T) {
		p, req, d := setup(t)
		if err := p.state.write(d); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(p.state.vmDir(d.Instance), bootMark), 0o700); err != nil {
			t.Fatal(err)
		}
		if vms := listed(t, p); len(vms) != 1 || vms[0].State != infra.Stopped {
			t.Errorf("there is %v", vms)
		}
		if vm := create(t, p, req); vm.State != infra.Stopped {
			t.Errorf("it began again: %s", vm.State)
		}
	})
}

// TestReusedPID checks a VM that has ended and whose PID now belongs to another process. The VM is Stopped, and
// deleting it does not end the other process.
func TestReusedPID(t *testing.T) {
	p := open(t, testOptions(t))
	vm, other := create(t, p, newRequest(t, "")), create(t, p, newRequest(t, ""))
	p.kill(t, vm)
	d := p.document(t, vm)
	d.PID, d.Start = p.document(t, other).PID, "1"+d.Start // the same PID never starts twice within a clock tick
	if err := p.state.write(d); err != nil {
		t.Fatal(err)
	}
	wantState(t, p, vm, infra.Stopped)
	if err := p.Delete(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	wantState(t, p, vm, infra.Deleted)
	wantState(t, p, other, infra.Running)
}

// TestDeletedDirectories checks that the directory of a deleted VM is removed after keepDeleted. If there are more than
// maxDeleted such directories, the older ones are removed after keepDeletedLeast.
func TestDeletedDirectories(t *testing.T) {
	p := open(t, testOptions(t))
	vm, running := create(t, p, newRequest(t, "")), create(t, p, newRequest(t, ""))
	if err := p.Delete(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	last := p.document(t, vm)
	p.now = func() time.Time { return last.DeletedAt.Add(time.Minute) }
	if err := p.Delete(t.Context(), vm); err != nil || !p.document(t, vm).DeletedAt.Equal(last.DeletedAt) {
		t.Errorf("a repeated delete: %v, deleted at %s, want %s", err, p.document(t, vm).DeletedAt, last.DeletedAt)
	}
	// Add more deleted VMs. Only their documents matter.
	for i := maxDeleted + 4; i >= 0; i-- { // not in the order of their IDs
		d := last
		d.Instance = newRequest(t, "").Tags.Instance
		d.DeletedAt = last.DeletedAt.Add(-time.Duration(i+1) * time.Second)
		if err := os.Mkdir(p.state.vmDir(d.Instance), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := p.state.write(d); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		after time.Duration
		want  int
	}{
		{0, 1 + 1 + maxDeleted + 5},
		{keepDeletedLeast + time.Second, 1 + maxDeleted},
		{keepDeleted, 1 + 1},
		{keepDeleted + 1, 1},
	} {
		p.now = func() time.Time { return last.DeletedAt.Add(test.after) }
		if vms, err := p.List(t.Context(), testOwner); err != nil || len(vms) != test.want {
			t.Errorf("%s after the last delete: %d VMs, %v; want %d", test.after, len(vms), err, test.want)
		}
		documents, err := filepath.Glob(filepath.Join(p.state.dir, "*", "vm.json"))
		if err != nil || len(documents) != test.want {
			t.Errorf("%s after the last delete: %d directories, %v; want %d", test.after, len(documents), err,
				test.want)
		}
		docs, err := p.state.all()
		for _, d := range docs {
			if age := last.DeletedAt.Sub(d.DeletedAt); test.want == 1+maxDeleted && !d.DeletedAt.IsZero() &&
				age >= maxDeleted*time.Second {
				t.Errorf("%s after the last delete: the directory of a VM stays that was deleted %s before", test.after,
					age)
			}
		}
		if err != nil {
			t.Error(err)
		}
	}
	wantState(t, p, running, infra.Running)
}

func TestJournal(t *testing.T) {
	options := testOptions(t)
	p := open(t, options)
	req := newRequest(t, "")
	vm := create(t, p, req)
	if err := p.Delete(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	bad := newRequest(t, "not a script")
	if _, err := p.Create(t.Context(), bad); infra.ClassOf(err) != infra.Invalid {
		t.Errorf("bad userdata: %v", err)
	}
	journal := filepath.Join(options.Dir, "events.jsonl")
	raw, err := os.ReadFile(journal)
	if err != nil {
		t.Fatal(err)
	}
	// A journal that cannot be written does not stop the VMs.
	if err := errors.Join(os.Remove(journal), os.Mkdir(journal, 0o700)); err != nil {
		t.Fatal(err)
	}
	wantState(t, p, create(t, p, newRequest(t, "")), infra.Running)
	var ops []string
	var last time.Time
	for line := range bytes.Lines(raw) {
		var e Event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if e.Time.Before(last) || e.Shard != "s" || e.Group != "g" || e.Instance.IsZero() {
			t.Errorf("event %s", line)
		}
		if hasPID := e.Op == "create_done" || strings.HasPrefix(e.Op, "delete"); (e.PID > 0) != hasPID {
			t.Errorf("event %s", line)
		}
		last = e.Time
		ops = append(ops, e.Op)
	}
	want := []string{"create_entered", "create_done", "delete_entered", "delete_done", "create_entered",
		"create_failed"}
	if diff := cmp.Diff(want, ops); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if _, err := p.FindByInstance(t.Context(), testOwner, bad.Tags.Instance); infra.ClassOf(err) != infra.NotFound {
		t.Errorf("an invalid request left a VM: %v", err)
	}
}

func TestTwoProvidersShareOneState(t *testing.T) {
	options := testOptions(t)
	req := newRequest(t, "")
	pids := make(chan int, 4)
	for range cap(pids) {
		p := open(t, options)
		go func() {
			vm, err := p.Create(context.WithoutCancel(t.Context()), req)
			d, _, _ := p.state.read(req.Tags.Instance)
			if err != nil || vm.State != infra.Running {
				t.Errorf("create: %s, %v", vm.State, err)
			}
			pids <- d.PID
		}()
	}
	got := make([]int, 0, cap(pids))
	for range cap(pids) {
		got = append(got, <-pids)
	}
	if len(slices.Compact(got)) != 1 {
		t.Errorf("several machines: %v", got)
	}
	p := open(t, options)
	if panes, err := p.session.panes(t.Context()); err != nil || len(panes) != 1 {
		t.Errorf("windows: %v, %v", panes, err)
	}
}

func TestBrokenState(t *testing.T) {
	p := open(t, testOptions(t))
	vm := create(t, p, newRequest(t, ""))
	path := filepath.Join(p.state.vmDir(vm.Tags.Instance), "vm.json")
	if err := os.WriteFile(path, []byte(`{"version": 1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if vms, err := p.List(t.Context(), testOwner); infra.ClassOf(err) != infra.Indeterminate ||
		!strings.Contains(err.Error(), path) {
		t.Errorf("List with a broken document: %v, %v", vms, err)
	}
	if _, err := p.Get(t.Context(), vm.ProviderID); infra.ClassOf(err) != infra.Indeterminate {
		t.Errorf("Get with a broken document: %v", err)
	}
	if err := p.Delete(t.Context(), vm); infra.ClassOf(err) != infra.Indeterminate {
		t.Errorf("Delete with a broken document: %v", err)
	}
	for _, id := range []string{"", "i-123", "tmux://../../etc", "tmux://" +
		strings.ToUpper(vm.Tags.Instance.String())} {
		if _, err := p.Get(t.Context(), id); infra.ClassOf(err) != infra.Invalid {
			t.Errorf("Get %q: %v", id, err)
		}
		if err := p.Delete(t.Context(), infra.VM{ProviderID: id}); infra.ClassOf(err) != infra.Invalid {
			t.Errorf("Delete %q: %v", id, err)
		}
	}
}

func TestMachineEvidence(t *testing.T) {
	p := open(t, testOptions(t))
	self, err := MachineID()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := MachineID(); err != nil || again != self {
		t.Errorf("the ID changes: %s, %s, %v", self, again, err)
	}
	host, rest, _ := strings.Cut(self, "/")
	cmd := exec.Command("sleep", "1000000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	child, ok := identify(cmd.Process.Pid)
	if !ok {
		t.Fatal("no child")
	}
	childID := fmt.Sprintf("%s/%d:%s", host, child.PID, child.Start)
	check := func(id string, want infra.State, class infra.Class) {
		t.Helper()
		got, err := p.MachineState(t.Context(), id)
		if got != want || infra.ClassOf(err) != class {
			t.Errorf("%s is %q, %v, want %q, %q", id, got, err, want, class)
		}
	}
	check(self, infra.Running, "")
	check(childID, infra.Running, "")
	// An earlier process with the same PID but another start time counts as Deleted.
	check(fmt.Sprintf("%s/%d:%s0", host, child.PID, child.Start), infra.Deleted, "")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// The process is a zombie until Wait, and a zombie counts as gone.
	if !child.awaitExit(t.Context(), time.Minute) {
		t.Fatal("the child stays")
	}
	check(childID, infra.Deleted, "")
	_ = cmd.Wait() // the error is expected, because the process was killed
	check(childID, infra.Deleted, "")
	check("elsewhere/"+rest, "", infra.NotFound)
	for _, bad := range []string{"", host, host + "/1", host + "/x:1", host + "/0:1", host + "/-1:1", "/1:1", host +
		"/1:", host + "/99999999999999999999:1"} {
		check(bad, "", infra.Invalid)
	}
}

func TestAgentIsFound(t *testing.T) {
	options := testOptions(t)
	options.Command = ""
	options.Agent = filepath.Join(t.TempDir(), "agent")
	if _, err := New(Config{Options: options}); err == nil || !strings.Contains(err.Error(), options.Agent) {
		t.Errorf("without an agent: %v", err)
	}
	pipe, wait := fifo(t)
	if err := os.WriteFile(options.Agent, []byte("#!/bin/sh\npwd > "+pipe+"\nexec sleep 1000000\n"),
		0o700); err != nil {
		t.Fatal(err)
	}
	p := open(t, options)
	vm := create(t, p, newRequest(t, ""))
	if got, want := strings.TrimSpace(wait()), p.state.vmDir(vm.Tags.Instance); got != want {
		t.Errorf("the agent runs in %s, want %s", got, want)
	}
}

func TestParseUserdata(t *testing.T) {
	const script = "#!/bin/sh -e\nexit 0\n"
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	if _, err := w.Write([]byte(script)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for name, raw := range map[string]string{
		"plain": script, "base64": base64.StdEncoding.EncodeToString([]byte(script)),
		"gzip": zipped.String(), "gzip+base64": base64.StdEncoding.EncodeToString(zipped.Bytes()) + "\n",
	} {
		u, err := parseUserdata([]byte(raw))
		if err != nil || string(u.script) != script || !slices.Equal(u.interpreter, []string{"/bin/sh", "-e"}) {
			t.Errorf("%s: %q, %v, %v", name, u.script, u.interpreter, err)
		}
	}
	for _, bad := range []string{"#cloud-config\n", "echo", "#!", "#! \n", "#!sh\n", gzipMagic + "x", "#!/bin/sh\n" +
		strings.Repeat("x", userdataMax)} {
		if u, err := parseUserdata([]byte(bad)); err == nil {
			t.Errorf("%.20q is a script: %v", bad, u.interpreter)
		}
	}
}

func BenchmarkCreate(b *testing.B) {
	p := open(b, testOptions(b))
	for b.Loop() {
		create(b, p, newRequest(b, ""))
	}
}

func BenchmarkList100(b *testing.B) {
	p := open(b, testOptions(b))
	for range 100 {
		create(b, p, newRequest(b, ""))
	}
	for b.Loop() {
		if vms, err := p.List(b.Context(), testOwner); err != nil || len(vms) != 100 {
			b.Fatal(len(vms), err)
		}
	}
}

// TestExampleConfig checks that the example configuration boots a VM.
func TestExampleConfig(t *testing.T) {
	raw, err := os.ReadFile("../../../../../examples/config-tmux.jsonc")
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile("../../../../../examples/userdata-tmux.sh.tmpl")
	if err != nil {
		t.Fatal(err)
	}
	shard, problems := config.Parse("config-tmux.jsonc", raw)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if diff := cmp.Diff(string(script), shard.Defaults.Userdata.Content); diff != "" {
		t.Errorf("the example's userdata is not userdata-tmux.sh.tmpl (-template +config):\n%s", diff)
	}
}
