// Package upgrade reads the states of resources that earlier versions of the provider wrote.
//
// If a change of a schema makes earlier states invalid, raise [Version]. Also add a conversion of the state to the
// upgraders of all earlier versions. For a new optional attribute, do neither.
package upgrade

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// Version is the schema version of all resources. Version 0 is that of providers whose schemas had no version.
const Version = 1

// States returns the upgraders from all earlier versions. They work for every resource.
func States() map[int64]resource.StateUpgrader {
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
