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
		"example/": "name: secret name", "example/a/b": "want cluster/name",
		"Example/a": "cluster: name", "example/ca.key": "the cluster's own", "example/../x": "want cluster/name",
	} {
		if _, err := importer.Parse(id); err == nil || !strings.Contains(err.Error(), want) {
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
		parts, err := importer.Parse(id)
		switch {
		case err != nil && parts != nil:
			t.Errorf("%q: %q beside %v", id, parts, err)
		case err == nil && (strings.Join(parts, "/") != id || ident.ValidateClusterName(parts[0]) != nil ||
			config.ValidateSecretSource(parts[1]) != nil):
			t.Errorf("%q is %q", id, parts)
		}
	})
}
