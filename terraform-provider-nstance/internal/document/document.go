// Package document converts between values of Terraform and documents of package config. With it, an attribute of type
// dynamic holds a document, and the server's own decoder checks it.
package document

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"

	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// Encode returns a value as JSON. It leaves out members that are null, and values that Terraform does not know yet;
// unknown lists the paths of the latter. A list with an unknown element is unknown as a whole.
func Encode(v tftypes.Value) (text []byte, unknown []string, err error) {
	e := encoder{}
	tree, err := e.tree(v, nil)
	if err != nil {
		return nil, nil, err
	}
	text, err = json.Marshal(tree)
	return text, e.unknown, err
}

type encoder struct{ unknown []string }

func (e *encoder) tree(v tftypes.Value, at []any) (any, error) {
	if !v.IsKnown() {
		e.unknown = append(e.unknown, config.JoinPath(at...))
		return nil, nil
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
		if value != nil {
			out[name] = value
		}
	}
	return out, nil
}

func (e *encoder) list(v tftypes.Value, at []any) (any, error) {
	if !v.IsFullyKnown() {
		e.unknown = append(e.unknown, config.JoinPath(at...))
		return nil, nil
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
