package group

import (
	"context"
	"reflect"

	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/document"
)

// ValidateConfig implements resource.ResourceWithValidateConfig.
func (r *Resource) ValidateConfig(_ context.Context, req resource.ValidateConfigRequest,
	resp *resource.ValidateConfigResponse) {
	resp.Diagnostics.Append(readSpec(document.Attributes(req.Config.Raw)).diagnostics()...)
}

// ModifyPlan implements resource.ResourceWithModifyPlan. It compares plan and state only, and does not call a server.
func (r *Resource) ModifyPlan(_ context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.Plan.Raw.IsNull() || req.State.Raw.IsNull() || req.Plan.Raw.Equal(req.State.Raw) {
		return
	}
	attributes, state := document.Attributes(req.Plan.Raw), document.Attributes(req.State.Raw)
	after, before := readSpec(attributes), readSpec(state)
	if !after.known || len(after.problems) > 0 {
		return // the apply validates again
	}
	if same(after.spec, before.spec) {
		// Only attributes of the resource itself changed, such as a timeout. The group stays the same.
		keep := map[string]tftypes.Value{}
		for _, name := range []string{"etag", "infra_hash", "runtime_hash", "settings"} {
			keep[name] = state[name]
		}
		resp.Plan.Raw = document.Replaced(req.Plan.Raw, keep)
		return
	}
	if rolls(canonical(before.spec), canonical(after.spec)) && len(resp.RequiresReplace) == 0 {
		k := keyOf(attributes)
		resp.Diagnostics.AddWarning("Instances will be replaced in group "+k.name+" of shard "+k.shard,
			"What instances are made from changes: they are replaced, in waves of up to max_surge.")
	}
}

// rolls reports whether a change of the group's own fields changes the infrastructure configuration of its instances.
func rolls(before, after config.GroupSpec) bool {
	return before.Template != after.Template || before.InstanceType != after.InstanceType ||
		before.SubnetPool != after.SubnetPool || revision(before) != revision(after) ||
		!reflect.DeepEqual(before.Args, after.Args)
}

func revision(spec config.GroupSpec) string {
	if spec.Rollout == nil {
		return ""
	}
	return spec.Rollout.Revision
}
