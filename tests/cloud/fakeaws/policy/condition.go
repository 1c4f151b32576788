package policy

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// operator is one condition operator. A negated operator is true if the operator that it negates is false, or if the
// key is absent.
type operator struct {
	negated bool
	kind    string // for check: the form that the policy's values must have
	fits    func(want pattern, wanted, have string) bool
	wild    bool // the policy's values may have wildcards
}

var operators = map[string]operator{
	"Null": {kind: "bool"},
	"Bool": {kind: "bool", fits: func(_ pattern, want, have string) bool { return strings.EqualFold(want, have) }},

	"StringEquals":              {fits: exact},
	"StringNotEquals":           {fits: exact, negated: true},
	"StringEqualsIgnoreCase":    {fits: sameLetters},
	"StringNotEqualsIgnoreCase": {fits: sameLetters, negated: true},
	"StringLike":                {fits: like, wild: true},
	"StringNotLike":             {fits: like, wild: true, negated: true},

	// AWS documents that ArnEquals and ArnLike behave alike.
	"ArnEquals":    {fits: likeARN, wild: true},
	"ArnLike":      {fits: likeARN, wild: true},
	"ArnNotEquals": {fits: likeARN, wild: true, negated: true},
	"ArnNotLike":   {fits: likeARN, wild: true, negated: true},

	"NumericEquals": {kind: "number", fits: numbers(func(have, want float64) bool { return have == want })},
	"NumericNotEquals": {kind: "number", fits: numbers(func(have, want float64) bool {
		return have == want
	}), negated: true},
	"NumericLessThan":          {kind: "number", fits: numbers(func(have, want float64) bool { return have < want })},
	"NumericLessThanEquals":    {kind: "number", fits: numbers(func(have, want float64) bool { return have <= want })},
	"NumericGreaterThan":       {kind: "number", fits: numbers(func(have, want float64) bool { return have > want })},
	"NumericGreaterThanEquals": {kind: "number", fits: numbers(func(have, want float64) bool { return have >= want })},

	"DateEquals":            {kind: "date", fits: dates(func(c int) bool { return c == 0 })},
	"DateNotEquals":         {kind: "date", fits: dates(func(c int) bool { return c == 0 }), negated: true},
	"DateLessThan":          {kind: "date", fits: dates(func(c int) bool { return c < 0 })},
	"DateLessThanEquals":    {kind: "date", fits: dates(func(c int) bool { return c <= 0 })},
	"DateGreaterThan":       {kind: "date", fits: dates(func(c int) bool { return c > 0 })},
	"DateGreaterThanEquals": {kind: "date", fits: dates(func(c int) bool { return c >= 0 })},

	"IpAddress":    {kind: "address", fits: inNetwork},
	"NotIpAddress": {kind: "address", fits: inNetwork, negated: true},
	"BinaryEquals": {kind: "binary", fits: exact},
}

// check refuses policy values that are not of the operator's kind.
func (o operator) check(values []string) error {
	for _, v := range values {
		var err error
		switch o.kind {
		case "bool":
			if l := strings.ToLower(v); l != "true" && l != "false" {
				err = errors.New("not true or false")
			}
		case "number":
			_, err = strconv.ParseFloat(v, 64)
		case "date":
			_, err = parseDate(v)
		case "address":
			_, err = parseNetwork(v)
		case "binary":
			_, err = base64.StdEncoding.DecodeString(v)
		}
		if err != nil {
			return fmt.Errorf("value %q: %w", v, err)
		}
	}
	return nil
}

// holds evaluates one condition. The keys of ctx are in lower case. If the condition contains a policy variable without
// a value, resolved is false.
// Sources:
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition_operators.html
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-single-vs-multi-valued-context-keys.html
func (c *Condition) holds(ctx Context, vars bool) (result, resolved bool) {
	values := ctx[strings.ToLower(c.Key)]
	op := operators[c.Operator]
	if c.Operator == "Null" {
		for _, want := range c.Values {
			if strings.EqualFold(want, "true") == (len(values) == 0) {
				return true, true
			}
		}
		return false, true
	}
	if len(values) == 0 {
		return c.IfExists || c.Set == "ForAllValues" || op.negated && c.Set == "", true
	}
	wants := make([]pattern, 0, len(c.Values))
	for _, v := range c.Values {
		// Policy variables work only in strings and ARNs. [operator.check] has already refused them in the values of
		// other operators.
		p, ok := compile(v, op.wild, vars && op.kind == "", ctx)
		if !ok {
			return false, false
		}
		wants = append(wants, p)
	}
	one := func(have string) bool { return c.fits(op, wants, have) != op.negated }
	if c.Set == "ForAllValues" {
		for _, have := range values {
			if !one(have) {
				return false, true
			}
		}
		return true, true
	}
	if c.Set == "" && op.negated { // no value of a multivalued key may fit
		for _, have := range values {
			if !one(have) {
				return false, true
			}
		}
		return true, true
	}
	for _, have := range values {
		if one(have) {
			return true, true
		}
	}
	return false, true
}

// fits reports whether a value of the request satisfies the operator for at least one of the policy's values.
func (c *Condition) fits(op operator, wants []pattern, have string) bool {
	for i, want := range wants {
		if op.fits(want, c.Values[i], have) {
			return true
		}
	}
	return false
}

func exact(want pattern, _, have string) bool       { return string(want) == have }
func sameLetters(want pattern, _, have string) bool { return strings.EqualFold(string(want), have) }
func like(want pattern, _, have string) bool        { return want.match(have) }
func likeARN(want pattern, _, have string) bool     { return want.matchARN(have) }

func numbers(compare func(have, want float64) bool) func(pattern, string, string) bool {
	return func(_ pattern, want, have string) bool {
		w, err := strconv.ParseFloat(want, 64)
		if err != nil {
			return false
		}
		h, err := strconv.ParseFloat(have, 64)
		return err == nil && compare(h, w)
	}
}

func dates(compare func(int) bool) func(pattern, string, string) bool {
	return func(_ pattern, want, have string) bool {
		w, err := parseDate(want)
		if err != nil {
			return false
		}
		h, err := parseDate(have)
		return err == nil && compare(h.Compare(w))
	}
}

// parseDate reads the ISO 8601 forms that AWS documents, and seconds since 1970.
func parseDate(s string) (time.Time, error) {
	if seconds, err := strconv.ParseInt(s, 10, 64); err == nil && len(s) > 4 {
		return time.Unix(seconds, 0), nil
	}
	var t time.Time
	var err error
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04Z07:00", "2006-01-02", "2006-01", "2006"} {
		if t, err = time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return t, err
}

func inNetwork(_ pattern, want, have string) bool {
	network, err := parseNetwork(want)
	if err != nil {
		return false
	}
	address, err := netip.ParseAddr(have)
	return err == nil && network.Contains(address.Unmap())
}

// parseNetwork reads a CIDR block. A single address is a block of one address.
func parseNetwork(s string) (netip.Prefix, error) {
	if address, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(address, address.BitLen()), nil
	}
	return netip.ParsePrefix(s)
}
