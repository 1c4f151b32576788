package httpapi

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"

	"github.com/invopop/jsonschema"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// document describes the routes in OpenAPI 3.1. Its schemas are JSON Schema 2020-12.
func (a *api) document() map[string]any {
	paths := map[string]any{}
	for _, r := range a.routes() {
		path, _ := paths[r.path].(map[string]any)
		if path == nil {
			path = map[string]any{}
			paths[r.path] = path
		}
		path[strings.ToLower(r.method)] = a.operation(r)
	}
	return map[string]any{
		"openapi": "3.1.0",
		"info": map[string]any{
			"title": "nstance-admin", "version": a.Version,
			"description": "The operator API of an Nstance cluster's shards, as JSON. Every answer about shards has " +
				"one entry per shard; an entry with \"error\" failed.",
		},
		"externalDocs": map[string]any{"description": "The messages that the schemas' titles name",
			"url": "https://github.com/nstance-kit/nstance/blob/main/docs/reference/rpcs.md"},
		"paths": paths,
		"components": map[string]any{"securitySchemes": map[string]any{"bearer": map[string]any{"type": "http",
			"scheme": "bearer"}}},
	}
}

func (a *api) operation(r route) map[string]any {
	answer := func(about string, value any) map[string]any {
		return map[string]any{"description": about, "content": map[string]any{
			"application/json": map[string]any{"schema": schema(value)}}}
	}
	responses := map[string]any{"200": answer("Done.", r.answer), "default": answer("The request was refused.",
		Problem{})}
	if r.follow != nil {
		responses["200"] = map[string]any{"description": "Each line is one object.", "content": map[string]any{
			"application/x-ndjson": map[string]any{"schema": map[string]any{
				"anyOf": []any{schema(r.answer), schema(Connection{})}}}}}
	} else if r.shards {
		for status, about := range map[int]string{
			400: "Refused by the shard, or the request is malformed.",
			403: "The shard's configuration does not permit the request, or the operator was removed.",
			404: "The shard does not have the group or instance, or there is no such shard.",
			409: "The request conflicts with the present state.",
			429: "The tenant's quota is used up, or the shard has too much to do.",
			502: "One or more of several shards failed, or the shard refuses the certificate of this server.",
			503: "The shard cannot be reached.", 504: "The shard did not answer in time.",
		} {
			either := answer(about, nil)
			either["content"] = map[string]any{"application/json": map[string]any{
				"schema": map[string]any{"anyOf": []any{schema(r.answer), schema(Problem{})}}}}
			responses[strconv.Itoa(status)] = either
		}
	}
	out := map[string]any{"operationId": r.name, "summary": r.summary, "responses": responses}
	if !r.open {
		responses["401"] = answer("The request has no token, or a wrong one.", Problem{})
		if len(a.Tokens) > 0 {
			out["security"] = []any{map[string]any{"bearer": []any{}}}
		}
	}
	if parameters := r.parameters(); len(parameters) > 0 {
		var list []any
		for _, p := range parameters {
			list = append(list, map[string]any{"name": p.name, "in": "query", "description": p.about,
				"schema": map[string]any{"type": p.kind}})
		}
		out["parameters"] = list
	}
	if r.body != nil {
		out["requestBody"] = map[string]any{"required": true, "content": map[string]any{
			"application/json": map[string]any{"schema": schema(r.body)}}}
	}
	return out
}

// schema returns the schema of a value's type.
func schema(value any) any {
	if value == nil {
		return map[string]any{}
	}
	if _, ok := value.(GroupPatch); ok {
		return config.PatchSchema()
	}
	if reflect.TypeOf(value).Kind() == reflect.Map {
		return map[string]any{"type": "object"}
	}
	reflector := jsonschema.Reflector{Anonymous: true, DoNotReference: true, Mapper: mapped}
	s := reflector.Reflect(value)
	s.Version = ""
	text, err := json.Marshal(s)
	if err != nil {
		panic("httpapi: a type has no schema: " + err.Error()) // a test covers the schemas of all types
	}
	return json.RawMessage(text)
}

// mapped returns the schema of a type that holds a message of the protocol, and nil for other types. A shard's answer
// has the members of the message beside its own. It requires only the shard, because an answer that failed has only an
// error besides.
func mapped(typ reflect.Type) *jsonschema.Schema {
	value, ok := reflect.Zero(typ).Interface().(interface {
		Descriptor() protoreflect.MessageDescriptor
	})
	if !ok || typ.Kind() != reflect.Struct {
		return nil
	}
	reflector := jsonschema.Reflector{Anonymous: true, DoNotReference: true}
	s := reflector.ReflectFromType(typ)
	s.Version = ""
	addFields(s, value.Descriptor())
	if _, ok := s.Properties.Get("shard"); ok {
		s.Required = []string{"shard"}
	}
	return s
}

// addFields adds the fields of a message to a schema, and the message's name in docs/reference/rpcs.md.
func addFields(s *jsonschema.Schema, message protoreflect.MessageDescriptor) {
	s.Title = string(message.Name())
	fields := message.Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		name := fleet.JSONName(field)
		if name == "" {
			continue
		}
		s.Properties.Set(name, fieldSchema(field))
		if !field.HasPresence() {
			s.Required = append(s.Required, name)
		}
	}
}

func fieldSchema(field protoreflect.FieldDescriptor) *jsonschema.Schema {
	s := &jsonschema.Schema{}
	switch {
	case fleet.JSONName(field) != string(field.Name()): // any JSON
	case field.IsMap():
		s.Type, s.AdditionalProperties = "object", fieldSchema(field.MapValue())
	case fleet.IsMessage(field):
		s.Type, s.Properties, s.AdditionalProperties = "object", jsonschema.NewProperties(), jsonschema.FalseSchema
		addFields(s, field.Message())
	case field.Kind() == protoreflect.EnumKind:
		s.Type = "string"
		for i := range field.Enum().Values().Len() {
			s.Enum = append(s.Enum, field.Enum().Values().Get(i).Name())
		}
	case field.Kind() == protoreflect.BoolKind:
		s.Type = "boolean"
	case field.Kind() == protoreflect.DoubleKind:
		s.Type = "number"
	case field.Message() != nil && field.Message().Name() == "Timestamp":
		s.Type, s.Format = "string", "date-time"
	case field.Kind() == protoreflect.StringKind, field.Kind() == protoreflect.MessageKind:
		s.Type = "string"
	default:
		s.Type = "integer"
	}
	if field.IsList() {
		return &jsonschema.Schema{Type: "array", Items: s}
	}
	return s
}
