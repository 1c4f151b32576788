// Package unit parses the unit files of nstance-server and nstance-agent, and the syntax that all files of systemd
// share. It supports the directives that the units of the images and of the boot scripts use, and no others.
//
// Invariant: a directive or a form of a value that is not supported is an error. No line is silently skipped.
package unit

import (
	"fmt"
	"strings"
)

// Entry is one assignment in a unit file.
type Entry struct {
	Section, Key, Value string
	// Number is the number of section headers before the entry. It distinguishes entries of two sections that have the
	// same name.
	Number int
	// Where is the file:line of the assignment, for error messages.
	Where string
}

// Parse parses the lines of one unit file. https://www.freedesktop.org/software/systemd/man/252/systemd.syntax.html
func Parse(file, text string) ([]Entry, error) {
	var entries []Entry
	section, number := "", 0
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		where := fmt.Sprintf("%s:%d", file, n+1)
		name, isSection := strings.CutPrefix(line, "[")
		switch key, value, assigned := strings.Cut(line, "="); {
		case line == "", strings.HasPrefix(line, "#"), strings.HasPrefix(line, ";"):
		case strings.HasSuffix(line, `\`):
			return nil, fmt.Errorf("%s: continued lines are not supported", where)
		case isSection:
			number++
			var ok bool
			if section, ok = strings.CutSuffix(name, "]"); !ok || section == "" {
				return nil, fmt.Errorf("%s: malformed section %q", where, line)
			}
		case !assigned || section == "" || strings.TrimSpace(key) == "":
			return nil, fmt.Errorf("%s: %q is no assignment in a section", where, line)
		default:
			entries = append(entries, Entry{Section: section, Number: number, Key: strings.TrimSpace(key),
				Value: strings.TrimSpace(value), Where: where})
		}
	}
	return entries, nil
}

// words splits a value at blanks. Quotes, escapes and specifiers are not supported.
func words(value string) ([]string, error) {
	if n := strings.IndexAny(value, `"'\%;`); n >= 0 {
		return nil, fmt.Errorf("%q: %c is not supported", value, value[n])
	}
	return strings.Fields(value), nil
}
