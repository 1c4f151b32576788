package operator

import (
	"slices"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

func TestParseImportErrors(t *testing.T) {
	const id = "opr06bgm7733st2576nx5jht4ecjw"
	if parts, err := importer.Parse("example/default/" + id); err != nil ||
		!slices.Equal(parts, []string{"example", "default", id}) {
		t.Errorf("%q, %v", parts, err)
	}
	for text, want := range map[string]string{
		"": "want cluster/tenant/operator-id", "example/default": "want cluster/tenant/operator-id", "a/b/" + id +
			"/c": "want cluster/tenant/operator-id",
		"/default/" + id: "cluster: name is empty", "example//" + id: "tenant: name is empty",
		"example/default/":             "operator-id: ",
		"example/default/wrk" + id[3:]: "of kind wrk, want opr", "example/default/" +
			strings.ToUpper(id): "operator-id: ",
	} {
		if _, err := importer.Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// FuzzParseImport checks that the parts of an accepted import ID, joined again, equal the ID.
func FuzzParseImport(f *testing.F) {
	for _, seed := range []string{"example/default/opr06bgm7733st2576nx5jht4ecjw",
		"example/default/wrk06bgm7733st2576nx5jht4ecjw", "a/b/c", "a/b", "//", "a/b/c/d"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parts, err := importer.Parse(text)
		if err != nil {
			if parts != nil {
				t.Errorf("%q: %q beside %v", text, parts, err)
			}
			return
		}
		id, err := ident.ParseID(parts[2])
		if strings.Join(parts, "/") != text || ident.ValidateClusterName(parts[0]) != nil ||
			ident.ValidateTenantName(parts[1]) != nil || err != nil || id.Prefix() != ident.OperatorPrefix {
			t.Errorf("%q is %q, %v", text, parts, err)
		}
	})
}
