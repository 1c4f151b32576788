package tests

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// fieldTree has the fields of an object. A nil tree has every field.
type fieldTree map[string]fieldTree

// has reports whether the object has a field with a path like spec.shards.
func (f fieldTree) has(path string) bool {
	name, rest, more := strings.Cut(path, ".")
	if f == nil {
		return true
	}
	child, ok := f[name]
	return ok && (!more || child.has(rest))
}

// kindsOfKubernetes returns the fields of the kinds that the documents name.
func kindsOfKubernetes(t *testing.T) map[string]fieldTree {
	t.Helper()
	kinds := map[string]fieldTree{
		"Cluster": fieldsOf(reflect.TypeFor[clusterv1.Cluster](), 0), "Node": fieldsOf(reflect.TypeFor[corev1.Node](),
			0),
		"Machine": fieldsOf(reflect.TypeFor[clusterv1.Machine](), 0), "Pod": fieldsOf(reflect.TypeFor[corev1.Pod](), 0),
		"MachinePool":       fieldsOf(reflect.TypeFor[clusterv1.MachinePool](), 0),
		"MachineDeployment": fieldsOf(reflect.TypeFor[clusterv1.MachineDeployment](), 0),
	}
	names, err := filepath.Glob("../config/crd/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(raw), 4096).Decode(&crd); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, version := range crd.Spec.Versions {
			kinds[crd.Spec.Names.Kind] = fieldsInSchema(version.Schema.OpenAPIV3Schema)
		}
	}
	return kinds
}

func fieldsInSchema(s *apiextensionsv1.JSONSchemaProps) fieldTree {
	if s.Items != nil && s.Items.Schema != nil {
		return fieldsInSchema(s.Items.Schema)
	}
	if len(s.Properties) == 0 {
		return nil
	}
	out := fieldTree{}
	for name, property := range s.Properties {
		out[name] = fieldsInSchema(&property)
	}
	return out
}

// fieldsOf returns the fields of a Go type of the Kubernetes API, to the given depth.
func fieldsOf(of reflect.Type, depth int) fieldTree {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct || depth > 6 {
		return nil
	}
	out := fieldTree{}
	for i := range of.NumField() {
		field := of.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case field.Anonymous && (name == "" || strings.Contains(options, "inline")):
			for inner, tree := range fieldsOf(field.Type, depth) {
				out[inner] = tree
			}
		case name != "" && name != "-":
			out[name] = fieldsOf(field.Type, depth+1)
		}
	}
	return out
}

var (
	fieldPath = regexp.MustCompile(`(?:\b([A-Z][A-Za-z]+)\.)?(?:\.|\b)((?:spec|status)(?:\.[a-z][A-Za-z]*)+)`)
	kindName  = regexp.MustCompile(`\b[A-Z][a-z]+[A-Za-z]*\b`)
	sentence  = regexp.MustCompile(`[.:;]\s|\n\n|\|`)
	attribute = regexp.MustCompile("`([a-z][a-z_.]*)` (?:argument |attribute )?(?:of|in) (?:the |a )?(?:resource " +
		"|data source )?" +
		"`?(nstance_[a-z_]+)\\b")
)

// wrongFieldPaths returns the paths of fields in a text that no object has. The kinds that a path may belong to are the
// one before it (MachinePool.spec.replicas), or else those that the same sentence names, or else all.
func wrongFieldPaths(text string, kinds map[string]fieldTree) (wrong []string) {
	for _, part := range sentence.Split(text, -1) {
		for _, match := range fieldPath.FindAllStringSubmatch(part, -1) {
			candidates := []string{match[1]}
			if _, known := kinds[match[1]]; !known {
				candidates = slices.DeleteFunc(kindName.FindAllString(strings.ReplaceAll(part, "Pools", "Pool"), -1),
					func(name string) bool { _, known := kinds[name]; return !known })
			}
			if len(candidates) == 0 {
				for name := range kinds {
					candidates = append(candidates, name)
				}
			}
			if !slices.ContainsFunc(candidates, func(kind string) bool { return kinds[kind].has(match[2]) }) {
				wrong = append(wrong, match[2]+" of "+strings.Join(candidates, ", "))
			}
		}
	}
	return wrong
}

// TestFieldPathsExist checks that the fields of Kubernetes objects and the attributes of Terraform resources that the
// documents name exist.
func TestFieldPathsExist(t *testing.T) {
	kinds, found := kindsOfKubernetes(t), 0
	for path, text := range files(t, "../docs", ".md") {
		found += len(fieldPath.FindAllString(text, -1))
		for _, wrong := range wrongFieldPaths(text, kinds) {
			t.Errorf("%s names the field %s, which does not exist", path, wrong)
		}
		for _, match := range attribute.FindAllStringSubmatch(text, -1) {
			found++
			name := strings.TrimPrefix(match[2], "nstance_")
			pages, err := filepath.Glob("../terraform-provider-nstance/docs/*/" + name + ".md")
			if err != nil || len(pages) == 0 {
				t.Errorf("%s names %s, which the provider does not have", path, match[2])
				continue
			}
			last := match[1][strings.LastIndex(match[1], ".")+1:]
			if !slices.ContainsFunc(pages, func(page string) bool {
				raw, err := os.ReadFile(page)
				return err == nil && bytes.Contains(raw, []byte("- `"+last+"`"))
			}) {
				t.Errorf("%s names the attribute %s of %s, which does not exist", path, match[1], match[2])
			}
		}
	}
	if found < 10 {
		t.Errorf("found %d fields", found)
	}
}

// TestWrongFieldPaths checks that wrongFieldPaths finds wrong paths.
func TestWrongFieldPaths(t *testing.T) {
	kinds := kindsOfKubernetes(t)
	for text, want := range map[string]int{
		"Add it to `spec.shards` of the NstanceCluster.":                      1,
		"Add it to `spec.shards` of the NstanceMachinePool.":                  0,
		"Add it to `NstanceMachinePool.spec.shards`.":                         0,
		"`MachinePool.spec.shards` of the NstanceMachinePool.":                1,
		"`-o jsonpath={.spec.instanceID}`":                                    0,
		"`-o jsonpath={.spec.instanceId}`":                                    1,
		"`spec.deletion.nodeDrainTimeoutSeconds` of the Machine":              0,
		"`spec.nodeDrainTimeout` of the Machine":                              1,
		"`spec.template.spec.bootstrap.dataSecretName` of the MachinePool":    0,
		"`status.initialization.provisioned` of NstanceMachinePools is true.": 0,
	} {
		if wrong := wrongFieldPaths(text, kinds); len(wrong) != want {
			t.Errorf("%q: wrong are %q, want %d", text, wrong, want)
		}
	}
}
