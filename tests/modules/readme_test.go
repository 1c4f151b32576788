package modules

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write generated files instead of comparing them")

// TestProviderRequirements checks that each module and each example of a cloud names its providers without a host and
// limits their versions. A caller of a module usually names a provider without a host, so OpenTofu and Terraform each
// add their own registry. If the module named a host, its provider would be a different one.
func TestProviderRequirements(t *testing.T) {
	for _, dir := range directories(t) {
		module, err := readModule(dir)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, provider := range module.providers {
			if !regexp.MustCompile("^`[a-z-]+/[a-z-]+` >= [0-9.]+, < [0-9.]+$").MatchString(provider) {
				t.Errorf("%s requires the provider %s, want a source without a host and an upper bound", dir, provider)
			}
		}
	}
}

// directories returns the directories of the modules and of the examples for clouds and on-premises clusters. It leaves
// out directories without variables.
func directories(t *testing.T) (dirs []string) {
	t.Helper()
	for _, pattern := range []string{"modules/*/*", "examples/aws/*", "examples/gcp/*", "examples/onprem/*"} {
		found, err := filepath.Glob(filepath.Join("..", "..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			if _, err := os.Stat(filepath.Join(path, "variables.tf")); err == nil {
				dirs = append(dirs, path)
			}
		}
	}
	if len(dirs) < 5 {
		t.Fatalf("only %q", dirs)
	}
	return dirs
}

// TestGenerated checks that the README of each module and each example of a cloud documents the variables and outputs
// in its HCL.
func TestGenerated(t *testing.T) {
	for _, dir := range directories(t) {
		module, err := readModule(dir)
		if err != nil {
			t.Error(err)
			continue
		}
		path := filepath.Join(dir, "README.md")
		have, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
			continue
		}
		want, err := withGenerated(have, module.markdown())
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if *update {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Error(err)
			}
		} else if diff := cmp.Diff(string(want), string(have)); diff != "" {
			t.Errorf("%s is out of date, run `make generate` (-want +have):\n%s", path, diff)
		}
	}
}

func TestReadModule(t *testing.T) {
	dir := t.TempDir()
	source := `terraform {
  required_version = ">= 1.11"
  required_providers {
    b = { source = "registry.example.com/x/b" }
    a = { source = "registry.example.com/x/a", version = ">= 2" }
  }
}
variable "optional" {
  description = "Optional."
  type        = object({
    a = optional(string, "x")
  })
  default = {}
}
variable "required" {
  description = <<-TEXT
    Required.

    * it is
  TEXT
  type = string
}
resource "a_thing" "this" {}
resource "a_thing" "that" {}
output "it" {
  description = "It."
  value       = a_thing.this
}
`
	if err := os.WriteFile(filepath.Join(dir, "main.tf"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	module, err := readModule(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := "## Requirements\n\nTerraform or OpenTofu >= 1.11; providers `registry.example.com/x/a` >= 2, " +
		"`registry.example.com/x/b`.\n" +
		"\n## Variables\n\n### `required`\n\nRequired.\n\n* it is\n\nType: `string`. Required.\n" +
		"\n### `optional`\n\nOptional.\n\n```hcl\nobject({\n  a = optional(string, \"x\")\n})\n```\n\nDefault: " +
		"`{}`.\n" +
		"\n## Outputs\n\n* `it`: It.\n\n## Resources\n\n`a_thing`\n"
	if diff := cmp.Diff(want, module.markdown()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	got, err := withGenerated([]byte("by hand\n"+begin+"old\n"+end+"after\n"), "new\n")
	if err != nil || string(got) != "by hand\n"+begin+"new\n"+end+"after\n" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := withGenerated([]byte("by hand\n"), "new\n"); err == nil {
		t.Error("a README without marks is taken")
	}
	undescribed := strings.Replace(source, `description = "It."`, "", 1)
	if err := os.WriteFile(filepath.Join(dir, "main.tf"), []byte(undescribed), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readModule(dir); err == nil {
		t.Error("an output without description is taken")
	}
}
