package lab

import (
	"context"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/gruntwork-io/terratest/modules/logger"
	"github.com/gruntwork-io/terratest/modules/terraform"
	terratest "github.com/gruntwork-io/terratest/modules/testing"
)

// T is what stacks and scenarios need of a test. *testing.T implements it, and so does the program tests/cloudtest.
type T interface {
	terratest.TestingT

	Context() context.Context
	Logf(format string, args ...any)
	TempDir() string
}

// toLog writes the output of the CLI to the log of the test.
type toLog struct{}

func (toLog) Logf(t terratest.TestingT, format string, args ...any) {
	t.Helper()
	if log, ok := t.(T); ok {
		log.Logf(format, args...)
	}
}

// Stack is a copy of an example in its own directory. One of the CLIs, tofu or terraform, applies it.
type Stack struct {
	options *terraform.Options
	outputs map[string]json.RawMessage // Those after the last Apply, or nil if they have not been read.
	saved   string                     // The file with the plan of the last Plan.
	home    string                     // The home directory of the user who has called Register.
}

// NewStack copies an example, such as "aws/single-shard", and what it refers to, and initializes it. The copy exists
// until the test ends. "override" is the content of an override file with settings for which the example has no
// variables (https://opentofu.org/docs/language/files/override). If it is empty, there is no such file. "environment"
// has the variables that make the CLI use the example's cloud.
func NewStack(t T, cli, example string, vars map[string]any, override string,
	environment map[string]string) *Stack {
	t.Helper()
	dir := t.TempDir()
	cloud, _, _ := strings.Cut(example, "/")
	parts := []string{"modules/" + cloud, "modules/kubernetes", "examples/" + cloud}
	if cloud == example { // an example for several clouds
		parts = []string{"modules", "services/operator/chart", "examples/" + cloud}
	}
	for _, part := range parts {
		copyTree(t, filepath.Join(Root(), part), filepath.Join(dir, part))
	}
	environment = maps.Clone(environment)
	environment["GOGC"] = "400" // The CLIs and providers are short-lived programs that load large schemas.
	s := &Stack{options: &terraform.Options{
		TerraformBinary: cli,
		TerraformDir:    filepath.Join(dir, "examples", example),
		Vars:            vars,
		EnvVars:         environment,
		NoColor:         true,
		Lock:            true, // terratest passes -lock=false otherwise.
		Logger:          logger.New(toLog{}),
	}}
	s.Override(t, override)
	terraform.InitContext(t, t.Context(), s.options)
	return s
}

// Override replaces the override file.
func (s *Stack) Override(t T, content string) {
	t.Helper()
	s.Write(t, "override.tf", content)
}

