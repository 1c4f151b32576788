package aws

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Calls lists what the interfaces hold, and every call has an action of its own name: the role's policy and the documentation are made from it.
func TestCallsAreAllCalls(t *testing.T) {
	want := map[string]bool{}
	for service, api := range map[string]reflect.Type{"ec2": reflect.TypeFor[EC2](), "elasticloadbalancing": reflect.TypeFor[ELB]()} {
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
