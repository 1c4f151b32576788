// Package operator implements the resource nstance_operator, which registers an operator of a tenant in the bucket. The
// user provides the operator's public key.
//
// Invariants:
//   - The resource never handles the operator's private key.
//   - The certificate in the state was always issued for the public key in the state.
package operator

import (
	"context"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/name"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/registration"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/base"
)

type model struct {
	ID               types.String `tfsdk:"id"`
	ClusterID        types.String `tfsdk:"cluster_id"`
	Tenant           types.String `tfsdk:"tenant"`
	PublicKeyPEM     types.String `tfsdk:"public_key_pem"`
	TTL              types.String `tfsdk:"ttl"`
	RenewBefore      types.String `tfsdk:"renew_before"`
	CertificatePEM   types.String `tfsdk:"certificate_pem"`
	CACertificatePEM types.String `tfsdk:"ca_certificate_pem"`
	Serial           types.String `tfsdk:"serial"`
	NotAfter         types.String `tfsdk:"not_after"`
}

const defaultTTL = "30d"

// Schema implements resource.Resource.
func (r *Resource) Schema(_ context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	fixed := []planmodifier.String{stringplanmodifier.RequiresReplace()}
	issued := func(doc string) schema.StringAttribute {
		return schema.StringAttribute{MarkdownDescription: doc, Computed: true,
			PlanModifiers: []planmodifier.String{stringplanmodifier.UseStateForUnknown()}}
	}
	resp.Schema = schema.Schema{
		Version: base.Version,
		MarkdownDescription: "An operator of a tenant (a Kubernetes operator, a pipeline, a person). It is " +
			"registered by its public key directly in the bucket, without a nonce and without a server. The private " +
			"key stays where it was made. Before the certificate expires, a plan renews it (see " +
			"`renew_before`).\n\nDestroying the resource leaves a tombstone in the bucket, which makes servers " +
			"refuse the operator: immediately, or within five minutes if they have read its record recently.",
		Attributes: map[string]schema.Attribute{
			"cluster_id": schema.StringAttribute{
				MarkdownDescription: "Name of the cluster.", Required: true, PlanModifiers: fixed,
				Validators: []validator.String{name.Valid("cluster name", ident.ValidateClusterName)},
			},
			"tenant": schema.StringAttribute{
				MarkdownDescription: "Tenant that the operator acts for. Default: `default`.", Optional: true,
				Computed: true,
				Default:  stringdefault.StaticString(ident.DefaultTenant), PlanModifiers: fixed,
				Validators: []validator.String{name.Valid("tenant", ident.ValidateTenantName)},
			},
			"public_key_pem": schema.StringAttribute{
				MarkdownDescription: "The operator's public key: Ed25519, in PEM (PKIX), such as `public_key_pem` " +
					"of a `tls_private_key` with the algorithm `ED25519`, or the output of `openssl pkey -in " +
					"identity.key -pubout`. A change of the key replaces the operator by another one.",
				Required: true,
				PlanModifiers: []planmodifier.String{stringplanmodifier.RequiresReplaceIf(otherKey,
					"another key is another operator", "another key is another operator")},
				Validators: []validator.String{name.Parsed("public key", registration.ParsePublicKey)},
			},
			"ttl": schema.StringAttribute{
				MarkdownDescription: "How long the operator's certificate lasts, such as `12h` or `30d`. Default: " +
					"`" + defaultTTL +
					"`. A change renews the certificate.", Optional: true, Computed: true,
				Default:    stringdefault.StaticString(defaultTTL),
				Validators: []validator.String{name.Parsed("ttl", registration.ParseTTL)},
			},
			"renew_before": schema.StringAttribute{
				MarkdownDescription: "A plan renews the certificate when it is valid for less than this time. " +
					"Default: a third of `ttl`.", Optional: true,
				Validators: []validator.String{name.Parsed("renew_before", config.ParseDuration)},
			},
			"id": issued(
				"ID of the operator. It is imported by `cluster/tenant/id`; the certificate is then renewed."),
			"certificate_pem": issued("The certificate."),
			"ca_certificate_pem": issued(
				"The CA certificates that the operator verifies servers with, as of the issue of its certificate."),
			"serial":    issued("Serial number of the certificate, in hexadecimal."),
			"not_after": issued("When the certificate ends (RFC 3339)."),
		},
	}
}

// otherKey requires a replacement if the public key changes. The same key in another PEM formatting is no change.
func otherKey(_ context.Context, req planmodifier.StringRequest,
	resp *stringplanmodifier.RequiresReplaceIfFuncResponse) {
	if req.PlanValue.IsUnknown() {
		resp.RequiresReplace = true
		return
	}
	before, err := registration.ParsePublicKey(req.StateValue.ValueString())
	after, err2 := registration.ParsePublicKey(req.PlanValue.ValueString())
	resp.RequiresReplace = err != nil || err2 != nil || !before.Equal(after)
}

// ValidateConfig implements resource.ResourceWithValidateConfig.
func (r *Resource) ValidateConfig(ctx context.Context, req resource.ValidateConfigRequest,
	resp *resource.ValidateConfigResponse) {
	var m model
	resp.Diagnostics.Append(req.Config.Get(ctx, &m)...)
	if m.TTL.IsUnknown() || m.RenewBefore.IsUnknown() || m.RenewBefore.IsNull() {
		return
	}
	ttl, before, err := m.durations()
	if err == nil && before >= ttl {
		resp.Diagnostics.Append(diagnostic.Failure{
			What: "Every plan would renew the certificate", Why: errRenewBefore,
			Do: "Make renew_before shorter than ttl.",
		}.At(path.Root("renew_before")))
	}
}

// durations returns ttl and renew_before. The default of renew_before is a third of ttl.
func (m model) durations() (ttl, before time.Duration, err error) {
	text := defaultTTL
	if s := m.TTL.ValueString(); s != "" {
		text = s
	}
	if ttl, err = registration.ParseTTL(text); err != nil {
		return 0, 0, err
	}
	if m.RenewBefore.IsNull() {
		return ttl, ttl / 3, nil
	}
	d, err := config.ParseDuration(m.RenewBefore.ValueString())
	return ttl, d.D(), err
}
