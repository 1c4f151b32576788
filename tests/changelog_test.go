package tests

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/semver"
)

// TestChangelog verifies that CHANGELOG.md has the format of Keep a Changelog: first the unreleased changes, then the
// releases from the newest to the oldest. `make publish` copies a release's section from the file.
func TestChangelog(t *testing.T) {
	raw, err := os.ReadFile("../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range checkChangelog(string(raw)) {
		t.Error(problem)
	}
	const good = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n* A.\n\n## [0.2.0] - 2026-12-01\n\n### Fixed\n\n* B.\n"
	if problems := checkChangelog(good); len(problems) > 0 {
		t.Errorf("a good changelog: %v", problems)
	}
	for name, bad := range map[string]string{
		"no section of changes to come": strings.Replace(good, "## [Unreleased]", "## [0.3.0] - 2026-12-02", 1),
		"a release without a date":      strings.Replace(good, " - 2026-12-01", "", 1),
		"an unknown kind":               strings.Replace(good, "### Fixed", "### Mended", 1),
		"no list":                       strings.Replace(good, "* B.", "B.", 1),
		"an empty kind":                 strings.Replace(good, "* B.\n", "", 1),
		"releases in the wrong order":   good + "\n## [0.3.0] - 2026-12-02\n\n### Fixed\n\n* C.\n",
	} {
		if len(checkChangelog(bad)) == 0 {
			t.Errorf("%s is accepted", name)
		}
	}
}

var (
	changelogKinds   = []string{"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
	changelogRelease = regexp.MustCompile(`^## \[(\d+\.\d+\.\d+\S*)\] - \d{4}-\d{2}-\d{2}$`)
)

// checkChangelog returns what is wrong with a changelog.
func checkChangelog(text string) (problems []string) {
	sections := strings.Split("\n"+text, "\n## ")
	if !strings.HasPrefix(text, "# Changelog\n") || len(sections) < 2 ||
		!strings.HasPrefix(sections[1], "[Unreleased]\n") {
		return []string{"the changelog does not begin with its title and the section [Unreleased]"}
	}
	newer := ""
	for i, section := range sections[1:] {
		title, body, _ := strings.Cut(section, "\n")
		if i > 0 {
			match := changelogRelease.FindStringSubmatch("## " + title)
			switch {
			case match == nil:
				problems = append(problems, title+" is not [VERSION] - YYYY-MM-DD")
				continue
			case newer != "" && semver.Compare("v"+match[1], newer) >= 0:
				problems = append(problems, title+" is not older than the release above it")
			}
			newer = "v" + match[1]
		}
		for _, part := range strings.Split("\n"+body, "\n### ")[1:] {
			kind, list, _ := strings.Cut(part, "\n")
			if !slices.Contains(changelogKinds, kind) {
				problems = append(problems, title+": "+kind+" is none of "+strings.Join(changelogKinds, ", "))
			}
			entries := 0
			for line := range strings.Lines(list) {
				switch {
				case strings.HasPrefix(line, "* "):
					entries++
				case strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "  "):
					problems = append(problems, title+": "+kind+" has a line outside the list: "+line)
				}
			}
			if entries == 0 {
				problems = append(problems, title+": "+kind+" is empty")
			}
		}
	}
	return problems
}
