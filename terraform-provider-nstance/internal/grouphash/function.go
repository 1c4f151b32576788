// Package grouphash owns the function group_hash.
package grouphash

import (
	"context"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/function"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// Function is group_hash: pure, it looks at nothing but its arguments.
type Function struct{}

// New returns the function.
func New() function.Function { return Function{} }

// Metadata implements function.Function.
func (Function) Metadata(_ context.Context, _ function.MetadataRequest, resp *function.MetadataResponse) {
	resp.Name = "group_hash"
}

// Definition implements function.Function.
func (Function) Definition(_ context.Context, _ function.DefinitionRequest, resp *function.DefinitionResponse) {
	resp.Definition = function.Definition{
		Summary: "Computes the hashes of a group",
		MarkdownDescription: "Computes the hashes of a static group in a shard configuration, as the servers do. Returns an object with `infra`, of which a change replaces the group's instances one at a time, " +
			"and `runtime`, of which a change is pushed to them as they run.",
		Parameters: []function.Parameter{
			function.StringParameter{Name: "document", MarkdownDescription: "The configuration, JSON with comments, such as `file(\"dev-1.jsonc\")`."},
			function.StringParameter{Name: "group", MarkdownDescription: "The group, `tenant/name`."},
		},
		Return: function.ObjectReturn{AttributeTypes: map[string]attr.Type{"infra": types.StringType, "runtime": types.StringType}},
	}
}

type hashes struct {
	Infra   string `tfsdk:"infra"`
	Runtime string `tfsdk:"runtime"`
}

// Run implements function.Function.
func (Function) Run(ctx context.Context, req function.RunRequest, resp *function.RunResponse) {
	var document, name string
	if resp.Error = req.Arguments.Get(ctx, &document, &name); resp.Error != nil {
		return
	}
	shard, problems := config.Parse("document", []byte(document))
	if problems.Err() != nil {
		resp.Error = function.NewArgumentFuncError(0, "Invalid shard configuration:\n"+problems.Errors().Error())
		return
	}
	tenant, group, ok := strings.Cut(name, "/")
	if !ok || tenant == "" || group == "" {
		resp.Error = function.NewArgumentFuncError(1, `want tenant/name, such as "default/workers"`)
		return
	}
	merged, _ := shard.Merged(config.Groups{})
	g, ok := merged[config.GroupKey{Tenant: tenant, Group: group}]
	if !ok {
		resp.Error = function.NewArgumentFuncError(1, "there is no "+config.JoinPath("groups", tenant, group)+" in the configuration")
		return
	}
	resp.Error = resp.Result.Set(ctx, hashes{g.InfraHash, g.RuntimeHash})
}
