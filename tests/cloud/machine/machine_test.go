package machine_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/machine"
	"github.com/nstance-kit/nstance/tests/cloud/machine/contract"
)

var guest string

func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) { // Inside a machine.
	case "daemon":
		daemon()
		return
	case "nstance-agent":
		fakeAgent()
		return
	case "orphan":
		orphan()
	case "answerer":
		answer()
		return
	}
	flag.Parse()
	if testing.Short() {
		fmt.Println("machines are not tested with -short: they take root and a build of their init")
		return
	}
	dir, err := os.MkdirTemp("", "machine-test-")
	if err == nil {
		guest = filepath.Join(dir, "guest")
		err = machine.BuildGuest(context.Background(), guest)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir) // Below the temporary directory.
	os.Exit(code)
}

// testRunner is a runner and the image tree of its machines.
type testRunner struct {
	*machine.Runner
	t    *testing.T
	tree string
}

// newTestRunner returns a runner for machines with one image. The map has the image's files, by path. newTestRunner
// closes the runner when the test ends. If the test has failed, it also logs the output of the machines.
func newTestRunner(t *testing.T, files map[string]string) *testRunner {
	t.Helper()
	tree := t.TempDir()
	for path, content := range files {
		full := filepath.Join(tree, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		mode := os.FileMode(0o644)
		if strings.HasPrefix(content, "#!") {
			mode = 0o755
		}
		if err := os.WriteFile(full, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	r, err := machine.New(machine.Config{Dir: t.TempDir(), Images: map[string]string{"ami-1": tree}, Guest: guest,
		Environment: map[string]string{"FLAVOUR": "plain vanilla", "CLOUD": "http://169.254.170.1"},
		Log:         slog.New(slog.NewTextHandler(t.Output(), nil)),
		API: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "api "+r.URL.Path)
		})})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return &testRunner{r, t, tree}
}

// with installs the test program in the image once under each given name. The name decides what the program does.
func (w *testRunner) with(names ...string) *testRunner {
	w.t.Helper()
	text := must(os.ReadFile(must(os.Executable())))
	for _, name := range names {
		path := filepath.Join(w.tree, "usr/local/bin", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			w.t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o755); err != nil {
			w.t.Fatal(err)
		}
	}
	return w
}

// start boots machine number n of a VPC.
func (w *testRunner) start(vpc string, n int, userdata string, change ...func(*contract.Spec)) string {
	w.t.Helper()
	id := fmt.Sprintf("i-%s%d", vpc, n)
	spec := contract.Spec{ID: id, Userdata: []byte(userdata), Image: "ami-1", Primary: nic(vpc, n, 0),
		Hostname: fmt.Sprintf("ip-10-0-0-%d", n), DMI: map[string]string{"sys_vendor": "Some cloud"}}
	for _, c := range change {
		c(&spec)
	}
	if _, err := w.Start(spec); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if w.t.Failed() {
			w.t.Logf("log of %s:\n%s", id, w.Logs(id))
		}
	})
	return id
}

func nic(vpc string, n, index int) contract.NIC {
	return contract.NIC{MAC: fmt.Sprintf("02:00:00:00:%02x:%02x", index, n), VPC: vpc, Index: index,
		SourceDestCheck: true, Addresses: []netip.Prefix{
			netip.MustParsePrefix(fmt.Sprintf("10.0.%d.%d/24", index, n)),
			netip.MustParsePrefix(fmt.Sprintf("fd00:1:0:%x::%x/64", index, n)),
		}}
}

// run runs a shell command inside a machine and returns its output. The test fails if the command fails.
func (w *testRunner) run(id, command string) string {
	w.t.Helper()
	out, err := w.Exec(id, "sh", "-c", command)
	if err != nil {
		w.t.Fatalf("%s\n%s", err, out)
	}
	return strings.TrimSpace(out)
}

// end runs a shell command that makes the machine shut down. The shutdown may end the command too, before it returns.
func (w *testRunner) end(id, command string) {
	w.t.Helper()
	out, err := w.Exec(id, "sh", "-c", command)
	if err != nil && !strings.Contains(err.Error(), "exit code 143") { // SIGTERM
		w.t.Fatalf("%s\n%s", err, out)
	}
}

// fails runs a shell command inside a machine. The test fails if the command succeeds.
func (w *testRunner) fails(id, command string) {
	w.t.Helper()
	if out, err := w.Exec(id, "sh", "-c", command); err == nil {
		w.t.Errorf("%s did not fail: %s", command, out)
	}
}

// eventually waits up to 10 s until the output of a command is the wanted one.
func (w *testRunner) eventually(id, command, want string) {
	w.t.Helper()
	var out string
	if !poll(10*time.Second, func() bool {
		out, _ = w.Exec(id, "sh", "-c", command)
		return strings.TrimSpace(out) == want
	}) {
		w.t.Fatalf("%s says %q, not %q", command, strings.TrimSpace(out), want)
	}
}

func poll(d time.Duration, holds func() bool) bool {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if holds() {
			return true
		}
	}
	return holds()
}

const booted = "test -e /var/lib/cloud/instance/boot-finished && echo yes"

func TestBoot(t *testing.T) {
	w := newTestRunner(t, map[string]string{"usr/local/bin/hello": "#!/bin/sh\necho hello from the image\n"})
	begun := time.Now()
	id := w.start("vpc-a", 5,
		"#!/bin/sh\nset -eu\nid -u\npwd\necho \"$FLAVOUR, $CLOUD\"\nhello\nhostname\necho to the console "+
			">/dev/console\n"+
			"touch /usr/written /etc/written\n")
	w.eventually(id, booted, "yes")
	t.Logf("booted in %v", time.Since(begun))
	if got, want := w.run(id, "cat /var/log/cloud-init-output.log"),
		"0\n/\nplain vanilla, http://169.254.170.1\nhello from the image\nip-10-0-0-5"; got != want {
		t.Errorf("the boot script printed\n%s\nnot\n%s", got, want)
	}
	for _, path := range []string{"/usr/written", "/etc/written"} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("the machine wrote %s of the host", path)
		}
	}
	for command, want := range map[string]string{
		"cat /proc/1/comm": "guest", "cat /sys/class/dmi/id/sys_vendor": "Some cloud",
		"cat /etc/hostname":                        "ip-10-0-0-5",
		"getent hosts ip-10-0-0-5 | cut -d' ' -f1": "fd00:1::5",
		"wc -c </etc/machine-id":                   "33",
		"ls /root /home /opt /srv":                 "/home:\n\n/opt:\n\n/root:\n\n/srv:",
		"ls /sys/class/net":                        "eth0\nlo",
		"stat -c %a /tmp":                          "1777",
		"ls /dev": "console\nfd\nfull\nlog\nnull\nptmx\npts\nrandom\n" +
			"shm\nstderr\nstdin\nstdout\ntty\nurandom\nzero",
		"readlink -f $(command -v systemctl)": "/usr/lib/machine/guest",
	} {
		if got := w.run(id, command); got != want {
			t.Errorf("%s says %q, not %q", command, got, want)
		}
	}
	for _, command := range []string{"mount -t tmpfs none /mnt", "mknod /tmp/vda b 254 0",
		"echo 1 >/proc/sys/kernel/panic", "echo b >/proc/sysrq-trigger"} {
		w.fails(id, command)
	}
	if log := w.Logs(id); !strings.Contains(log, "cloud-init[") || !strings.Contains(log, ": to the console") {
		t.Errorf("the log lacks something:\n%s", log)
	}
}
