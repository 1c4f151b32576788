// Package unit owns the reading of systemd's unit files: their syntax, words and variables, and what a .service file
// says.
//
// Invariant: a directive is either obeyed, or on the list of those that do not matter to the tests, or an error.
// Nothing is skipped in silence, except what systemd documents as skipped.
package unit

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Entry is one assignment.
type Entry struct {
	Section, Key, Value string
	// Where is file:line of its beginning, for error messages.
	Where string
}

// Parse reads the lines of one unit file. https://www.freedesktop.org/software/systemd/man/252/systemd.syntax.html
func Parse(file, text string) ([]Entry, error) {
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return nil, fmt.Errorf("%s: not a text in UTF-8", file)
	}
	var entries []Entry
	var section, held string
	begin := 0
	for n, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		line = strings.TrimRight(line, " \t\r")
		first := strings.TrimLeft(line, " \t")
		// A comment is one also between the parts of a continued line.
		if strings.HasPrefix(first, "#") || strings.HasPrefix(first, ";") {
			continue
		}
		if begin == 0 {
			begin = n + 1
		}
		if part, ok := strings.CutSuffix(line, `\`); ok {
			held += part + " "
			continue
		}
		entry := strings.TrimSpace(held + line)
		where := fmt.Sprintf("%s:%d", file, begin)
		held, begin = "", 0
		switch {
		case entry == "":
		case strings.HasPrefix(entry, "["):
			name, ok := strings.CutSuffix(entry[1:], "]")
			if !ok || name == "" || strings.ContainsAny(name, "[]") {
				return nil, fmt.Errorf("%s: malformed section %q", where, entry)
			}
			section = name
		default:
			key, value, ok := strings.Cut(entry, "=")
			key = strings.TrimSpace(key)
			if !ok || key == "" || strings.ContainsAny(key, " \t") {
				return nil, fmt.Errorf("%s: %q is no assignment", where, entry)
			}
			if section == "" {
				return nil, fmt.Errorf("%s: %s= is in no section", where, key)
			}
			entries = append(entries, Entry{Section: section, Key: key, Value: strings.TrimSpace(value), Where: where})
		}
	}
	if begin != 0 {
		return nil, fmt.Errorf("%s: the last line is continued", file)
	}
	return entries, nil
}
