package typedconfig

import (
	"encoding"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"reflect"
	"slices"
	"strings"

	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// Reading is the result of [Read].
type Reading struct {
	Shard *config.Shard
	// Unknown lists the paths of values that Terraform does not know yet.
	Unknown []string
	// malformed lists values that cannot be parsed. Validation skips them like unknown values.
	malformed config.Problems
}

// Known reports whether all values are known.
func (r Reading) Known() bool { return len(r.Unknown) == 0 }

// Problems returns all mistakes in the known part of the configuration. [AttributePath] converts their paths.
func (r Reading) Problems() config.Problems {
	unknown := slices.Clone(r.Unknown)
	for _, p := range r.malformed {
		unknown = append(unknown, p.Path)
	}
	return append(slices.Clone(r.malformed), config.ValidateKnown(r.Shard, unknown...)...)
}

// Read reads the attributes of [Attributes] by name. It ignores other attributes.
func Read(attributes map[string]tftypes.Value) Reading {
	r := Reading{Shard: &config.Shard{}}
	r.fields(attributes, nil, reflect.ValueOf(r.Shard).Elem())
	return r
}

func (r *Reading) unknown(at []any) { r.Unknown = append(r.Unknown, config.JoinPath(at...)) }

func (r *Reading) wrong(at []any, format string, args ...any) {
	r.malformed = append(r.malformed, config.Problem{Path: config.JoinPath(at...),
		Message: fmt.Sprintf(format, args...)})
}

func below(at []any, element any) []any { return append(slices.Clip(at), element) }

func (r *Reading) fields(attributes map[string]tftypes.Value, at []any, target reflect.Value) {
	for _, f := range fieldsOf(target.Type()) {
		v, ok := attributes[f.attribute]
		if !ok {
			continue
		}
		var s string
		if f.empty && v.IsKnown() && !v.IsNull() && v.As(&s) == nil && s == "" {
			continue
		}
		r.value(v, below(at, f.name), target.FieldByIndex(f.index))
	}
}

// value stores one value in target. A null value leaves target unchanged.
func (r *Reading) value(v tftypes.Value, at []any, target reflect.Value) {
	switch {
	case !v.IsKnown():
		r.unknown(at)
		return
	case v.IsNull():
		return
	}
	if target.Kind() == reflect.Pointer {
		target.Set(reflect.New(target.Type().Elem()))
		target = target.Elem()
	}
	switch kindOf(target.Type()) {
	case text:
		var s string
		r.as(v, at, &s)
		if err := target.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(s)); err != nil {
			r.wrong(at, "%v", err)
		}
	case scalar:
		r.scalar(v, at, target)
	case tree:
		r.tree(v, at, target)
	case object:
		var attributes map[string]tftypes.Value
		r.as(v, at, &attributes)
		r.fields(attributes, at, target)
	case list:
		r.list(v, at, target)
	case mapping:
		target.Set(reflect.MakeMap(target.Type()))
		r.entries(v, at, func(key string, v tftypes.Value) {
			elem := reflect.New(target.Type().Elem()).Elem()
			r.element(v, at, key, elem)
			target.SetMapIndex(reflect.ValueOf(key), elem)
		})
	case flattened:
		target.Set(reflect.MakeMap(target.Type()))
		r.entries(v, at, func(key string, v tftypes.Value) { r.group(v, at, key, target) })
	}
}

func (r *Reading) as(v tftypes.Value, at []any, target any) {
	if err := v.As(target); err != nil {
		r.wrong(at, "%v", err)
	}
}

func (r *Reading) scalar(v tftypes.Value, at []any, target reflect.Value) {
	switch target.Kind() {
	case reflect.Bool:
		r.as(v, at, target.Addr().Interface())
	case reflect.Int:
		var n big.Float
		r.as(v, at, &n)
		if i, accuracy := n.Int64(); accuracy == big.Exact && int64(int32(i)) == i {
			target.SetInt(i)
		} else {
			r.wrong(at, "%s is not a whole number, or too large", n.Text('g', 20))
		}
	default:
		r.as(v, at, target.Addr().Interface())
	}
}

// tree parses the JSON text of a free-form tree.
func (r *Reading) tree(v tftypes.Value, at []any, target reflect.Value) {
	var s string
	r.as(v, at, &s)
	value, problems := config.ParseTree("", []byte(s))
	if len(problems) > 0 {
		for _, p := range problems {
			message := fmt.Sprintf("line %d, column %d of the JSON text: %s", p.Line, p.Col, p.Message)
			r.malformed = append(r.malformed, config.Problem{Path: config.JoinPath(at...), Message: message,
				Hint: p.Hint})
		}
		return
	}
	if target.Kind() == reflect.Interface {
		if value != nil {
			target.Set(reflect.ValueOf(value))
		}
		return
	}
	if value, ok := value.(map[string]any); ok {
		target.Set(reflect.ValueOf(value))
		return
	}
	r.wrong(at, "want the JSON text of an object, such as jsonencode({Key = \"value\"})")
}

func (r *Reading) list(v tftypes.Value, at []any, target reflect.Value) {
	var elements []tftypes.Value
	r.as(v, at, &elements)
	target.Set(reflect.MakeSlice(target.Type(), len(elements), len(elements)))
	for i, v := range elements {
		r.element(v, at, i, target.Index(i))
	}
}

func (r *Reading) entries(v tftypes.Value, at []any, each func(key string, v tftypes.Value)) {
	var entries map[string]tftypes.Value
	r.as(v, at, &entries)
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		each(key, entries[key])
	}
}

// element reads one element of a list or map. If one element of a list or map of strings is unknown, the whole list or
// map is unknown, because templates use all elements together.
func (r *Reading) element(v tftypes.Value, at []any, key any, target reflect.Value) {
	switch {
	case v.IsKnown() && v.IsNull():
		r.wrong(below(at, key), "cannot be null: leave it out")
	case kindOf(target.Type()) != object && !v.IsFullyKnown():
		r.unknown(at)
	default:
		r.value(v, below(at, key), target)
	}
}

// group reads one entry of the map `groups`, whose keys are tenant/group.
func (r *Reading) group(v tftypes.Value, at []any, key string, target reflect.Value) {
	outer, inner, err := splitKey(key)
	if err != nil {
		r.wrong(below(at, key), "%v", err)
		return
	}
	elem := reflect.New(target.Type().Elem().Elem()).Elem()
	r.element(v, below(at, outer), inner, elem)
	groups := target.MapIndex(reflect.ValueOf(outer))
	if !groups.IsValid() {
		groups = reflect.MakeMap(target.Type().Elem())
		target.SetMapIndex(reflect.ValueOf(outer), groups)
	}
	groups.SetMapIndex(reflect.ValueOf(inner), elem)
}

func splitKey(key string) (outer, inner string, err error) {
	outer, inner, ok := strings.Cut(key, "/")
	if !ok || outer == "" || inner == "" || strings.Contains(inner, "/") {
		return "", "", errors.New(`the key must be tenant/name, such as "default/workers"`)
	}
	return outer, inner, nil
}
