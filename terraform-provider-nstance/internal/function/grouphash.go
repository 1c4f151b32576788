package function

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/function"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/document"
)

var groupHash = function.Definition{
	Summary: "Computes the hashes of a group",
	MarkdownDescription: "Computes the hashes of a static group in a shard configuration, as the servers do. " +
		"Returns an object with `infra` and `runtime`. A change of `infra` replaces the group's instances, in " +
		"waves of up to max_surge. A change of `runtime` is sent to the running instances.",
	Parameters: []function.Parameter{
		function.DynamicParameter{Name: "config",
			MarkdownDescription: "The configuration: the value of `config` of an `nstance_shard`, such as " +
				"`provider::nstance::jsonc_decode(file(\"dev-1.jsonc\"))`."},
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
