package config

import (
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
	elements, _ := SplitPath(path) // it is a path of this package
	return JoinPath(elements[:max(0, len(elements)-1)]...)
}

// JoinPath is the inverse of [SplitPath].
func JoinPath(elements ...any) string {
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
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-' && r != '$'
	})
}
