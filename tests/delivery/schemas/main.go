// Command schemas makes JSON schemas for kubeconform. It reads Kubernetes' own kinds from OpenAPI documents and other
// kinds from CRDs. The schemas reject unknown fields, like the API server with strict validation.
//
//	schemas -out DIR -openapi DIR DEFINITION.yaml...
//
// The command writes a file {group}/{kind}_{version}.json for each kind, as kubeconform's templates expect. For kinds
// of the core group, which has no name, the path begins with the version instead of the group.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

func main() {
	out := flag.String("out", "", "folder for the schemas")
	openapi := flag.String("openapi", "", "folder of OpenAPI v3 documents (api/openapi-spec/v3 of Kubernetes)")
	flag.Parse()
	if err := run(*out, *openapi, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "schemas:", err)
		os.Exit(1)
	}
}

func run(out, openapi string, definitions []string) error {
	if out == "" {
		return errors.New("-out is needed")
	}
	if openapi != "" {
		documents, err := filepath.Glob(filepath.Join(openapi, "*_openapi.json"))
		if err != nil || len(documents) == 0 {
			return fmt.Errorf("no OpenAPI documents in %s: %w", openapi, err)
		}
		for _, document := range documents {
			if err := fromOpenAPI(out, document); err != nil {
				return fmt.Errorf("%s: %w", filepath.Base(document), err)
			}
		}
	}
	for _, definition := range definitions {
		if err := fromDefinitions(out, definition); err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(definition), err)
		}
	}
	return nil
}

type object = map[string]any

// fromOpenAPI writes every kind of a document, which describes one group and version. Each schema includes the schemas
// that it refers to.
func fromOpenAPI(out, path string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var document struct {
		Components struct {
			Schemas map[string]object `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(raw, &document); err != nil {
		return err
	}
	schemas := document.Components.Schemas
	for _, schema := range schemas {
		closeObjects(schema)
	}
	for name, schema := range schemas {
		kinds, _ := schema["x-kubernetes-group-version-kind"].([]any)
		// A schema with several kinds describes options of requests, such as DeleteOptions. No manifest contains them.
		if len(kinds) != 1 {
			continue
		}
		kind, ok := kinds[0].(object)
		if !ok {
			continue
		}
		used := map[string]object{}
		collect(schemas, name, used)
		whole := object{"$ref": "#/components/schemas/" + name, "components": object{"schemas": used}}
		if err := write(out, fmt.Sprint(kind["group"]), fmt.Sprint(kind["version"]), fmt.Sprint(kind["kind"]),
			whole); err != nil {
			return err
		}
	}
	return nil
}

// collect copies a schema, and all schemas that it refers to, into the result map.
func collect(schemas map[string]object, name string, used map[string]object) {
	if _, done := used[name]; done || schemas[name] == nil {
		return
	}
	used[name] = schemas[name]
	var walk func(any)
	walk = func(node any) {
		switch node := node.(type) {
		case object:
			if reference, ok := node["$ref"].(string); ok {
				collect(schemas, strings.TrimPrefix(reference, "#/components/schemas/"), used)
			}
			for _, child := range node {
				walk(child)
			}
		case []any:
			for _, child := range node {
				walk(child)
			}
		}
	}
	walk(schemas[name])
}

// fromDefinitions writes the kinds of the CustomResourceDefinitions in a file.
func fromDefinitions(out, path string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	found := 0
	for reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(raw))); ; {
		text, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		var definition struct {
			Kind string `json:"kind"`
			Spec struct {
				Group string `json:"group"`
				Names struct {
					Kind string `json:"kind"`
				} `json:"names"`
				Versions []struct {
					Name   string `json:"name"`
					Schema struct {
						Object object `json:"openAPIV3Schema"`
					} `json:"schema"`
				} `json:"versions"`
			} `json:"spec"`
		}
		if err := yaml.Unmarshal(text, &definition); err != nil {
			return err
		}
		if definition.Kind != "CustomResourceDefinition" {
			continue
		}
		for _, version := range definition.Spec.Versions {
			found++
			closeObjects(version.Schema.Object)
			if err := write(out, definition.Spec.Group, version.Name, definition.Spec.Names.Kind,
				version.Schema.Object); err != nil {
				return err
			}
		}
	}
	if found == 0 {
		return errors.New("no CustomResourceDefinition")
	}
	return nil
}

// closeObjects makes a schema reject unknown fields. It also translates the Kubernetes extensions for nullable fields
// and for integers that may be strings into JSON Schema.
func closeObjects(schema object) {
	properties, _ := schema["properties"].(object)
	_, others := schema["additionalProperties"]
	if preserve, _ := schema["x-kubernetes-preserve-unknown-fields"].(bool); len(properties) > 0 && !others &&
		!preserve {
		schema["additionalProperties"] = false
	}
	if nullable, _ := schema["nullable"].(bool); nullable {
		if kind, ok := schema["type"].(string); ok {
			schema["type"] = []any{kind, "null"}
		}
	}
	if either, _ := schema["x-kubernetes-int-or-string"].(bool); either {
		delete(schema, "type")
		schema["anyOf"] = []any{object{"type": "integer"}, object{"type": "string"}}
	}
	for _, child := range properties {
		if child, ok := child.(object); ok {
			closeObjects(child)
		}
	}
	// closeObjects does not change the schemas in anyOf, oneOf and not, because these only add conditions to the
	// object.
	for _, key := range []string{"items", "additionalProperties"} {
		if child, ok := schema[key].(object); ok {
			closeObjects(child)
		}
	}
}

func write(out, group, version, kind string, schema object) error {
	if group == "" {
		group = version
	}
	raw, err := json.Marshal(schema)
	if err != nil {
		return err
	}
	path := filepath.Join(out, group, strings.ToLower(kind)+"_"+version+".json")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, raw, 0o644)
}
