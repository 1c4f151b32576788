// Package typedconfig maps a shard configuration to and from HCL attributes. It derives the attribute schema, [Read]
// and [Write] from the fields of [config.Shard], so these stay consistent with that type.
//
// Names and shapes are those of the JSON document, with these differences:
//   - Durations are strings, as in JSON.
//   - Free-form trees are strings that hold JSON. Their attribute has the suffix `_json`, such as `args_json`. The
//     attribute `json` keeps its name.
//   - `groups` is one map with keys `tenant/group`, because Terraform has no maps of maps of objects.
//   - The fields that [excluded] returns have no attribute.
//
// Invariant: for a shard that was read from JSON, Read(Write(shard)) equals that shard, except for `$schema` and for
// values that are set but empty.
package typedconfig

import (
	"encoding"
	"reflect"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// excluded returns the fields that have no attribute, as "Type.Field", with the reason.
func excluded() map[string]string {
	return map[string]string{
		"Shard.Schema":        "the field is for editors of the JSON document",
		"GroupSpec.Deleted":   "only the server sets this field, on dynamic groups",
		"GroupSpec.Removed":   "only the server sets this field, in groups/",
		"GroupSpec.Protected": "only the server sets this field, in groups/",
	}
}

// kind is the way in which HCL represents a Go type.
type kind int

const (
	text   kind = iota + 1 // a string that the type itself parses
	scalar                 // string, bool or int
	object
	list      // of scalars or objects
	mapping   // of scalars, lists of scalars, or objects
	flattened // two nested maps as one map with keys "outer/inner"
	tree      // any JSON value
)

// field is one field of a config struct.
type field struct {
	index     []int  // see [reflect.Value.FieldByIndex]
	name      string // in JSON
	attribute string // in HCL
	goName    string // "Type.Field"
	typ       reflect.Type
	required  bool
	empty     bool // an empty string means nil
}

// fieldsOf returns those fields of a config struct that have an attribute, in the order of their declaration.
func fieldsOf(typ reflect.Type) []field {
	var out []field
	without := excluded()
	for _, f := range reflect.VisibleFields(typ) {
		if f.Anonymous {
			continue // VisibleFields also lists the promoted fields
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		made := field{index: f.Index, name: name, attribute: name, goName: typ.Name() + "." + f.Name, typ: f.Type}
		if _, out := without[made.goName]; out {
			continue
		}
		if kindOf(f.Type) == tree && name != "json" {
			made.attribute += "_json"
		}
		own := len(f.Index) == 1 // a promoted field belongs to one cloud and is required for that cloud only
		for rule := range strings.SplitSeq(f.Tag.Get("rule"), ",") {
			made.required = made.required || own && rule == "required"
			made.empty = made.empty || rule == "empty"
		}
		out = append(out, made)
	}
	return out
}

// Names returns the names of the top-level attributes, in the order of the fields of [config.Shard].
func Names() []string {
	var out []string
	for _, f := range fieldsOf(reflect.TypeFor[config.Shard]()) {
		out = append(out, f.attribute)
	}
	return out
}

func kindOf(typ reflect.Type) kind {
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if reflect.PointerTo(typ).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return text
	}
	switch typ.Kind() {
	case reflect.String, reflect.Bool, reflect.Int:
		return scalar
	case reflect.Struct:
		return object
	case reflect.Slice:
		return list
	case reflect.Interface:
		return tree
	case reflect.Map:
		switch elem := typ.Elem(); {
		case elem.Kind() == reflect.Interface:
			return tree
		case elem.Kind() == reflect.Map && elem.Elem().Kind() == reflect.Struct:
			return flattened
		}
		return mapping
	}
	panic("typedconfig: no attribute for a " + typ.String())
}
