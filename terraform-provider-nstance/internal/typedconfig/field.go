// Package typedconfig owns how a shard configuration is written in HCL: the schema of its attributes, and the way from
// attribute values to [config.Shard] and back. All three come from the fields of that type, so that they cannot differ
// from it or from each other.
//
// Names and shapes are those of the JSON document, with these differences:
//   - Durations are texts, as in JSON.
//   - Free trees are texts that hold JSON, in an attribute with the suffix `_json` (`args_json`). The attribute
//     `json` keeps its name.
//   - `groups` is one map with keys `tenant/group`, since Terraform has no maps of maps of objects.
//   - What [excluded] names is not there.
//
// Invariant: for a shard that was read from JSON, Read(Write(shard)) is that shard, but for `$schema` and for what is
// written but empty.
package typedconfig

import (
	"encoding"
	"reflect"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// excluded are the fields without an attribute, by "Type.Field", and why.
func excluded() map[string]string {
	return map[string]string{
		"Shard.Schema":      "it is for editors of the JSON document",
		"GroupSpec.Deleted": "it is the server's own mark on dynamic groups",
	}
}

// kind is how a Go type is written in HCL.
type kind int

const (
	text   kind = iota + 1 // a string that the type itself parses
	scalar                 // string, bool, int
	object
	list      // of scalars or objects
	mapping   // of scalars, lists of scalars, or objects
	flattened // two maps in one, with keys "outer/inner"
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
	empty     bool // an empty text means nil
}

// fieldsOf returns the fields of a config struct that have an attribute, in order.
func fieldsOf(typ reflect.Type) []field {
	var out []field
	without := excluded()
	for _, f := range reflect.VisibleFields(typ) {
		if f.Anonymous {
			continue // its fields follow as the type's own
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		made := field{index: f.Index, name: name, attribute: name, goName: typ.Name() + "." + f.Name, typ: f.Type}
		if _, out := without[made.goName]; out {
			continue
		}
		if kindOf(f.Type) == tree && name != "json" {
			made.attribute += "_json"
		}
		own := len(f.Index) == 1 // else a cloud's, required for that cloud only
		for rule := range strings.SplitSeq(f.Tag.Get("rule"), ",") {
			made.required = made.required || own && rule == "required"
			made.empty = made.empty || rule == "empty"
		}
		out = append(out, made)
	}
	return out
}

// Names returns the names of the attributes at the top, in the order of the document.
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
