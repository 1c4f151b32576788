package function

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/function"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/document"
)

var configMerge = function.Definition{
	Summary: "Merges shard configurations",
	MarkdownDescription: "Merges objects, such as the settings of all shards and those of one shard: member by " +
		"member, where the later object wins; any other value replaces the earlier one. A member with `null` " +
		"counts as absent, except inside of `args` and of `json`, where it replaces the earlier value. The " +
		"result is for `config` of an `nstance_shard`, which checks it. Each of the objects may be incomplete.",
	Parameters: []function.Parameter{function.DynamicParameter{Name: "document", AllowUnknownValues: true,
		MarkdownDescription: "The object that the patches override."}},
	VariadicParameter: function.DynamicParameter{
		Name: "patches", AllowUnknownValues: true,
		MarkdownDescription: "Objects that override it, in this order, such as " +
			"`{ server = { shard = \"us-west-2a\" } }` or " +
			"`provider::nstance::jsonc_decode(file(\"us-west-2a.jsonc\"))`.",
	},
	Return: function.DynamicReturn{},
}

func mergeConfigs(ctx context.Context, req function.RunRequest, resp *function.RunResponse) {
	var first types.Dynamic
	var patches []types.Dynamic
	if resp.Error = req.Arguments.Get(ctx, &first, &patches); resp.Error != nil {
		return
	}
	var out tftypes.Value
	for i, argument := range append([]types.Dynamic{first}, patches...) {
		v, err := document.Of(ctx, argument)
		if err == nil {
			err = document.CheckObject(v)
		}
		if err != nil {
			resp.Error = function.NewArgumentFuncError(int64(i), err.Error())
			return
		}
		if i > 0 {
			v = document.Merge(out, v)
		}
		out = v
	}
	result, err := document.Result(ctx, out)
	if err != nil {
		resp.Error = function.NewFuncError(err.Error())
		return
	}
	resp.Error = resp.Result.Set(ctx, result)
}
