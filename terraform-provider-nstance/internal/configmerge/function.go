// Package configmerge owns the function config_merge.
package configmerge

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"

	"github.com/hashicorp/terraform-plugin-framework/function"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// Function is config_merge: pure, it looks at nothing but its arguments.
type Function struct{}

// New returns the function.
func New() function.Function { return Function{} }

// Metadata implements function.Function.
func (Function) Metadata(_ context.Context, _ function.MetadataRequest, resp *function.MetadataResponse) {
	resp.Name = "config_merge"
}

// Definition implements function.Function.
func (Function) Definition(_ context.Context, _ function.DefinitionRequest, resp *function.DefinitionResponse) {
	resp.Definition = function.Definition{
		Summary: "Merges shard configurations",
		MarkdownDescription: "Merges documents in JSON with comments, such as what all shards have in common and what one shard has of its own, as the servers merge `args`: objects name by name, the later over the " +
			"earlier; anything else replaces what is there, `null` included. Returns plain JSON for `config_jsonc` of an `nstance_shard`, which checks it; single documents may be incomplete.",
		Parameters: []function.Parameter{function.StringParameter{Name: "document", MarkdownDescription: "The document that the others go over, such as `file(\"common.jsonc\")`."}},
		VariadicParameter: function.StringParameter{
			Name: "patches", MarkdownDescription: "What goes over it, in this order: texts, such as `file(\"us-west-2a.jsonc\")` or `jsonencode({ server = { shard = \"us-west-2a\" } })`.",
		},
		Return: function.StringReturn{},
	}
}

// Run implements function.Function.
func (Function) Run(ctx context.Context, req function.RunRequest, resp *function.RunResponse) {
	var document string
	var patches []string
	if resp.Error = req.Arguments.Get(ctx, &document, &patches); resp.Error != nil {
		return
	}
	var merged any
	for i, text := range append([]string{document}, patches...) {
		name := fmt.Sprintf("document %d", i+1)
		tree, problems := config.ParseTree(name, []byte(text))
		if len(problems) > 0 {
			resp.Error = function.NewArgumentFuncError(int64(i), "Invalid JSON:\n"+problems.Error())
			return
		}
		if _, ok := tree.(map[string]any); !ok {
			resp.Error = function.NewArgumentFuncError(int64(i), name+": want an object: { … }")
			return
		}
		merged = merge(merged, tree)
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(merged); err != nil {
		resp.Error = function.NewFuncError(err.Error())
		return
	}
	resp.Error = resp.Result.Set(ctx, out.String())
}

// merge merges as config's own args are merged. It changes neither argument.
func merge(below, over any) any {
	patch, isPatch := over.(map[string]any)
	target, isObject := below.(map[string]any)
	if !isPatch || !isObject {
		return over
	}
	out := maps.Clone(target)
	for name, value := range patch {
		if have, ok := out[name]; ok {
			value = merge(have, value)
		}
		out[name] = value
	}
	return out
}