// Write replaces a file of the stack.
func (s *Stack) Write(t T, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.options.TerraformDir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// ApplyError runs apply and returns its error, with the output of the CLI. It may be called from any goroutine.
func (s *Stack) ApplyError(t T) error {
	t.Helper()
	_, err := terraform.ApplyContextE(t, t.Context(), s.options)
	return err
}

// With returns a copy of the stack with some variables replaced. A nil value leaves the variable out.
func (s *Stack) With(vars map[string]any) *Stack {
	options := *s.options
	options.Vars = maps.Clone(options.Vars)
	maps.Copy(options.Vars, vars)
	maps.DeleteFunc(options.Vars, func(_ string, value any) bool { return value == nil })
	return &Stack{options: &options}
}

// WithEnvironment returns a copy of the stack that also has an environment variable.
func (s *Stack) WithEnvironment(name, value string) *Stack {
	options := *s.options
	options.EnvVars = maps.Clone(options.EnvVars)
	options.EnvVars[name] = value
	return &Stack{options: &options}
}

// Apply runs apply and returns the CLI's output.
func (s *Stack) Apply(t T) string {
	t.Helper()
	s.outputs = nil
	return terraform.ApplyContext(t, t.Context(), s.options)
}

// ApplyFails runs apply, which must fail, and returns the CLI's errors.
func (s *Stack) ApplyFails(t T) string {
	t.Helper()
	s.outputs = nil
	stdout, stderr, code, err := terraform.RunTerraformCommandAndGetStdOutErrCodeContextE(t, t.Context(), s.options,
		terraform.FormatArgs(s.options, "apply", "-input=false", "-auto-approve")...)
	if code != 1 {
		t.Fatalf("apply: exit code %d, want 1: %v", code, err)
	}
	return unwrap(stdout + stderr)
}

// Plan saves a plan and returns the CLI's exit code and output. The code is 0 for no changes, 1 for an error, and 2 for
// changes. The output includes errors and warnings.
func (s *Stack) Plan(t T) (code int, output string) {
	t.Helper()
	s.saved = filepath.Join(t.TempDir(), "plan")
	return s.plan(t, "-out="+s.saved)
}

// ApplyPlan applies the plan of the last Plan, as automation does. It takes half of the time of Apply, which plans
// again.
func (s *Stack) ApplyPlan(t T) {
	t.Helper()
	s.outputs = nil
	terraform.RunTerraformCommandContext(t, t.Context(), s.options, "apply", "-input=false", "-no-color", s.saved)
}

// PlanFails runs a plan, which must fail with errors that contain each of the given texts. One plan reports all
// mistakes of a configuration. The plan does not refresh the state. This saves time, and finds the same mistakes.
func (s *Stack) PlanFails(t T, texts ...string) {
	t.Helper()
	code, output := s.plan(t, "-refresh=false")
	if code != 1 {
		t.Errorf("plan: exit code %d, want 1", code)
	}
	complete := true
	for _, text := range texts {
		if !strings.Contains(output, text) {
			t.Errorf("the errors of a plan lack %q", text)
			complete = false
		}
	}
	if code != 1 || !complete {
		t.Logf("the plan:\n%s", output)
	}
}

func (s *Stack) plan(t T, flags ...string) (code int, output string) {
	t.Helper()
	args := append([]string{"plan", "-input=false", "-detailed-exitcode"}, flags...)
	stdout, stderr, code, err := terraform.RunTerraformCommandAndGetStdOutErrCodeContextE(t, t.Context(), s.options,
		terraform.FormatArgs(s.options, args...)...)
	if code < 0 || code > 2 { // For terratest every code except 0 is an error.
		t.Fatalf("plan: exit code %d: %v", code, err)
	}
	return code, unwrap(stdout + stderr)
}

// ShowPlan saves a plan and returns it as the CLI shows it in JSON, with all values.
func (s *Stack) ShowPlan(t T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "plan")
	if code, output := s.plan(t, "-refresh=false", "-out="+file); code == 1 {
		t.Fatalf("plan: %s", output)
	}
	return terraform.RunTerraformCommandContext(t, t.Context(), s.options, "show", "-no-color", "-json", file)
}

// Destroy destroys all resources of the stack.
func (s *Stack) Destroy(t T) {
	t.Helper()
	terraform.DestroyContext(t, t.Context(), s.options)
}

// DestroyError runs destroy and returns its error, with the output of the CLI.
func (s *Stack) DestroyError(t T) error {
	t.Helper()
	_, err := terraform.DestroyContextE(t, t.Context(), s.options)
	return err
}

// Output decodes an output of the stack into a value. It runs the CLI only once after each Apply, because the CLI is
// slow: it starts all providers to show outputs.
func (s *Stack) Output(t T, name string, into any) {
	t.Helper()
	if s.outputs == nil {
		var all map[string]struct{ Value json.RawMessage }
		if err := json.Unmarshal([]byte(terraform.OutputJSONContext(t, t.Context(), s.options, "")), &all); err != nil {
			t.Fatal(err)
		}
		s.outputs = map[string]json.RawMessage{}
		for key, output := range all {
			s.outputs[key] = output.Value
		}
	}
	if err := json.Unmarshal(s.outputs[name], into); err != nil {
		t.Fatalf("the output %s: %v", name, err)
	}
}

// Files returns the contents of the files that the CLI left in the stack's directory, by path. They include states and
// plans.
func (s *Stack) Files(t T) map[string][]byte {
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

// unwrap joins the lines of an error or warning of a CLI. The CLIs wrap these texts to the width of a terminal.
func unwrap(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(strings.Trim(line, "│╷╵ "))
	}
	return strings.Join(lines, " ")
}

func copyTree(t T, from, to string) {
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
			return nil // Local files of a developer.
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
