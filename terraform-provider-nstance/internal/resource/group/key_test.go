package group

import (
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

func TestParseKeyErrors(t *testing.T) {
	for text, want := range map[string]string{
		"": "want shard/tenant/group", "dev-1/default": "want shard/tenant/group", "a/b/c/d": "want shard/tenant/group",
		"/default/workers": "shard: name is empty", "dev-1//workers": "tenant: name is empty",
		"dev-1/default/": "group: name is empty", "dev-1/default/W": "group: name",
	} {
		if k, err := importer.Parse(text); err == nil || k != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v, want %q", text, k, err, want)
		}
	}
}

// FuzzParseKey checks that the String of a parsed key equals the text that was parsed.
func FuzzParseKey(f *testing.F) {
	for _, seed := range []string{"dev-1/default/workers", "dev-1/default", "//", "a/b/c/d", "A/b/c", "a/b--c/d"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parts, err := importer.Parse(text)
		var k key
		if err == nil {
			k = key{parts[0], parts[1], parts[2]}
		}
		switch {
		case err != nil && parts != nil:
			t.Errorf("%q: %v beside %v", text, parts, err)
		case err == nil && (k.String() != text || ident.ValidateName(k.shard) != nil ||
			ident.ValidateTenantName(k.tenant) != nil || ident.ValidateName(k.name) != nil):
			t.Errorf("%q is %v", text, k)
		}
	})
}
