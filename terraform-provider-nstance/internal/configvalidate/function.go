// Package configvalidate implements the provider function config_validate.
package configvalidate

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/function"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// Function implements config_validate. The result depends on the argument only.
type Function struct{}

// New returns the function.
func New() function.Function { return Function{} }

// Metadata implements function.Function.
func (Function) Metadata(_ context.Context, _ function.MetadataRequest, resp *function.MetadataResponse) {
	resp.Name = "config_validate"
}

// Definition implements function.Function.
func (Function) Definition(_ context.Context, _ function.DefinitionRequest, resp *function.DefinitionResponse) {
	resp.Definition = function.Definition{
		Summary: "Checks a shard configuration",
		MarkdownDescription: "Checks a shard configuration, JSON with comments, by the server's own rules. Returns " +
			"`true`, or fails and lists every problem with line, column, JSON path and what to do.",
		Parameters: []function.Parameter{function.StringParameter{Name: "document",
			MarkdownDescription: "The configuration, such as `file(\"dev-1.jsonc\")`."}},
		Return: function.BoolReturn{},
	}
}

// Run implements function.Function.
func (Function) Run(ctx context.Context, req function.RunRequest, resp *function.RunResponse) {
	var document string
	if resp.Error = req.Arguments.Get(ctx, &document); resp.Error != nil {
		return
	}
	if _, problems := config.Parse("document", []byte(document)); problems.Err() != nil {
		resp.Error = function.NewArgumentFuncError(0, "Invalid shard configuration:\n"+problems.Errors().Error())
		return
	}
	resp.Error = resp.Result.Set(ctx, true)
}
