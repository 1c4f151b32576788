// Package release builds a release and installs it as a user would, with nothing but the files of the release. It
// checks the signatures, the packages, the chart, and Terraform's provider and modules. It serves the provider and the
// modules like a registry. scripts/test.sh release runs it.
package release

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

const (
	number   = "0.2.0"
	version  = "v" + number
	revision = "0123456789abcdef0123456789abcdef01234567"
	root     = "../.."
)

var (
	runFlag       = flag.Bool("run-release", false, "build a release; without it the tests only name their script")
	terraformFlag = flag.String("terraform", "", "path of terraform; without it only tofu is tested")
)

// dist is the release under test.
type dist struct {
	dir       string
	minisign  string // file with the public key
	gpgHome   string
	gpgPublic string // armored
}

// TestRelease builds a release two times and tests its contents.
func TestRelease(t *testing.T) {
	if !*runFlag {
		t.Log("run by scripts/test.sh release")
		return
	}
	d := dist{dir: filepath.Join(t.TempDir(), "dist"), minisign: filepath.Join(t.TempDir(), "key.pub"),
		gpgHome: t.TempDir()}
	environment := d.makeKeys(t)
	source := filepath.Join(t.TempDir(), "src")
	copySource(t, source)
	build(t, environment, source, d.dir)
	t.Run("Reproducible", func(t *testing.T) {
		elsewhere := filepath.Join(t.TempDir(), "elsewhere", "nstance-"+version)
		if err := os.CopyFS(elsewhere, os.DirFS(source)); err != nil {
			t.Fatal(err)
		}
		again := filepath.Join(t.TempDir(), "dist")
		build(t, environment, elsewhere, again)
		compare(t, d.dir, again)
	})
	t.Run("Contents", d.testContents)
	t.Run("Signatures", d.testSignatures)
	t.Run("Packages", d.testPackages)
	t.Run("Trial", d.testTrial)
	t.Run("Image", d.testImage)
	t.Run("Terraform", d.testTerraform)
	t.Run("Chart", d.testChart)
}

// makeKeys makes the keys that sign the release, and returns the environment for `make release`.
func (d *dist) makeKeys(t *testing.T) []string {
	t.Helper()
	secret := filepath.Join(t.TempDir(), "key")
	output(t, nil, tool(t, "minisign"), "-G", "-W", "-p", d.minisign, "-s", secret)
	home := []string{"GNUPGHOME=" + d.gpgHome}
	// Terraform's registry takes RSA and DSA keys only.
	output(t, home, "gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key",
		"Nstance test <test@example.com>", "rsa3072", "sign", "never")
	private := output(t, home, "gpg", "--batch", "--armor", "--export-secret-keys")
	d.gpgPublic = string(output(t, home, "gpg", "--batch", "--armor", "--export"))
	t.Cleanup(func() { output(t, home, "gpgconf", "--kill", "all") })
	return []string{"NSTANCE_MINISIGN_KEY=" + string(read(t, secret)), "NSTANCE_GPG_KEY=" + string(private),
		"SOURCE_DATE_EPOCH=1790000000"}
}

// copySource copies the repository without its history to a directory.
func copySource(t *testing.T, to string) {
	t.Helper()
	for name := range strings.SplitSeq(strings.TrimSpace(string(output(t, nil, "git", "-C", root, "ls-files", "-co",
		"--exclude-standard"))), "\n") {
		path := filepath.Join(root, name)
		info, err := os.Stat(path)
		if err != nil {
			continue // deleted, but not committed
		}
		into := filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(into), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(into, read(t, path), info.Mode()); err != nil {
			t.Fatal(err)
		}
	}
}

// build builds a release for this platform from a copy of the repository.
func build(t *testing.T, environment []string, source, into string) {
	t.Helper()
	output(t, append(slices.Clone(environment), "GOFLAGS=-trimpath"), "go", "-C",
		filepath.Join(source, "scripts", "release"), "run", ".", "-version", version, "-out", into, "-platforms",
		"linux/"+runtime.GOARCH, "-revision", revision)
}

// compare verifies that two directories have the same files.
func compare(t *testing.T, a, b string) {
	t.Helper()
	first, second := files(t, a), files(t, b)
	if !slices.Equal(first, second) {
		t.Errorf("files\n%v\nand\n%v", first, second)
	}
	for _, name := range first {
		if !bytes.Equal(read(t, filepath.Join(a, name)), read(t, filepath.Join(b, name))) {
			t.Errorf("%s differs between two builds", name)
		}
	}
}

