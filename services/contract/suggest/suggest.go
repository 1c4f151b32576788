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
// if more than a third of the characters of name would have to change. Two characters in the wrong order count as one.
func Nearest(name string, candidates []string) string {
	length := utf8.RuneCountInString(name)
	best, limit := "", min(length, max(1, length/3)+1)
	for _, candidate := range candidates {
		if len(name) > maxLength || len(candidate) > maxLength {
			continue
		}
		if n := distance(strings.ToLower(name), strings.ToLower(candidate)); n < limit {
			best, limit = candidate, n
		}
	}
	return best
}

// distance returns how many characters of a must change to get b. It is 1 if only two neighbours are in the wrong
// order.
func distance(a, b string) int {
	n := levenshtein.Distance(a, b, nil)
	if n == 2 && len(a) == len(b) {
		for i := range len(a) - 1 {
			if a[:i]+a[i+1:i+2]+a[i:i+1]+a[i+2:] == b {
				return 1
			}
		}
	}
	return n
}
