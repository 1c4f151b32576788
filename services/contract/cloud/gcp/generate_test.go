package gcp

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/format"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the generated file instead of comparing it")

// schema is a part of a discovery document. https://developers.google.com/discovery/v1/reference/apis
type schema struct {
	Ref         string `json:"$ref"`
	Type        string
	Format      string
	Description string
	ReadOnly    bool
	Items       *schema
	Properties  map[string]schema
	Names       *schema `json:"additionalProperties"`
}

// TestArgFieldsAreCurrent compares the table of the API's fields with the discovery document of Compute Engine, which
// is in the module google.golang.org/api.
func TestArgFieldsAreCurrent(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "google.golang.org/api").Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "compute", "v1", "compute-api.json"))
	if err != nil {
		t.Fatal(err)
	}
	var document struct{ Schemas map[string]schema }
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	g := generator{t, document.Schemas, map[string]map[string]string{}}
	g.typeName("", schema{Ref: "Instance"})

	var out bytes.Buffer
	out.WriteString(`// Code generated from the discovery document of Compute Engine by go generate. DO NOT EDIT.

package gcp

// argFields holds the fields of instances.insert and of the objects in it, without those that only the API sets. Its
// form is described at apiargs.Call.
var argFields = map[string]map[string]string{
`)
	for _, name := range slices.Sorted(maps.Keys(g.table)) {
		fmt.Fprintf(&out, "\t%q: {\n", name)
		for _, field := range slices.Sorted(maps.Keys(g.table[name])) {
			fmt.Fprintf(&out, "\t\t%q: %q,\n", field, g.table[name][field])
		}
		out.WriteString("\t},\n")
	}
	out.WriteString("}\n")
	want, err := format.Source(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	const path = "args_fields.go"
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(have), string(want)); diff != "" {
		t.Errorf("%s is out of date, run `make generate` (-file +generated):\n%s", path, diff)
	}
}

type generator struct {
	t       *testing.T
	schemas map[string]schema
	table   map[string]map[string]string
}

// typeName returns the name that a type has in the table. It adds the object types inside the type to the table. The
// name of an object type without a name of its own is the parameter "place".
func (g generator) typeName(place string, s schema) string {
	switch {
	case s.Ref != "":
		g.add(s.Ref, g.schemas[s.Ref])
		return s.Ref
	case s.Type == "array":
		return "[]" + g.typeName(place, *s.Items)
	case s.Names != nil:
		return "map[string]" + g.typeName(place, *s.Names)
	case s.Type == "object":
		g.add(place, s)
		return place
	}
	names := map[string]string{"string ": "string", "string byte": "base64", "string int64": "int64 text",
		"boolean ": "bool", "integer int32": "int32"}
	name, ok := names[s.Type+" "+s.Format]
	if !ok {
		g.t.Fatalf("the table has no name for %s %s at %s", s.Type, s.Format, place)
	}
	return name
}

func (g generator) add(name string, s schema) {
	if _, known := g.table[name]; known {
		return
	}
	fields := map[string]string{}
	g.table[name] = fields
	for field, p := range s.Properties {
		fingerprint := p.Format == "byte" && strings.HasSuffix(strings.ToLower(field), "fingerprint")
		if p.ReadOnly || fingerprint || strings.Contains(p.Description, "[Output Only]") {
			continue
		}
		fields[field] = g.typeName(name+strings.ToUpper(field[:1])+field[1:], p)
	}
}
