package machine_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/tests/cloud/machine"
	"github.com/nstance-kit/nstance/tests/cloud/machine/contract"
)

// processes returns the PIDs of the processes whose command line contains a text. It searches all processes of the
// host, also those of machines.
func processes(text string) (pids []string) {
	entries := must(os.ReadDir("/proc"))
	for _, e := range entries {
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && strings.Contains(strings.ReplaceAll(string(line), "\x00", " "), text) {
			pids = append(pids, e.Name())
		}
	}
	return pids
}

// host returns the state of the host that machines must not change: mounts, network interfaces, and open network
// namespaces.
func host() []string {
	links := must(exec.Command("ip", "-o", "link").Output())
	state := strings.Split(string(links), "\n")
	state = append(state, strings.Split(string(must(os.ReadFile("/proc/self/mountinfo"))), "\n")...)
	for _, e := range must(os.ReadDir("/proc/self/fd")) {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(target, "net:") {
			state = append(state, target)
		}
	}
	slices.Sort(state)
	return state
}

func TestStopLeavesNothing(t *testing.T) {
	before := host()
	dir := t.TempDir()
	r, err := machine.New(machine.Config{Dir: dir, Images: map[string]string{"": t.TempDir()}, Guest: guest})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var exited atomic.Int32
	var stopped []contract.Machine
	for n := range 12 {
		m, err := r.Start(contract.Spec{ID: fmt.Sprintf("i-%d", n), Primary: nic("vpc-a", 20+n, 0), Exited: func() {
			exited.Add(1)
		},
			Userdata: []byte("#!/bin/sh\nsetsid sleep 24681 &\ntrap '' TERM HUP INT\nsleep 24681\n")})
		if err != nil {
			t.Fatal(err)
		}
		stopped = append(stopped, m)
	}
	// Twelve machines boot at the same time, and each runs "sleep 24681" twice. This takes 10 s on a busy host.
	if !poll(time.Minute, func() bool { return len(processes("sleep 24681")) == 24 }) {
		t.Fatalf("%d of 24 processes run", len(processes("sleep 24681")))
	}
	begun := time.Now()
	stopped[0].Stop()
	t.Logf("stopped after %v", time.Since(begun))
	if left := len(processes("sleep 24681")); left != 22 {
		t.Errorf("%d of 22 processes run", left)
	}
	stopped[0].Stop()
	var wg sync.WaitGroup
	for _, m := range stopped[1:6] {
		wg.Go(m.Stop)
	}
	wg.Wait()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if left := processes("sleep 24681"); len(left) > 0 {
		t.Errorf("processes %v stay", left)
	}
	if diff := cmp.Diff(before, host()); diff != "" {
		t.Errorf("something of the host changed:\n%s", diff)
	}
	if exited.Load() != 0 {
		t.Error("Exited was called for machines that were stopped")
	}
	var files []string
	for _, e := range must(os.ReadDir(dir)) {
		files = append(files, e.Name())
	}
	if diff := cmp.Diff([]string{"images", "logs"}, files); diff != "" {
		t.Errorf("files stay:\n%s", diff)
	}
	if _, err := r.Start(contract.Spec{ID: "i-late", Primary: nic("vpc-a", 50, 0)}); err == nil {
		t.Error("a machine was started by a runner that was closed")
	}
}

// orphan is the behavior of a process that starts a machine and then waits until the test kills the process.
func orphan() {
	r := must(machine.New(machine.Config{Dir: os.Args[1], Images: map[string]string{"": os.Args[2]},
		Guest: os.Args[3]}))
	must(r.Start(contract.Spec{ID: "i-1", Primary: nic("vpc-a", 20, 0),
		Userdata: []byte("#!/bin/sh\nsetsid sleep 13579 &\nsleep 13579\n")}))
	select {}
}

func TestKilledRunnerLeavesNothing(t *testing.T) {
	before := host()
	cmd := exec.Command(must(os.Executable()), t.TempDir(), t.TempDir(), guest)
	cmd.Args[0] = "orphan"
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	up := poll(10*time.Second, func() bool { return len(processes("sleep 13579")) == 2 })
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if !up {
		t.Fatal("the machine did not come up")
	}
	if !poll(10*time.Second, func() bool { return len(processes("sleep 13579")) == 0 }) {
		t.Errorf("processes %v stay", processes("sleep 13579"))
	}
	if diff := cmp.Diff(before, host()); diff != "" {
		t.Errorf("something of the host changed:\n%s", diff)
	}
}

