package typedconfig

import (
	"encoding/json"
	"reflect"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// Attributes returns the schema of all top-level attributes, which are optional here. The resource checks which
// attributes are required.
func Attributes() map[string]schema.Attribute {
	b := builder{docs: docs()}
	out := b.attributes(reflect.TypeFor[config.Shard](), false)
	return out
}

// document is the part of package config's JSON Schema that is needed to describe the fields.
type document struct {
	Properties map[string]struct {
		Description string   `json:"description"`
		Default     any      `json:"default"`
		Enum        []string `json:"enum"`
	} `json:"properties"`
	Defs map[string]document `json:"$defs"`
}

// docs returns the descriptions of the fields of each type.
func docs() document {
	var out document
	if err := json.Unmarshal(config.Schema(), &out); err != nil {
		panic("typedconfig: " + err.Error()) // not reached: the schema is constant
	}
	return out
}

func (d document) describe(typ reflect.Type, f field) string {
	of := d
	if typ != reflect.TypeFor[config.Shard]() {
		of = d.Defs[strings.ToLower(typ.Name()[:1])+typ.Name()[1:]]
	}
	p := of.Properties[f.name]
	out := p.Description
	if len(p.Enum) > 0 {
		out += " One of `" + strings.Join(p.Enum, "`, `") + "`."
	}
	if p.Default != nil {
		value, err := json.Marshal(p.Default)
		if err != nil {
			panic("typedconfig: " + err.Error())
		}
		out += " Default: `" + string(value) + "`."
	}
	switch kindOf(f.typ) {
	case tree:
		out += " A JSON text, as `jsonencode` makes it."
	case flattened:
		out += " Keys are `tenant/name`."
	}
	return out
}

type builder struct{ docs document }

func (b builder) attributes(typ reflect.Type, required bool) map[string]schema.Attribute {
	out := map[string]schema.Attribute{}
	for _, f := range fieldsOf(typ) {
		out[f.attribute] = b.attribute(f.typ, b.docs.describe(typ, f), required && f.required)
	}
	return out
}

func (b builder) attribute(typ reflect.Type, doc string, required bool) schema.Attribute {
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	switch kindOf(typ) {
	case object:
		return schema.SingleNestedAttribute{Attributes: b.attributes(typ, true), MarkdownDescription: doc,
			Required: required, Optional: !required}
	case list:
		if kindOf(typ.Elem()) == object {
			return schema.ListNestedAttribute{NestedObject: b.nested(typ.Elem()), MarkdownDescription: doc,
				Required: required, Optional: !required}
		}
		return schema.ListAttribute{ElementType: elementType(typ.Elem()), MarkdownDescription: doc, Required: required,
			Optional: !required}
	case mapping:
		if kindOf(typ.Elem()) == object {
			return schema.MapNestedAttribute{NestedObject: b.nested(typ.Elem()), MarkdownDescription: doc,
				Required: required, Optional: !required}
		}
		return schema.MapAttribute{ElementType: elementType(typ.Elem()), MarkdownDescription: doc, Required: required,
			Optional: !required}
	case flattened:
		return schema.MapNestedAttribute{NestedObject: b.nested(typ.Elem().Elem()), MarkdownDescription: doc,
			Required: required, Optional: !required}
	case scalar:
		switch typ.Kind() {
		case reflect.Bool:
			return schema.BoolAttribute{MarkdownDescription: doc, Required: required, Optional: !required}
		case reflect.Int:
			return schema.Int64Attribute{MarkdownDescription: doc, Required: required, Optional: !required}
		}
	}
	return schema.StringAttribute{MarkdownDescription: doc, Required: required, Optional: !required}
}

func (b builder) nested(typ reflect.Type) schema.NestedAttributeObject {
	return schema.NestedAttributeObject{Attributes: b.attributes(typ, true)}
}

// elementType returns the element type of lists and maps that do not hold objects.
func elementType(typ reflect.Type) attr.Type {
	if kindOf(typ) == list {
		return types.ListType{ElemType: elementType(typ.Elem())}
	}
	return types.StringType
}
