package tests

import (
	"io/fs"
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

// TestMapHasAllPages verifies that docs/README.md links to every page below docs/, as far as an index of a section does
// not.
func TestMapHasAllPages(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s]+\.md)`)
	linked := map[string]bool{}
	pages := files(t, "../docs", ".md")
	for path, text := range pages {
		if filepath.Base(path) != "README.md" {
			continue
		}
		linked[path] = true
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			linked[filepath.Join(filepath.Dir(path), match[1])] = true
		}
	}
	for path := range pages {
		if !linked[path] {
			t.Errorf("%s is in no README.md below docs/", path)
		}
	}
}

// TestSecurityNamesTests verifies that docs/concepts/security.md names a test for each threat, and that the tests which
// it names exist. A name that ends with … stands for all tests that begin with it.
func TestSecurityNamesTests(t *testing.T) {
	raw, err := os.ReadFile("../docs/concepts/security.md")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, text := range files(t, "..", "_test.go") {
		code.WriteString(text)
	}
	names := regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9]+)(…?)`").FindAllStringSubmatch(string(raw), -1)
	for _, name := range names {
		if name[2] == "" {
			name[1] += "("
		}
		if !strings.Contains(code.String(), "\nfunc "+name[1]) {
			t.Errorf("docs/concepts/security.md names the test %s%s, which does not exist", name[1], name[2])
		}
	}
	if len(names) < 30 {
		t.Errorf("found %d names of tests", len(names))
	}
	rows, table := 0, false
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSpace(line)
		cells := strings.Split(strings.Trim(line, "|"), "|")
		last := strings.TrimSpace(cells[len(cells)-1])
		switch {
		case !strings.HasPrefix(line, "|"):
			table = false
		case last == "test":
			table = true
		case table && !strings.HasPrefix(last, "---"):
			if rows++; !strings.Contains(last, "`Test") && !strings.Contains(last, "see [below]") && last != "the same" {
				t.Errorf("docs/concepts/security.md names no test for: %s", line)
			}
		}
	}
	if rows < 40 {
		t.Errorf("found %d rows of tables with tests", rows)
	}
}

// TestDocumentListsEvents verifies that docs/reference/events.md lists exactly the kinds of events and the causes of the
// code.
func TestDocumentListsEvents(t *testing.T) {
	raw, err := os.ReadFile("../docs/reference/events.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ heading, source, constant string }{
		{"\n## Kinds\n", "../services/contract/record/event.go", `EventKind = "([a-z_]+)"`},
		{"\n## Causes\n", "../services/internal/plan/causes.go", `Cause = "([a-z_]+)"`},
	} {
		code, err := os.ReadFile(c.source)
		if err != nil {
			t.Fatal(err)
		}
		_, section, _ := strings.Cut(string(raw), c.heading)
		section, _, _ = strings.Cut(section, "\n## ")
		want := submatches(c.constant, string(code))
		if got := submatches("\\n\\| `([a-z_]+)` \\|", section); !slices.Equal(want, got) || len(want) < 5 {
			t.Errorf("%s has\n%v\nlisted below %q are\n%v", c.source, want, c.heading, got)
		}
	}
}

// submatches returns the sorted first submatches of an expression.
func submatches(expression, text string) []string {
	var found []string
	for _, match := range regexp.MustCompile(expression).FindAllStringSubmatch(text, -1) {
		found = append(found, match[1])
	}
	slices.Sort(found)
	return found
}

// files reads all files of the repository with the suffix. It reads tests only for the suffix _test.go. Keys are paths.
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
		case entry.IsDir() || !strings.HasSuffix(path, suffix) ||
			suffix != "_test.go" && strings.HasSuffix(path, "_test.go"):
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
