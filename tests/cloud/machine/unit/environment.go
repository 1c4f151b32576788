package unit

import (
	"fmt"
	"strings"
)

// Variable is one NAME=value assignment.
type Variable struct{ Name, Value string }

// ReadEnvironment parses the contents of an EnvironmentFile=. A value is either a text in double quotes with the
// escapes of sh, or a plain text without quotes and backslashes. Other forms that systemd accepts are an error.
// https://www.freedesktop.org/software/systemd/man/252/systemd.exec.html#EnvironmentFile=
func ReadEnvironment(text string) ([]Variable, error) {
	var variables []Variable
	for text = strings.TrimLeft(text, " \t\n"); text != ""; text = strings.TrimLeft(text, " \t\n") {
		line, rest, _ := strings.Cut(text, "\n")
		if strings.HasPrefix(line, "#") {
			text = rest
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok || !validName(name) {
			return nil, fmt.Errorf("%q is no assignment to a variable", line)
		}
		if !strings.HasPrefix(value, `"`) {
			if strings.ContainsAny(value, `"'\`) {
				return nil, fmt.Errorf("%s: quotes and backslashes in a plain value are not supported", name)
			}
			variables, text = append(variables, Variable{name, strings.TrimSpace(value)}), rest
			continue
		}
		value, text, ok = unquote(text[len(name)+len(`="`):])
		if !ok {
			return nil, fmt.Errorf("%s: its value is not one text in double quotes", name)
		}
		variables = append(variables, Variable{name, value})
	}
	return variables, nil
}

// unquote returns the text up to the closing quote, and the lines after it. ok is false if the quote is not closed or
// not at the end of its line.
func unquote(s string) (value, rest string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			blanks, rest, _ := strings.Cut(s[i+1:], "\n")
			return b.String(), rest, strings.TrimSpace(blanks) == ""
		case c == '\\' && i+1 < len(s) && strings.IndexByte("\"\\`$", s[i+1]) >= 0:
			i++
			b.WriteByte(s[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", "", false
}

// validName reports whether a text is a valid name of an environment variable.
func validName(name string) bool {
	for i, c := range name {
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}
