package rest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// document is a discovery document. https://developers.google.com/discovery/v1/reference/apis
type document struct {
	ServicePath string
	Schemas     map[string]*schema
	Parameters  map[string]parameter
	Resources   map[string]resource

	methods []*method
}

type resource struct {
	Methods   map[string]*method
	Resources map[string]resource
}

type method struct {
	ID                string
	HTTPMethod        string `json:"httpMethod"`
	Path              string
	FlatPath          string
	Parameters        map[string]parameter
	Request, Response *schema
	MediaUpload       struct {
		Protocols struct{ Simple struct{ Path string } }
	}

	route, names, upload *regexp.Regexp
}

type parameter struct {
	schema
	Location string
	Required bool
	Repeated bool
}

// schema describes a JSON value.
type schema struct {
	Ref        string `json:"$ref"`
	Type       string
	Format     string
	Pattern    string
	Enum       []string
	Items      *schema
	Properties map[string]*schema
	Names      *schema `json:"additionalProperties"`
}

// moduleDir returns the directory of google.golang.org/api, which holds the discovery documents.
var moduleDir = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "google.golang.org/api").Output()
	if err != nil {
		return "", fmt.Errorf("find google.golang.org/api: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
})

// readDocument reads the discovery document of one version of an API, such as version "v1" of "compute".
func readDocument(api, version string) (*document, error) {
	dir, err := moduleDir()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(dir, api, version, api+"-api.json"))
	if err != nil {
		return nil, err
	}
	d := &document{}
	if err := json.Unmarshal(text, d); err != nil {
		return nil, fmt.Errorf("discovery document of %s: %w", api, err)
	}
	d.collect(d.Resources)
	// find takes the first method that matches, and secrets/{name} also matches secrets/x:addVersion. So paths with a
	// colon come first.
	slices.SortFunc(d.methods, func(a, b *method) int {
		return cmp.Or(strings.Count(b.FlatPath, ":")-strings.Count(a.FlatPath, ":"), strings.Compare(a.ID, b.ID))
	})
	return d, nil
}

func (d *document) collect(resources map[string]resource) {
	for _, r := range resources {
		for _, m := range r.Methods {
			m.FlatPath = cmp.Or(m.FlatPath, m.Path)
			m.route, m.names = compile(d.ServicePath+m.FlatPath), compile(d.ServicePath+m.Path)
			if path := m.MediaUpload.Protocols.Simple.Path; path != "" {
				m.upload = compile(strings.TrimPrefix(path, "/"))
			}
			d.methods = append(d.methods, m)
		}
		d.collect(r.Resources)
	}
}

var placeholder = regexp.MustCompile(`\\\{(\\\+)?(\w+)\\\}`)

// compile translates a path with placeholders. {name} is one segment, {+name} is any number of them.
func compile(path string) *regexp.Regexp {
	text := placeholder.ReplaceAllStringFunc(regexp.QuoteMeta(path), func(p string) string {
		m := placeholder.FindStringSubmatch(p)
		if m[1] != "" {
			return "(?P<" + m[2] + ">.+)"
		}
		return "(?P<" + m[2] + ">[^/]+)"
	})
	return regexp.MustCompile("^/" + text + "$")
}

// find returns the method that a request calls, and the parameters in the request's path. It returns no method if the
// API has none for the request. The result "upload" reports whether the path is the method's path for uploads.
func (d *document) find(verb, path string) (found *method, params map[string]string, upload bool) {
	for _, m := range d.methods {
		if m.HTTPMethod != verb {
			continue
		}
		names := m.names
		switch {
		case m.route.MatchString(path):
		case m.upload != nil && m.upload.MatchString(path):
			names, upload = m.upload, true
		default:
			continue
		}
		match, params := names.FindStringSubmatch(path), map[string]string{}
		for i, name := range names.SubexpNames() {
			if name == "" || match == nil {
				continue
			}
			value, err := url.PathUnescape(match[i])
			if err != nil {
				return nil, nil, false
			}
			params[name] = value
		}
		return m, params, upload
	}
	return nil, nil, false
}

// checkParams checks the parameters of a request.
func (d *document) checkParams(m *method, params map[string]string, query url.Values) error {
	for name, values := range query {
		p, ok := m.Parameters[name]
		if !ok {
			p, ok = d.Parameters[name]
		}
		if !ok && name != "uploadType" {
			return invalid("Invalid parameter: unknown query parameter %q of %s", name, m.ID)
		}
		for _, value := range values {
			if len(p.Enum) > 0 && !slices.Contains(p.Enum, value) {
				return invalid("Invalid value for parameter %q: %q", name, value)
			}
		}
	}
	for name, p := range m.Parameters {
		value, given := params[name]
		if p.Location == "query" {
			value, given = query.Get(name), query.Has(name)
		}
		if p.Required && !given {
			return invalid("Required parameter: %s", name)
		}
		if given && p.Pattern != "" && !matches(p.Pattern, value) {
			return invalid("Invalid value for field '%s': '%s'. Must be a match of regex '%s'", name, value, p.Pattern)
		}
	}
	return nil
}

func matches(pattern, value string) bool {
	return regexp.MustCompile("^(?:" + strings.TrimSuffix(strings.TrimPrefix(pattern, "^"), "$") + ")$").
		MatchString(value)
}

func invalid(format string, args ...any) *Error {
	return &Error{Code: http.StatusBadRequest, Reason: "invalid", Status: "INVALID_ARGUMENT",
		Message: fmt.Sprintf(format, args...)}
}
