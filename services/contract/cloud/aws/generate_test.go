package aws

import (
	"bytes"
	"flag"
	"fmt"
	"go/format"
	"maps"
	"os"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the generated file instead of comparing it")

// TestArgFieldsAreCurrent compares the table of the API's fields with the SDK's types. Only this test links the SDK.
func TestArgFieldsAreCurrent(t *testing.T) {
	table := map[string]map[string]string{}
	typeName(t, table, reflect.TypeFor[ec2.RunInstancesInput]())
	var text bytes.Buffer
	text.WriteString(`// Code generated from the EC2 types of aws-sdk-go-v2 by go generate. DO NOT EDIT.

package aws

// argFields holds the fields of RunInstances and of the objects in it: type → field → type of the field. A type is the
// name of an object, string, bool, int32, int64, float64 or time, or one of these after [].
var argFields = map[string]map[string]string{
`)
	for _, name := range slices.Sorted(maps.Keys(table)) {
		fmt.Fprintf(&text, "\t%q: {\n", name)
		for _, field := range slices.Sorted(maps.Keys(table[name])) {
			fmt.Fprintf(&text, "\t\t%q: %q,\n", field, table[name][field])
		}
		text.WriteString("\t},\n")
	}
	text.WriteString("}\n")
	want, err := format.Source(text.Bytes())
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

// typeName returns the name that a type has in the table. It adds the struct types inside the type to the table.
func typeName(t *testing.T, table map[string]map[string]string, typ reflect.Type) string {
	t.Helper()
	switch {
	case typ == reflect.TypeFor[time.Time]():
		return "time"
	case typ.Kind() == reflect.Pointer:
		return typeName(t, table, typ.Elem())
	case typ.Kind() == reflect.Slice:
		return "[]" + typeName(t, table, typ.Elem())
	case typ.Kind() != reflect.Struct:
		switch kind := typ.Kind(); kind {
		case reflect.String, reflect.Bool, reflect.Int32, reflect.Int64, reflect.Float64:
			return kind.String()
		default:
			t.Fatalf("the table has no name for %s", typ)
		}
	}
	if _, known := table[typ.Name()]; !known {
		fields := map[string]string{}
		table[typ.Name()] = fields
		for _, f := range reflect.VisibleFields(typ) {
			if f.IsExported() {
				fields[f.Name] = typeName(t, table, f.Type)
			}
		}
	}
	return typ.Name()
}
