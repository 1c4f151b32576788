package unit

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

const blank = " \t\n\r"

// Words splits a value into items as defined by systemd.syntax(7), "Quoting": quotes enclose whole items, and the
// escapes are those in its table. Anything about which systemd only warns is an error. A quote inside a word is also an
// error, because systemd and its manual differ there.
func Words(value string) ([]string, error) {
	words, err := split(value)
	if err != nil {
		return nil, err
	}
	var texts []string
	for _, w := range words {
		texts = append(texts, w.text)
	}
	return texts, nil
}

// word is an item and its original spelling. A plain semicolon separates commands. An escaped or quoted semicolon does
// not.
type word struct{ text, raw string }

func split(value string) ([]word, error) {
	var words []word
	for rest := strings.TrimLeft(value, blank); rest != ""; rest = strings.TrimLeft(rest, blank) {
		w, left, err := first(rest)
		if err != nil {
			return nil, err
		}
		words, rest = append(words, w), left
	}
	return words, nil
}

// first returns the first item of a text and the rest. The text must not begin with a blank.
func first(s string) (w word, rest string, err error) {
	var text strings.Builder
	i := 0
	quote := byte(0)
	if s[0] == '"' || s[0] == '\'' {
		quote, i = s[0], 1
	}
	for i < len(s) {
		switch c := s[i]; {
		case quote != 0 && c == quote:
			rest = s[i+1:]
			if rest != "" && !strings.ContainsRune(blank, rune(rest[0])) {
				return word{}, "", fmt.Errorf("a blank has to follow the closing quote in %q", s)
			}
			return word{text.String(), s[:i+1]}, rest, nil
		case quote == 0 && strings.IndexByte(blank, c) >= 0:
			return word{text.String(), s[:i]}, s[i:], nil
		case quote == 0 && (c == '"' || c == '\''):
			return word{}, "", fmt.Errorf("a quote inside of a word in %q: quotes wrap whole items", s)
		case s[i:] == `\;` && i == 0, i == 0 && len(s) > 2 && s[:2] == `\;` && strings.IndexByte(blank, s[2]) >= 0:
			// An argument that is a semicolon, see systemd.service(5).
			return word{";", s[:2]}, s[2:], nil
		case c == '\\':
			part, n, err := unescape(s[i:])
			if err != nil {
				return word{}, "", err
			}
			text.WriteString(part)
			i += n
		default:
			text.WriteByte(c)
			i++
		}
	}
	if quote != 0 {
		return word{}, "", fmt.Errorf("a quote is not closed in %q", s)
	}
	return word{text.String(), s}, "", nil
}

var escapes = map[byte]string{'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v", '\\': `\`,
	'"': `"`, '\'': "'", 's': " "}

// unescape decodes the escape at the start of s. It returns the text and the length of the escape in bytes.
func unescape(s string) (string, int, error) {
	if len(s) < 2 {
		return "", 0, errors.New("a backslash at the end")
	}
	if text, ok := escapes[s[1]]; ok {
		return text, 2, nil
	}
	var digits int
	begin, base := 2, 16
	switch c := s[1]; {
	case c == 'x':
		digits = 2
	case c == 'u':
		digits = 4
	case c == 'U':
		digits = 8
	case c >= '0' && c <= '7':
		begin, digits, base = 1, 3, 8
	default:
		return "", 0, fmt.Errorf("unknown escape %q", s[:2])
	}
	if len(s) < begin+digits {
		return "", 0, fmt.Errorf("escape %q is too short", s)
	}
	n, err := strconv.ParseUint(s[begin:begin+digits], base, 32)
	switch {
	case err != nil:
		return "", 0, fmt.Errorf("escape %q: not a number", s[:begin+digits])
	case n == 0:
		return "", 0, fmt.Errorf("escape %q: NUL", s[:begin+digits])
	case digits <= 3:
		if n > 255 {
			return "", 0, fmt.Errorf("escape %q is no byte", s[:begin+digits])
		}
		return string([]byte{byte(n)}), begin + digits, nil
	case n > utf8.MaxRune || !utf8.ValidRune(rune(n)):
		return "", 0, fmt.Errorf("escape %q is no character", s[:begin+digits])
	}
	return string(rune(n)), begin + digits, nil
}

