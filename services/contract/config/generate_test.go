package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/tailscale/hujson"
)

var update = flag.Bool("update", false, "write generated and golden files instead of comparing them")

const (
	root       = "../../.."
	schemaFile = root + "/docs/reference/schema/shard.schema.json"
	pageFile   = root + "/docs/reference/configuration.md"
)

// golden compares a file with its expected content, or writes it if -update is set.
func golden(t *testing.T, path string, want []byte) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
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
		t.Errorf("%s is out of date; run go generate in services/contract/config (-file +generated):\n%s", path, diff)
	}
}

// TestGenerated checks that all files generated from types.go are current.
func TestGenerated(t *testing.T) {
	comments := readComments(t)
	text, err := json.MarshalIndent(comments, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "fielddocs.json", append(text, '\n'))
	if *update {
		fieldDocs = text // the other files are generated from the new comments
	}
	golden(t, schemaFile, Schema())

	page, err := os.ReadFile(pageFile)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- generated from services/contract/config/types.go: begin -->\n", "<!-- generated: end -->\n"
	before, rest, ok := bytes.Cut(page, []byte(begin))
	_, after, ok2 := bytes.Cut(rest, []byte(end))
	if !ok || !ok2 {
		t.Fatalf("%s does not have the lines %q and %q", pageFile, begin, end)
	}
	golden(t, pageFile, []byte(string(before)+begin+referenceTables(comments)+end+string(after)))
}

// readComments returns the comments of fields: those in types.go and types_group.go by "Type.Field", and those in the
// clouds' packages by "package.Type.Field".
func readComments(t *testing.T) map[string]string {
	out := map[string]string{}
	readCommentsOf(t, "types.go", "", out)
	readCommentsOf(t, "types_group.go", "", out)
	for _, name := range CloudNames() {
		files, err := filepath.Glob(filepath.Join("../cloud", name, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				readCommentsOf(t, file, name+".", out)
			}
		}
	}
	return out
}

func readCommentsOf(t *testing.T, path, prefix string, out map[string]string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, decl := range file.Decls {
		types, ok := decl.(*ast.GenDecl)
		if !ok || types.Tok != token.TYPE {
			continue
		}
		for _, spec := range types.Specs {
			typ := spec.(*ast.TypeSpec)
			structure, ok := typ.Type.(*ast.StructType)
			if !ok {
				continue
			}
			for _, f := range structure.Fields.List {
				if f.Tag == nil || len(f.Names) == 0 { // not a field of the document
					continue
				}
				doc := strings.Join(strings.Fields(f.Doc.Text()), " ")
				if doc == "" {
					t.Errorf("%s.%s has no comment", typ.Name.Name, f.Names[0].Name)
				}
				out[prefix+typ.Name.Name+"."+f.Names[0].Name] = doc
			}
		}
	}
}

// referenceTables writes a table for each config type, below the first table that refers to the type.
func referenceTables(comments map[string]string) string {
	var out strings.Builder
	seen := map[reflect.Type]bool{}
	var table func(path string, typ reflect.Type)
	table = func(path string, typ reflect.Type) {
		if seen[typ] || typ.NumField() == 0 {
			return
		}
		seen[typ] = true
		title := "The document"
		if path != "" {
			title, path = "`"+path+"`", path+"."
		}
		fmt.Fprintf(&out, "\n### %s\n\n| field | type | default | meaning |\n|---|---|---|---|\n", title)
		var below []func()
		for _, f := range fieldsOf(typ) {
			name, inner, at := describe(f.Type, path+f.name)
			fallback := ""
			if f.fallback != "" {
				fallback = "`" + f.fallback + "`"
			} else if f.required {
				fallback = "required"
			}
			doc := strings.ReplaceAll(comments[f.doc], "|", "\\|")
			if f.enum != nil {
				doc += " One of `" + strings.Join(f.enum, "`, `") + "`."
			}
			fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", f.name, name, fallback, doc)
			if inner != nil {
				below = append(below, func() { table(at, inner) })
			}
		}
		for _, f := range below {
			f()
		}
	}
	table("", reflect.TypeFor[Shard]())
	out.WriteString("\n")
	return out.String()
}

// describe returns the name of a type. If the type contains a config struct, it also returns the struct and the path of
// its fields.
func describe(typ reflect.Type, path string) (string, reflect.Type, string) {
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	switch {
	case typ == reflect.TypeFor[Duration]():
		return "duration", nil, ""
	case typ.Kind() == reflect.Struct:
		return "object", typ, path
	case typ.Kind() == reflect.Map:
		element, below, at := describe(typ.Elem(), path+".*")
		return "map of " + plural(element), below, at
	case typ.Kind() == reflect.Slice:
		element, below, at := describe(typ.Elem(), path+"[]")
		return "list of " + plural(element), below, at
	case typ.Kind() == reflect.Interface:
		return "any JSON", nil, ""
	}
	return map[reflect.Kind]string{reflect.String: "text", reflect.Int: "number",
		reflect.Bool: "true or false"}[typ.Kind()], nil, ""
}

func plural(s string) string {
	if first, rest, ok := strings.Cut(s, " of "); ok {
		return first + "s of " + rest
	}
	if s == "any JSON" {
		return s
	}
	return s + "s"
}

func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("shard.json", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile("shard.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// matches returns an error if a document does not match the schema.
func matches(t *testing.T, schema *jsonschema.Schema, src []byte) error {
	t.Helper()
	standard, err := hujson.Standardize(bytes.Clone(src))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(standard))
	if err != nil {
		t.Fatal(err)
	}
	return schema.Validate(doc)
}

func TestSchema(t *testing.T) {
	schema := compileSchema(t)
	for _, path := range []string{root + "/examples/config-tmux.jsonc", "../testdata/v1/config.jsonc"} {
		src, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := matches(t, schema, src); err != nil {
			t.Errorf("%s does not match the schema: %v", path, err)
		}
	}
	base := `{"cluster": {"id": "a"}, "server": {"shard": "b", "provider": {"kind": "mock"}, "subnet_pools": {"p": ["s"]}%s}%s}`
	for _, tt := range []struct {
		server, rest string
		ok           bool
	}{
		{"", "", true},
		{`, "request_timeout": "1d12h"`, "", true},
		{`, "expiry": {"forced_age": "", "eligible_age": "21d"}`, "", true},
		{`, "request_timeout": "soon"`, "", false},
		{`, "request_timeout": ""`, "", false},
		{`, "request_timeuot": "1s"`, "", false},
		{"", `, "unknown": 1`, false},
		{"", `, "groups": {"default": {"g": {"template": "t", "size": -1}}}`, false},
		{"", `, "groups": {"default": {"g": {"template": "t", "size": 0, "args": {"any": [1, {"x": null}]}}}}`, true},
		{"", `, "templates": {"t": {"kind": "knd", "arch": "riscv"}}`, false},
		{"", `, "certificates": {"c": {"kind": "client", "ttl": 0}}`, false},
	} {
		if err := matches(t, schema, fmt.Appendf(nil, base, tt.server, tt.rest)); (err == nil) != tt.ok {
			t.Errorf("%s%s: %v, want ok = %t", tt.server, tt.rest, err, tt.ok)
		}
	}
}