func TestExited(t *testing.T) {
	w := newTestRunner(t, nil)
	exited := make(chan string, 10)
	notify := func(name string) func(*contract.Spec) {
		return func(s *contract.Spec) { s.Exited = func() { exited <- name } }
	}
	id := w.start("vpc-a", 20, "#!/bin/sh\nshutdown -h now\n", notify("at the end of its script"))
	select {
	case got := <-exited:
		if got != "at the end of its script" {
			t.Errorf("%s ended", got)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the end of a machine was not reported")
	}
	m, _ := w.Machine(id)
	m.Stop()
	// The ID of an ended machine can be used again.
	again := w.start("vpc-a", 20, "", notify("started again"))
	w.run(again, "true")
	if _, err := w.Start(contract.Spec{ID: again, Image: "ami-1", Primary: nic("vpc-a", 20, 0)}); err == nil {
		t.Error("a machine was started twice")
	}
	if _, err := w.Exec(again, "kill", "-KILL", "1"); err != nil { // The kernel ignores it.
		t.Error(err)
	}
	_, _ = w.Exec(again, "poweroff", "--force") // The machine may end before it answers.
	if got := <-exited; got != "started again" {
		t.Errorf("%s ended", got)
	}
	// The runner must call Exited also if it cannot create the machine.
	w.start("vpc-a", 21, "", notify("unmade"), func(s *contract.Spec) { s.Primary.MAC = "no address" })
	if got := <-exited; got != "unmade" {
		t.Errorf("%s ended", got)
	}
	for _, spec := range []contract.Spec{
		{ID: "", Image: "ami-1", Primary: nic("vpc-a", 22, 0)}, {ID: "../x", Image: "ami-1",
			Primary: nic("vpc-a", 22, 0)},
		{ID: "i-22", Image: "ami-2", Primary: nic("vpc-a", 22, 0)}, {ID: "i-22", Image: "ami-1"},
		{ID: "i-22", Image: "ami-1", Primary: contract.NIC{MAC: "02:00:00:00:00:22",
			Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.22/16")}}},
	} {
		if _, err := w.Start(spec); err == nil {
			t.Errorf("%+v was started", spec)
		}
	}
	if len(exited) > 0 {
		t.Errorf("%s ended again", <-exited)
	}
}

func TestUserdata(t *testing.T) {
	w := newTestRunner(t, nil)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write([]byte("#!/bin/sh\necho unpacked >/run/result\n"))
	_ = z.Close()
	id := w.start("vpc-a", 20, packed.String())
	w.eventually(id, "cat /run/result", "unpacked")
	for n, c := range []struct{ userdata, log string }{
		{"#cloud-config\nruncmd: [touch, /run/result]\n",
			`user data that begins with "#cloud-config" is not run by these machines`},
		{"Content-Type: multipart/mixed; boundary=x\n\n", "is not run by these machines"},
		{"\x1f\x8brest", "unpack user data"},
		{"#!/bin/sh\nexit 3\n", "the script ended with exit code 3"},
		{"#!/usr/bin/absent\n", "no such file or directory"},
	} {
		id := w.start("vpc-a", 30+n, c.userdata)
		w.eventually(id, "systemctl is-system-running --wait", "degraded")
		if log := w.Logs(id); !strings.Contains(log, "cloud-init[1]: ERROR: ") || !strings.Contains(log, c.log) {
			t.Errorf("%q: the log has no %q:\n%s", c.userdata, c.log, log)
		}
	}
	id = w.start("vpc-a", 40, "")
	w.eventually(id, "systemctl is-system-running --wait", "running")
}

func TestBuild(t *testing.T) {
	w := newTestRunner(t, nil)
	before := string(must(os.ReadFile("/etc/passwd")))
	script := "#!/bin/sh\nset -eux\nuseradd --system --create-home --home-dir /opt/thing --user-group thing\nrm " +
		"/etc/hosts.base\n" +
		"printf '[Service]\\nExecStart=/bin/sleep 1000\\nUser=thing\\n[Install]\\nWantedBy=multi-user.target\\n' " +
		">/etc/systemd/system/thing.service\n" +
		"install -D -m 600 -o thing /dev/null /var/lib/thing/file\nsystemctl enable thing\necho \"$NAME\" " +
		">/usr/local/share.txt\nrm -r /etc/skel\ncat /etc/base\n"
	base := t.TempDir()
	for _, name := range []string{"base", "hosts.base"} {
		if err := os.MkdirAll(filepath.Join(base, "etc"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(base, "etc", name), []byte("from the base"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tree, err := w.Build(context.Background(), base, script, map[string]string{"NAME": "a name"})
	if err != nil {
		t.Fatal(err)
	}
	if string(must(os.ReadFile("/etc/passwd"))) != before || !exists(filepath.Join(base, "etc", "hosts.base")) {
		t.Error("the host or the base was changed")
	}
	w.AddImage("ami-2", tree)
	id := w.start("vpc-a", 20, "", func(s *contract.Spec) { s.Image = "ami-2" })
	for command, want := range map[string]string{
		"getent passwd thing | cut -d: -f6":                                                    "/opt/thing",
		"stat -c '%U %a' /var/lib/thing/file /opt/thing":                                       "thing 600\nthing 755",
		"cat /usr/local/share.txt /etc/base; ls /etc/skel /etc/hosts.base 2>/dev/null || true": "a name\nfrom the base",
	} {
		if got := w.run(id, command); got != want {
			t.Errorf("%s says %q, not %q", command, got, want)
		}
	}
	w.eventually(id, "ps -o user= -C sleep", "thing")
	if !exists("/etc/skel") {
		t.Error("a directory of the host was removed")
	}

	if _, err := w.Build(context.Background(), "", "#!/bin/sh\necho what is wrong\nexit 7\n", nil); err == nil ||
		!strings.Contains(err.Error(), "what is wrong") ||
		!strings.Contains(err.Error(), "exit status 7") {
		t.Errorf("a script that fails: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	if _, err := w.Build(ctx, "", "#!/bin/sh\nsleep 97531\n", nil); err == nil || len(processes("sleep 97531")) > 0 {
		t.Errorf("a script that takes too long: %v, processes %v", err, processes("sleep 97531"))
	}
}

// TestProvision builds an image with the real provisioning script, and runs the systemd units of the image. A test
// program takes the place of nstance-server.
func TestProvision(t *testing.T) {
	images := "../../../images/packer"
	w := newTestRunner(t,
		map[string]string{
			"srv/nstance/nstance-server": "#!/bin/sh\n[ \"$1\" != --version ] || exit 0\nexec /usr/local/bin/daemon " +
				"\"$@\"\n"}).with("daemon")
	if err := os.CopyFS(filepath.Join(w.tree, "srv/nstance/files"), os.DirFS(filepath.Join(images,
		"files"))); err != nil {
		t.Fatal(err)
	}
	script := string(must(os.ReadFile(filepath.Join(images, "provision.sh"))))
	tree, err := w.Build(context.Background(), w.tree, script, map[string]string{"NSTANCE_ROLE": "server",
		"NSTANCE_PLATFORM": "none",
		"NSTANCE_BINARY":   "/srv/nstance/nstance-server", "NSTANCE_FILES": "/srv/nstance/files"})
	if err != nil {
		t.Fatal(err)
	}
	w.AddImage("ami-server", tree)
	id := w.start("vpc-a", 20,
		"#!/bin/sh\nset -eu\numask 077\nprintf '%s\\n' 'NSTANCE_SERVER_ARGS=\"--shard us-west-2a --bucket b\"' "+
			">/etc/nstance/server.env\n"+
			"systemctl enable nstance-server\nsystemctl start --no-block nstance-server\n", func(s *contract.Spec) {
			s.Image = "ami-server"
		})
	w.eventually(id, "systemctl is-active nstance-server", "active")
	w.eventually(id, "ps -o user= -C daemon", "nstance-server")
	log := w.Logs(id)
	if want := `args ["--shard" "us-west-2a" "--bucket" "b"]`; !strings.Contains(log, want) {
		t.Errorf("the log has no %s", want)
	}
	w.run(id, "systemctl stop nstance-server")
}
