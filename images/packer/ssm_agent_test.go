//go:build linux

package packer

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSSMAgent runs files/ssm-agent.sh with a package from a local server. The commands that change the machine are
// fakes. A package with another checksum is not installed.
func TestSSMAgent(t *testing.T) {
	if _, err := os.Stat("/usr/lib/apt/apt-helper"); err != nil {
		t.Skip("this is not Debian:", err)
	}
	const content = "a Debian package"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/3.3.1611.0/debian_arm64/amazon-ssm-agent.deb" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(content))
	}))
	defer server.Close()
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	// Arguments below the test's directory are shortened, because their names are random.
	const fake = `#!/bin/sh
[ "$*" != --print-architecture ] || { echo arm64; exit; }
for arg; do
	shift
	case $arg in "$TMPDIR"/*) set -- "$@" "TEMP/${arg##*/}" ;; *) set -- "$@" "$arg" ;; esac
done
echo "${0##*/} $*" >>"$LOG"
`
	for _, name := range []string{"dpkg", "systemctl", "rm"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(fake), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	run := func(version, sum string) (string, error) {
		cmd := exec.Command("sh", "files/ssm-agent.sh", version, sum)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "LOG="+log, "TMPDIR="+t.TempDir(),
			"NSTANCE_SSM_URL="+server.URL, "http_proxy=")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	sum := sha256.Sum256([]byte(content))
	if out, err := run("3.3.1611.0", hex.EncodeToString(sum[:])); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	calls, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	_, lines, _ := strings.Cut("\n"+string(calls), "\n")
	lines = lines[:strings.LastIndex(lines, "rm -rf TEMP/")] // the script's own directory
	if diff := cmp.Diff("dpkg --install TEMP/amazon-ssm-agent.deb\nsystemctl stop amazon-ssm-agent\n"+
		"systemctl enable amazon-ssm-agent\nrm -rf /var/lib/amazon/ssm /var/log/amazon/ssm\n", lines); diff != "" {
		t.Error(diff)
	}
	for name, args := range map[string][]string{"another checksum": {"3.3.1611.0", strings.Repeat("0", 64)},
		"no such version": {"1.0", hex.EncodeToString(sum[:])}} {
		if err := os.Remove(log); err != nil {
			t.Fatal(err)
		}
		out, err := run(args[0], args[1])
		calls, _ := os.ReadFile(log)
		if err == nil || strings.Contains(string(calls), "dpkg") {
			t.Errorf("%s: %v, %s\n%s", name, err, out, calls)
		}
	}
}
