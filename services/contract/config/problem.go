package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Problem is one error in a document, or a warning about one part of the document that is ignored or limited.
type Problem struct {
	File string `json:"-"` // as given to [Parse], or "" for a typed document
	// Path is the JSON path of the field: `templates.worker.args.Foo`, `instance_types[1]`, `files["a.crt"].kind`. ""
	// is the whole document. See [SplitPath].
	Path string `json:"path,omitempty"`
	// Line and Col are the position in the file, counted from 1. Col counts characters. Both are 0 if the document is a
	// [Shard] instead of a file.
	Line    int    `json:"line"`
	Col     int    `json:"column"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`    // how to fix the problem, or ""
	Warning bool   `json:"warning,omitempty"` // the document is usable, but this part of it is ignored or limited
}

// String returns `file:line:col: path: message (hint)`, without the parts that are empty.
func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		fmt.Fprintf(&b, "%s:", p.File)
	}
	if p.Line > 0 {
		fmt.Fprintf(&b, "%d:%d:", p.Line, p.Col)
	}
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	if p.Warning {
		b.WriteString("warning: ")
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Message)
	if p.Hint != "" {
		b.WriteString(" (" + p.Hint + ")")
	}
	return b.String()
}

// Problems lists all problems of a document, in the order of the document.
type Problems []Problem

// Error lists the problems, one per line.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Brief lists up to five problems in one line, without positions, for documents that are short.
func (ps Problems) Brief() string {
	const most = 5
	var texts []string
	for _, p := range ps[:min(len(ps), most)] {
		p.File, p.Line, p.Col = "", 0, 0
		texts = append(texts, p.String())
	}
	if more := len(ps) - most; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

// Errors returns the problems that are not warnings.
func (ps Problems) Errors() Problems { return ps.filter(false) }

// Warnings returns the problems that are only warnings.
func (ps Problems) Warnings() Problems { return ps.filter(true) }

func (ps Problems) filter(warning bool) Problems {
	var out Problems
	for _, p := range ps {
		if p.Warning == warning {
			out = append(out, p)
		}
	}
	return out
}

// Err returns the problems that are not warnings as an error, or nil if there are none. Do not return a Problems as an
// error directly: that error is not nil even if the Problems is empty.
func (ps Problems) Err() error {
	if errs := ps.Errors(); len(errs) > 0 {
		return errs
	}
	return nil
}

// SplitPath splits the path of a [Problem]. Strings are field names and map keys, ints are positions in lists.
func SplitPath(path string) ([]any, error) {
	var out []any
	bad := errors.New("not a path: " + quote(path))
	for rest := path; rest != ""; {
		switch {
		case strings.HasPrefix(rest, `["`):
			quoted, err := strconv.QuotedPrefix(rest[1:])
			name, _ := strconv.Unquote(quoted)
			after, ok := strings.CutPrefix(rest[1+len(quoted):], "]")
			if err != nil || !ok || plain(name) { // which needs no quotes
				return nil, bad
			}
			out, rest = append(out, name), after
		case rest[0] == '[':
			text, after, ok := strings.Cut(rest[1:], "]")
			i, err := strconv.Atoi(text)
			if !ok || err != nil || i < 0 || strconv.Itoa(i) != text {
				return nil, bad
			}
			out, rest = append(out, i), after
		default:
			if rest[0] == '.' {
				if len(out) == 0 {
					return nil, bad
				}
				rest = rest[1:]
			} else if len(out) > 0 {
				return nil, bad
			}
			end := strings.IndexAny(rest, ".[")
			if end < 0 {
				end = len(rest)
			}
			if !plain(rest[:end]) {
				return nil, bad
			}
			out, rest = append(out, rest[:end]), rest[end:]
		}
	}
	return out, nil
}
