// Package document converts between values of Terraform and documents of package config. With it, an attribute of type
// dynamic holds a document, and the server's own decoder checks it.
package document

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"reflect"
	"slices"

	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// Encode returns a value as JSON. It leaves out values that Terraform does not know yet; unknown lists their paths. A
// list with an unknown element is unknown as a whole.
func Encode(v tftypes.Value) (text []byte, unknown []string, err error) {
	e := encoder{}
	tree, err := e.tree(v, nil)
	if err != nil {
		return nil, nil, err
	}
	if tree == any(notKnown) {
		tree = nil
	}
	text, err = json.Marshal(tree)
	return text, e.unknown, err
}

type encoder struct{ unknown []string }

// notKnown stands for a value that Terraform does not know yet.
var notKnown = new(struct{ _ byte })

func (e *encoder) notKnown(at []any) (any, error) {
	e.unknown = append(e.unknown, config.JoinPath(at...))
	return notKnown, nil
}

func (e *encoder) tree(v tftypes.Value, at []any) (any, error) {
	if !v.IsKnown() {
		return e.notKnown(at)
	}
	if v.IsNull() {
		return nil, nil
	}
	switch typ := v.Type(); {
	case typ.Is(tftypes.String):
		var s string
		err := v.As(&s)
		return s, err
	case typ.Is(tftypes.Bool):
		var b bool
		err := v.As(&b)
		return b, err
	case typ.Is(tftypes.Number):
		var n big.Float
		err := v.As(&n)
		return number(&n), err
	case typ.Is(tftypes.Object{}), typ.Is(tftypes.Map{}):
		return e.object(v, at)
	case typ.Is(tftypes.List{}), typ.Is(tftypes.Tuple{}), typ.Is(tftypes.Set{}):
		return e.list(v, at)
	}
	return nil, fmt.Errorf("%s: a document has no values of the type %s", config.JoinPath(at...), v.Type())
}

func (e *encoder) object(v tftypes.Value, at []any) (any, error) {
	var members map[string]tftypes.Value
	if err := v.As(&members); err != nil {
		return nil, err
	}
	out := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		value, err := e.tree(members[name], append(slices.Clip(at), name))
		if err != nil {
			return nil, err
		}
		if value != any(notKnown) {
			out[name] = value
		}
	}
	return out, nil
}

