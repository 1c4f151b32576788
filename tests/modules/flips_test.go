package modules

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// TestFlipsAreComplete reads the variables of the modules and examples for clouds. Every boolean, and every variable
// with a list of permitted values, must have an entry in Flips.
func TestFlipsAreComplete(t *testing.T) {
	var want, got []string
	for _, pattern := range []string{"modules/aws/*", "modules/gcp/*", "examples/aws/*", "examples/gcp/*",
		"examples/aws/environments/*", "examples/gcp/environments/*", "examples/local"} {
		dirs, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(pattern)))
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range dirs {
			files, err := filepath.Glob(filepath.Join(dir, "variables*.tf"))
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range files {
				f, err := parseFile(path)
				if err != nil {
					t.Fatal(err)
				}
				at := strings.TrimPrefix(filepath.ToSlash(dir), "../../")
				for _, block := range f.body.Blocks {
					if block.Type == "variable" && flips(block) {
						want = append(want, at+" "+block.Labels[0])
					}
				}
			}
		}
	}
	for _, flip := range Flips {
		got = append(got, flip.At+" "+flip.Variable)
		if (flip.To == "") == (flip.By == "") || (flip.Effect == Refused && flip.To != "") != (flip.Refusal != "") {
			t.Errorf("%+v must have a value or name its test, and a refusal if it is refused", flip)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if len(want) < 40 {
		t.Errorf("only %d booleans and enumerations were found: %q", len(want), want)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("booleans and enumerations (-in the modules +in Flips):\n%s", diff)
	}
}

// flips reports whether a variable is a boolean or has a validation that lists the permitted values.
func flips(variable *hclsyntax.Block) bool {
	if kind, ok := variable.Body.Attributes["type"]; ok {
		if traversal, ok := kind.Expr.(*hclsyntax.ScopeTraversalExpr); ok && traversal.Traversal.RootName() == "bool" {
			return true
		}
	}
	listed := false
	for _, block := range variable.Body.Blocks {
		if block.Type != "validation" {
			continue
		}
		_ = hclsyntax.VisitAll(block.Body.Attributes["condition"].Expr, func(node hclsyntax.Node) hcl.Diagnostics {
			call, ok := node.(*hclsyntax.FunctionCallExpr)
			if !ok || call.Name != "contains" {
				return nil
			}
			_, ok = call.Args[0].(*hclsyntax.TupleConsExpr)
			listed = listed || ok
			return nil
		})
	}
	return listed
}
