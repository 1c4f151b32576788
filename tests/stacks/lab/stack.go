package lab

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gruntwork-io/terratest/modules/logger"
	"github.com/gruntwork-io/terratest/modules/terraform"
)

// Stack is an example of the repository, in a directory of its own, under one of the CLIs.
type Stack struct {
	lab     *Lab
	options *terraform.Options
}

// Stack copies an example, "aws/single-shard", with the modules, and initializes it. What it was given stays until the
// test ends, when what is still there is left to the fake cloud's own end.
func (l *Lab) Stack(t *testing.T, cli, example string, vars map[string]any) *Stack {
	t.Helper()
	dir := t.TempDir()
	for _, part := range []string{"modules/aws", "examples/" + example} {
		copyTree(t, filepath.Join(Root(), part), filepath.Join(dir, part))
	}
	s := &Stack{l, &terraform.Options{
		TerraformBinary: cli,
		TerraformDir:    filepath.Join(dir, "examples", example),
		Vars:            vars,
		EnvVars:         l.environment(),
		NoColor:         true,
		Logger:          logger.TestingT,
	}}
	terraform.InitContext(t, t.Context(), s.options)
	return s
}

// With returns the same stack with other variables.
func (s *Stack) With(vars map[string]any) *Stack {
	options := *s.options
	options.Vars = maps.Clone(options.Vars)
	maps.Copy(options.Vars, vars)
	return &Stack{s.lab, &options}
}

// Apply applies and returns what the CLI said.
func (s *Stack) Apply(t *testing.T) string {
	t.Helper()
	return terraform.ApplyContext(t, t.Context(), s.options)
}

// Plan plans and returns the exit code (0: no changes, 1: an error, 2: changes) and what the CLI said, errors and
// warnings included.
func (s *Stack) Plan(t *testing.T) (code int, said string) {
	t.Helper()
	stdout, stderr, code, err := terraform.RunTerraformCommandAndGetStdOutErrCodeContextE(t, t.Context(), s.options,
		terraform.FormatArgs(s.options, "plan", "-input=false", "-detailed-exitcode")...)
	if code < 0 || code > 2 { // every code but 0 is an error to terratest
		t.Fatalf("plan: exit code %d: %v", code, err)
	}
	return code, unwrap(stdout + stderr)
}

// Destroy destroys everything.
func (s *Stack) Destroy(t *testing.T) {
	t.Helper()
	terraform.DestroyContext(t, t.Context(), s.options)
}

// Output reads an output into a value.
func (s *Stack) Output(t *testing.T, name string, into any) {
	t.Helper()
	terraform.OutputStructContext(t, t.Context(), s.options, name, into)
}

// Files returns the contents of what the CLI left in the stack's directory, state and plans above all, by path.
func (s *Stack) Files(t *testing.T) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := filepath.WalkDir(s.options.TerraformDir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && entry.Name() == "providers" {
			return orSkip(err)
		}
		if entry.Type().IsRegular() {
			files[path], err = os.ReadFile(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func orSkip(err error) error {
	if err != nil {
		return err
	}
	return fs.SkipDir
}

// unwrap joins the lines of a diagnostic, which the CLIs break where the terminal is thought to end.
func unwrap(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(strings.Trim(line, "│╷╵ "))
	}
	return strings.Join(lines, " ")
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && strings.HasPrefix(entry.Name(), ".terraform") {
			return fs.SkipDir
		}
		relative, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, relative)
		if entry.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		if strings.Contains(entry.Name(), ".tfstate") || strings.HasPrefix(entry.Name(), ".terraform") {
			return nil // somebody's own
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(target, content, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}
