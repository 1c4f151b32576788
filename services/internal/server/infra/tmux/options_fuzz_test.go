package tmux

import "testing"

func FuzzParseProviderID(f *testing.F) {
	f.Add(scheme + "wrk06gx5zsg2nrrqcrz0000000000")
	f.Add(scheme)
	f.Add("aws:///us-east-1a/i-0123456789abcdef0")
	f.Fuzz(func(t *testing.T, text string) {
		if id, err := parseProviderID(text); err == nil && providerID(id) != text {
			t.Errorf("%q is read as %s", text, providerID(id))
		}
	})
}
