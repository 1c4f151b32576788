package support

import (
	_ "embed"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// wordList has the words of Nstance's documents and messages. TestWords writes it.
//
//go:embed words.txt
var wordList string

var vocabulary = sync.OnceValue(func() map[string]bool {
	words := map[string]bool{}
	for word := range strings.FieldsSeq(wordList) {
		words[word] = true
	}
	return words
})

// maxDigits is the largest number of digits that one piece of a text may show, unless the piece is a time, an address
// or an ID.
const maxDigits = 12

// maxText is the greatest length of a text in bytes. The rest is cut off.
const maxText = 4 << 10

var (
	// labelled matches the name of a secret and the rest of its line.
	labelled = regexp.MustCompile(`(?i)((?:passw(?:or)?d|passphrase|pwd|secret|token|nonce|credentials?|authorization|` +
		`bearer|(?:api|access|private|secret)[-_ ]?key(?:[-_ ]?id)?)["']?\s*[:=]\s*)\S.*`)
	// piece matches the text between spaces, quotes, brackets and commas.
	piece   = regexp.MustCompile("[^\\s,;()\\[\\]{}<>\"'`]+")
	joint   = regexp.MustCompile(`[./:_|=-]+`)
	amount  = regexp.MustCompile(`^-?[0-9]{1,6}(\.[0-9]{1,6})?(ns|µs|ms|s|m|h|d|%|B|KB|MB|GB|KiB|MiB|GiB)?$`)
	digits  = regexp.MustCompile(`[0-9]`)
	version = regexp.MustCompile(`^v?[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}$`)
	// capital matches the boundary before a word that starts with a capital letter.
	capital = regexp.MustCompile(`([A-Z])([A-Z][a-z])|([a-z])([A-Z])`)
	repeats = regexp.MustCompile(`\[redacted\](?:[\s,;:/=.()"'-]*\[redacted\])+`)
)

// wordsOf hides every piece of a text that is not known to be harmless.
func (r *redactor) wordsOf(text string) string {
	if text = r.hideValues(text); len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + " …"
	}
	text = labelled.ReplaceAllString(text, "${1}"+hidden)
	text = piece.ReplaceAllStringFunc(text, func(p string) string {
		if p == "redacted" || r.harmless(p) {
			return p
		}
		return hidden
	})
	return repeats.ReplaceAllString(text, hidden)
}

// harmless reports whether a piece of a text consists of words, numbers, times, addresses, and names that the bundle
// shows.
func (r *redactor) harmless(p string) bool {
	core := strings.Trim(p, ".:!?…=-|/")
	if core == "" || r.names[core] || r.names[p] {
		return true
	}
	if _, err := ident.ParseID(core); err == nil {
		return true
	}
	if _, err := netip.ParseAddr(core); err == nil {
		return true
	}
	if _, err := netip.ParseAddrPort(core); err == nil {
		return true
	}
	if _, err := time.Parse(time.RFC3339, core); err == nil {
		return true
	}
	if d, err := time.ParseDuration(core); err == nil && len(core) <= 16 && d.String() == core {
		return true
	}
	if version.MatchString(core) {
		return true
	}
	if len(digits.FindAllString(core, -1)) > maxDigits {
		return false
	}
	for _, segment := range joint.Split(core, -1) {
		if segment != "" && !r.names[segment] && !amount.MatchString(segment) && !isWords(segment) {
			return false
		}
	}
	return true
}

// isWords reports whether a text is a known word, or consists of known words that begin with capital letters.
func isWords(text string) bool {
	known := vocabulary()
	if known[strings.ToLower(text)] {
		return true
	}
	parts := strings.Fields(capital.ReplaceAllString(text, "$1$3 $2$4"))
	for _, word := range parts {
		if !known[strings.ToLower(word)] {
			return false
		}
	}
	return len(parts) > 1
}
