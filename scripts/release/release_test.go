package main

import (
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aead.dev/minisign"
	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/sassoftware/go-rpmutils"

	"github.com/nstance-kit/nstance/images/container/oci"
)

var created = time.Unix(1_790_000_000, 0).UTC()

// TestVersions checks that only semantic versions with the prefix v are released.
func TestVersions(t *testing.T) {
	for _, version := range []string{"", "0.2.0", "v0.2", "v0.2.0+meta", "latest", "v0.2.0-rc..1"} {
		err := run(t.Context(), []string{"-version", version, "-out", t.TempDir()}, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), "vMAJOR.MINOR.PATCH") {
			t.Errorf("version %q: %v", version, err)
		}
	}
	err := run(t.Context(), []string{"-version", "v99.0.0", "-out", t.TempDir()}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "metadata.yaml lists no series of 99.0.0") {
		t.Errorf("a series that clusterctl does not know: %v", err)
	}
}

// TestStrict checks that -strict refuses to build a release without signing keys.
func TestStrict(t *testing.T) {
	t.Setenv("NSTANCE_MINISIGN_KEY", "")
	t.Setenv("NSTANCE_GPG_KEY", "")
	out := filepath.Join(t.TempDir(), "dist")
	var stderr bytes.Buffer
	err := run(t.Context(), []string{"-version", "v0.2.0", "-out", out, "-strict"}, io.Discard, &stderr)
	if err == nil || !strings.Contains(stderr.String(), "NSTANCE_MINISIGN_KEY is not set") ||
		!strings.Contains(stderr.String(), "NSTANCE_GPG_KEY is not set") {
		t.Errorf("%v\n%s", err, stderr.String())
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("a release was built")
	}
}

