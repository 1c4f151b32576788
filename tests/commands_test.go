package tests

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDocumentedCommandsExist verifies that the Makefile targets, scripts, packages and tests in the commands of the
// documents exist.
func TestDocumentedCommandsExist(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	bench, err := os.ReadFile("../scripts/bench.sh")
	if err != nil {
		t.Fatal(err)
	}
	measured := regexp.MustCompile(`\./services/[a-z/]+`).FindAllString(string(bench), -1)
	span, line := regexp.MustCompile("`([^`\n]+)`"), regexp.MustCompile(
		`(?m)^\s*((?:make|go test|scripts/|tests/)[^#\n]*)`)
	fenced := regexp.MustCompile("(?ms)^```.*?^```")
	checked := 0
	for path, text := range files(t, "..", ".md") {
		code := strings.Join(fenced.FindAllString(text, -1), "\n")
		for _, match := range slices.Concat(span.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1),
			line.FindAllStringSubmatch(code, -1)) {
			args := split(strings.ReplaceAll(match[1], `\|`, "|"))
			switch {
			case len(args) == 0:
				continue
			case args[0] == "make" && len(args) > 1 && regexp.MustCompile(`^[a-z][a-z0-9-]*$`).MatchString(args[1]):
				if !regexp.MustCompile(`(?m)^` + args[1] + `:`).Match(makefile) {
					t.Errorf("%s: %s: the Makefile has no target of that name", path, match[1])
				}
			case args[0] == "go" && len(args) > 2 && args[1] == "test":
				for _, fault := range missing(t, args[2:]) {
					t.Errorf("%s: %s: %s", path, match[1], fault)
				}
			case regexp.MustCompile(`^(scripts|tests)/[a-z0-9/-]+\.sh$`).MatchString(args[0]):
				if _, err := os.Stat(filepath.Join("..", args[0])); err != nil {
					t.Errorf("%s: %s does not exist", path, args[0])
				}
				if args[0] == "scripts/bench.sh" && len(args) > 1 &&
					!slices.Contains([]string{"short", "PATTERN", "[PATTERN]"}, args[1]) {
					for _, fault := range missing(t, append([]string{"-bench", args[1]}, measured...)) {
						t.Errorf("%s: %s: %s", path, match[1], fault)
					}
				}
			default:
				continue
			}
			checked++
		}
	}
	if checked < 60 {
		t.Errorf("found %d commands", checked)
	}
}

// split splits a command into words. It supports single quotes only.
func split(command string) (args []string) {
	for _, match := range regexp.MustCompile(`'([^']*)'|(\S+)`).FindAllStringSubmatch(command, -1) {
		args = append(args, match[1]+match[2])
	}
	return args
}

// missing checks the arguments of "go test". It returns packages that do not exist and patterns that match no test.
func missing(t *testing.T, args []string) (faults []string) {
	t.Helper()
	var names []string
	for _, arg := range args {
		if !strings.HasPrefix(arg, "./") {
			continue
		}
		dir := filepath.Join("..", strings.TrimSuffix(arg, "/..."))
		paths, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir); err != nil {
			faults = append(faults, arg+" does not exist")
		}
		for _, path := range paths {
			raw, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, match := range regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz)\w+)`).FindAllStringSubmatch(
				string(raw), -1) {
				names = append(names, match[1])
			}
		}
	}
	for i, arg := range args[:max(len(args)-1, 0)] {
		if pattern := args[i+1]; slices.Contains([]string{"-run", "-bench", "-fuzz"}, arg) && pattern != "^$" &&
			len(names) > 0 {
			kind := map[string]string{"-run": "Test", "-bench": "Benchmark", "-fuzz": "Fuzz"}[arg]
			pattern, _, _ = strings.Cut(pattern, "/")
			wanted, err := regexp.Compile(pattern)
			if err != nil {
				faults = append(faults, err.Error())
				continue
			}
			if !slices.ContainsFunc(names, func(name string) bool {
				return strings.HasPrefix(name, kind) && wanted.MatchString(name)
			}) {
				faults = append(faults, "nothing matches "+arg+" "+args[i+1])
			}
		}
	}
	return faults
}