func (e *encoder) list(v tftypes.Value, at []any) (any, error) {
	if !v.IsFullyKnown() {
		return e.notKnown(at)
	}
	var elements []tftypes.Value
	if err := v.As(&elements); err != nil {
		return nil, err
	}
	out := make([]any, len(elements))
	for i, element := range elements {
		var err error
		if out[i], err = e.tree(element, append(slices.Clip(at), i)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// number returns a number of Terraform as JSON. A whole number has no exponent, so that it can be read as such.
func number(n *big.Float) json.Number {
	if n.IsInt() && n.MantExp(nil) < 128 {
		return json.Number(n.Text('f', 0))
	}
	return json.Number(n.Text('g', -1))
}

// Decode is the inverse of Encode for a value as encoding/json decodes it.
func Decode(tree any) tftypes.Value {
	switch value := tree.(type) {
	case string:
		return tftypes.NewValue(tftypes.String, value)
	case bool:
		return tftypes.NewValue(tftypes.Bool, value)
	case float64:
		return tftypes.NewValue(tftypes.Number, big.NewFloat(value))
	case []any:
		typ, elements := tftypes.Tuple{ElementTypes: []tftypes.Type{}}, []tftypes.Value{}
		for _, below := range value {
			element := Decode(below)
			typ.ElementTypes, elements = append(typ.ElementTypes, element.Type()), append(elements, element)
		}
		return tftypes.NewValue(typ, elements)
	case map[string]any:
		members := map[string]tftypes.Value{}
		for name, below := range value {
			members[name] = Decode(below)
		}
		return Object(members)
	}
	return tftypes.NewValue(tftypes.DynamicPseudoType, nil)
}

// Object returns an object with the given members.
func Object(members map[string]tftypes.Value) tftypes.Value {
	typ := tftypes.Object{AttributeTypes: map[string]tftypes.Type{}}
	for name, member := range members {
		typ.AttributeTypes[name] = member.Type()
	}
	return tftypes.NewValue(typ, members)
}

// Update returns v with the changes from the document have, which v means, to the document now. The rest of v keeps its
// form: a null member, and another way to write a duration, do not differ from what the documents have.
func Update(v tftypes.Value, have, now any) tftypes.Value {
	if reflect.DeepEqual(have, now) {
		return v
	}
	from, _ := have.(map[string]any)
	to, isObject := now.(map[string]any)
	members, ok := membersOf(v)
	if !isObject || !ok {
		return Decode(now)
	}
	members = maps.Clone(members) // tftypes shares the map
	for name := range from {
		if _, there := to[name]; !there {
			delete(members, name)
		}
	}
	for name, value := range to {
		if member, written := members[name]; written {
			members[name] = Update(member, from[name], value)
		} else {
			members[name] = Decode(value)
		}
	}
	return Object(members)
}

// Merge returns a shard's configuration with what a later one sets. Objects merge member by member. A member with null
// counts as absent, except inside of args and other free trees, where it replaces the earlier value, as any other value
// does. What depends on a value that is not known yet is not known either.
func Merge(below, over tftypes.Value) tftypes.Value { return merge(below, over, nil) }

func merge(below, over tftypes.Value, at []any) tftypes.Value {
	patch, isPatch := membersOf(over)
	switch {
	case over.IsKnown() && over.IsNull() && !config.InTree(at...):
		return below
	case !isPatch:
		return over
	case !below.IsKnown():
		return below
	}
	members, isObject := membersOf(below)
	if !isObject {
		return over
	}
	members = maps.Clone(members)
	for name, value := range patch {
		if have, ok := members[name]; ok {
			value = merge(have, value, append(slices.Clip(at), name))
		}
		members[name] = value
	}
	return Object(members)
}

// membersOf returns the members of an object or a map. ok is false for every other value, such as null.
func membersOf(v tftypes.Value) (members map[string]tftypes.Value, ok bool) {
	if !v.IsKnown() || v.IsNull() || !v.Type().Is(tftypes.Object{}) && !v.Type().Is(tftypes.Map{}) {
		return nil, false
	}
	return members, v.As(&members) == nil
}

// Attributes returns the attributes of a plan, state or configuration by name. It returns nil for a null value.
func Attributes(raw tftypes.Value) map[string]tftypes.Value {
	members, _ := membersOf(raw)
	return members
}

// Replaced returns a copy of an object in which the given attributes are replaced.
func Replaced(raw tftypes.Value, with map[string]tftypes.Value) tftypes.Value {
	out := maps.Clone(Attributes(raw)) // As shares the map of the value
	maps.Copy(out, with)
	return tftypes.NewValue(raw.Type(), out)
}

// Text returns a value with a text.
func Text(s string) tftypes.Value { return tftypes.NewValue(tftypes.String, s) }

// TextOf returns the text of an attribute, or "" if it is not set.
func TextOf(v tftypes.Value) string { return valueOf[string](v) }

// FlagOf returns the value of a boolean attribute, or false if it is not set.
func FlagOf(v tftypes.Value) bool { return valueOf[bool](v) }

func valueOf[T any](v tftypes.Value) (value T) {
	if v.IsKnown() && !v.IsNull() {
		_ = v.As(&value) // fails for another type, which the schema excludes
	}
	return value
}

// Of returns the value of a function's argument.
func Of(ctx context.Context, argument types.Dynamic) (tftypes.Value, error) {
	if under := argument.UnderlyingValue(); under != nil {
		return under.ToTerraformValue(ctx)
	}
	return argument.ToTerraformValue(ctx)
}

// CheckObject returns an error for a known value that is not an object.
func CheckObject(v tftypes.Value) error {
	if _, ok := membersOf(v); v.IsKnown() && !ok {
		return errors.New("want an object: { … }. A document in a file becomes one with " +
			"provider::nstance::jsonc_decode(file(\"dev-1.jsonc\"))")
	}
	return nil
}

// Shard decodes the argument of a function that is a shard configuration. An error lists all problems.
func Shard(ctx context.Context, argument types.Dynamic) (*config.Shard, error) {
	v, err := Of(ctx, argument)
	if err == nil {
		err = CheckObject(v)
	}
	if err != nil {
		return nil, err
	}
	text, unknown, err := Encode(v)
	if err != nil {
		return nil, err
	}
	shard, problems := config.ParsePartial(text, unknown...)
	if err := problems.Err(); err != nil {
		return nil, fmt.Errorf("invalid shard configuration:\n%w", err)
	}
	return shard, nil
}
