package tests

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDocumentsNameReleasedFiles verifies that the README, the pages of docs/start, and the page about releases name
// only files and images that `make release` makes. The step release compares the list of these files with a release.
func TestDocumentsNameReleasedFiles(t *testing.T) {
	raw, err := os.ReadFile("../scripts/release/files.txt")
	if err != nil {
		t.Fatal(err)
	}
	var patterns []*regexp.Regexp
	var names []string
	for line := range strings.Lines(string(raw)) {
		if name := strings.TrimSpace(line); !strings.HasPrefix(name, "#") {
			names = append(names, name)
			patterns = append(patterns, regexp.MustCompile("^"+strings.NewReplacer("VERSION", `0\.2\.0`, "OS",
				`(linux|darwin|OS)`, "ARCH", `(amd64|arm64|ARCH)`, "CPU", `(x86_64|aarch64|CPU)`).Replace(
				regexp.QuoteMeta(name))+"$"))
		}
	}
	file := regexp.MustCompile(`(?:nstance|terraform-provider-nstance|dev-s3)(?:-[a-z]+)*[-_]0\.2\.0[\w.-]*[a-zA-Z0-9]`)
	image := regexp.MustCompile(`ghcr\.io/nstance-kit/([a-z0-9-]+):0\.2\.0`)
	pages, err := filepath.Glob("../docs/start/*.md")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, page := range append(pages, "../README.md", "../docs/contributing/releases.md") {
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range file.FindAllString(string(raw), -1) {
			// A directory has the name of its archive.
			matches := func(p *regexp.Regexp) bool {
				return p.MatchString(name) || p.MatchString(name+".tar.gz")
			}
			if !slices.ContainsFunc(patterns, matches) {
				t.Errorf("%s names %s, which scripts/release/files.txt does not have", page, name)
			}
			checked++
		}
		for _, match := range image.FindAllStringSubmatch(string(raw), -1) {
			if match[1] != "charts" && !slices.Contains(names, match[1]+"_VERSION_oci.tar") {
				t.Errorf("%s names the image %s, which is not released", page, match[0])
			}
			checked++
		}
	}
	if checked < 30 {
		t.Errorf("found %d names", checked)
	}
}

// TestChecklistNamesSettings verifies that the settings in docs/how-to/production-checklist.md are fields of the
// configuration or variables of the modules for AWS. TestHowTo runs the page's commands.
func TestChecklistNamesSettings(t *testing.T) {
	page, err := os.ReadFile("../docs/how-to/production-checklist.md")
	if err != nil {
		t.Fatal(err)
	}
	reference, err := os.ReadFile("../docs/reference/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	known := string(reference)
	for _, module := range files(t, "../modules/aws", "README.md") {
		known += module
	}
	checked := 0
	for _, row := range submatches(`(?m)^\|[^|]*\|([^|]*)\|[^|]*\|$`, string(page)) {
		for _, setting := range submatches("`([a-z_.*]+)`", row) {
			name := setting[strings.LastIndex(setting, ".")+1:]
			if !strings.Contains(known, "\n| `"+name+"` |") && !strings.Contains(known, "\n### `"+name+"`") {
				t.Errorf("the page names the setting %s, which does not exist", setting)
			}
			checked++
		}
	}
	if checked < 10 {
		t.Errorf("found %d settings", checked)
	}
}
