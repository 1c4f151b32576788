// Package suggest finds the name that a person probably meant.
package suggest

import (
	"strings"
	"unicode/utf8"

	"github.com/agext/levenshtein"
)

// maxLength is the longest text that is compared, in bytes.
const maxLength = 64

// Nearest returns the candidate that is most similar to name, ignoring case. It returns "" if none is similar, that is,
// if more than a third of the characters of name would have to change.
func Nearest(name string, candidates []string) string {
	length := utf8.RuneCountInString(name)
	best, limit := "", min(length, max(1, length/3)+1)
	for _, candidate := range candidates {
		if len(name) > maxLength || len(candidate) > maxLength {
			continue
		}
		if n := levenshtein.Distance(strings.ToLower(name), strings.ToLower(candidate), nil); n < limit {
			best, limit = candidate, n
		}
	}
	return best
}
