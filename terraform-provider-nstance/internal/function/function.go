// Package function implements the provider's functions. Their results depend on the arguments only.
package function

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/function"
)

// All returns all functions.
func All() (all []func() function.Function) {
	for _, f := range []run{
		{"config_validate", configValidate, validateConfig}, {"config_merge", configMerge, mergeConfigs},
		{"jsonc_decode", jsoncDecode, decodeJSONC}, {"group_hash", groupHash, hashGroup},
		{"instance_id_parse", instanceIDParse, parseInstanceID},
	} {
		all = append(all, func() function.Function { return f })
	}
	return all
}

// run implements one function.
type run struct {
	name       string
	definition function.Definition
	run        func(context.Context, function.RunRequest, *function.RunResponse)
}

// Metadata implements function.Function.
func (f run) Metadata(_ context.Context, _ function.MetadataRequest, resp *function.MetadataResponse) {
	resp.Name = f.name
}

// Definition implements function.Function.
func (f run) Definition(_ context.Context, _ function.DefinitionRequest, resp *function.DefinitionResponse) {
	resp.Definition = f.definition
}

// Run implements function.Function.
func (f run) Run(ctx context.Context, req function.RunRequest, resp *function.RunResponse) {
	f.run(ctx, req, resp)
}
