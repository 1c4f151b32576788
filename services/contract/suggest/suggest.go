// Package suggest finds the name that a person probably meant.
package suggest

import (
	"math"
	"strings"
)

// maxLength is the longest text that is compared, in bytes.
const maxLength = 64

// Nearest returns the candidate that is most similar to name, ignoring case. It returns "" if none is similar: more
// than a third of the characters of name would have to change.
func Nearest(name string, candidates []string) string {
	best, limit := "", min(len(name), max(1, len(name)/3)+1)
	for _, candidate := range candidates {
		if n := distance(strings.ToLower(name), strings.ToLower(candidate)); n < limit {
			best, limit = candidate, n
		}
	}
	return best
}

// distance returns the Levenshtein distance of two texts, in bytes. It returns MaxInt for a text over maxLength.
func distance(a, b string) int {
	if len(a) > maxLength || len(b) > maxLength {
		return math.MaxInt
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
