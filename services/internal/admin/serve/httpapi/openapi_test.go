package httpapi_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	jsonschemacheck "github.com/santhosh-tekuri/jsonschema/v6"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/internal/admin/serve/httpapi"
)

// The OpenAPI document describes every path, and every answer matches the schema of its path.
func TestOpenAPI(t *testing.T) {
	x := newAPI(t, "alice "+alice)
	x.b.Before = func(string) error { return status.Error(codes.Unavailable, "down") }
	_, text, _ := x.do(t, request{method: "GET", path: "/openapi.json"})
	var document struct {
		OpenAPI    string `json:"openapi"`
		Components json.RawMessage
		Paths      map[string]map[string]struct {
			OperationID string `json:"operationId"`
			Parameters  []struct{ Name, In string }
			RequestBody struct {
				Content map[string]struct{ Schema json.RawMessage }
			}
			Security  []map[string][]string
			Responses map[string]struct {
				Description string
				Content     map[string]struct{ Schema json.RawMessage }
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &document); err != nil {
		t.Fatal(err)
	}
	specification, err := os.ReadFile("testdata/openapi-3.1.schema.json") // of spec.openapis.org, 2022-10-07
	if err != nil {
		t.Fatal(err)
	}
	check(t, specification, text)
	bodies := map[string]string{
		"/group":            `{"rollout": {"canary": 1}, "vars": {"a": null}, "purchase": null, "args": {"x": null}}`,
		"/group/delete":     `{"group": "workers"}`,
		"/group/pause":      `{"group": "workers"}`,
		"/group/resume":     `{"group": "workers"}`,
		"/group/roll":       `{"group": "workers"}`,
		"/orphans/confirm":  `{"provider_ids": ["vm-1"]}`,
		"/instance/create":  `{"group": "workers", "instance_type": "big", "vars": {"a": "b"}}`,
		"/instance/protect": `{"instance_id": "` + first + `", "off": true}`,
		"/instance/release": `{"instance_id": "` + first + `"}`,
		"/instance/delete":  `{"instance_id": "` + first + `", "decrement": true}`,
		"/config/refresh":   `{}`,
		"/server/step-down": `{}`,
	}
	required := map[string]string{"/group": "&group=workers", "/group/explain": "&group=workers",
		"/instance": "&instance_id=" + first}
	auth := map[string]string{"Authorization": "Bearer " + alice}
	var described []string
	for path, methods := range document.Paths {
		for method, operation := range methods {
			described = append(described, strings.ToUpper(method)+" "+path)
			if path == "/events/follow" { // TestFollow reads it
				continue
			}
			query, requests := "?", []request{}
			for _, p := range operation.Parameters {
				if p.In != "query" {
					t.Errorf("%s: %+v", path, p)
				}
				if p.Name == "shard" {
					query = "?shard="
				}
			}
			if query == "?" {
				requests = append(requests, request{method: strings.ToUpper(method), path: path})
			} else {
				for _, query := range []string{"?shard=a", "?shard=b", "?all_shards=true", "?shard=nowhere", "?"} {
					requests = append(requests, request{method: strings.ToUpper(method),
						path: path + query + required[path]})
				}
			}
			for _, r := range requests {
				if operation.RequestBody.Content != nil {
					r.body = bodies[path]
					check(t, within(document.Components, operation.RequestBody.Content["application/json"].Schema),
						r.body)
				}
				for _, header := range []map[string]string{auth, nil} {
					r.header = header
					status, body, _ := x.do(t, r)
					if header == nil && (status == 401) != (len(operation.Security) > 0) {
						t.Errorf("%s without a token: %d, described as %v", r.path, status, operation.Security)
					}
					key := http.StatusText(status)
					response, ok := operation.Responses[itoa(status)]
					if !ok {
						response, ok = operation.Responses["default"]
					}
					if !ok || response.Description == "" {
						t.Errorf("%s %s: %d %s is not described", r.method, r.path, status, key)
						continue
					}
					check(t, within(document.Components, response.Content["application/json"].Schema), body)
				}
			}
		}
	}
	slices.Sort(described)
	want := httpapi.Routes()
	slices.Sort(want)
	if diff := cmp.Diff(want, described); diff != "" || document.OpenAPI != "3.1.0" {
		t.Error(document.OpenAPI, diff)
	}
}

// within returns a schema that may refer to the components of the OpenAPI document.
func within(components, schema json.RawMessage) json.RawMessage {
	return slices.Concat([]byte(`{"components":`), components, []byte(`,"allOf":[`), schema, []byte(`]}`))
}

func itoa(n int) string {
	text, _ := json.Marshal(n) // encoding a number cannot fail
	return string(text)
}

// check validates a document against a schema.
func check(t *testing.T, schema json.RawMessage, document string) {
	t.Helper()
	parsed, err := jsonschemacheck.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		t.Fatalf("%v in %s", err, schema)
	}
	compiler := jsonschemacheck.NewCompiler()
	if err := compiler.AddResource("schema.json", parsed); err != nil {
		t.Fatal(err)
	}
	compiled, err := compiler.Compile("schema.json")
	if err != nil {
		t.Fatalf("%v in %s", err, schema)
	}
	instance, err := jsonschemacheck.UnmarshalJSON(strings.NewReader(document))
	if err != nil {
		t.Fatal(err)
	}
	if err := compiled.Validate(instance); err != nil {
		t.Errorf("%v\n%s", err, document)
	}
}
