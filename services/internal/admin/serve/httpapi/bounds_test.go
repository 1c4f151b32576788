package httpapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// schemaOf is the part of a JSON schema that TestEveryPartOfARequestIsBounded needs.
type schemaOf struct {
	Type                 any
	Properties           map[string]schemaOf
	Items                *schemaOf
	AdditionalProperties json.RawMessage
}

// huge returns values that fit the type of the schema but are much too large, and what is too large in each.
func (s schemaOf) huge() map[string]any {
	const size = 50 << 10 // the body may have 64 KiB
	kind := s.Type
	if either, ok := kind.([]any); ok && len(either) == 2 && either[1] == "null" {
		kind = either[0]
	}
	switch kind {
	case "string":
		return map[string]any{"a text": strings.Repeat("x", size)}
	case "integer":
		return map[string]any{"a number": json.Number(strings.Repeat("9", size))}
	case "array":
		values := map[string]any{"a list": strings.Split(strings.Repeat("x", size/4), "")}
		for what, entry := range s.Items.huge() {
			values["an entry that is "+what] = []any{entry}
		}
		return values
	case "object":
		entries := map[string]string{}
		for n := range size / 16 {
			entries[fmt.Sprintf("k%d", n)] = "x"
		}
		values := map[string]any{"a map": entries, "a name in a map": map[string]string{strings.Repeat("x", size): "x"}}
		return values
	}
	return nil
}

// TestEveryPartOfARequestIsBounded sends requests of every route with one query parameter, one field of the body, or
// one part of the request that is not described, and that is much too large. Each is refused in few words before a
// shard is called. The OpenAPI document names the routes, the parameters and the fields.
func TestEveryPartOfARequestIsBounded(t *testing.T) {
	const most = 2048 // bytes of an answer, or of a line in the log
	x := newAPI(t, "ci "+ci+" admin")
	_, text, _ := x.do(t, request{method: "GET", path: "/openapi.json"})
	var document struct {
		Paths map[string]map[string]struct {
			Parameters  []struct{ Name string }
			RequestBody struct {
				Content map[string]struct{ Schema schemaOf }
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &document); err != nil {
		t.Fatal(err)
	}
	bases := map[string]map[string]any{
		"/group":            {"size": 3},
		"/group/delete":     {"group": "workers"},
		"/group/pause":      {"group": "workers"},
		"/group/resume":     {"group": "workers"},
		"/group/roll":       {"group": "workers"},
		"/orphans/confirm":  {"provider_ids": []string{"vm-1"}},
		"/instance/create":  {"group": "workers"},
		"/instance/protect": {"instance_id": first},
		"/instance/release": {"instance_id": first},
		"/instance/delete":  {"instance_id": first},
	}
	token := map[string]string{"Authorization": "Bearer " + ci}
	checked := 0
	refused := func(what string, r request) {
		t.Helper()
		checked++
		called, logged := len(x.calls()), x.log.Len()
		status, body, _ := x.do(t, r)
		if status < 400 || status >= 500 || len(body) > most {
			t.Errorf("%s %.40s with %s: %d %.300s", r.method, r.path, what, status, body)
		}
		if calls := x.calls()[called:]; len(calls) > 0 {
			t.Errorf("%s %.40s with %s: called %v", r.method, r.path, what, calls)
		}
		for line := range strings.Lines(x.log.String()[logged:]) {
			if len(line) > most {
				t.Errorf("%s %.40s with %s: a line in the log: %.300s", r.method, r.path, what, line)
			}
		}
	}
	huge := strings.Repeat("x", 12<<10) // the server permits 16 KiB of headers
	for path, methods := range document.Paths {
		for method, operation := range methods {
			r := request{method: strings.ToUpper(method), path: path, header: token}
			query := func(name, value string) request {
				with := r
				with.path += "?" + name + "=" + value
				if name != "shard" && name != "all_shards" {
					with.path += "&shard=a"
				}
				if base := bases[path]; base != nil {
					text, err := json.Marshal(base)
					if err != nil {
						t.Fatal(err)
					}
					with.body = string(text)
				}
				return with
			}
			for _, p := range operation.Parameters {
				refused("a huge "+p.Name, query(p.Name, huge))
			}
			if path != "/health" && path != "/openapi.json" {
				refused("an unknown parameter", query(huge, "x"))
				refused("many parameters", query(strings.Repeat("x&", 6<<10), "x"))
				with := query("x", "x")
				with.header = map[string]string{"Authorization": "Bearer " + huge}
				refused("a huge token", with)
			}
			with := r
			with.method = "X" + huge
			refused("a huge method", with)
			schema := operation.RequestBody.Content["application/json"].Schema
			if len(schema.Properties) > 0 && bases[path] == nil {
				t.Errorf("the test has no body for %s", path)
			}
			if path == "/group" {
				schema.Properties = nil // the shard checks the fields of a patch, of at most maxBody bytes
			}
			for field, of := range schema.Properties {
				values := of.huge()
				if of.Type != "boolean" && len(values) == 0 {
					t.Errorf("%s: the test knows no huge value of the type %v", field, of.Type)
				}
				for what, value := range values {
					body := map[string]any{}
					for name, valid := range bases[path] {
						body[name] = valid
					}
					body[field] = value
					text, err := json.Marshal(body)
					if err != nil {
						t.Fatal(err)
					}
					with := r
					with.path += "?shard=a"
					with.body = string(text)
					refused(what+" as "+field, with)
				}
			}
			if r.method == http.MethodPost {
				with := r
				with.path += "?shard=a"
				for what, body := range map[string]string{
					"an unknown field": `{"` + strings.Repeat("x", 50<<10) + `": 1}`,
					"a deep body":      strings.Repeat("[", 50<<10), "a huge body": strings.Repeat(" ", 1<<20) + "{}"} {
					with.body = body
					refused(what, with)
				}
				with.body, with.header = "{}", map[string]string{"Authorization": "Bearer " + ci, "Content-Type": huge}
				if bases[path] != nil {
					refused("a huge type", with)
				}
			}
		}
	}
	refused("a huge path", request{method: "GET", path: "/" + huge, header: token})
	if checked < 150 {
		t.Errorf("%d parts of requests were checked", checked)
	}
}

// calls returns the calls that both shards have received.
func (x *api) calls() (all []string) {
	x.a.Do(func() { all = append(all, x.a.Calls...) })
	x.b.Do(func() { all = append(all, x.b.Calls...) })
	return all
}
