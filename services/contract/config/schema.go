package config

import (
	_ "embed"
	"encoding/json"
	"reflect"
	"strings"
)

//go:generate go test -run ^TestGenerated$ . -update

// fieldDocs holds the comments of fields: those of the config types by "Type.Field", and those of the clouds' packages
// by "package.Type.Field". The tests of this package generate the file from the source if they run with -update.
//
//go:embed fielddocs.json
var fieldDocs []byte

// schemaDialect is the version of JSON Schema that Schema uses.
const schemaDialect = "https://json-schema.org/draft/2020-12/schema"

// Schema returns the JSON Schema of `config/{shard}.jsonc` for editors: fields, types, allowed values, defaults and
// descriptions. It is weaker than [Parse], because it has no rules that involve more than one field.
func Schema() []byte {
	b := schemaBuilder{docs: docs(), defs: map[string]any{}}
	root := b.object(reflect.TypeFor[Shard]())
	root["$schema"] = schemaDialect
	root["title"] = "Nstance shard configuration"
	root["$defs"] = b.defs
	return encode(root, "  ")
}

// PatchSchema returns the JSON Schema of a [Patch], without references.
func PatchSchema() map[string]any {
	b := schemaBuilder{docs: docs()}
	out := b.object(reflect.TypeFor[GroupSpec]())
	properties, _ := out["properties"].(map[string]any)
	for _, name := range serverFields {
		delete(properties, name)
	}
	asPatch(out)
	return out
}

// asPatch changes the schema of an object so that no member is required, and that null removes each.
func asPatch(object map[string]any) {
	delete(object, "required")
	removable := func(member map[string]any) {
		asPatch(member)
		if kind, ok := member["type"].(string); ok {
			member["type"] = []any{kind, "null"}
		}
		if values, ok := member["enum"].([]string); ok {
			all := []any{nil}
			for _, value := range values {
				all = append(all, value)
			}
			member["enum"] = all
		}
		if either, ok := member["anyOf"].([]any); ok {
			member["anyOf"] = append(either, map[string]any{"type": "null"})
		}
	}
	properties, _ := object["properties"].(map[string]any)
	for _, member := range properties {
		removable(member.(map[string]any))
	}
	if member, ok := object["additionalProperties"].(map[string]any); ok {
		removable(member)
	}
}

func docs() map[string]string {
	var out map[string]string
	if err := json.Unmarshal(fieldDocs, &out); err != nil {
		panic("config: fielddocs.json: " + err.Error())
	}
	return out
}

type schemaBuilder struct {
	docs map[string]string
	defs map[string]any // nil: the schemas of structs are written where they are used
}

// object describes a config struct.
func (b schemaBuilder) object(typ reflect.Type) map[string]any {
	properties := map[string]any{}
	var required []string
	for _, f := range fieldsOf(typ) {
		property := b.field(f)
		if doc := b.docs[f.doc]; doc != "" {
			property["description"] = doc
		}
		properties[f.name] = property
		if f.required {
			required = append(required, f.name)
		}
	}
	out := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if required != nil {
		out["required"] = required
	}
	return out
}

func (b schemaBuilder) field(f field) map[string]any {
	out := b.value(f.Type)
	if f.enum != nil {
		out["enum"] = f.enum
	}
	if value, ok := f.fallbackValue(); ok {
		out["default"] = value.Interface()
	}
	switch {
	case f.positive && out["type"] == "integer":
		out["minimum"] = 1
	case f.nonnegative:
		out["minimum"] = 0
	case f.empty:
		out = map[string]any{"anyOf": []any{map[string]any{"const": ""}, out}}
	}
	if f.required && (out["type"] == "string" || out["type"] == "array" || out["type"] == "object" &&
		out["additionalProperties"] != nil) {
		out[map[any]string{"string": "minLength", "array": "minItems", "object": "minProperties"}[out["type"]]] = 1
	}
	return out
}

func (b schemaBuilder) value(typ reflect.Type) map[string]any {
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if typ == reflect.TypeFor[Duration]() {
		return map[string]any{"type": "string", "pattern": `^([0-9.]+d)?([0-9.]+(h|m|s|ms|us|µs|ns))*$`, "minLength": 1}
	}
	switch typ.Kind() {
	case reflect.Struct:
		if b.defs == nil {
			return b.object(typ)
		}
		name := strings.ToLower(typ.Name()[:1]) + typ.Name()[1:]
		if _, known := b.defs[name]; !known {
			b.defs[name] = nil // types are not recursive, but each name is described only once
			b.defs[name] = b.object(typ)
		}
		return map[string]any{"$ref": "#/$defs/" + name}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": b.value(typ.Elem())}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": b.value(typ.Elem())}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int:
		return map[string]any{"type": "integer"}
	default: // any JSON value
		return map[string]any{}
	}
}
