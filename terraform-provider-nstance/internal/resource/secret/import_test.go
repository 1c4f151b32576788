package secret

import (
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
)

func TestParseImportErrors(t *testing.T) {
	for id, want := range map[string]string{
		"": "want cluster/name", "example": "want cluster/name", "/a": "cluster: name is empty",
		"example/": "name: secret name", "example/a/b": "name: secret name",
		"Example/a": "cluster: name", "example/ca.key": "the cluster's own", "example/../x": "name: secret name",
	} {
		if _, _, err := parseImport(id); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", id, err, want)
		}
	}
}

func FuzzParseImport(f *testing.F) {
	for _, seed := range []string{"example/db-password", "example", "/", "a/b/c", "example/ca.key",
		"example/registration-nonce.key", "A/b", "a/B.c_d"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, id string) {
		cluster, name, err := parseImport(id)
		switch {
		case err != nil && cluster+name != "":
			t.Errorf("%q: %q, %q beside %v", id, cluster, name, err)
		case err == nil && (cluster+"/"+name != id || ident.ValidateClusterName(cluster) != nil ||
			config.ValidateSecretSource(name) != nil):
			t.Errorf("%q is %q, %q", id, cluster, name)
		}
	})
}
