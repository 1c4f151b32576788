package unit

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Variable is one NAME=value assignment.
type Variable struct{ Name, Value string }

// Assignments parses the value of Environment= or DefaultEnvironment=.
func Assignments(value string, expand func(string) (string, error)) ([]Variable, error) {
	words, err := Words(value)
	if err != nil {
		return nil, err
	}
	var variables []Variable
	for _, w := range words {
		if w, err = expand(w); err != nil {
			return nil, err
		}
		name, value, ok := strings.Cut(w, "=")
		if !ok || !ValidName(name) {
			return nil, fmt.Errorf("%q is no assignment to a variable", w)
		}
		variables = append(variables, Variable{name, value})
	}
	return variables, nil
}

// ReadEnvironment parses the contents of an EnvironmentFile=, see systemd.exec(5). It skips lines without "=", as
// documented. An invalid name is an error, although systemd only warns about it.
// https://www.freedesktop.org/software/systemd/man/252/systemd.exec.html#EnvironmentFile=
func ReadEnvironment(text string) ([]Variable, error) {
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return nil, errors.New("not a text in UTF-8")
	}
	var variables []Variable
	for text != "" {
		text = strings.TrimLeft(text, blank)
		if strings.HasPrefix(text, "#") || strings.HasPrefix(text, ";") {
			text = afterComment(text)
			continue
		}
		end := strings.IndexAny(text, "=\n")
		if end < 0 {
			break
		}
		name := strings.TrimRight(text[:end], blank)
		if text[end] == '\n' {
			text = text[end:]
			continue
		}
		value, rest, err := environmentValue(text[end+1:])
		if err != nil {
			return nil, fmt.Errorf("value of %q: %w", name, err)
		}
		if !ValidName(name) {
			return nil, fmt.Errorf("%q is no name of a variable", name)
		}
		variables, text = append(variables, Variable{name, value}), rest
	}
	return variables, nil
}

// afterComment returns the text after a comment line. A backslash continues the comment on the next line.
func afterComment(text string) string {
	for {
		line, rest, found := strings.Cut(text, "\n")
		if !found {
			return ""
		}
		if !strings.HasSuffix(strings.TrimSuffix(line, "\r"), `\`) {
			return rest
		}
		text = rest
	}
}

// environmentValue parses a value up to the end of the line. A value may consist of several quoted parts. After an
// unquoted start, quotes are literal.
func environmentValue(s string) (value, rest string, err error) {
	var b strings.Builder
	s = strings.TrimLeft(s, " \t\r")
	for s != "" && (s[0] == '"' || s[0] == '\'') {
		part, left, err := quotedValue(s)
		if err != nil {
			return "", "", err
		}
		b.WriteString(part)
		s = strings.TrimLeft(left, " \t\r")
	}
	keep := b.Len() // Blanks before this position were quoted.
	i := 0
	for ; i < len(s) && s[i] != '\n'; i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		if i++; i == len(s) {
			break
		}
		if s[i] != '\n' {
			b.WriteByte(s[i])
			keep = b.Len()
		}
	}
	text := b.String()
	return text[:keep] + strings.TrimRight(text[keep:], " \t\r"), s[i:], nil
}

func quotedValue(s string) (value, rest string, err error) {
	var b strings.Builder
	quote := s[0]
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == quote:
			return b.String(), s[i+1:], nil
		case c == '\\' && quote == '"' && i+1 < len(s):
			i++
			switch {
			case strings.IndexByte("\"\\`$", s[i]) >= 0:
				b.WriteByte(s[i])
			case s[i] == '\n': // A continued line.
			default:
				b.WriteString(s[i-1 : i+1])
			}
		default:
			b.WriteByte(c)
		}
	}
	return "", "", fmt.Errorf("the quote %c is not closed", quote)
}
