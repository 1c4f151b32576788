package tests

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDocumentsLinkToFiles verifies that the targets of relative links in the documents exist.
func TestDocumentsLinkToFiles(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s]+)(#[^)\s]*)?\)`)
	documents := 0
	for path, text := range files(t, "..", ".md") {
		documents++
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			if target := match[1]; !strings.Contains(target, "://") && !strings.HasPrefix(target, "mailto:") {
				if _, err := os.Stat(filepath.Join(filepath.Dir(path), target)); err != nil {
					t.Errorf("%s links to %s, which does not exist", path, target)
				}
			}
		}
	}
	if documents < 5 {
		t.Errorf("found %d documents", documents)
	}
}

// TestOperationsListsMetrics verifies that docs/reference/metrics.md lists exactly the metrics of the code.
func TestDocumentListsMetrics(t *testing.T) {
	quoted := regexp.MustCompile(`"(nstance_[a-z_]+)"`)
	there := map[string]bool{}
	for _, text := range files(t, "../services/internal", ".go") {
		for _, match := range quoted.FindAllStringSubmatch(text, -1) {
			there[match[1]] = true
		}
	}
	raw, err := os.ReadFile("../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(raw), "\n## Metrics\n")
	section, _, _ = strings.Cut(section, "\n## ")
	listed := map[string]bool{}
	for _, match := range regexp.MustCompile("`(nstance_[a-z_]+)").FindAllStringSubmatch(section, -1) {
		listed[match[1]] = true
	}
	if len(there) < 10 {
		t.Errorf("found %d metrics", len(there))
	}
	if want, got := slices.Sorted(maps.Keys(there)), slices.Sorted(maps.Keys(listed)); !slices.Equal(want, got) {
		t.Errorf("there are\n%v\nlisted are\n%v", want, got)
	}
}

// files reads all files of the repository with the suffix, except tests. The keys are paths.
func files(t *testing.T, root, suffix string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && (strings.HasPrefix(entry.Name(), ".") ||
			slices.Contains([]string{"bin", "temp", "testdata", "node_modules"}, entry.Name())):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, suffix) || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		raw, err := os.ReadFile(path)
		found[path] = string(raw)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
