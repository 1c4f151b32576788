package httpapi

import (
	"net/http"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
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
	answer   func(*document) object // the schema
	do       func(*call) (status int, body any, err error)
	// Routes that stream have the function `follow` instead of `do`. follow sends values of the answer's type, one on
	// each line, until the client disconnects.
	follow func(c *call, send func(any))
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
		}, {
			method: http.MethodGet, path: "/events/follow", name: "FollowShards", shards: true,
			role: record.RoleViewer, summary: "What happens in shards, one event on each line, beginning with the " +
				"present state. The response ends when the client disconnects. Empty lines show that the connection " +
				"works.",
			answer: (*document).event, follow: a.followEvents,
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
			body:     method.Input().Fields().ByName(protoreflect.Name(options.GetBody())),
			oneShard: options.GetOneShard(),
			answer:   func(d *document) object { return d.answer(method.Output()) }}
		if verb == http.MethodGet || r.body != nil {
			r.query = parametersOf(r.request, r.body)
		}
		r.do = func(c *call) (int, any, error) { return a.invoke(r, method, c) }
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
