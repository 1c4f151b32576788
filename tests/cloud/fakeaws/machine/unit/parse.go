// Package unit parses systemd's unit files: their syntax, words and variables, and the contents of a .service file.
//
// Invariant: a directive is supported, or on the list of directives that the tests do not need, or an error. Nothing is
// silently skipped, except what systemd documents as skipped.
package unit

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Entry is one assignment in a unit file.
type Entry struct {
	Section, Key, Value string
	// Where is the file:line of the start of the assignment, for error messages.
	Where string
}

// Parse parses the lines of one unit file. https://www.freedesktop.org/software/systemd/man/252/systemd.syntax.html
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
		// A comment may also stand between the parts of a continued line.
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
