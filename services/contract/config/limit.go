package config

import (
	"fmt"
	"strconv"
	"strings"
)

// minPercentLimit is the minimum result of a percentage. Without it, 40 % of two instances would be none.
const minPercentLimit = 2

// Limit is a number of instances, or a percentage of a group. The zero value allows no instances.
type Limit struct {
	Value   int  // not negative; at most 100 for a percentage
	Percent bool // whether Value is a percentage
}

// ParseLimit parses "3" or "40%".
func ParseLimit(s string) (Limit, error) {
	text, percent := strings.CutSuffix(s, "%")
	n, err := strconv.Atoi(text)
	switch {
	case err != nil || strconv.Itoa(n) != text || n < 0:
		return Limit{}, fmt.Errorf("%s is neither a count such as \"3\" nor a percentage such as \"40%%\"", quote(s))
	case percent && n > 100:
		return Limit{}, fmt.Errorf("%s is more than 100%%", quote(s))
	}
	return Limit{Value: n, Percent: percent}, nil
}

// Of returns the number of instances out of n that the limit allows. This is the count itself, or the percentage of n,
// rounded down but at least 2.
func (l Limit) Of(n int) int {
	if !l.Percent {
		return l.Value
	}
	// Multiply the hundreds of n and the rest separately, so that a large n does not overflow.
	return max(minPercentLimit, n/100*l.Value+n%100*l.Value/100)
}

// String returns the text form.
func (l Limit) String() string {
	if l.Percent {
		return strconv.Itoa(l.Value) + "%"
	}
	return strconv.Itoa(l.Value)
}
