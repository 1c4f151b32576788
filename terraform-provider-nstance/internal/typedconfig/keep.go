package typedconfig

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"

	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// Keep returns the attributes in next, the result of [Write]. Where a value in `before` encodes to the same document,
// it returns that value instead, at any depth. So a refresh changes only what differs in the bucket, and an empty list,
// a null and another form of a number or duration count as equal.
func Keep(before, next map[string]tftypes.Value) map[string]tftypes.Value {
	return keep(before, next, reflect.TypeFor[config.Shard]())
}

func keep(before, next map[string]tftypes.Value, typ reflect.Type) map[string]tftypes.Value {
	out := map[string]tftypes.Value{}
	for _, f := range fieldsOf(typ) {
		a, there := before[f.attribute]
		b := next[f.attribute]
		switch {
		case !there:
			out[f.attribute] = b
		case sameField(typ, f, a, b):
			out[f.attribute] = a
		default:
			out[f.attribute] = keepBelow(a, b, f.typ)
		}
	}
	return out
}

// sameField reports whether two values of one attribute encode to the same document.
func sameField(typ reflect.Type, f field, a, b tftypes.Value) bool {
	first, ok := encodeField(typ, f, a)
	second, ok2 := encodeField(typ, f, b)
	return ok && ok2 && bytes.Equal(first, second)
}

func encodeField(typ reflect.Type, f field, v tftypes.Value) ([]byte, bool) {
	r, target := Reading{}, reflect.New(typ).Elem()
	r.fields(map[string]tftypes.Value{f.attribute: v}, nil, target)
	if len(r.Unknown)+len(r.malformed) > 0 {
		return nil, false
	}
	text, err := json.Marshal(target.Interface())
	return text, err == nil
}

// keepBelow is [keep] for the objects in two values of one attribute.
func keepBelow(a, b tftypes.Value, typ reflect.Type) tftypes.Value {
	if !a.IsKnown() || a.IsNull() || !b.IsKnown() || b.IsNull() {
		return b
	}
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	switch kindOf(typ) {
	case object:
		var from, to map[string]tftypes.Value
		if a.As(&from) == nil && b.As(&to) == nil {
			return tftypes.NewValue(b.Type(), keep(from, to, typ))
		}
	case list:
		var from, to []tftypes.Value
		if a.As(&from) == nil && b.As(&to) == nil && len(from) == len(to) {
			for i := range to {
				to[i] = keepBelow(from[i], to[i], typ.Elem())
			}
			return tftypes.NewValue(b.Type(), to)
		}
	case mapping, flattened:
		elem := typ.Elem()
		if kindOf(typ) == flattened {
			elem = elem.Elem()
		}
		var from, to map[string]tftypes.Value
		if a.As(&from) == nil && b.As(&to) == nil {
			for key := range to {
				if v, ok := from[key]; ok {
					to[key] = keepBelow(v, to[key], elem)
				}
			}
			return tftypes.NewValue(b.Type(), to)
		}
	}
	return b
}

// IsLeaderAddress reports whether the value at a path only concerns the leader's addresses, so that no group depends on
// it.
func IsLeaderAddress(at string) bool {
	for _, prefix := range []string{"server.leader_network", "server.bind", "server.advertise"} {
		if rest, ok := strings.CutPrefix(at, prefix); ok && (rest == "" || rest[0] == '.') {
			return true
		}
	}
	return false
}