// TestOutIsKept checks that a release may replace an empty directory or an earlier release, but no other directory.
func TestOutIsKept(t *testing.T) {
	dir := t.TempDir()
	if err := replaceable(dir); err != nil {
		t.Errorf("an empty directory: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "work"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := replaceable(dir); err == nil {
		t.Error("a directory with other files is replaced")
	}
	if err := os.WriteFile(filepath.Join(dir, sums), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := replaceable(dir); err != nil {
		t.Errorf("an earlier release: %v", err)
	}
}

// TestKeysAreNotShown checks that errors about unreadable signing keys contain neither the key nor its password. It
// also opens a key with the right password, and signs with this key.
func TestKeysAreNotShown(t *testing.T) {
	_, private, err := minisign.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	encrypted, err := minisign.EncryptKey("secret-password", private)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("NSTANCE_MINISIGN_KEY", string(encrypted))
	t.Setenv("NSTANCE_MINISIGN_PASSWORD", "secret-other")
	if _, err := readKeys(); err == nil || strings.Contains(err.Error(), "secret-") ||
		strings.Contains(err.Error(), string(encrypted[:20])) {
		t.Errorf("a wrong password: %v", err)
	}
	t.Setenv("NSTANCE_MINISIGN_PASSWORD", "secret-password")
	k, err := readKeys()
	if err != nil {
		t.Fatal(err)
	}
	first, err := k.minisigned([]byte("text"), "comment")
	if err != nil {
		t.Fatal(err)
	}
	second, err := k.minisigned([]byte("text"), "comment")
	if err != nil || !bytes.Equal(first, second) {
		t.Errorf("two signatures of one text differ: %v", err)
	}
	t.Setenv("NSTANCE_GPG_KEY", "hidden-key")
	if _, err := readKeys(); err == nil || strings.Contains(err.Error(), "hidden-key") {
		t.Errorf("a wrong GPG key: %v", err)
	}
}

// TestDetached signs with a key that is newer than the release. It signs a text twice and checks that both signatures
// are equal.
func TestDetached(t *testing.T) {
	key, err := openpgp.NewEntity("test", "", "test@example.com", nil)
	if err != nil {
		t.Fatal(err)
	}
	k := keys{gpg: key}
	first, err := k.detached([]byte("text"), created.Add(-time.Hour*24*3650))
	if err != nil {
		t.Fatal(err)
	}
	second, err := k.detached([]byte("text"), created.Add(-time.Hour*24*3650))
	if err != nil || !bytes.Equal(first, second) {
		t.Errorf("two signatures of one text differ: %v", err)
	}
	if _, err := openpgp.CheckDetachedSignature(openpgp.EntityList{key}, strings.NewReader("text"),
		bytes.NewReader(first), nil); err != nil {
		t.Error(err)
	}
}

// TestPackages makes packages of two programs, and checks the owners and modes of the files in one .rpm. tests/release
// installs the .deb.
func TestPackages(t *testing.T) {
	repository, err := root()
	if err != nil {
		t.Fatal(err)
	}
	r := &release{Root: repository, Dir: t.TempDir(), Work: t.TempDir(), Version: "v0.2.0-rc.1", Number: "0.2.0-rc.1",
		Created: created, Platforms: []string{"linux/amd64", "darwin/arm64"}}
	if err := os.Mkdir(filepath.Join(r.Work, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"nstance-server", "nstance-agent"} {
		if err := os.WriteFile(r.binary(program, "linux/amd64"), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.packages(t.Context()); err != nil {
		t.Fatal(err)
	}
	names, err := r.files()
	if err != nil || strings.Join(names, " ") != "nstance-agent-0.2.0~rc.1-1.x86_64.rpm "+
		"nstance-agent_0.2.0~rc.1-1_amd64.deb nstance-server-0.2.0~rc.1-1.x86_64.rpm "+
		"nstance-server_0.2.0~rc.1-1_amd64.deb" {
		t.Fatalf("packages %v, %v", names, err)
	}
	file, err := os.Open(filepath.Join(r.Dir, names[2]))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	rpm, err := rpmutils.ReadRpm(file)
	if err != nil {
		t.Fatal(err)
	}
	listed, err := rpm.Header.GetFiles()
	if err != nil {
		t.Fatal(err)
	}
	modes := map[string]int{}
	for _, f := range listed {
		modes[f.Name()] = f.Mode() & 0o7777
		if f.UserName() != "root" || f.GroupName() != "root" {
			t.Errorf("%s belongs to %s:%s", f.Name(), f.UserName(), f.GroupName())
		}
	}
	for path, mode := range map[string]int{"/usr/bin/nstance-server": 0o755, "/etc/nstance": 0o700,
		"/usr/lib/systemd/system/nstance-server.service":        0o644,
		"/usr/lib/systemd/system/nstance-server-health.service": 0o644} {
		if modes[path] != mode {
			t.Errorf("%s has mode %o, want %o", path, modes[path], mode)
		}
	}
}

// TestChart pushes the chart to a registry, and helm pulls it.
func TestChart(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	repository, err := root()
	if err != nil {
		t.Fatal(err)
	}
	host := strings.TrimPrefix(server.URL, "http://")
	r := &release{Root: repository, Dir: t.TempDir(), Work: t.TempDir(), Version: "v0.2.0", Number: "0.2.0",
		Created: created, Registry: host + "/kit", Push: true, Insecure: true}
	if err := r.kubernetes(t.Context()); err != nil {
		t.Fatal(err)
	}
	reference, err := oci.Reference(host+"/kit/charts/nstance-operator:0.2.0", true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := remote.Head(reference); err != nil {
		t.Fatal(err)
	}
	components, err := os.ReadFile(filepath.Join(r.Dir, "infrastructure-components.yaml"))
	if err != nil || !bytes.Contains(components, []byte("image: "+host+"/kit/nstance-operator:0.2.0\n")) {
		t.Errorf("the components do not have the image of the release: %v", err)
	}
	helm, err := exec.CommandContext(t.Context(), filepath.Join(repository, "scripts/tool.sh"), "helm").Output()
	if err != nil {
		t.Fatal(err)
	}
	into := t.TempDir()
	pull := exec.CommandContext(t.Context(), strings.TrimSpace(string(helm)), "pull", "oci://"+host+
		"/kit/charts/nstance-operator", "--version", "0.2.0", "--plain-http", "-d", into)
	pull.Env = append(os.Environ(), "HELM_CACHE_HOME="+into, "HELM_CONFIG_HOME="+into)
	if out, err := pull.CombinedOutput(); err != nil {
		t.Fatalf("helm pull: %v\n%s", err, out)
	}
	pulled, err := os.ReadFile(filepath.Join(into, "nstance-operator-0.2.0.tgz"))
	if err != nil {
		t.Fatal(err)
	}
	if own, err := os.ReadFile(filepath.Join(r.Dir, "nstance-operator-0.2.0.tgz")); err != nil ||
		!bytes.Equal(own, pulled) {
		t.Errorf("helm pulled another chart: %v", err)
	}
}
