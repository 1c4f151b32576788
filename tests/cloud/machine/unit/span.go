package unit

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Infinity is the time span "infinity".
const Infinity = time.Duration(math.MaxInt64)

var spanUnits = map[string]time.Duration{"ms": time.Millisecond, "": time.Second, "s": time.Second,
	"min": time.Minute, "h": time.Hour}

// Span parses a time span: "infinity", or a whole number and one of the units ms, s, min and h. A number without a unit
// is in seconds.
func Span(text string) (time.Duration, error) {
	if text == "infinity" {
		return Infinity, nil
	}
	unit := strings.TrimLeft(text, "0123456789")
	n, err := strconv.ParseInt(strings.TrimSuffix(text, unit), 10, 64)
	factor, known := spanUnits[unit]
	if err != nil || !known || n > int64(Infinity/factor) {
		return 0, fmt.Errorf("%q is not supported as a time span", text)
	}
	return time.Duration(n) * factor, nil
}