// Command is one command line.
// https://www.freedesktop.org/software/systemd/man/252/systemd.service.html#Command%20lines
type Command struct {
	Path string
	// Words are the arguments, starting with argv[0]. Unless Literal is set, they contain variables.
	Words []string
	// IgnoreFailure is the prefix "-", Literal is ":", Privileged is "+" or "!".
	IgnoreFailure, Literal, Privileged bool
}

// Argv returns the arguments with all variables replaced.
func (c Command) Argv(environment map[string]string) []string {
	if c.Literal {
		return c.Words
	}
	argv := c.Words[:1:1]
	for _, w := range c.Words[1:] {
		if name, ok := strings.CutPrefix(w, "$"); ok && ValidName(name) {
			argv = append(argv, splitValue(environment[name])...)
			continue
		}
		argv = append(argv, substitute(w, environment))
	}
	return argv
}

// substitute replaces ${NAME} and $$ in a word.
func substitute(w string, environment map[string]string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(w, "$")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		if rest, ok := strings.CutPrefix(after, "$"); ok {
			b.WriteString("$")
			w = rest
			continue
		}
		if name, rest, ok := strings.Cut(strings.TrimPrefix(after, "{"), "}"); ok && strings.HasPrefix(after, "{") &&
			ValidName(name) {
			b.WriteString(environment[name])
			w = rest
			continue
		}
		b.WriteString("$")
		w = after
	}
}

// splitValue splits the value of a variable at blanks. Quotes are effective anywhere and are removed. A backslash keeps
// the next character literal.
func splitValue(value string) []string {
	var words []string
	var b strings.Builder
	inWord, escaped := false, false
	quote := rune(0)
	for _, c := range value {
		switch {
		case escaped:
			b.WriteRune(c)
			escaped = false
		case c == '\\':
			inWord, escaped = true, true
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			b.WriteRune(c)
		case c == '"' || c == '\'':
			inWord, quote = true, c
		case strings.ContainsRune(blank, c):
			if inWord {
				words = append(words, b.String())
				b.Reset()
				inWord = false
			}
		default:
			inWord = true
			b.WriteRune(c)
		}
	}
	if inWord {
		words = append(words, b.String())
	}
	return words
}

// ValidName reports whether a text is a valid name of an environment variable.
func ValidName(name string) bool {
	for i, c := range name {
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// commands parses the value of an Exec…= directive.
func commands(value string, expand func(string) (string, error)) ([]Command, error) {
	words, err := split(value)
	if err != nil {
		return nil, err
	}
	var list []Command
	for len(words) > 0 {
		n := 0
		for n < len(words) && words[n].raw != ";" {
			n++
		}
		line := words[:n]
		words = words[min(n+1, len(words)):]
		if len(line) == 0 {
			return nil, errors.New("an empty command before a semicolon")
		}
		c, err := command(line, expand)
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, nil
}

func command(line []word, expand func(string) (string, error)) (c Command, err error) {
	path := line[0].text
	named := false
	for path != "" && strings.IndexByte("-:+!@", path[0]) >= 0 {
		switch path[0] {
		case '-':
			c.IgnoreFailure = true
		case ':':
			c.Literal = true
		case '@':
			named = true
		default:
			c.Privileged = true
		}
		path = path[1:]
	}
	if path, err = expand(path); err != nil {
		return c, err
	}
	if path == "" || strings.HasPrefix(path, "$") || strings.Contains(path, "/") && !strings.HasPrefix(path, "/") ||
		strings.ContainsAny(path, "\n\t\x00") {
		return c, fmt.Errorf("the command %q is neither an absolute path nor a name", line[0].text)
	}
	c.Path = path
	for i, w := range line {
		text := path
		if i > 0 {
			if text, err = expand(w.text); err != nil {
				return c, err
			}
			if name, ok := strings.CutPrefix(text, "$"); ok && !c.Literal && name != "" && name[0] != '$' &&
				name[0] != '{' && !ValidName(name) {
				return c, fmt.Errorf("%q: a variable in a word is written ${NAME}", text)
			}
		}
		c.Words = append(c.Words, text)
	}
	if named {
		if c.Words = c.Words[1:]; len(c.Words) == 0 {
			return c, errors.New("@ without the name to run it by")
		}
	}
	return c, nil
}
