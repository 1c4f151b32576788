package function

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/function"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/document"
)

var configValidate = function.Definition{
	Summary: "Checks a shard configuration",
	MarkdownDescription: "Checks a shard configuration by the servers' own rules. Returns `true`, or fails and " +
		"lists every problem with its path and what to do.",
	Parameters: []function.Parameter{function.DynamicParameter{Name: "config",
		MarkdownDescription: "The configuration: the value of `config` of an `nstance_shard`, such as " +
			"`provider::nstance::jsonc_decode(file(\"dev-1.jsonc\"))`."}},
	Return: function.BoolReturn{},
}

func validateConfig(ctx context.Context, req function.RunRequest, resp *function.RunResponse) {
	var config types.Dynamic
	if resp.Error = req.Arguments.Get(ctx, &config); resp.Error != nil {
		return
	}
	if _, err := document.Shard(ctx, config); err != nil {
		resp.Error = function.NewArgumentFuncError(0, err.Error())
		return
	}
	resp.Error = resp.Result.Set(ctx, true)
}
