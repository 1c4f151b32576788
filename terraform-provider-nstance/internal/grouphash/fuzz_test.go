package grouphash

import (
	"os"
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

// FuzzHashesOf checks that the result is either two hashes, infra and runtime, or an error that names one argument.
func FuzzHashesOf(f *testing.F) {
	for _, path := range []string{"../../../examples/config-tmux.jsonc",
		"../../../services/contract/testdata/ten-mistakes.jsonc"} {
		document, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(document), "default/workers")
		f.Add(string(document), "default/nosuch")
	}
	f.Add("{}", "a/b")
	f.Fuzz(func(t *testing.T, document, name string) {
		h, wrong := hashesOf(document, name)
		if wrong != nil {
			if h != (hashes{}) || wrong.FunctionArgument == nil || *wrong.FunctionArgument < 0 ||
				*wrong.FunctionArgument > 1 || wrong.Text == "" {
				t.Errorf("%v, %v", h, wrong)
			}
			return
		}
		if h.Infra == "" || h.Runtime == "" {
			t.Errorf("%q: %+v", name, h)
		}
		if again, wrong := hashesOf(document, name); wrong != nil || again != h {
			t.Errorf("%q: %v, then %v, %v", name, h, again, wrong)
		}
	})
}
