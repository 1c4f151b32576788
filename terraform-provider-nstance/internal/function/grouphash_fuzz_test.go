package function

import (
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
)

func TestParseGroupErrors(t *testing.T) {
	for text, want := range map[string]string{
		"workers": "want tenant/name", "": "want tenant/name", "/workers": "tenant: name is empty",
		"default/":    "group: name is empty",
		"default/a/b": "group: name", "Default/workers": "tenant: name",
	} {
		if _, err := parseGroup(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// FuzzParseGroup checks that the String of a parsed key equals the text that was parsed.
func FuzzParseGroup(f *testing.F) {
	for _, seed := range []string{"default/workers", "workers", "/", "a/b/c", "a/", "/b", "A/b", "a--b/c"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		key, err := parseGroup(text)
		switch {
		case err != nil && key != (config.GroupKey{}):
			t.Errorf("%q: %v beside %v", text, key, err)
		case err == nil && (key.String() != text || ident.ValidateTenantName(key.Tenant) != nil ||
			ident.ValidateName(key.Group) != nil):
			t.Errorf("%q is %v", text, key)
		}
	})
}
