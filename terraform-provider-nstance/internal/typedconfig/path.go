package typedconfig

import (
	"reflect"

	"github.com/hashicorp/terraform-plugin-framework/path"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// AttributePath returns the attribute that contains the path of a [config.Problem]. For a path inside a free-form tree,
// it returns the attribute of the tree. If a part of the path does not exist, it returns the attribute before that
// part.
func AttributePath(problemPath string) path.Path {
	elements, err := config.SplitPath(problemPath)
	if err != nil {
		return path.Empty()
	}
	return walk(elements, reflect.TypeFor[config.Shard](), path.Empty())
}

func walk(elements []any, typ reflect.Type, at path.Path) path.Path {
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if len(elements) == 0 {
		return at
	}
	name, isName := elements[0].(string)
	switch kindOf(typ) {
	case object:
		for _, f := range fieldsOf(typ) {
			if isName && f.name == name {
				return walk(elements[1:], f.typ, at.AtName(f.attribute))
			}
		}
	case list:
		if i, ok := elements[0].(int); ok {
			return walk(elements[1:], typ.Elem(), at.AtListIndex(i))
		}
	case mapping:
		if isName {
			return walk(elements[1:], typ.Elem(), at.AtMapKey(name))
		}
	case flattened:
		if len(elements) == 1 {
			break // no element belongs to the outer key alone
		}
		if inner, ok := elements[1].(string); ok && isName {
			return walk(elements[2:], typ.Elem().Elem(), at.AtMapKey(name+"/"+inner))
		}
	}
	return at
}
