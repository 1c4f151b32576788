package config

import (
	"fmt"
	"strconv"
	"strings"
)

// ChildPath returns the path of a field or map key below path.
func ChildPath(path, name string) string {
	switch {
	case !plain(name):
		return path + "[" + strconv.Quote(name) + "]"
	case path == "":
		return name
	}
	return path + "." + name
}

// element returns the path of the i-th element of the list at path.
func element(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// parent returns the path one level up, or "" for a top-level field.
func parent(path string) string {
	if strings.HasSuffix(path, `"]`) {
		// The last name in path is quoted. It may contain quotes and brackets, so only SplitPath can tell where it
		// begins.
		elements, err := SplitPath(path)
		if err != nil || len(elements) == 0 {
			return ""
		}
		return join(elements[:len(elements)-1])
	}
	return path[:max(0, strings.LastIndexAny(path, ".["))]
}

func join(elements []any) string {
	path := ""
	for _, e := range elements {
		switch e := e.(type) {
		case string:
			path = ChildPath(path, e)
		case int:
			path = element(path, e)
		}
	}
	return path
}

// within reports whether path is at or below ancestor.
func within(path, ancestor string) bool {
	rest, ok := strings.CutPrefix(path, ancestor)
	return ok && (ancestor == "" || rest == "" || rest[0] == '.' || rest[0] == '[')
}

// plain reports whether a name needs no quotes in a path.
func plain(name string) bool {
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' && c != '$' {
			return false
		}
	}
	return name != ""
}

// closingQuote returns the length of the quoted text at the start of s, or -1 if the closing quote is missing.
func closingQuote(s string) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return -1
}

func unquote(s string) (string, error) {
	out, err := strconv.Unquote(s)
	if err == nil && plain(out) {
		return "", fmt.Errorf("%s needs no quotes", s)
	}
	return out, err
}

func parseIndex(s string) (int, error) {
	i, err := strconv.Atoi(s)
	if err == nil && (i < 0 || strconv.Itoa(i) != s) {
		return 0, fmt.Errorf("%q is not a position", s)
	}
	return i, err
}
