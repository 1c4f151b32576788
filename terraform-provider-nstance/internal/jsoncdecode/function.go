// Package jsoncdecode implements the provider function jsonc_decode.
package jsoncdecode

import (
	"context"
	"math/big"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/function"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// Function implements jsonc_decode. The result depends on the argument only.
type Function struct{}

// New returns the function.
func New() function.Function { return Function{} }

// Metadata implements function.Function.
func (Function) Metadata(_ context.Context, _ function.MetadataRequest, resp *function.MetadataResponse) {
	resp.Name = "jsonc_decode"
}

// Definition implements function.Function.
func (Function) Definition(_ context.Context, _ function.DefinitionRequest, resp *function.DefinitionResponse) {
	resp.Definition = function.Definition{
		Summary: "Decodes JSON with comments",
		MarkdownDescription: "Decodes JSON with comments and trailing commas (JSONC), as `jsondecode` does for " +
			"plain JSON. It is as strict as the servers: a repeated name, or a number that cannot be represented " +
			"exactly, is an error with line, column and JSON path.",
		Parameters: []function.Parameter{function.StringParameter{Name: "document",
			MarkdownDescription: "The text to decode, such as `file(\"dev-1.jsonc\")`."}},
		Return: function.DynamicReturn{},
	}
}

// Run implements function.Function.
func (Function) Run(ctx context.Context, req function.RunRequest, resp *function.RunResponse) {
	var document string
	if resp.Error = req.Arguments.Get(ctx, &document); resp.Error != nil {
		return
	}
	decoded, problems := decode(document)
	if len(problems) > 0 {
		resp.Error = function.NewArgumentFuncError(0, "Invalid JSON:\n"+problems.Error())
		return
	}
	resp.Error = resp.Result.Set(ctx, types.DynamicValue(decoded))
}

// decode parses a document. It returns all mistakes in the document.
func decode(document string) (attr.Value, config.Problems) {
	tree, problems := config.ParseTree("document", []byte(document))
	if len(problems) > 0 {
		return nil, problems
	}
	return value(tree), nil
}

// value converts a tree to a Terraform value with objects and tuples, like jsondecode.
func value(tree any) attr.Value {
	switch tree := tree.(type) {
	case map[string]any:
		attributes, kinds := map[string]attr.Value{}, map[string]attr.Type{}
		for name, inner := range tree {
			attributes[name] = value(inner)
			kinds[name] = attributes[name].Type(context.Background())
		}
		return types.ObjectValueMust(kinds, attributes)
	case []any:
		elements, kinds := make([]attr.Value, len(tree)), make([]attr.Type, len(tree))
		for i, inner := range tree {
			elements[i] = value(inner)
			kinds[i] = elements[i].Type(context.Background())
		}
		return types.TupleValueMust(kinds, elements)
	case string:
		return types.StringValue(tree)
	case bool:
		return types.BoolValue(tree)
	case float64:
		return types.NumberValue(big.NewFloat(tree))
	}
	return types.DynamicNull()
}
