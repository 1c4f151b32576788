package config

import (
	"iter"
	"reflect"
	"slices"
)

// ParsePartial is [Parse] for a configuration in which the values at the paths `unknown` are missing, because they are
// not known yet, as in a plan of Terraform. src is JSON, in which a field with null counts as unset. The problems have
// no positions, and leave out what follows only from unknown values. The configuration is nil if there are errors.
func ParsePartial(src []byte, unknown ...string) (*Shard, Problems) {
	d := &decoder{src: src, patch: true}
	shard, problems := parseAs(d, func(s *Shard) []finding {
		for _, path := range unknown {
			d.tainted = append(d.tainted, wholeOf(path))
		}
		return check(s)
	})
	return shard, problems.withoutPositions()
}

// wholeOf returns the path of the value that the value at a path is a part of: a tree of args, or a map or list of
// texts. Whatever uses one part of such a value uses all of it.
func wholeOf(path string) string {
	elements, err := SplitPath(path)
	if err != nil {
		return path
	}
	for n, typ := range typesAlong(reflect.TypeFor[Shard](), elements) {
		if isTree(typ) || (typ.Kind() == reflect.Map || typ.Kind() == reflect.Slice) &&
			typ.Elem().Kind() != reflect.Struct && typ.Elem().Kind() != reflect.Map {
			return JoinPath(elements[:n]...)
		}
	}
	return path
}

// InTree reports whether the value at a path in a shard's configuration is a free tree, such as args, or inside of one.
// There, null is a value.
func InTree(elements ...any) bool {
	for _, typ := range typesAlong(reflect.TypeFor[Shard](), elements) {
		if isTree(typ) {
			return true
		}
	}
	return false
}

// ConcernsGroups reports whether the value at a path of a shard's configuration may change the hashes or the subnets of
// groups. The addresses of servers and of the leader cannot change them. So a plan can list the groups with instances
// to replace even while these addresses are not known yet.
func ConcernsGroups(path string) bool {
	elements, _ := SplitPath(path) // a path that is none concerns everything
	for _, typ := range typesAlong(reflect.TypeFor[Shard](), elements) {
		if typ == reflect.TypeFor[Addresses]() || typ == reflect.TypeFor[LeaderNetwork]() {
			return false
		}
	}
	return true
}

func isTree(typ reflect.Type) bool {
	return typ.Kind() == reflect.Interface || typ.Kind() == reflect.Map && typ.Elem().Kind() == reflect.Interface
}

// typesAlong yields the types on the way down a path below a type, each with the number of elements that lead to it. It
// ends where the types do.
func typesAlong(typ reflect.Type, elements []any) iter.Seq2[int, reflect.Type] {
	return func(yield func(int, reflect.Type) bool) {
		for n := 0; ; n++ {
			if typ.Kind() == reflect.Pointer {
				typ = typ.Elem()
			}
			if !yield(n, typ) || n == len(elements) {
				return
			}
			switch typ.Kind() {
			case reflect.Struct:
				fields := fieldsOf(typ)
				i := slices.IndexFunc(fields, func(f field) bool { return f.name == elements[n] })
				if i < 0 {
					return
				}
				typ = fields[i].Type
			case reflect.Map, reflect.Slice:
				typ = typ.Elem()
			default:
				return
			}
		}
	}
}

// ParseTree parses a single JSON value with comments and trailing commas, such as the arguments of a template. It is as
// strict as [Parse]. The paths of the problems are relative to the value. The result is nil if there are errors.
func ParseTree(filename string, src []byte) (any, Problems) {
	return parseAs(&decoder{file: filename, src: src}, func(any) []finding { return nil })
}
