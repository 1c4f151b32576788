//go:build linux

package packer

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// component is a component of a CycloneDX document.
type component struct {
	Type, Name, Version, PURL string
	Ref                       string `json:"bom-ref"`
	Properties                []struct{ Name, Value string }
}

// TestBillOfMaterials runs files/sbom.sh with a fake dpkg-query.
func TestBillOfMaterials(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("dpkg-query", `#!/bin/sh
printf 'ii \tlibstdc++6\t1:12.2.0-14+deb12u1\tamd64\tgcc-12\n'
printf 'rc \tremoved\t1.0\tamd64\tremoved\n'
printf 'ii \tzlib1g\t1:1.2.13~dfsg-1\tamd64\tzlib\n'
`, 0o755)
	modules := write("modules", "/build/nstance-server: go1.26.8\n"+
		"\tpath\texample.com/cmd\n"+
		"\tmod\texample.com/cmd\t(devel)\t\n"+
		"\tdep\tgithub.com/BurntSushi/toml\tv1.5.0\th1:a=\n"+
		"\tdep\texample.com/replaced\tv0.1.0\n"+
		"\t=>\texample.com/fork\tv0.2.0\th1:b=\n"+
		"\tdep\texample.com/old\tv2.0.0+incompatible\th1:c=\n"+
		"\tbuild\t-trimpath=true\n", 0o600)
	run := func(modules string) ([]byte, error) {
		cmd := exec.Command("sh", "files/sbom.sh")
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "NSTANCE_ROLE=server",
			"NSTANCE_VERSION=v1.2.3", "NSTANCE_COMMIT="+strings.Repeat("0a", 20), "NSTANCE_BASE=debian-12-amd64-1-2",
			"NSTANCE_MODULES="+modules)
		return cmd.Output()
	}
	out, err := run(modules)
	if err != nil {
		t.Fatal(err)
	}
	var bom struct {
		Format   string `json:"bomFormat"`
		Spec     string `json:"specVersion"`
		Serial   string `json:"serialNumber"`
		Metadata struct {
			Timestamp string
			Component component
		}
		Components []component
	}
	if err := json.Unmarshal(out, &bom); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	serial := regexp.MustCompile(`^urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	if bom.Format != "CycloneDX" || bom.Spec != "1.6" || !serial.MatchString(bom.Serial) {
		t.Errorf("the document is %s %s, %s", bom.Format, bom.Spec, bom.Serial)
	}
	program := component{Type: "application", Name: "nstance-server", Version: "v1.2.3",
		Properties: []struct{ Name, Value string }{{"nstance:commit", strings.Repeat("0a", 20)},
			{"nstance:base", "debian-12-amd64-1-2"}}}
	if diff := cmp.Diff(program, bom.Metadata.Component); diff != "" {
		t.Errorf("the program (-want +got):\n%s", diff)
	}
	var got []string
	for _, c := range bom.Components {
		// sbom.sh writes this machine's distribution into each PURL.
		purl := regexp.MustCompile(`distro=[^&]*`).ReplaceAllString(c.PURL, "distro=any")
		got = append(got, c.Name+" "+c.Version+" "+purl)
		if c.Type != "library" || c.Ref != c.PURL {
			t.Errorf("the component %+v", c)
		}
	}
	if diff := cmp.Diff([]string{
		"std 1.26.8 pkg:golang/std@1.26.8",
		"github.com/BurntSushi/toml v1.5.0 pkg:golang/github.com/BurntSushi/toml@v1.5.0",
		"example.com/fork v0.2.0 pkg:golang/example.com/fork@v0.2.0",
		"example.com/old v2.0.0+incompatible pkg:golang/example.com/old@v2.0.0%2Bincompatible",
		"libstdc++6 1:12.2.0-14+deb12u1 " +
			"pkg:deb/debian/libstdc%2B%2B6@1%3A12.2.0-14%2Bdeb12u1?arch=amd64&distro=any&upstream=gcc-12",
		"zlib1g 1:1.2.13~dfsg-1 pkg:deb/debian/zlib1g@1%3A1.2.13~dfsg-1?arch=amd64&distro=any&upstream=zlib",
	}, got); diff != "" {
		t.Errorf("components (-want +got):\n%s", diff)
	}

	if out, err := run(filepath.Join(dir, "missing")); err == nil {
		t.Errorf("without the list of modules: no error, and the output\n%s", out)
	}
	write("dpkg-query", "#!/bin/sh\nexit 2\n", 0o755)
	if out, err := run(modules); err == nil {
		t.Errorf("without the list of packages: no error, and the output\n%s", out)
	}
}
