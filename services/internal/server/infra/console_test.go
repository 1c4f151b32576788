package infra_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// TestConsoleText checks that a console becomes plain lines of a limited size.
func TestConsoleText(t *testing.T) {
	for raw, want := range map[string]string{
		"":                                    "",
		"boot\r\n\ttext\n":                    "boot\n\ttext\n",
		"\x1b[1;31mred\x1b[0m\x07 \x00x\x7f":  "red x",
		"\x1b]0;title\x07a\x1b]8;;u\x1b\\b":   "ab",
		"10 %\r20 %\n":                        "10 %\n20 %\n",
		"a\xff\xfeb \u202eevil \u0085c\u200b": "a\uFFFDb evil c",
	} {
		if text, cut := infra.ConsoleText([]byte(raw)); text != want || cut {
			t.Errorf("%q: %q, want %q", raw, text, want)
		}
	}
	long := strings.Repeat("0123456789\n", infra.MaxConsole/10)
	text, cut := infra.ConsoleText([]byte(long + "last"))
	if !cut || len(text) > infra.MaxConsole || !strings.HasPrefix(text, "0123456789\n") ||
		!strings.HasSuffix(text, "\nlast") {
		t.Errorf("%d bytes, cut: %t", len(text), cut)
	}
	if got := infra.LastLines("a\nb\nc\n\n", 2); got != "b\nc" {
		t.Errorf("the last lines are %q", got)
	}
}

func FuzzConsoleText(f *testing.F) {
	f.Add([]byte("\x1b[31mx\r\n\xff"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		text, _ := infra.ConsoleText(raw)
		if !utf8.ValidString(text) || strings.ContainsAny(text, "\x1b\r\x00\u202e") {
			t.Errorf("%q becomes %q", raw, text)
		}
	})
}
