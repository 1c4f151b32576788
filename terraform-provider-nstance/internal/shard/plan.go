package shard

import (
	"bytes"
	"context"

	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// ValidateConfig implements resource.ResourceWithValidateConfig. It applies the server's own rules at plan time.
func (r *Resource) ValidateConfig(_ context.Context, req resource.ValidateConfigRequest,
	resp *resource.ValidateConfigResponse) {
	resp.Diagnostics.Append(read(req.Config.Raw).diags...)
}

// ModifyPlan implements resource.ResourceWithModifyPlan. It compares plan and state only, and does not access the
// bucket.
func (r *Resource) ModifyPlan(_ context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.Plan.Raw.IsNull() || req.Plan.Raw.Equal(req.State.Raw) {
		return
	}
	after := read(req.Plan.Raw)
	if after.diags.HasError() {
		resp.Diagnostics.Append(after.diags...) // errors in values that were unknown to ValidateConfig
		return
	}
	planned := map[string]tftypes.Value{}
	if name := after.name(); name != "" {
		planned["shard"] = textValue(name)
	}
	if cluster := after.cluster(); cluster != "" {
		planned["cluster_id"] = textValue(cluster)
	}
	if after.body != nil {
		planned["group_hashes"] = groupHashes(after.shard)
		planned["rolling_groups"] = rollingGroups(nil)
	}
	if state := attributesOf(req.State.Raw); state != nil {
		before := read(req.State.Raw)
		if after.body != nil {
			planned["rolling_groups"] = rolling(before, after, state)
		}
		if after.body != nil && bytes.Equal(after.body, before.body) {
			planned["etag"] = state["etag"]
		}
		for _, name := range []string{"shard", "cluster_id"} {
			if v, known := planned[name]; known && !v.Equal(state[name]) {
				resp.RequiresReplace.Append(path.Root(name))
			}
		}
		if len(resp.RequiresReplace) == 0 && after.body != nil && before.body != nil {
			if summary, detail := changeOf(before.shard, after.shard).warning(); summary != "" {
				resp.Diagnostics.AddWarning(summary+" in shard "+after.name(), detail)
			}
		}
	}
	resp.Plan.Raw = replaced(req.Plan.Raw, planned)
}

// rolling returns the value of `rolling_groups` after a change from before to after. If the configuration is unchanged,
// it returns the value in state, which describes the last change.
func rolling(before, after document, state map[string]tftypes.Value) tftypes.Value {
	switch {
	case before.body != nil && bytes.Equal(before.body, after.body):
		return state["rolling_groups"]
	case before.shard == nil || after.shard == nil:
		return rollingGroups(nil) // the previous configuration was not valid
	}
	return rollingGroups(changeOf(before.shard, after.shard).roll)
}
