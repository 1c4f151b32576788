package tests

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/cloud/all"
)

// TestDocumentsLinkToFiles verifies that the targets of relative links, and the pictures, in the documents exist.
func TestDocumentsLinkToFiles(t *testing.T) {
	link := regexp.MustCompile(`(?:\]\(|src="|srcset=")([^)#"\s]+)(#[^)\s]*)?[)"]`)
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

// TestMapHasAllPages verifies that at least one README.md below docs/ links to each page below docs/.
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

// TestPagesNameTests verifies that docs/contributing/tests.md lists each page of docs/how-to and docs/start exactly
// once, and that the tests and scripts listed for each page exist.
func TestPagesNameTests(t *testing.T) {
	raw, err := os.ReadFile("../docs/contributing/tests.md")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, text := range files(t, "..", "_test.go") {
		code.WriteString(text)
	}
	_, section, _ := strings.Cut(string(raw), "\n## The pages that are tested\n")
	listed := map[string]int{}
	name := regexp.MustCompile("`(Test[A-Za-z0-9]+|scripts/[a-z0-9-]+\\.sh)`")
	for _, row := range regexp.MustCompile(`(?m)^\| \[[^]]+\]\(\.\./([a-z/-]+\.md)\) \|(.*)$`).FindAllStringSubmatch(
		section, -1) {
		listed[row[1]]++
		names := name.FindAllStringSubmatch(row[2], -1)
		if len(names) == 0 {
			t.Errorf("docs/contributing/tests.md names no test of %s", row[1])
		}
		for _, name := range names {
			_, err := os.Stat("../" + name[1])
			if err != nil && !strings.Contains(code.String(), "\nfunc "+name[1]+"(") {
				t.Errorf("docs/contributing/tests.md names %s for %s, which does not exist", name[1], row[1])
			}
		}
	}
	for _, dir := range []string{"how-to", "start"} {
		pages, err := filepath.Glob("../docs/" + dir + "/*.md")
		if err != nil || len(pages) < 5 {
			t.Fatalf("docs/%s has the pages %q: %v", dir, pages, err)
		}
		for _, page := range pages {
			page = dir + "/" + filepath.Base(page)
			if listed[page] != 1 {
				t.Errorf("docs/contributing/tests.md lists %s %d times, want once", page, listed[page])
			}
			delete(listed, page)
		}
	}
	for page := range listed {
		t.Errorf("docs/contributing/tests.md lists %s, which does not exist", page)
	}
}

// TestStartPagesUseVariables verifies that each cloud's page in docs/start uses only variables of the cloud's example.
func TestStartPagesUseVariables(t *testing.T) {
	for _, block := range all.Blocks() {
		cloud := block.Name
		page, err := os.ReadFile("../docs/start/" + cloud + ".md")
		if err != nil {
			continue
		}
		code, err := os.ReadFile("../examples/" + cloud + "/single-shard/variables.tf")
		if err != nil {
			t.Fatal(err)
		}
		used := submatches(`-var ([a-z_]+)=`, string(page))
		for _, name := range used {
			if !strings.Contains(string(code), "variable \""+name+"\" {") {
				t.Errorf("docs/start/%s.md sets the variable %s, which the example does not have", cloud, name)
			}
		}
		if len(used) < 3 {
			t.Errorf("docs/start/%s.md sets %q", cloud, used)
		}
	}
}

// TestDocumentListsEvents verifies that docs/reference/events.md lists exactly the kinds of events, and the causes,
// that the code defines.
func TestDocumentListsEvents(t *testing.T) {
	raw, err := os.ReadFile("../docs/reference/events.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ heading, source, constant string }{
		{"\n## Kinds\n", "../services/contract/record/event.go", `EventKind = "([a-z_]+)"`},
		{"\n## Causes\n", "../services/internal/server/plan/causes.go", `Cause = "([a-z_]+)"`},
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

// submatches finds all matches of a regular expression in a text. It returns the first submatch of each match, sorted.
func submatches(expression, text string) []string {
	var found []string
	for _, match := range regexp.MustCompile(expression).FindAllStringSubmatch(text, -1) {
		found = append(found, match[1])
	}
	slices.Sort(found)
	return found
}

// files reads all files below root whose names end with suffix. It reads tests only if suffix is _test.go. Keys are
// paths.
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

// TestPicturesAreSmall verifies that the pictures below docs/ are small, and that drawings refer to nothing else. A Git
// host shows such a drawing in an <img>.
func TestPicturesAreSmall(t *testing.T) {
	found := 0
	for _, suffix := range []string{".png", ".svg"} {
		for path, content := range files(t, "../docs", suffix) {
			found++
			if len(content) > 200<<10 {
				t.Errorf("%s has %d KiB, want at most 200", path, len(content)>>10)
			}
			if suffix == ".svg" && regexp.MustCompile(`<script|href=|url\(|@import`).MatchString(content) {
				t.Errorf("%s refers to something else", path)
			}
		}
	}
	if found < 5 {
		t.Errorf("found %d pictures", found)
	}
}
