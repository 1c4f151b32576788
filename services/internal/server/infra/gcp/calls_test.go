package gcp

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the table of calls in docs/reference/gcp.md")

// TestCallsListsEveryCall checks that the variable Calls lists exactly the API calls in client.go, the only file that
// calls the API.
func TestCallsListsEveryCall(t *testing.T) {
	source, err := os.ReadFile("client.go")
	if err != nil {
		t.Fatal(err)
	}
	made := map[string]bool{}
	for _, chain := range strings.Split(string(source), "c.service.")[1:] {
		service, rest, _ := strings.Cut(chain, ".")
		method, _, _ := strings.Cut(rest, "(")
		made["compute."+strings.ToLower(service[:1])+service[1:]+"."+strings.ToLower(method[:1])+method[1:]] = true
	}
	listed := map[string]bool{}
	for _, call := range Calls {
		if listed[call.Method] || len(call.Permissions) == 0 || call.When == "" || strings.HasSuffix(call.When, ".") {
			t.Errorf("%+v", call)
		}
		listed[call.Method] = true
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(made)), slices.Sorted(maps.Keys(listed))); diff != "" {
		t.Errorf("calls (-in use +listed):\n%s", diff)
	}
}

// TestCallsAreDocumented checks that the table of API calls in docs/reference/gcp.md agrees with the variable Calls.
func TestCallsAreDocumented(t *testing.T) {
	const begin, end = "<!-- generated from services/internal/server/infra/gcp/client.go: begin -->\n",
		"<!-- generated: end -->"
	var table strings.Builder
	table.WriteString("| method | permissions | when |\n|---|---|---|\n")
	for _, call := range Calls {
		fmt.Fprintf(&table, "| `%s` | `%s` | %s |\n", call.Method, strings.Join(call.Permissions, "` `"), call.When)
	}
	path := filepath.Join("..", "..", "..", "..", "..", "docs", "reference", "gcp.md")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(raw), begin)
	have, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table", path)
	}
	if *update {
		if err := os.WriteFile(path, []byte(before+begin+table.String()+end+after),
			0o644); err != nil { //nolint:gosec // a document
			t.Fatal(err)
		}
	} else if diff := cmp.Diff(table.String(), have); diff != "" {
		t.Errorf("run go test with -update (-want +documented):\n%s", diff)
	}
}

// TestTheRoleHasThePermissionsOfTheCalls compares the Compute Engine permissions in the variable Calls with those that
// the Terraform module "account" grants.
func TestTheRoleHasThePermissionsOfTheCalls(t *testing.T) {
	policy, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "..", "modules", "gcp", "account", "policy.tf"))
	if err != nil {
		t.Fatal(err)
	}
	needed, granted := map[string]bool{}, map[string]bool{}
	for _, call := range Calls {
		for _, permission := range call.Permissions {
			if strings.HasPrefix(permission, "compute.") {
				needed[permission] = true
			}
		}
	}
	for _, permission := range regexp.MustCompile(`"(compute\.[\w.]+)"`).FindAllStringSubmatch(string(policy), -1) {
		granted[permission[1]] = true
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(needed)), slices.Sorted(maps.Keys(granted))); diff != "" {
		t.Errorf("permissions (-needed +granted):\n%s", diff)
	}
}
