package function

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/function"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/document"
)

var jsoncDecode = function.Definition{
	Summary: "Decodes JSON with comments",
	MarkdownDescription: "Decodes JSON with comments and trailing commas (JSONC), as `jsondecode` does for " +
		"plain JSON. It is as strict as the servers: a repeated name, or a number that cannot be represented " +
		"exactly, is an error with line, column and JSON path.",
	Parameters: []function.Parameter{function.StringParameter{Name: "document",
		MarkdownDescription: "The text to decode, such as `file(\"dev-1.jsonc\")`."}},
	Return: function.DynamicReturn{},
}

func decodeJSONC(ctx context.Context, req function.RunRequest, resp *function.RunResponse) {
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
