// Package configmerge implements the provider function config_merge.
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

// Function implements config_merge. The result depends on the arguments only.
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
		MarkdownDescription: "Merges documents in JSON with comments, such as the settings of all shards and those " +
			"of one shard. It merges like the servers merge `args`: objects member by member, where the later " +
			"document wins; any other value, `null` included, replaces the earlier one. Returns plain JSON for " +
			"`config_jsonc` of an `nstance_shard`, which checks it. Each of the documents may be incomplete.",
		Parameters: []function.Parameter{function.StringParameter{Name: "document",
			MarkdownDescription: "The document that the patches override, such as `file(\"common.jsonc\")`."}},
		VariadicParameter: function.StringParameter{
			Name: "patches",
			MarkdownDescription: "Documents that override it, in this order, such as `file(\"us-west-2a.jsonc\")` " +
				"or `jsonencode({ server = { shard = \"us-west-2a\" } })`.",
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
	text, wrong := merged(append([]string{document}, patches...))
	if wrong != nil {
		resp.Error = wrong
		return
	}
	resp.Error = resp.Result.Set(ctx, text)
}

// merged merges documents in order, so that later documents override earlier ones, and returns JSON. An error names the
// argument with the mistake.
func merged(documents []string) (string, *function.FuncError) {
	var out any
	for i, text := range documents {
		name := fmt.Sprintf("document %d", i+1)
		tree, problems := config.ParseTree(name, []byte(text))
		if len(problems) > 0 {
			return "", function.NewArgumentFuncError(int64(i), "Invalid JSON:\n"+problems.Error())
		}
		if _, ok := tree.(map[string]any); !ok {
			return "", function.NewArgumentFuncError(int64(i), name+": want an object: { … }")
		}
		out = merge(out, tree)
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(out); err != nil {
		return "", function.NewFuncError(err.Error())
	}
	return text.String(), nil
}

// merge applies the patch `over` to the tree `below`, by the rules for `args` in package config. It changes neither
// argument.
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
