// Package modules tests properties of the Terraform modules for which a mocked provider is not enough, such as what the
// modules' policies allow.
//
// Invariant: the tests evaluate the HCL of the modules with Terraform's functions. They contain no copy of the HCL.
package modules

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// functions are the Terraform functions that the evaluated files use. If a file calls another function, the error
// contains the name of that function.
var functions = map[string]function.Function{
	"concat":      stdlib.ConcatFunc,
	"distinct":    stdlib.DistinctFunc,
	"endswith":    textTest(strings.HasSuffix),
	"flatten":     stdlib.FlattenFunc,
	"jsonencode":  stdlib.JSONEncodeFunc,
	"length":      stdlib.LengthFunc,
	"merge":       stdlib.MergeFunc,
	"strcontains": textTest(strings.Contains),
	"values":      stdlib.ValuesFunc,
}

// textTest returns a Terraform function that passes its two strings to "holds" and returns the result of "holds". cty's
// library lacks Terraform's functions of this kind, such as strcontains.
func textTest(holds func(text, part string) bool) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "text", Type: cty.String}, {Name: "part", Type: cty.String}},
		Type:   function.StaticReturnType(cty.Bool),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			return cty.BoolVal(holds(args[0].AsString(), args[1].AsString())), nil
		},
	})
}

// file is one file of a module.
type file struct{ body *hclsyntax.Body }

func parseFile(path string) (file, error) {
	parsed, diags := hclparse.NewParser().ParseHCLFile(path)
	if diags.HasErrors() {
		return file{}, diags
	}
	body, ok := parsed.Body.(*hclsyntax.Body)
	if !ok {
		return file{}, fmt.Errorf("%s is not written in HCL's own syntax", filepath.Base(path))
	}
	return file{body}, nil
}

// locals evaluates all locals of the file. "given" maps the other names that the file uses, such as "var", to their
// values. Its entry "local" has the locals of other files.
func (f file) locals(given map[string]cty.Value) (map[string]cty.Value, error) {
	known := map[string]cty.Value{}
	if others, ok := given["local"]; ok {
		known = others.AsValueMap()
	}
	open := map[string]hcl.Expression{}
	for _, block := range f.body.Blocks {
		if block.Type != "locals" {
			continue
		}
		for name, attribute := range block.Body.Attributes {
			open[name] = attribute.Expr
		}
	}
	for len(open) > 0 {
		progress := false
		for _, name := range slices.Sorted(maps.Keys(open)) {
			if slices.ContainsFunc(localsIn(open[name]), func(other string) bool { return open[other] != nil }) {
				continue
			}
			value, err := f.evaluate(open[name], given, known)
			if err != nil {
				return nil, fmt.Errorf("local %s: %w", name, err)
			}
			known[name], progress = value, true
			delete(open, name)
		}
		if !progress {
			return nil, errors.New("locals need each other")
		}
	}
	return known, nil
}

// attribute evaluates one attribute of a resource.
func (f file) attribute(kind, name, attribute string, given map[string]cty.Value) (cty.Value, error) {
	for _, block := range f.body.Blocks {
		if block.Type == "resource" && slices.Equal(block.Labels, []string{kind, name}) &&
			block.Body.Attributes[attribute] != nil {
			return f.evaluate(block.Body.Attributes[attribute].Expr, given, nil)
		}
	}
	return cty.NilVal, fmt.Errorf("there is no %s.%s with %s", kind, name, attribute)
}

func (f file) evaluate(expression hcl.Expression, given, locals map[string]cty.Value) (cty.Value, error) {
	variables := maps.Clone(given)
	if locals != nil {
		variables["local"] = cty.ObjectVal(locals)
	}
	value, diags := expression.Value(&hcl.EvalContext{Variables: variables, Functions: functions})
	if diags.HasErrors() {
		return cty.NilVal, diags
	}
	return value, nil
}

// localsIn returns the names of the locals that an expression refers to.
func localsIn(expression hcl.Expression) (names []string) {
	for _, traversal := range expression.Variables() {
		if traversal.RootName() != "local" || len(traversal) < 2 {
			continue
		}
		if step, ok := traversal[1].(hcl.TraverseAttr); ok {
			names = append(names, step.Name)
		}
	}
	return names
}
