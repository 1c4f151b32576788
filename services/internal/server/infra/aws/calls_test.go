package aws

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestCallsListsEveryCall checks that Calls lists every method of the client interfaces, and that every call needs the
// IAM action with the call's name. The role's policy and the documentation are generated from Calls.
func TestCallsListsEveryCall(t *testing.T) {
	want := map[string]bool{}
	for service, api := range map[string]reflect.Type{"ec2": reflect.TypeFor[EC2](),
		"elasticloadbalancing": reflect.TypeFor[ELB](), "autoscaling": reflect.TypeFor[AutoScaling]()} {
		for method := range api.Methods() {
			want[service+":"+method.Name] = true
		}
	}
	got := map[string]bool{}
	for _, call := range Calls {
		name := call.Service + ":" + call.Name
		if got[name] {
			t.Errorf("%s is listed twice", name)
		}
		got[name] = true
		if !slices.Contains(call.Actions, name) || call.When == "" || strings.HasSuffix(call.When, ".") {
			t.Errorf("%s: actions %v, when %q", name, call.Actions, call.When)
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))); diff != "" {
		t.Errorf("calls (-in use +listed):\n%s", diff)
	}
}

var update = flag.Bool("update", false, "write the table of calls in docs/reference/aws.md")

// TestCallsAreDocumented checks that docs/reference/aws.md lists the calls.
func TestCallsAreDocumented(t *testing.T) {
	const begin, end = "<!-- generated from services/internal/server/infra/aws/clients.go: begin -->\n",
		"<!-- generated: end -->"
	var table strings.Builder
	table.WriteString("| call | IAM actions | when |\n|---|---|---|\n")
	for _, call := range Calls {
		fmt.Fprintf(&table, "| `%s:%s` | `%s` | %s |\n", call.Service, call.Name, strings.Join(call.Actions, "` `"),
			call.When)
	}
	path := filepath.Join("..", "..", "..", "..", "..", "docs", "reference", "aws.md")
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
