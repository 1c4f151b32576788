package provider

import (
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/ephemeral"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/tfsdk"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// TestUnknownValues makes each value of each resource and data source unknown in turn. The plan must then work, or
// refuse the value with a message for users: neither a panic nor a report of a bug.
func TestUnknownValues(t *testing.T) {
	p, ctx := &Provider{}, t.Context()
	for _, make := range p.Resources(ctx) {
		r := make()
		var meta resource.MetadataResponse
		r.Metadata(ctx, resource.MetadataRequest{ProviderTypeName: "nstance"}, &meta)
		var schema resource.SchemaResponse
		r.Schema(ctx, resource.SchemaRequest{}, &schema)
		if c, ok := r.(resource.ResourceWithConfigure); ok {
			c.Configure(ctx, resource.ConfigureRequest{}, &resource.ConfigureResponse{})
		}
		typ := schema.Schema.Type().TerraformType(ctx)
		unknowns(t, typ, func(at *tftypes.AttributePath, raw tftypes.Value) {
			if v, ok := r.(resource.ResourceWithValidateConfig); ok {
				var resp resource.ValidateConfigResponse
				v.ValidateConfig(ctx, resource.ValidateConfigRequest{Config: tfsdk.Config{Raw: raw,
					Schema: schema.Schema}}, &resp)
				forUsers(t, meta.TypeName, at, resp.Diagnostics)
			}
			if m, ok := r.(resource.ResourceWithModifyPlan); ok {
				resp := resource.ModifyPlanResponse{Plan: tfsdk.Plan{Raw: raw, Schema: schema.Schema}}
				m.ModifyPlan(ctx, resource.ModifyPlanRequest{Config: tfsdk.Config{Raw: raw, Schema: schema.Schema},
					Plan: resp.Plan, State: tfsdk.State{Raw: tftypes.NewValue(typ, nil), Schema: schema.Schema}}, &resp)
				forUsers(t, meta.TypeName, at, resp.Diagnostics)
			}
		})
	}
	for _, make := range p.DataSources(ctx) {
		d := make()
		v, ok := d.(datasource.DataSourceWithValidateConfig)
		if !ok {
			continue
		}
		var schema datasource.SchemaResponse
		d.Schema(ctx, datasource.SchemaRequest{}, &schema)
		unknowns(t, schema.Schema.Type().TerraformType(ctx), func(at *tftypes.AttributePath, raw tftypes.Value) {
			var resp datasource.ValidateConfigResponse
			v.ValidateConfig(ctx, datasource.ValidateConfigRequest{Config: tfsdk.Config{Raw: raw,
				Schema: schema.Schema}}, &resp)
			forUsers(t, "a data source", at, resp.Diagnostics)
		})
	}
	for _, make := range p.EphemeralResources(ctx) {
		e := make()
		v, ok := e.(ephemeral.EphemeralResourceWithValidateConfig)
		if !ok {
			continue
		}
		var schema ephemeral.SchemaResponse
		e.Schema(ctx, ephemeral.SchemaRequest{}, &schema)
		unknowns(t, schema.Schema.Type().TerraformType(ctx), func(at *tftypes.AttributePath, raw tftypes.Value) {
			var resp ephemeral.ValidateConfigResponse
			v.ValidateConfig(ctx, ephemeral.ValidateConfigRequest{Config: tfsdk.Config{Raw: raw,
				Schema: schema.Schema}}, &resp)
			forUsers(t, "an ephemeral resource", at, resp.Diagnostics)
		})
	}
}

// forUsers reports diagnostics that ask users to report a bug.
func forUsers(t *testing.T, name string, at *tftypes.AttributePath, diags diag.Diagnostics) {
	t.Helper()
	for _, d := range diags {
		text := d.Summary() + ": " + d.Detail()
		for _, bad := range []string{"Value Conversion Error", "bug", "provider developer", "unhandled"} {
			if strings.Contains(text, bad) {
				t.Errorf("%s, %s is unknown: %s", name, at, text)
			}
		}
	}
}

// unknowns calls try with values of a type, in which one value each is unknown.
func unknowns(t *testing.T, typ tftypes.Type, try func(*tftypes.AttributePath, tftypes.Value)) {
	t.Helper()
	whole := sample(typ)
	var places []*tftypes.AttributePath
	_ = tftypes.Walk(whole, func(at *tftypes.AttributePath, _ tftypes.Value) (bool, error) {
		if len(at.Steps()) > 0 {
			places = append(places, at)
		}
		return true, nil
	})
	if len(places) == 0 {
		t.Fatal("no attributes")
	}
	for _, place := range places {
		raw, err := tftypes.Transform(whole, func(at *tftypes.AttributePath, v tftypes.Value) (tftypes.Value, error) {
			if at.Equal(place) {
				return tftypes.NewValue(v.Type(), tftypes.UnknownValue), nil
			}
			return v, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		try(place, raw)
	}
}

// sample returns a value of a type, with one element in each list and map.
func sample(typ tftypes.Type) tftypes.Value {
	switch typ := typ.(type) {
	case tftypes.Object:
		values := map[string]tftypes.Value{}
		for name, of := range typ.AttributeTypes {
			values[name] = sample(of)
		}
		return tftypes.NewValue(typ, values)
	case tftypes.List:
		return tftypes.NewValue(typ, []tftypes.Value{sample(typ.ElementType)})
	case tftypes.Set:
		return tftypes.NewValue(typ, []tftypes.Value{sample(typ.ElementType)})
	case tftypes.Map:
		return tftypes.NewValue(typ, map[string]tftypes.Value{"a": sample(typ.ElementType)})
	}
	switch {
	case typ.Is(tftypes.String):
		return tftypes.NewValue(typ, "a")
	case typ.Is(tftypes.Bool):
		return tftypes.NewValue(typ, true)
	case typ.Is(tftypes.Number):
		return tftypes.NewValue(typ, 1)
	}
	return tftypes.NewValue(typ, nil)
}
