package bootscript_test

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/bootscript"
	"github.com/nstance-kit/nstance/services/contract/render"
)

var update = flag.Bool("update", false, "write the golden files")

func server() bootscript.Server {
	return bootscript.Server{Shard: "us-west-2a", Storage: "s3", Bucket: "my-bucket", Prefix: "some/where",
		Region: "us-west-2", LeaderInterface: "eni-0123456789abcdef0", LeaderNetwork: leaderNetwork()}
}

func leaderNetwork() bootscript.LeaderNetwork {
	return bootscript.LeaderNetwork{MAC: "02:00:00:ab:cd:ef", IPv4: "10.0.1.100", Gateway: "10.0.1.1",
		IPv6: "2001:db8::100"}
}

func binaries(url string, content string) map[string]bootscript.Binary {
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte(content)))
	return map[string]bootscript.Binary{"amd64": {URL: url + "/program", SHA256: sum},
		"arm64": {URL: url + "/program", SHA256: sum}}
}

// must returns a script, or fails the test.
func must(t testing.TB) func(string, error) string {
	return func(script string, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return script
	}
}

func TestGolden(t *testing.T) {
	downloading, agent := server(), bootscript.Agent{}
	downloading.Binaries = binaries("https://example.com/releases/v1.0.0", "")
	agent.Binaries = downloading.Binaries
	agent.Environment = map[string]string{"NSTANCE_RECV_EXTENSIONS": ".yaml"}
	downloading.Environment = map[string]string{bootscript.ScalingGroupVariable: "aws/example-server"}
	for name, script := range map[string]string{
		"server.sh":          must(t)(server().Script()),
		"server-download.sh": must(t)(downloading.Script()),
		"agent.sh.tmpl":      must(t)(agent.Script()),
	} {
		path := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), script); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		limit := 4 << 10
		if strings.Contains(script, "sha256sum") {
			limit = 8 << 10
		}
		if len(script) >= limit {
			t.Errorf("%s has %d bytes, want less than %d", name, len(script), limit)
		}
	}
}

// machine is a test directory with the files of a machine. The paths in a script are redirected into the directory.
type machine struct{ root, path string }

