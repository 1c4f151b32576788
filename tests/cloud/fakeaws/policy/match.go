package policy

import (
	"strings"
	"unicode/utf8"
)

// anyRun and anyOne are the wildcards in a compiled pattern. No rune of a text has these values.
const (
	anyRun rune = -1 // *
	anyOne rune = -2 // ?
)

// pattern is a text with wildcards. Characters that come from a policy variable are literal, even * and ?.
type pattern []rune

// compile returns the pattern of a policy value. It reads * and ? as wildcards if wild is true, and replaces policy
// variables if vars is true. It returns false if a variable has no value. A statement with such a variable matches
// nothing.
// Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_variables.html
func compile(s string, wild, vars bool, ctx Context) (pattern, bool) {
	var out pattern
	for s != "" {
		if vars && strings.HasPrefix(s, "${") {
			if name, rest, ok := strings.Cut(s[2:], "}"); ok {
				value, ok := variable(name, ctx)
				if !ok {
					return nil, false
				}
				out, s = append(out, []rune(value)...), rest
				continue
			}
		}
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case wild && r == '*':
			r = anyRun
		case wild && r == '?':
			r = anyOne
		}
		out, s = append(out, r), s[size:]
	}
	return out, true
}

// variable returns the value of ${name}, ${name, 'default'}, ${*}, ${?} or ${$}. If the key does not have exactly one
// value, it returns the default, or false if there is none.
func variable(name string, ctx Context) (string, bool) {
	switch name {
	case "*", "?", "$":
		return name, true
	}
	key, fallback, hasFallback := strings.Cut(name, ",")
	if values := ctx[strings.ToLower(strings.TrimSpace(key))]; len(values) == 1 {
		return values[0], true
	}
	fallback = strings.TrimSpace(fallback)
	if hasFallback && len(fallback) >= 2 && fallback[0] == '\'' && fallback[len(fallback)-1] == '\'' {
		return fallback[1 : len(fallback)-1], true
	}
	return "", false
}

// match reports whether the pattern matches the whole text. Its time is proportional to the length of the pattern times
// the length of the text.
func (p pattern) match(s string) bool {
	text := []rune(s)
	i, j := 0, 0
	star, mark := -1, 0 // position of the last *, and of the text after its match
	for j < len(text) {
		switch {
		case i < len(p) && p[i] == anyRun:
			star, mark = i, j
			i++
		case i < len(p) && (p[i] == anyOne || p[i] == text[j]):
			i++
			j++
		case star >= 0:
			mark++
			i, j = star+1, mark
		default:
			return false
		}
	}
	for i < len(p) && p[i] == anyRun {
		i++
	}
	return i == len(p)
}

// matchARN compares ARNs part by part. Of the six parts, only the last may contain colons, and a wildcard in one of the
// other five stays within it. A pattern with fewer parts matches any value in the missing ones.
// Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_resource.html
func (p pattern) matchARN(arn string) bool {
	if len(p) == 1 && p[0] == anyRun {
		return true
	}
	parts := strings.SplitN(arn, ":", 6)
	if len(parts) != 6 {
		return false
	}
	for i, part := range parts {
		end := len(p)
		if i < 5 {
			end = p.index(':')
		}
		if !p[:end].match(part) {
			return false
		}
		if end == len(p) {
			return true
		}
		p = p[end+1:]
	}
	return true
}

func (p pattern) index(r rune) int {
	for i, have := range p {
		if have == r {
			return i
		}
	}
	return len(p)
}
