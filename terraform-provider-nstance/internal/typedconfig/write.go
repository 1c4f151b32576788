package typedconfig

import (
	"encoding"
	"encoding/json"
	"reflect"

	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// Write returns the top-level attributes by name, with their values. types has each attribute's type in the resource's
// schema. Fields that are not set become null.
func Write(s *config.Shard, types map[string]tftypes.Type) map[string]tftypes.Value {
	return write(reflect.ValueOf(s).Elem(), types)
}

func write(v reflect.Value, types map[string]tftypes.Type) map[string]tftypes.Value {
	out := map[string]tftypes.Value{}
	for _, f := range fieldsOf(v.Type()) {
		out[f.attribute] = value(v.FieldByIndex(f.index), types[f.attribute])
	}
	return out
}

func value(v reflect.Value, typ tftypes.Type) tftypes.Value {
	switch {
	case v.IsZero():
		return tftypes.NewValue(typ, nil)
	case v.Kind() == reflect.Pointer:
		v = v.Elem()
	}
	return content(v, typ)
}

// content returns the value of a list element or of the target of a pointer. A zero value counts as set.
func content(v reflect.Value, typ tftypes.Type) tftypes.Value {
	switch kindOf(v.Type()) {
	case text:
		s, err := v.Interface().(encoding.TextMarshaler).MarshalText()
		if err != nil {
			panic("typedconfig: " + err.Error()) // not reached: the shard is valid
		}
		return tftypes.NewValue(typ, string(s))
	case scalar:
		if v.Kind() == reflect.Int {
			return tftypes.NewValue(typ, v.Int())
		}
		return tftypes.NewValue(typ, v.Interface())
	case object:
		attributes := map[string]tftypes.Value{}
		for _, f := range fieldsOf(v.Type()) {
			attributes[f.attribute] = value(v.FieldByIndex(f.index), typ.(tftypes.Object).AttributeTypes[f.attribute])
		}
		return tftypes.NewValue(typ, attributes)
	case list:
		elements := make([]tftypes.Value, v.Len())
		for i := range elements {
			elements[i] = content(v.Index(i), typ.(tftypes.List).ElementType)
		}
		return tftypes.NewValue(typ, elements)
	case mapping, flattened:
		entries := map[string]tftypes.Value{}
		for _, key := range v.MapKeys() {
			elem := v.MapIndex(key)
			if kindOf(v.Type()) == mapping {
				entries[key.String()] = content(elem, typ.(tftypes.Map).ElementType)
				continue
			}
			for _, inner := range elem.MapKeys() {
				entries[key.String()+"/"+inner.String()] = content(elem.MapIndex(inner), typ.(tftypes.Map).ElementType)
			}
		}
		return tftypes.NewValue(typ, entries)
	default:
		s, err := json.Marshal(v.Interface())
		if err != nil {
			panic("typedconfig: " + err.Error()) // not reached: the shard is valid
		}
		return tftypes.NewValue(typ, string(s))
	}
}