func newMachine(t *testing.T) machine {
	t.Helper()
	root := t.TempDir()
	m := machine{root, root + "/shims:" + os.Getenv("PATH")}
	for _, dir := range []string{"etc/systemd/system", "usr/local/bin", "opt", "shims"} {
		if err := os.MkdirAll(filepath.Join(m.root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	m.write(t, "shims/systemctl", "#!/bin/sh\necho \"$@\" >>"+m.root+"/systemctl.log\n")
	m.write(t, "shims/getent", "#!/bin/sh\nexit 2\n")
	m.write(t, "shims/useradd", "#!/bin/sh\necho \"$@\" >>"+m.root+"/useradd.log\n")
	m.write(t, "shims/networkctl", "#!/bin/sh\necho \"$@\" >>"+m.root+"/networkctl.log\n")
	return m
}

func (m machine) write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(m.root, name), []byte(content), 0o700); err != nil {
		t.Fatal(err)
	}
}

func (m machine) read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(m.root, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(content)
}

// boot runs a script with its absolute paths redirected into the machine, and returns its output.
func (m machine) boot(t *testing.T, script string) (string, error) {
	t.Helper()
	for _, path := range []string{"/etc/nstance", "/etc/systemd", "/usr/local/bin", "/usr/lib/systemd",
		"/opt/nstance-agent"} {
		script = strings.ReplaceAll(script, path, m.root+path)
	}
	cmd := exec.CommandContext(t.Context(), "/bin/sh")
	cmd.Stdin = strings.NewReader(script)
	cmd.Env = []string{"PATH=" + m.path}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (m machine) mustBoot(t *testing.T, script string) {
	t.Helper()
	if out, err := m.boot(t, script); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func TestServerBoots(t *testing.T) {
	s := server()
	s.ExtraArgs = []string{"--debug"}
	s.Environment = map[string]string{"GREETING": "it's \"$HOME\" `here` \\ there"}
	s.CommandsBefore = []string{"greeting=hello", `echo "$greeting" >/etc/nstance-greeting || true`}
	m := newMachine(t)
	s.CommandsBefore[1] = `echo "$greeting" >` + m.root + `/greeting`
	m.mustBoot(t, must(t)(s.Script()))
	want := `GREETING="it's \"\$HOME\" ` + "\\`here\\`" + ` \\ there"
NSTANCE_SERVER_ARGS="--shard us-west-2a --storage s3 --bucket my-bucket --prefix some/where --leader-interface eni-0123456789abcdef0 --cachedir /var/cache/nstance-server --debug"
`
	if diff := cmp.Diff("AWS_REGION=\"us-west-2\"\n"+want, m.read(t, "etc/nstance/server.env")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff("enable nstance-server\nstart --no-block nstance-server\n",
		m.read(t, "systemctl.log")); diff != "" {
		t.Error(diff)
	}
	if m.read(t, "networkctl.log") != "reload\n" {
		t.Error("systemd-networkd does not know of the new file")
	}
	network := filepath.Join(m.root, "etc/systemd/network/05-nstance-leader.network")
	if info, err := os.Stat(network); err != nil || info.Mode() != 0o644 {
		t.Errorf("systemd-networkd cannot read the file: %v, %v", info, err)
	}
	if m.read(t, "greeting") != "hello\n" {
		t.Error("the caller's commands did not run")
	}
	// systemd parses values in double quotes in the same way as sh.
	out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", `. "$0" && printf %s "$GREETING"`,
		filepath.Join(m.root, "etc/nstance/server.env")).Output()
	if err != nil || string(out) != s.Environment["GREETING"] {
		t.Errorf("%q, %v", out, err)
	}
	m.mustBoot(t, must(t)(s.Script())) // the script can run again
}

func TestServerOutsideAWSHasNoRegion(t *testing.T) {
	s := server()
	s.Storage, s.Prefix, s.LeaderInterface, s.LeaderNetwork = "gcs", "", "", bootscript.LeaderNetwork{}
	m := newMachine(t)
	m.mustBoot(t, must(t)(s.Script()))
	if entries, err := os.ReadDir(filepath.Join(m.root, "etc/systemd/network")); err == nil {
		t.Errorf("there are network files: %v", entries)
	}
	want := "NSTANCE_SERVER_ARGS=\"--shard us-west-2a --storage gcs --bucket my-bucket --cachedir " +
		"/var/cache/nstance-server\"\n"
	if diff := cmp.Diff(want, m.read(t, "etc/nstance/server.env")); diff != "" {
		t.Error(diff)
	}
}

func TestAgentBoots(t *testing.T) {
	m := newMachine(t)
	if err := os.Mkdir(filepath.Join(m.root, "opt/nstance-agent"), 0o700); err != nil {
		t.Fatal(err)
	}
	a := bootscript.Agent{Common: bootscript.Common{
		Environment: map[string]string{"NSTANCE_RECV_EXTENSIONS": ".yaml,.conf"},
		CommandsBefore: []string{"ps -o args= >" + m.root + "/ps || true", "echo {{ quote .Instance.Group }} >" +
			m.root + "/group"},
	}}
	template := must(t)(a.Script())
	data, nonce := render.Sample(), render.Nonce("head.it's.signature")
	data.Cluster.CACert = "-----BEGIN CERTIFICATE-----\nit's '$(touch " + m.root +
		"/hacked)'\n-----END CERTIFICATE-----\n"
	script, err := renderUserdata("userdata", template, data, nonce)
	if err != nil {
		t.Fatal(err)
	}
	m.mustBoot(t, script)
	for name, want := range map[string]string{
		"opt/nstance-agent/identity/ca.crt":    data.Cluster.CACert,
		"opt/nstance-agent/identity/nonce.jwt": "head.it's.signature",
		"etc/nstance/agent.env": "NSTANCE_INSTANCE_ID=" + data.Instance.ID +
			"\nNSTANCE_INSTANCE_KIND=knd\nNSTANCE_SERVER_REGISTRATION_ADDR=192.0.2.1:8992\n" +
			"NSTANCE_SERVER_AGENT_ADDR=192.0.2.1:8994\nNSTANCE_RECV_EXTENSIONS=\".yaml,.conf\"\n",
		"systemctl.log": "enable nstance-agent\nstart --no-block nstance-agent\n",
		"group":         "sample\n",
		"hacked":        "",
	} {
		if diff := cmp.Diff(want, m.read(t, name)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	for name, want := range map[string]os.FileMode{"opt/nstance-agent/identity": 0o700,
		"opt/nstance-agent/identity/nonce.jwt": 0o600, "etc/nstance/agent.env": 0o600, "etc/nstance": 0o755} {
		info, err := os.Stat(filepath.Join(m.root, name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}

	// A machine on a copied disk, with the certificate of another instance, gets its nonce.
	m.write(t, "opt/nstance-agent/identity/identity.crt", "")
	m.write(t, "opt/nstance-agent/identity/instance", "knd00000000000000000000000000\n")
	m.mustBoot(t, script)
	if m.read(t, "opt/nstance-agent/identity/nonce.jwt") == "" {
		t.Error("no nonce for a machine with the identity of another instance")
	}

	// A machine that is already registered gets no nonce.
	m.write(t, "opt/nstance-agent/identity/instance", data.Instance.ID+"\n")
	if err := os.Remove(filepath.Join(m.root, "opt/nstance-agent/identity/nonce.jwt")); err != nil {
		t.Fatal(err)
	}
	m.mustBoot(t, script)
	if m.read(t, "opt/nstance-agent/identity/nonce.jwt") != "" {
		t.Error("the nonce is back")
	}
}

func TestAgentFailsWithACommand(t *testing.T) {
	m := newMachine(t)
	a := bootscript.Agent{Common: bootscript.Common{CommandsBefore: []string{"false"}}}
	script, err := renderUserdata("userdata", must(t)(a.Script()), render.Sample(), "nonce")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.boot(t, script); err == nil || m.read(t, "systemctl.log") != "" {
		t.Errorf("it went on: %v", err)
	}
}

// downloads runs a web server that serves one file.
func downloads(t *testing.T, content string) (url string, count *int) {
	t.Helper()
	count = new(int)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/program" {
			http.NotFound(w, r)
			return
		}
		*count++
		_, _ = w.Write([]byte(content)) // the client notices a failed write
	}))
	t.Cleanup(web.Close)
	return web.URL, count
}

func TestDownload(t *testing.T) {
	const program = "#!/bin/sh\necho hello\n"
	url, count := downloads(t, program)
	s := server()
	s.Binaries = binaries(url, program)
	m := newMachine(t)
	m.mustBoot(t, must(t)(s.Script()))
	out, err := exec.CommandContext(t.Context(), filepath.Join(m.root, "usr/local/bin/nstance-server")).Output()
	if err != nil || string(out) != "hello\n" {
		t.Errorf("%q, %v", out, err)
	}
	if diff := cmp.Diff("--system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin "+
		"nstance-server\n", m.read(t, "useradd.log")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff("daemon-reload\nenable nstance-server\nstart --no-block nstance-server\n",
		m.read(t, "systemctl.log")); diff != "" {
		t.Error(diff)
	}
	// If the program is installed already, the script replaces neither the program nor its units.
	m.write(t, "etc/systemd/system/nstance-server.service", "mine")
	m.mustBoot(t, must(t)(s.Script()))
	if *count != 1 || m.read(t, "etc/systemd/system/nstance-server.service") != "mine" {
		t.Errorf("%d downloads, unit %q", *count, m.read(t, "etc/systemd/system/nstance-server.service"))
	}
}

// TestDownloadInstallsTheUnitsOfTheImage compares each unit that a script writes with the unit of the image. They may
// differ only in comments and empty lines.
func TestDownloadInstallsTheUnitsOfTheImage(t *testing.T) {
	url, _ := downloads(t, "")
	s, a := server(), bootscript.Agent{}
	s.Binaries = binaries(url, "")
	a.Binaries = s.Binaries
	m := newMachine(t)
	m.mustBoot(t, must(t)(s.Script()))
	agent, err := renderUserdata("userdata", must(t)(a.Script()), render.Sample(), "nonce")
	if err != nil {
		t.Fatal(err)
	}
	m.mustBoot(t, agent)
	images, err := filepath.Glob("../../../images/packer/files/*.service")
	if err != nil || len(images) != 3 {
		t.Fatalf("units of the images: %v, %v", images, err)
	}
	comments := regexp.MustCompile(`(?m)^(#.*)?\n`)
	for _, image := range images {
		want, err := os.ReadFile(image)
		if err != nil {
			t.Fatal(err)
		}
		name := "etc/systemd/system/" + filepath.Base(image)
		// The script ran with its absolute paths moved below m.root.
		got := strings.ReplaceAll(m.read(t, name), m.root, "")
		if diff := cmp.Diff(comments.ReplaceAllString(string(want), ""), got); diff != "" {
			t.Errorf("%s (-image +download):\n%s", name, diff)
		}
		if info, err := os.Stat(filepath.Join(m.root, name)); err != nil || info.Mode().Perm() != 0o644 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

// TestDownloadWithoutCurl downloads on a machine that has Python but not curl.
func TestDownloadWithoutCurl(t *testing.T) {
	const program = "#!/bin/sh\necho hello\n"
	url, count := downloads(t, program)
	s := server()
	s.Binaries = binaries(url, program)
	m := newMachine(t)
	// The test needs the interpreter itself, because python3 on PATH may be a wrapper that needs other programs.
	python, err := exec.CommandContext(t.Context(), "python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(strings.TrimSpace(string(python)), filepath.Join(m.root, "shims/python3")); err != nil {
		t.Fatal(err)
	}
	for _, tool := range []string{"uname", "sha256sum", "chmod", "mv", "mkdir", "sleep", "sh"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(m.root, "shims", tool)); err != nil {
			t.Fatal(err)
		}
	}
	m.path = m.root + "/shims"
	m.mustBoot(t, must(t)(s.Script()))
	if *count != 1 || m.read(t, "usr/local/bin/nstance-server") != program {
		t.Errorf("%d downloads, program %q", *count, m.read(t, "usr/local/bin/nstance-server"))
	}
}

func TestDownloadChecksWhatItGets(t *testing.T) {
	for name, content := range map[string]string{"another file": "another", "nothing": ""} {
		t.Run(name, func(t *testing.T) {
			url, _ := downloads(t, content)
			s := server()
			s.Binaries = binaries(url, "the program")
			m := newMachine(t)
			if out, err := m.boot(t, must(t)(s.Script())); err == nil {
				t.Errorf("it went on: %s", out)
			}
			if m.read(t, "usr/local/bin/nstance-server") != "" || m.read(t, "systemctl.log") != "" {
				t.Error("it was installed")
			}
		})
	}
	s := server()
	s.Binaries = map[string]bootscript.Binary{"amd64": {URL: "http://127.0.0.1:1/program",
		SHA256: strings.Repeat("0", 64)}}
	m := newMachine(t)
	m.write(t, "shims/uname", "#!/bin/sh\necho riscv64\n")
	if out, err := m.boot(t, must(t)(s.Script())); err == nil || !strings.Contains(out,
		"no nstance-server for riscv64") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestRefused(t *testing.T) {
	sum := strings.Repeat("0", 64)
	for name, c := range map[string]struct {
		change func(*bootscript.Server)
		field  string
	}{
		"no shard":   {func(s *bootscript.Server) { s.Shard = "" }, "shard"},
		"shard":      {func(s *bootscript.Server) { s.Shard = "a b" }, "shard"},
		"storage":    {func(s *bootscript.Server) { s.Storage = "ftp" }, "storage"},
		"no bucket":  {func(s *bootscript.Server) { s.Bucket = "" }, "bucket"},
		"bucket":     {func(s *bootscript.Server) { s.Bucket = "a b" }, "bucket"},
		"prefix":     {func(s *bootscript.Server) { s.Prefix = "$(id)" }, "prefix"},
		"region":     {func(s *bootscript.Server) { s.Region = "us west" }, "region"},
		"interface":  {func(s *bootscript.Server) { s.LeaderInterface = "eni'" }, "leader_interface"},
		"MAC":        {func(s *bootscript.Server) { s.LeaderNetwork.MAC = "eth1" }, "leader_network.mac_address"},
		"IPv4":       {func(s *bootscript.Server) { s.LeaderNetwork.IPv4 = "fd00::1" }, "leader_network.ipv4"},
		"no gateway": {func(s *bootscript.Server) { s.LeaderNetwork.Gateway = "" }, "leader_network.ipv4_gateway"},
		"gateway":    {func(s *bootscript.Server) { s.LeaderNetwork.Gateway = "x" }, "leader_network.ipv4_gateway"},
		"IPv6":       {func(s *bootscript.Server) { s.LeaderNetwork.IPv6 = "fe80::1%a" }, "leader_network.ipv6"},
		"no address": {func(s *bootscript.Server) {
			s.LeaderNetwork = bootscript.LeaderNetwork{MAC: s.LeaderNetwork.MAC}
		}, "leader_network"},
		"argument":       {func(s *bootscript.Server) { s.ExtraArgs = []string{"--debug", `"`} }, "extra_args[1]"},
		"empty argument": {func(s *bootscript.Server) { s.ExtraArgs = []string{""} }, "extra_args[0]"},
		"architecture": {func(s *bootscript.Server) {
			s.Binaries = map[string]bootscript.Binary{"mips": {"https://x/y", sum}}
		}, `binaries["mips"]`},
		"URL": {func(s *bootscript.Server) {
			s.Binaries = map[string]bootscript.Binary{"arm64": {"file:///etc/passwd", sum}}
		}, `binaries["arm64"].url`},
		"sum": {func(s *bootscript.Server) {
			s.Binaries = map[string]bootscript.Binary{"arm64": {"https://x/y", "00"}}
		}, `binaries["arm64"].sha256`},
		"variable": {func(s *bootscript.Server) {
			s.Environment = map[string]string{"A B": ""}
		}, `environment["A B"]`},
		"value": {func(s *bootscript.Server) {
			s.Environment = map[string]string{"A": "b\nC=d"}
		}, `environment["A"]`},
		"arguments twice": {func(s *bootscript.Server) {
			s.Environment = map[string]string{"NSTANCE_SERVER_ARGS": ""}
		}, `environment["NSTANCE_SERVER_ARGS"]`},
		"too long": {func(s *bootscript.Server) {
			s.CommandsBefore = []string{": " + strings.Repeat("x", bootscript.MaxSize)}
		}, "commands_before"},
		"NUL": {func(s *bootscript.Server) { s.CommandsBefore = []string{"a\x00"} }, "commands_before[0]"},
	} {
		s := server()
		c.change(&s)
		_, err := s.Script()
		var field *bootscript.FieldError
		if !errors.As(err, &field) || field.Field != c.field {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, c := range map[string]struct {
		common bootscript.Common
		field  string
	}{
		"template": {bootscript.Common{CommandsBefore: []string{"{{ .Nothing }}"}}, "commands_before"},
		"template in value": {bootscript.Common{Environment: map[string]string{"A": "{{ .Nonce }}"}},
			`environment["A"]`},
		"the server's": {bootscript.Common{Environment: map[string]string{"NSTANCE_INSTANCE_ID": "x"}},
			`environment["NSTANCE_INSTANCE_ID"]`},
	} {
		_, err := bootscript.Agent{Common: c.common}.Script()
		var field *bootscript.FieldError
		if !errors.As(err, &field) || field.Field != c.field {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzServer checks that a shell accepts every generated script, and that the script writes exactly the given values.
func FuzzServer(f *testing.F) {
	f.Add("us-west-2a", "my-bucket", "a/b", "eni-1", "A", `it's "$HOME"`)
	f.Add("a", "b", "", "", "B", "`id`\\")
	f.Fuzz(func(t *testing.T, shard, bucket, prefix, leader, variable, value string) {
		s := bootscript.Server{Shard: shard, Storage: "gcs", Bucket: bucket, Prefix: prefix, LeaderInterface: leader}
		s.Environment = map[string]string{variable: value}
		script, err := s.Script()
		if err != nil {
			return
		}
		m := newMachine(t)
		m.mustBoot(t, script)
		// If sh can read the file, it must read the same values as systemd. sh cannot read every file, because some
		// names of variables have a special meaning to sh.
		file := m.read(t, "etc/nstance/server.env")
		if strings.Count(file, "\n") != 2 {
			t.Fatalf("%q", file)
		}
		out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", `. "$0" && printf %s "$NSTANCE_SERVER_ARGS"`,
			filepath.Join(m.root, "etc/nstance/server.env")).Output()
		want := "--shard " + shard + " --storage gcs --bucket " + bucket
		if err == nil && !strings.HasPrefix(string(out), want) {
			t.Errorf("%q", out)
		}
	})
}

// renderUserdata compiles and renders one boot script.
func renderUserdata(name, text string, d render.Data, nonce render.Nonce) (string, error) {
	u, err := render.CompileUserdata(name, text)
	if err != nil {
		return "", err
	}
	return u.Execute(d, nonce)
}
