package config

import (
	"reflect"
	"slices"
)

// ParsePartial is [Parse] for a configuration in which the values at the paths `unknown` are missing, because they are
// not known yet, as in a plan of Terraform. src is JSON, in which a field with null counts as unset. The problems have no
// positions, and leave out what follows only from unknown values. The configuration is nil if there are errors.
func ParsePartial(src []byte, unknown ...string) (*Shard, Problems) {
	d := &decoder{src: src, patch: true}
	root, ok := d.parse()
	if !ok {
		return nil, d.problems(nil).withoutPositions()
	}
	s := &Shard{}
	d.decode(root, "", reflect.ValueOf(s).Elem(), field{})
	for _, path := range unknown {
		d.tainted = append(d.tainted, wholeOf(path))
	}
	problems := d.problems(check(s)).withoutPositions()
	if len(problems.Errors()) > 0 {
		return nil, problems
	}
	return s, problems
}

// wholeOf returns the path of the value that the value at a path is a part of: a tree of args, or a map or list of texts.
// Whatever uses one part of such a value uses all of it.
func wholeOf(path string) string {
	elements, err := SplitPath(path)
	if err != nil {
		return path
	}
	typ := reflect.TypeFor[Shard]()
	for i, e := range elements {
		if typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		switch typ.Kind() {
		case reflect.Struct:
			name, _ := e.(string)
			fields := fieldsOf(typ)
			at := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
			if at < 0 {
				return path
			}
			typ = fields[at].Type
		case reflect.Map, reflect.Slice:
			typ = typ.Elem()
			if kind := typ.Kind(); kind != reflect.Struct && kind != reflect.Map {
				return JoinPath(elements[:i]...)
			}
		default: // a tree
			return JoinPath(elements[:i]...)
		}
	}
	return path
}

// ParseTree parses a single JSON value with comments and trailing commas, such as the arguments of a template. It is as
// strict as [Parse]. The paths of the problems are relative to the value. The result is nil if there are errors.
func ParseTree(filename string, src []byte) (any, Problems) {
	d := &decoder{file: filename, src: src}
	root, ok := d.parse()
	if !ok {
		return nil, d.problems(nil)
	}
	value := d.tree(root, "")
	if problems := d.problems(nil); len(problems) > 0 {
		return nil, problems
	}
	return value, nil
}

// JoinPath is the inverse of [SplitPath].
func JoinPath(elements ...any) string { return join(elements) }
