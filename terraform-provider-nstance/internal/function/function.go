// Package function implements the provider's functions. Their results depend on the arguments only.
package function

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/function"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/document"
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
	setResult(ctx, out, resp)
}

// setResult sets the result of a function that returns any value.
func setResult(ctx context.Context, v tftypes.Value, resp *function.RunResponse) {
	result, err := types.DynamicType.ValueFromTerraform(ctx, v)
	if err != nil {
		resp.Error = function.NewFuncError(err.Error())
		return
	}
	resp.Error = resp.Result.Set(ctx, result)
}

var configParameter = function.DynamicParameter{Name: "config",
	MarkdownDescription: "The configuration: the value of `config` of an `nstance_shard`, such as " +
		"`provider::nstance::jsonc_decode(file(\"dev-1.jsonc\"))`."}

var configValidate = function.Definition{
	Summary: "Checks a shard configuration",
	MarkdownDescription: "Checks a shard configuration by the servers' own rules. Returns `true`, or fails and " +
		"lists every problem with its path and what to do.",
	Parameters: []function.Parameter{configParameter},
	Return:     function.BoolReturn{},
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

var groupHash = function.Definition{
	Summary: "Computes the hashes of a group",
	MarkdownDescription: "Computes the hashes of a static group in a shard configuration, as the servers do. " +
		"Returns an object with `infra` and `runtime`. A change of `infra` replaces the group's instances, in " +
		"waves of up to max_surge. A change of `runtime` is sent to the running instances.",
	Parameters: []function.Parameter{
		configParameter,
		function.StringParameter{Name: "group", MarkdownDescription: "The group, as `tenant/name`."},
	},
	Return: function.ObjectReturn{AttributeTypes: map[string]attr.Type{"infra": types.StringType,
		"runtime": types.StringType}},
}

type hashes struct {
	Infra   string `tfsdk:"infra"`
	Runtime string `tfsdk:"runtime"`
}

func hashGroup(ctx context.Context, req function.RunRequest, resp *function.RunResponse) {
	var doc types.Dynamic
	var name string
	if resp.Error = req.Arguments.Get(ctx, &doc, &name); resp.Error != nil {
		return
	}
	shard, err := document.Shard(ctx, doc)
	if err != nil {
		resp.Error = function.NewArgumentFuncError(0, err.Error())
		return
	}
	h, wrong := hashesOf(shard, name)
	if wrong != nil {
		resp.Error = wrong
		return
	}
	resp.Error = resp.Result.Set(ctx, h)
}

// hashesOf returns the hashes of the group `tenant/name` in a configuration.
func hashesOf(shard *config.Shard, name string) (hashes, *function.FuncError) {
	key, err := parseGroup(name)
	if err != nil {
		return hashes{}, function.NewArgumentFuncError(1, err.Error())
	}
	merged, _ := shard.Merged(config.Groups{})
	g, ok := merged[key]
	if !ok {
		return hashes{}, function.NewArgumentFuncError(1, "there is no "+
			config.JoinPath("groups", key.Tenant, key.Group)+" in the configuration")
	}
	return hashes{g.InfraHash, g.RuntimeHash}, nil
}

// parseGroup parses the output of [config.GroupKey.String]. It returns an error that names the part that is not valid.
func parseGroup(text string) (config.GroupKey, error) {
	tenant, group, ok := strings.Cut(text, "/")
	if !ok {
		return config.GroupKey{}, errors.New(`want tenant/name, such as "default/workers"`)
	}
	if err := ident.ValidateTenantName(tenant); err != nil {
		return config.GroupKey{}, fmt.Errorf("want tenant/name: tenant: %w", err)
	}
	if err := ident.ValidateName(group); err != nil {
		return config.GroupKey{}, fmt.Errorf("want tenant/name: group: %w", err)
	}
	return config.GroupKey{Tenant: tenant, Group: group}, nil
}

var instanceIDParse = function.Definition{
	Summary: "Takes an instance ID apart",
	MarkdownDescription: "Splits an instance ID (a puidv7 such as `acc06bgm7733st2576nx5jht4ecjw`) into its " +
		"parts. Returns an object with `kind` (the prefix), `uuid`, `storage` (the form in bucket keys) and " +
		"`created_at` (RFC 3339, to the millisecond). For an invalid ID, it fails and says what is wrong.",
	Parameters: []function.Parameter{function.StringParameter{Name: "id", MarkdownDescription: "The instance ID."}},
	Return: function.ObjectReturn{AttributeTypes: map[string]attr.Type{
		"kind": types.StringType, "uuid": types.StringType, "storage": types.StringType,
		"created_at": types.StringType,
	}},
}

type parts struct {
	Kind      string `tfsdk:"kind"`
	UUID      string `tfsdk:"uuid"`
	Storage   string `tfsdk:"storage"`
	CreatedAt string `tfsdk:"created_at"`
}

func parseInstanceID(ctx context.Context, req function.RunRequest, resp *function.RunResponse) {
	var text string
	if resp.Error = req.Arguments.Get(ctx, &text); resp.Error != nil {
		return
	}
	p, err := splitID(text)
	if err != nil {
		resp.Error = function.NewArgumentFuncError(0, err.Error())
		return
	}
	resp.Error = resp.Result.Set(ctx, p)
}

// splitID splits an instance ID into its parts.
func splitID(text string) (parts, error) {
	id, err := ident.ParseID(text)
	if err != nil {
		return parts{}, err
	}
	if year := id.Time().Year(); year > 9999 { // IDs can hold later years, but RFC 3339 cannot
		return parts{}, fmt.Errorf("id %q is of the year %d", text, year)
	}
	return parts{
		Kind: id.Prefix(), UUID: strings.TrimSuffix(id.Storage(), "-"+id.Prefix()), Storage: id.Storage(),
		CreatedAt: id.Time().Format(time.RFC3339Nano),
	}, nil
}

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
	setResult(ctx, document.Decode(tree), resp)
}
