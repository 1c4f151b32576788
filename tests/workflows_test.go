package tests

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// workflow is the part of a GitHub workflow that grants rights.
type workflow struct {
	Jobs map[string]struct {
		Environment any               `json:"environment"`
		Permissions map[string]string `json:"permissions"`
		Steps       []struct {
			Run  string         `json:"run"`
			Uses string         `json:"uses"`
			With map[string]any `json:"with"`
		} `json:"steps"`
	} `json:"jobs"`
}

// runsTests matches commands that run tests or other code than the release needs.
var runsTests = regexp.MustCompile(`\bmake (-\S+ )*(test|ci|check|bench|chaos|sim)|\bgo (test|vet)\b|scripts/(test|[a-z0-9]+-check)\.sh|\.ci/run`)

// unsafeJobs returns the jobs of a workflow that have keys or a right to write, and also run tests or restore a cache
// that tests can write.
func unsafeJobs(text []byte) (found []string, err error) {
	var w workflow
	var whole struct {
		Jobs map[string]any `json:"jobs"`
	}
	if err := errors.Join(yaml.Unmarshal(text, &w), yaml.Unmarshal(text, &whole)); err != nil {
		return nil, err
	}
	for name, job := range w.Jobs {
		content, err := yaml.Marshal(whole.Jobs[name])
		if err != nil {
			return nil, err
		}
		keys := job.Environment != nil || strings.Contains(string(content), "secrets.")
		for _, right := range job.Permissions {
			keys = keys || right == "write"
		}
		if !keys {
			continue
		}
		for _, step := range job.Steps {
			if runsTests.MatchString(step.Run) {
				found = append(found, name+": "+step.Run)
			}
			if strings.HasPrefix(step.Uses, "actions/setup-go") && step.With["cache"] != false {
				found = append(found, name+": the cache of setup-go")
			}
		}
	}
	return found, nil
}

// TestWorkflowsKeepKeysFromTests checks that no job with keys or a right to write runs tests: the tests run code of all
// dependencies, which could take the keys or change what is signed.
func TestWorkflowsKeepKeysFromTests(t *testing.T) {
	names, err := filepath.Glob("../.github/workflows/*.yml")
	if err != nil || len(names) == 0 {
		t.Fatalf("workflows %q, error %v", names, err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		found, err := unsafeJobs(text)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, one := range found {
			t.Errorf("%s runs tests with keys or rights, in job %s", name, one)
		}
	}
	found,
		err := unsafeJobs([]byte("jobs:\n  release:\n    environment: release\n    steps:\n      - run: make test\n"))
	if err != nil || len(found) != 1 {
		t.Errorf("a job with keys that runs tests: found %q, error %v", found, err)
	}
}