func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		names = append(names, name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// testContents checks which files a release has, and which versions the programs print. It also checks one bill of
// materials and the statement of provenance.
func (d *dist) testContents(t *testing.T) {
	arch := runtime.GOARCH
	var want []string
	names := strings.NewReplacer("VERSION", number, "OS", "linux", "ARCH", arch, "CPU",
		map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch])
	for line := range strings.Lines(string(read(t, filepath.Join(root, "scripts/release/files.txt")))) {
		if !strings.HasPrefix(line, "#") {
			want = append(want, names.Replace(strings.TrimSpace(line)))
		}
	}
	slices.Sort(want)
	got := files(t, d.dir)
	if !slices.Equal(got, want) {
		t.Errorf("the release has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	archive := "nstance_" + number + "_linux_" + arch
	unpacked := t.TempDir()
	output(t, nil, "tar", "-xzf", filepath.Join(d.dir, archive+".tar.gz"), "-C", unpacked)
	for program, flag := range map[string]string{"nstance-server": "--version", "nstance-agent": "--version",
		"nstance-operator": "--version", "nstance-admin": "version"} {
		path := filepath.Join(unpacked, archive, program)
		if out := string(output(t, nil, path, flag)); !strings.Contains(out, version) {
			t.Errorf("%s %s prints %q", program, flag, out)
		}
	}
	var statement struct {
		Subject []struct {
			Name   string
			Digest map[string]string
		}
		Predicate struct {
			BuildDefinition struct {
				ResolvedDependencies []struct{ Digest map[string]string }
			}
		}
	}
	decode(t, filepath.Join(d.dir, "nstance_"+number+"_provenance.json"), &statement)
	if commit := statement.Predicate.BuildDefinition.ResolvedDependencies[0].Digest["gitCommit"]; commit != revision {
		t.Errorf("the provenance names the commit %q", commit)
	}
	sums := string(read(t, filepath.Join(d.dir, "SHA256SUMS")))
	stated := map[string]bool{}
	for _, s := range statement.Subject {
		stated[s.Name] = strings.Contains(sums, s.Digest["sha256"]+"  "+s.Name+"\n") || strings.Contains(s.Name, "/")
	}
	for _, name := range want {
		if !stated[name] && !strings.HasPrefix(name, "SHA256SUMS") && !strings.HasSuffix(name, "_provenance.json") {
			t.Errorf("the provenance does not name %s with its checksum", name)
		}
	}
	var bill struct {
		Format     string `json:"bomFormat"`
		Version    string `json:"specVersion"`
		Components []struct{ Name, Version string }
	}
	decode(t, filepath.Join(d.dir, "nstance-server_"+number+"_sbom.cdx.json"), &bill)
	modules := map[string]string{}
	for _, c := range bill.Components {
		modules[c.Name] = c.Version
	}
	if bill.Format != "CycloneDX" || bill.Version != "1.6" || modules["google.golang.org/grpc"] == "" ||
		modules["std"] != strings.TrimPrefix(runtime.Version(), "go") {
		t.Errorf("the bill of materials of the server is %s %s with %v", bill.Format, bill.Version,
			slices.Sorted(maps.Keys(modules)))
	}
}

// testSignatures runs the commands of docs/contributing/releases.md that verify a release. If a file was changed, the
// commands must fail.
func (d *dist) testSignatures(t *testing.T) {
	provider := "terraform-provider-nstance_" + number + "_SHA256SUMS"
	verify := func(dir string) error {
		for _, command := range [][]string{
			{tool(t, "minisign"), "-V", "-H", "-p", d.minisign, "-m", filepath.Join(dir, "SHA256SUMS")},
			{"sh", "-c", `cd "$0" && sha256sum --quiet -c SHA256SUMS`, dir},
			{"gpg", "--batch", "--verify", filepath.Join(dir, provider+".sig"), filepath.Join(dir, provider)},
		} {
			out, err := run(t.Context(), []string{"GNUPGHOME=" + d.gpgHome}, command[0], command[1:]...)
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
		}
		return nil
	}
	if err := verify(d.dir); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"SHA256SUMS", "metadata.yaml", provider} {
		other := t.TempDir()
		if err := os.CopyFS(other, os.DirFS(d.dir)); err != nil {
			t.Fatal(err)
		}
		content := append(read(t, filepath.Join(other, name)), "\n"...)
		if err := os.WriteFile(filepath.Join(other, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := verify(other); err == nil {
			t.Errorf("a changed %s passes the verification", name)
		}
	}
}

// tool returns the path of a program that scripts/tool.sh provides.
func tool(t *testing.T, name string) string {
	t.Helper()
	return strings.TrimSpace(string(output(t, nil, filepath.Join(root, "scripts", "tool.sh"), name)))
}

// output runs a program, which must succeed, and returns its standard output.
func output(t *testing.T, environment []string, program string, args ...string) []byte {
	t.Helper()
	// Clean-ups run programs too.
	out, err := run(context.WithoutCancel(t.Context()), environment, program, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func run(ctx context.Context, environment []string, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), environment...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(program), strings.Join(args, " "), err, out,
			stderr.Bytes())
	}
	return out, nil
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func decode(t *testing.T, path string, into any) {
	t.Helper()
	if err := json.Unmarshal(read(t, path), into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}
