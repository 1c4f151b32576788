package infra

import (
	"bytes"
	"context"
	"regexp"
	"strings"
	"unicode"
)

// MaxConsole is how many bytes of a console a server returns at most: the newest ones.
const MaxConsole = 64 << 10

// VMConsoles is an optional capability: it reads what VMs have written to their consoles.
type VMConsoles interface {
	// ReadConsole returns the output of the VM with vm's ProviderID, or at least the newest [MaxConsole] bytes of it.
	// It is empty if the provider has none yet. The caller has checked that the VM belongs to the shard.
	ReadConsole(ctx context.Context, vm VM) ([]byte, error)
}

// escapes matches the escape sequences of terminals.
var escapes = regexp.MustCompile("\x1b(\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(\x07|\x1b\\\\)|.)")

// ConsoleText returns the newest [MaxConsole] bytes of a console as text: lines of valid UTF-8 without escape sequences
// and control characters. Whatever runs on a VM can write to its console. cut reports whether earlier output is left
// out.
func ConsoleText(raw []byte) (text string, cut bool) {
	if cut = len(raw) > MaxConsole; cut {
		raw = raw[len(raw)-MaxConsole:]
		if _, whole, found := bytes.Cut(raw, []byte{'\n'}); found {
			raw = whole
		}
	}
	text = escapes.ReplaceAllString(strings.ToValidUTF8(string(raw), "\uFFFD"), "")
	text = strings.ReplaceAll(text, "\r\n", "\n")
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r == '\r':
			return '\n'
		case !unicode.IsGraphic(r):
			return -1
		}
		return r
	}, text), cut
}

// LastLines returns the last n lines of a text, without empty lines at its end.
func LastLines(text string, n int) string {
	text = strings.TrimRight(text, "\n")
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
