package pasted_test

import (
	"testing"

	"github.com/nstance-kit/nstance/services/contract/pasted"
)

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"":                       "",
		" \r\n\t":                "",
		"text":                   "text",
		"\ufefftext\n":           "text",
		"\n\n  text \r\n":        "text",
		"\u00a0text\u00a0":       "text",
		"one\r\ntwo\r\n":         "one\ntwo",
		"one\rtwo":               "one\ntwo",
		"one \t\n two\n":         "one\n two",
		"one\n\n\ntwo":           "one\n\n\ntwo",
		"\ufeff\r\n\ufefftext\n": "text",
	} {
		if got := pasted.Clean(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
		if got := string(pasted.Clean([]byte(in))); got != want {
			t.Errorf("bytes %q: %q, want %q", in, got, want)
		}
	}
}
