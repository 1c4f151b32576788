// Package base has what all resources and data sources of the provider share: how they are named and configured, and
// how resources read the states that earlier versions of the provider wrote.
//
// If a change of a schema makes earlier states invalid, raise [Version]. Also add a conversion of the state to the
// upgraders of all earlier versions. For a new optional attribute, do neither.
package base

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/ephemeral"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/bucket"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/servers"
)

// Version is the schema version of all resources. Version 0 is that of providers whose schemas had no version.
const Version = 1

// Resource implements a part of the interfaces of a resource, which embeds it.
type Resource struct {
	Name    string // without the provider's name
	Bucket  *bucket.Connection
	Servers *servers.Connection
}

// Metadata implements resource.Resource.
func (r *Resource) Metadata(_ context.Context, req resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_" + r.Name
}

// Configure implements resource.ResourceWithConfigure.
func (r *Resource) Configure(_ context.Context, req resource.ConfigureRequest, _ *resource.ConfigureResponse) {
	r.Bucket, r.Servers = bucket.Of(req.ProviderData), servers.Of(req.ProviderData)
}

// DataSource implements a part of the interfaces of a data source, which embeds it.
type DataSource struct {
	Name    string // without the provider's name
	Bucket  *bucket.Connection
	Servers *servers.Connection
}

// Metadata implements datasource.DataSource.
func (d *DataSource) Metadata(_ context.Context, req datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_" + d.Name
}

// Configure implements datasource.DataSourceWithConfigure.
func (d *DataSource) Configure(_ context.Context, req datasource.ConfigureRequest, _ *datasource.ConfigureResponse) {
	d.Bucket, d.Servers = bucket.Of(req.ProviderData), servers.Of(req.ProviderData)
}

// Ephemeral implements a part of the interfaces of an ephemeral resource, which embeds it.
type Ephemeral struct {
	Name   string // without the provider's name
	Bucket *bucket.Connection
}

// Metadata implements ephemeral.EphemeralResource.
func (e *Ephemeral) Metadata(_ context.Context, req ephemeral.MetadataRequest, resp *ephemeral.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_" + e.Name
}

// Configure implements ephemeral.EphemeralResourceWithConfigure.
func (e *Ephemeral) Configure(_ context.Context, req ephemeral.ConfigureRequest, _ *ephemeral.ConfigureResponse) {
	e.Bucket = bucket.Of(req.ProviderData)
}

// UpgradeState implements resource.ResourceWithUpgradeState. The upgraders work for every resource.
func (*Resource) UpgradeState(context.Context) map[int64]resource.StateUpgrader {
	return map[int64]resource.StateUpgrader{0: {StateUpgrader: fill}}
}

// fill reads an earlier state into the current schema. Attributes that are new in the schema become null. Attributes
// that the schema no longer has are dropped.
func fill(ctx context.Context, req resource.UpgradeStateRequest, resp *resource.UpgradeStateResponse) {
	raw, err := req.RawState.UnmarshalWithOpts(resp.State.Schema.Type().TerraformType(ctx), tfprotov6.UnmarshalOpts{
		ValueFromJSONOpts: tftypes.ValueFromJSONOpts{IgnoreUndefinedAttributes: true}})
	if err != nil {
		resp.Diagnostics.AddError("Cannot read the state of an earlier version of the provider",
			"Why: "+err.Error()+"\nWhat to do: remove the resource from the state, and import it.")
		return
	}
	resp.State.Raw = raw
}
