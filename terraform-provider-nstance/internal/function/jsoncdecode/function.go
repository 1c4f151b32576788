// Package jsoncdecode implements the provider function jsonc_decode.
package jsoncdecode

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/function"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/document"
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
	var text string
	if resp.Error = req.Arguments.Get(ctx, &text); resp.Error != nil {
		return
	}
	tree, problems := config.ParseTree("document", []byte(text))
	if len(problems) > 0 {
		resp.Error = function.NewArgumentFuncError(0, "Invalid JSON:\n"+problems.Error())
		return
	}
	result, err := document.Result(ctx, document.Decode(tree))
	if err != nil {
		resp.Error = function.NewFuncError(err.Error())
		return
	}
	resp.Error = resp.Result.Set(ctx, result)
}
