// Package group implements the resource nstance_group, which manages a dynamic group of a shard through the shard's
// servers.
//
// Invariants:
//   - The attributes hold exactly the group's own fields, without values that come from its template.
//   - An update changes a group only if the group's fields are still those that the plan was made from.
//   - The resource never changes a static group. Static groups belong to the configuration of the shard.
package group

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/name"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/base"
)

// Schema implements resource.Resource.
func (r *Resource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	attributes := map[string]schema.Attribute{}
	attributes["spec"] = schema.DynamicAttribute{
		MarkdownDescription: "The group: an object with the fields of a group in the shard's configuration, of which " +
			"`template` is required. Fields that are not set come from the template, or else from the shard. The " +
			"[reference of the configuration](https://github.com/nstance-kit/nstance/blob/main/docs/reference/" +
			"configuration.md) lists the fields. A plan refuses a field that does not exist, with its path.",
		Required: true,
	}
	fixed := []planmodifier.String{stringplanmodifier.RequiresReplace()}
	attributes["shard"] = schema.StringAttribute{
		MarkdownDescription: "Name of the shard.", Required: true, PlanModifiers: fixed,
		Validators: []validator.String{name.Valid("shard", ident.ValidateName)},
	}
	attributes["name"] = schema.StringAttribute{
		MarkdownDescription: "Name of the group, unique in shard and tenant.", Required: true, PlanModifiers: fixed,
		Validators: []validator.String{name.Valid("group", ident.ValidateName)},
	}
	attributes["tenant"] = schema.StringAttribute{
		MarkdownDescription: "Tenant of the group. Default: the tenant of the provider's operator identity, which " +
			"makes all calls. Another tenant is an error.",
		Optional: true, Computed: true,
		PlanModifiers: []planmodifier.String{stringplanmodifier.UseStateForUnknown(),
			stringplanmodifier.RequiresReplace()},
		Validators: []validator.String{name.Valid("tenant", ident.ValidateTenantName)},
	}
	attributes["wait_for_instances"] = schema.BoolAttribute{
		MarkdownDescription: "Wait until the group has its size in healthy instances that are up to date. A " +
			"time-out is an error when the group is updated, and a warning when it is created: an " +
			"error would mark the new group as tainted, and the next apply would replace it.",
		Optional: true,
	}
	patience := timeouts.Attributes(ctx, timeouts.Opts{
		Create: true, Update: true, Delete: true,
		CreateDescription: "How long `wait_for_instances` waits. Default: `10m`.",
		UpdateDescription: "How long `wait_for_instances` waits. Default: `10m`.",
		DeleteDescription: "How long to wait until the group's instances are drained and gone. Default: `15m`.",
	}).(schema.SingleNestedAttribute)
	patience.MarkdownDescription = "How long things may take, such as `30m`."
	attributes["timeouts"] = patience
	attributes["id"] = schema.StringAttribute{
		MarkdownDescription: "`shard/tenant/name`, which is also the import ID.", Computed: true,
		PlanModifiers: []planmodifier.String{stringplanmodifier.UseStateForUnknown()},
	}
	attributes["etag"] = schema.StringAttribute{
		MarkdownDescription: "Version of the group, including what it inherits from its template.", Computed: true,
	}
	attributes["infra_hash"] = schema.StringAttribute{
		MarkdownDescription: "Hash of the settings that instances are made from. A change of it replaces them, in " +
			"waves of up to max_surge.",
		Computed: true,
	}
	attributes["runtime_hash"] = schema.StringAttribute{
		MarkdownDescription: "Hash of the files and settings that running instances receive. A change of it is sent " +
			"to them.",
		Computed: true,
	}
	attributes["settings"] = schema.StringAttribute{
		MarkdownDescription: "All settings of the group that are in force, as JSON: its own, and those that it " +
			"inherits from its template, from the shard and from the defaults. `$defaults` lists the paths of those " +
			"that nobody has written.",
		Computed: true,
	}
	resp.Schema = schema.Schema{
		Version: base.Version,
		MarkdownDescription: "A dynamic group of a shard. It is managed through the operator API of the shard's " +
			"servers, so the provider needs an `operator` block. Changes made elsewhere show as drift. Put " +
			"`spec.size` into `ignore_changes` if something else scales the group. A static group is part of an " +
			"`nstance_shard`, and cannot be managed with this resource. While no server of the shard can be reached, " +
			"a plan warns and does not look for drift.\n\nDestroying the resource drains the group's instances, and " +
			"waits until they are gone.",
		Attributes: attributes,
	}
}
