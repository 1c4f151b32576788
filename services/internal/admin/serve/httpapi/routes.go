package httpapi

import (
	"maps"
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// route is one method of one path.
type route struct {
	method, path, name, summary string
	// role is the role that a token needs. If it is empty, the route needs no token.
	role record.OperatorRole
	// shards means that the query selects shards.
	shards bool
	// request is the message that the query and the body describe. It is nil for routes that are no call of the
	// operator API.
	request protoreflect.MessageDescriptor
	// query lists the query parameters, except those that select shards. body is the field that has the whole body, or
	// nil if the body has all fields.
	query []parameter
	body  protoreflect.FieldDescriptor
	// oneShard means that the request may select one shard only.
	oneShard bool
	// explainable means that the request can ask for a dry run.
	explainable bool
	answer      func(*document) object // the schema
	do          func(*call) (status int, body any, err error)
	// Routes that stream have the function `follow` instead of `do`. follow sends values of the answer's type, one on
	// each line, until the client disconnects.
	follow func(c *call, request proto.Message, send func(any))
}

// parameter is a field of the request that is a parameter of the query. Its path has more than one field if it is in a
// message in the request.
type parameter []protoreflect.FieldDescriptor

func (p parameter) field() protoreflect.FieldDescriptor { return p[len(p)-1] }

func (p parameter) name() string { return string(p.field().Name()) }

// Health is the answer of GET /health.
type Health struct {
	Status  string `json:"status"`
	Version string `json:"version"`
}

// Routes returns the calls of the operator API that the HTTP API offers, such as "GET /groups".
func Routes() (routes []string) {
	for _, r := range (&api{}).routes() {
		routes = append(routes, r.method+" "+r.path)
	}
	return routes
}

// routes returns all routes. Those of the operator API come from the options of its calls.
func (a *api) routes() []route {
	routes := []route{
		{
			method: http.MethodGet, path: "/health", name: "Health",
			summary: "Whether this process serves requests. Shards do not matter.",
			answer: func(*document) object {
				return schemaOf(object{"status": object{"type": "string", "enum": []string{"ok"}},
					"version": object{"type": "string"}}, "status", "version")
			},
			do: func(*call) (int, any, error) { return http.StatusOK, Health{"ok", a.Version}, nil },
		}, {
			method: http.MethodGet, path: "/openapi.json", name: "OpenAPI", summary: "This document.",
			answer: func(*document) object { return object{"type": "object"} },
			do:     func(*call) (int, any, error) { return http.StatusOK, a.document(), nil },
		},
	}
	calls := nstancev1.OperatorCalls()
	for i := range calls.Len() {
		method := calls.Get(i)
		options := nstancev1.OptionsOf(method)
		verb, path, ok := strings.Cut(options.GetHttp(), " ")
		if !ok {
			continue
		}
		r := route{method: verb, path: path, name: string(method.Name()), summary: nstancev1.Comment(method),
			role: record.OperatorRole(options.GetRole()), shards: true, request: method.Input(),
			body:        method.Input().Fields().ByName(protoreflect.Name(options.GetBody())),
			oneShard:    options.GetOneShard(),
			explainable: fleet.Explainable(method.Input()),
			answer:      func(d *document) object { return d.answer(method.Output()) }}
		if verb == http.MethodGet || r.body != nil {
			r.query = parametersOf(r.request, r.body)
		}
		if method.IsStreamingServer() {
			r.follow, r.answer = a.followEvents, (*document).entry
			r.summary += " Each line of the response is one event. The response ends when the client disconnects. " +
				"Empty lines show that the connection works."
		} else {
			r.do = func(c *call) (int, any, error) { return a.invoke(r, method, c) }
		}
		routes = append(routes, r)
	}
	return routes
}

// parametersOf returns the fields of a message, and those of the messages in it. It leaves out the body, and the pages
// of lists, because the fleet reads all pages.
func parametersOf(message protoreflect.MessageDescriptor, body protoreflect.FieldDescriptor) (all []parameter) {
	for i := range message.Fields().Len() {
		field := message.Fields().Get(i)
		switch {
		case field == body, field.Name() == "page_size", field.Name() == "page_token":
		case fleet.IsMessage(field):
			for _, p := range parametersOf(field.Message(), body) {
				all = append(all, append(parameter{field}, p...))
			}
		default:
			all = append(all, parameter{field})
		}
	}
	return all
}

// object is a JSON object.
type object = map[string]any

// document collects the schemas of the messages that the OpenAPI document refers to. The schemas are JSON Schema
// 2020-12.
type document struct{ schemas object }

// document describes the routes in OpenAPI 3.1.
func (a *api) document() object {
	d := &document{object{
		"Problem": schemaOf(object{"error": object{"type": "string"}}, "error"),
		"Failure": schemaOf(object{"code": about("string", "Canonical gRPC code in lower case"),
			"message": object{"type": "string"}, "hint": about("string", "What to do about it")}, "code", "message"),
	}}
	paths := object{}
	for _, r := range a.routes() {
		path, _ := paths[r.path].(object)
		if path == nil {
			path = object{}
			paths[r.path] = path
		}
		path[strings.ToLower(r.method)] = d.operation(r, len(a.Tokens) > 0)
	}
	return object{
		"openapi": "3.1.0",
		"info": object{
			"title": "nstance-admin", "version": a.Version,
			"description": "The operator API of an Nstance cluster's shards, as JSON. Every answer about shards has " +
				"one entry per shard; an entry with \"error\" failed.",
		},
		"externalDocs": object{"description": "The messages that the schemas' titles name",
			"url": "https://github.com/nstance-kit/nstance/blob/main/docs/reference/rpcs.md"},
		"paths": paths,
		"components": object{"schemas": d.schemas,
			"securitySchemes": object{"bearer": object{"type": "http", "scheme": "bearer"}}},
	}
}

func (d *document) operation(r route, tokens bool) object {
	answer, problem := r.answer(d), reference("Problem")
	if r.explainable {
		preview := d.answer((*nstancev1.ExplainChangeResponse)(nil).ProtoReflect().Descriptor())
		answer = object{"anyOf": []any{answer, preview}}
	}
	responses := object{"200": response("Done.", answer), "default": response("The request was refused.", problem)}
	if r.follow != nil {
		responses["200"] = object{"description": "Each line is one object.",
			"content": object{"application/x-ndjson": object{"schema": answer}}}
	} else if r.shards {
		for status, about := range problems {
			responses[strconv.Itoa(status)] = response(about, object{"anyOf": []any{answer, problem}})
		}
	}
	out := object{"operationId": r.name, "summary": r.summary, "responses": responses}
	if r.role != "" {
		responses["401"] = response("The request has no token, or a wrong one.", problem)
		if tokens {
			out["security"] = []any{object{"bearer": []any{}}}
		}
	}
	var parameters []any
	add := func(name, description string, schema object) {
		parameters = append(parameters, object{"name": name, "in": "query", "description": description,
			"schema": schema})
	}
	if r.shards {
		add(shardParameter, "The shard to ask. Not needed if there is only one.", object{"type": "string"})
		add(allParameter, "Ask every shard.", object{"type": "boolean"})
	}
	if r.explainable {
		add(dryParameter, "Answer what the leaders would do, and change nothing.", object{"type": "boolean"})
	}
	for _, p := range r.query {
		add(p.name(), nstancev1.Comment(p.field()), d.field(p.field()))
	}
	if parameters != nil {
		out["parameters"] = parameters
	}
	if r.method == "POST" {
		var schema any = config.PatchSchema()
		if r.body == nil {
			properties := object{}
			for _, p := range parametersOf(r.request, nil) {
				properties[p.name()] = described(d.field(p.field()), p.field())
			}
			schema = schemaOf(properties)
		}
		out["requestBody"] = object{"content": object{"application/json": object{"schema": schema}}}
	}
	return out
}

// answer returns the schema of the answers of shards with a message. An answer has the members of the message beside
// the name of the shard, or only an error.
func (d *document) answer(message protoreflect.MessageDescriptor) object {
	name := strings.TrimSuffix(string(message.Name()), "Response") + "Answers" // not the name of the message itself
	if d.schemas[name] == nil {
		one := d.message(message)
		maps.Copy(one["properties"].(object), object{"shard": object{"type": "string"}, "error": reference("Failure")})
		one["required"] = []string{"shard"}
		d.schemas[name] = schemaOf(object{"shards": object{"type": "array", "items": one}}, "shards")
	}
	return reference(name)
}

// entry returns the schema of a line of GET /events/follow.
func (d *document) entry() object {
	entry := d.message((*nstancev1.JournalEvent)(nil).ProtoReflect().Descriptor())
	entry["properties"].(object)["shard"] = object{"type": "string"}
	entry["required"] = append(entry["required"].([]string), "shard")
	connection := schemaOf(object{"shard": object{"type": "string"}, "error": reference("Failure"),
		"connected": object{"type": "boolean"}}, "shard", "connected")
	return object{"anyOf": []any{entry, connection}}
}

// refer returns a reference to the schema of a message.
func (d *document) refer(message protoreflect.MessageDescriptor) object {
	name := string(message.Name())
	if message.Parent() != message.ParentFile() {
		name = string(message.Parent().Name()) + name
	}
	if d.schemas[name] == nil {
		d.schemas[name] = object{} // ends recursion
		d.schemas[name] = d.message(message)
	}
	return reference(name)
}

// message returns the schema of a message. Its title is the message's name in docs/reference/rpcs.md.
func (d *document) message(message protoreflect.MessageDescriptor) object {
	properties, required := object{}, []string{}
	for i := range message.Fields().Len() {
		field := message.Fields().Get(i)
		name := fleet.JSONName(field)
		if name == "" {
			continue
		}
		properties[name] = described(d.field(field), field)
		if !field.HasPresence() {
			required = append(required, name)
		}
	}
	s := schemaOf(properties, required...)
	s["title"] = string(message.Name())
	return s
}

func (d *document) field(field protoreflect.FieldDescriptor) object {
	s := object{"type": "integer"}
	switch kind := field.Kind(); {
	case fleet.JSONName(field) != string(field.Name()): // any JSON
		s = object{}
	case field.IsMap():
		return object{"type": "object", "additionalProperties": d.field(field.MapValue())}
	case fleet.IsMessage(field):
		s = d.refer(field.Message())
	case kind == protoreflect.EnumKind:
		var names []string
		for i := range field.Enum().Values().Len() {
			names = append(names, string(field.Enum().Values().Get(i).Name()))
		}
		s = object{"type": "string", "enum": names}
	case kind == protoreflect.BoolKind:
		s["type"] = "boolean"
	case kind == protoreflect.DoubleKind:
		s["type"] = "number"
	case kind == protoreflect.MessageKind && field.Message().Name() == "Timestamp":
		s = object{"type": "string", "format": "date-time"}
	case kind == protoreflect.StringKind, kind == protoreflect.MessageKind:
		s["type"] = "string"
	}
	if field.IsList() {
		return object{"type": "array", "items": s}
	}
	return s
}

// described adds the comment of a field to its schema.
func described(s object, field protoreflect.FieldDescriptor) object {
	if comment := nstancev1.Comment(field); comment != "" {
		s["description"] = comment
	}
	return s
}

func about(kind, description string) object { return object{"type": kind, "description": description} }

func reference(name string) object { return object{"$ref": "#/components/schemas/" + name} }

// schemaOf returns the schema of an object without other properties.
func schemaOf(properties object, required ...string) object {
	s := object{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

func response(description string, schema any) object {
	return object{"description": description, "content": object{"application/json": object{"schema": schema}}}
}
