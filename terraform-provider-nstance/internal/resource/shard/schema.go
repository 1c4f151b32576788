// Package shard implements the resource nstance_shard, which manages the configuration of one shard,
// `config/{shard}.jsonc`.
//
// Invariants:
//   - The resource writes only a configuration that the server's own rules accept.
//   - A write replaces only the version that the plan was made from.
//   - The resource deletes the configuration only when the shard has no instances and no server can create new ones.
package shard

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	docs "github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/document"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/base"
)

// Schema implements resource.Resource.
func (r *Resource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	attributes := map[string]schema.Attribute{}
	attributes["config"] = schema.DynamicAttribute{
		MarkdownDescription: "The configuration: an object as the [reference of the " +
			"configuration](https://github.com/nstance-kit/nstance/blob/main/docs/reference/configuration.md) " +
			"describes it, of which `cluster` and `server` are required. A plan checks it by the servers' own rules, " +
			"and refuses a field that does not exist, with its path. A field with null counts as unset. The function " +
			"`jsonc_decode` reads a configuration from a file, and `config_merge` merges several.",
		Required: true,
	}
	attributes["wait_for_leader"] = schema.BoolAttribute{
		MarkdownDescription: "Wait until the shard's leader has applied the configuration. A time-out is an error " +
			"when the shard is updated. When it is created, a time-out is only a warning, because an error would " +
			"mark the new shard as tainted, and the next apply would empty it.\n\nIf the provider has an `operator` " +
			"block and the leader answers, an apply always makes the leader apply the configuration immediately, " +
			"waits for that, and reports why the leader refuses it. If no leader answers, an apply without " +
			"`wait_for_leader` ends when the configuration is in the bucket. The leader looks for a new " +
			"configuration " +
			"every 10 s.",
		Optional: true,
	}
	attributes["deletion_protection"] = schema.BoolAttribute{
		MarkdownDescription: "Refuse every plan that destroys or replaces the shard, until an apply has set this to " +
			"`false`.",
		Optional: true,
	}
	attributes["force_destroy"] = schema.BoolAttribute{
		MarkdownDescription: "Let a destroy remove the shard's records of instances even if no server can terminate " +
			"their VMs. A warning then names these VMs: they run on, and cost money, until you terminate them.",
		Optional: true,
	}
	patience := timeouts.Attributes(ctx, timeouts.Opts{
		Create: true, Update: true, Delete: true,
		CreateDescription: "How long to wait for the leader. Default: `5m`.",
		UpdateDescription: "How long to wait for the leader. Default: `15m`.",
		DeleteDescription: "How long to wait until the leader has emptied the shard. Default: `10m`.",
	}).(schema.SingleNestedAttribute)
	patience.MarkdownDescription = "How long things may take, such as `30m`."
	attributes["timeouts"] = patience
	attributes["shard"] = schema.StringAttribute{
		MarkdownDescription: "Name of the shard, which is also its import ID.",
		Computed:            true,
	}
	attributes["cluster_id"] = schema.StringAttribute{
		MarkdownDescription: "Name of the cluster.",
		Computed:            true,
	}
	attributes["etag"] = schema.StringAttribute{
		MarkdownDescription: "Version of the configuration in the bucket.",
		Computed:            true,
	}
	attributes["rolling_groups"] = schema.ListAttribute{
		MarkdownDescription: "Static groups, as `tenant/name`, whose instances are replaced, in waves of up to " +
			"max_surge, because their infrastructure configuration changes or their pool loses a subnet. In a plan " +
			"these are the groups that the change will replace, afterwards those that the last change replaced. " +
			"Dynamic groups are replaced with their templates; the plan's warning names them.",
		Computed: true, ElementType: types.StringType,
	}
	attributes["group_hashes"] = schema.MapNestedAttribute{
		MarkdownDescription: "Hashes of the static groups, by `tenant/name`.",
		Computed:            true,
		NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
			"infra": schema.StringAttribute{
				MarkdownDescription: "Infra hash. A change of it replaces the group's instances, in waves of up to " +
					"max_surge.",
				Computed: true,
			},
			"runtime": schema.StringAttribute{
				MarkdownDescription: "Runtime hash. After a change of it, running instances get the new files and " +
					"settings.",
				Computed: true,
			},
		}},
	}
	attributes["group_settings"] = schema.MapAttribute{
		MarkdownDescription: "All settings of the static groups, by `tenant/name`, as JSON: those of the group, and " +
			"those that it inherits from its template, from the shard and from the defaults. `$defaults` lists the " +
			"paths of those that nobody has written. What an operator sets at run time is not in it.",
		Computed: true, ElementType: types.StringType,
	}
	resp.Schema = schema.Schema{
		Version: base.Version,
		MarkdownDescription: "One shard's configuration: what its servers run, and the groups of VMs that they keep " +
			"alive.\n\nDestroying the resource first marks the " +
			"configuration as terminating, waits until the shard's leader has emptied the shard, and then removes " +
			"the configuration and all other objects of the shard in the bucket. The election lock stays if servers " +
			"still run. Destroy the servers' machines after this resource (`depends_on`).",
		Attributes: attributes,
	}
}

func hashesType() tftypes.Map {
	return tftypes.Map{ElementType: tftypes.Object{AttributeTypes: map[string]tftypes.Type{"infra": tftypes.String,
		"runtime": tftypes.String}}}
}

// rollingGroups returns the value of the attribute `rolling_groups`.
func rollingGroups(groups []string) tftypes.Value {
	out := make([]tftypes.Value, len(groups))
	for i, name := range groups {
		out[i] = docs.Text(name)
	}
	return tftypes.NewValue(tftypes.List{ElementType: tftypes.String}, out)
}
