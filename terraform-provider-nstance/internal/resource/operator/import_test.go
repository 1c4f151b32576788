package operator

import (
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

func TestParseImportErrors(t *testing.T) {
	const id = "opr06bgm7733st2576nx5jht4ecjw"
	if cluster, tenant, got, err := parseImport("example/default/" + id); err != nil || cluster != "example" ||
		tenant != "default" || got.String() != id {
		t.Errorf("%q, %q, %s, %v", cluster, tenant, got, err)
	}
	for text, want := range map[string]string{
		"": "want cluster/tenant/operator-id", "example/default": "want cluster/tenant/operator-id", "a/b/" + id +
			"/c": "want cluster/tenant/operator-id",
		"/default/" + id: "cluster: name is empty", "example//" + id: "tenant: name is empty",
		"example/default/":             "operator ID: ",
		"example/default/wrk" + id[3:]: "of kind wrk, want opr", "example/default/" +
			strings.ToUpper(id): "operator ID: ",
	} {
		if _, _, _, err := parseImport(text); err == nil || !strings.Contains(err.Error(), want) {
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
		cluster, tenant, id, err := parseImport(text)
		if err != nil {
			if cluster+tenant != "" || !id.IsZero() {
				t.Errorf("%q: %q, %q, %s beside %v", text, cluster, tenant, id, err)
			}
			return
		}
		if cluster+"/"+tenant+"/"+id.String() != text || ident.ValidateClusterName(cluster) != nil ||
			ident.ValidateTenantName(tenant) != nil || id.Prefix() != ident.OperatorPrefix {
			t.Errorf("%q is %q, %q, %s", text, cluster, tenant, id)
		}
	})
}
