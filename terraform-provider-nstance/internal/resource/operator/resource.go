// Package operator implements the resource nstance_operator, which registers an operator of a tenant in the bucket. The
// user provides the operator's public key.
//
// Invariants:
//   - The resource never handles the operator's private key.
//   - The certificate in the state was always issued for the public key in the state.
package operator

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/name"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/bucket"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/registration"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/base"
)

// writer is the prefix of the name by which records identify this resource as their writer.
const writer = "terraform-operator"

var errRenewBefore = errors.New("renew_before is not shorter than ttl")

// Resource implements the Terraform resource nstance_operator.
type Resource struct {
	base.Resource
	base.Importer
}

// New returns the resource, not yet configured.
func New() resource.Resource { return &Resource{base.Resource{Name: "operator"}, importer} }

var importer = base.Importer{Example: "example/default/opr06bgm7733st2576nx5jht4ecjw", Parts: []base.Part{
	{Attribute: "cluster_id", Name: "cluster", Check: ident.ValidateClusterName},
	{Attribute: "tenant", Name: "tenant", Check: ident.ValidateTenantName},
	{Attribute: "id", Name: "operator-id", Check: checkID},
}}

func checkID(text string) error {
	id, err := ident.ParseID(text)
	if err == nil && id.Prefix() != ident.OperatorPrefix {
		err = fmt.Errorf("%s is of kind %s, want %s", id, id.Prefix(), ident.OperatorPrefix)
	}
	return err
}

var (
	_ resource.ResourceWithValidateConfig = (*Resource)(nil)
	_ resource.ResourceWithModifyPlan     = (*Resource)(nil)
	_ resource.ResourceWithImportState    = (*Resource)(nil)
)

func (r *Resource) failure(what, key string, err error) diag.Diagnostic {
	do := bucket.Advice(err)
	switch {
	case errors.Is(err, registration.ErrRegistered):
		do = "Import that operator (terraform import <address of the nstance_operator> cluster/tenant/operator-id), " +
			"or use another key."
	case errors.Is(err, registration.ErrRemoved):
		do = "It was removed elsewhere. Plan again: the next apply registers it again."
	case errors.Is(err, secretstore.ErrNotFound):
		do = "Create the cluster first: let the operator depend on the nstance_cluster (cluster_id = " +
			"nstance_cluster.<name>.id), or check the provider's storage."
	}
	return diagnostic.Failure{What: what, Where: r.Bucket.Place(key), Why: err, Do: do}.Error()
}

// Create implements resource.Resource.
func (r *Resource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	defer func() { resp.Diagnostics.Append(r.Bucket.Remember(ctx, resp.Private)...) }()
	var m model
	if resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	operator, err := r.register(ctx, m)
	if err != nil {
		resp.Diagnostics.Append(r.failure("Cannot register an operator of tenant "+m.Tenant.ValueString(),
			keys.OperatorTenantPrefix(m.Tenant.ValueString()), err))
		return
	}
	m.set(operator)
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
}

func (r *Resource) register(ctx context.Context, m model) (registration.Operator, error) {
	key, err := registration.ParsePublicKey(m.PublicKeyPEM.ValueString())
	if err != nil {
		return registration.Operator{}, fmt.Errorf("public_key_pem: %w", err)
	}
	ttl, _, err := m.durations()
	if err != nil {
		return registration.Operator{}, fmt.Errorf("ttl: %w", err)
	}
	state, err := r.Bucket.KeyedCluster(ctx, m.ClusterID.ValueString())
	if err != nil {
		return registration.Operator{}, err
	}
	return registration.Register(ctx, state, m.Tenant.ValueString(), key, ttl, writer)
}

func (m *model) set(o registration.Operator) {
	m.ID = types.StringValue(o.ID.String())
	m.CertificatePEM = types.StringValue(string(authority.EncodeCertificate(o.Certificate)))
	m.CACertificatePEM = types.StringValue(string(authority.EncodeBundle(o.Bundle...)))
	m.Serial = types.StringValue(authority.Serial(o.Certificate))
	m.NotAfter = types.StringValue(o.Certificate.NotAfter.UTC().Format(time.RFC3339))
}

// key returns the operator's ID and the object key of its record.
func (m model) key() (ident.ID, string, error) {
	id, err := ident.ParseID(m.ID.ValueString())
	if err != nil {
		return ident.ID{}, keys.OperatorPrefix(), err
	}
	return id, keys.ClusterOperator(m.Tenant.ValueString(), id.Storage()), nil
}

// Read implements resource.Resource. It drops a removed operator from the state, so the next apply registers a new one.
// If the operator renewed its certificate itself, the state keeps the older certificate, which is valid until it
// expires.
func (r *Resource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	if !r.Bucket.Known() {
		return // planning must work without the bucket
	}
	defer r.Bucket.AfterRead(ctx, resp)
	var m model
	if resp.Diagnostics.Append(req.State.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	what := "Cannot read operator " + m.ID.ValueString()
	id, key, err := m.key()
	if err != nil {
		resp.Diagnostics.Append(r.failure(what, key, err))
		return
	}
	state, err := r.Bucket.Cluster(ctx, m.ClusterID.ValueString(), keyring.Ring{})
	if err != nil {
		resp.Diagnostics.Append(r.failure(what, key, err))
		return
	}
	rec, err := registration.FindUnverified(ctx, state, m.Tenant.ValueString(), id)
	switch {
	case errors.Is(err, registration.ErrRemoved):
		resp.State.RemoveResource(ctx)
		return
	case errors.Is(err, clusterstate.ErrDamaged):
		resp.Diagnostics.Append(diagnostic.Failure{
			What:  fmt.Sprintf("The record of operator %s cannot be read", m.ID.ValueString()),
			Where: r.Bucket.Place(key), Why: err,
			Do: "Servers refuse the operator. Restore the object from a backup or from an older version of it. Or " +
				"delete the object: the next apply then registers another operator.",
		}.Warning())
		return
	case err != nil:
		resp.Diagnostics.Append(r.failure(what, key, err))
		return
	}
	if have, err := registration.ParsePublicKey(m.PublicKeyPEM.ValueString()); err != nil ||
		string(have) != string(rec.PublicKey) {
		text, err := authority.EncodePublicKey(ed25519.PublicKey(rec.PublicKey))
		if err != nil {
			resp.Diagnostics.Append(r.failure(what, key, err))
			return
		}
		m.PublicKeyPEM = types.StringValue(string(text))
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
}

// ModifyPlan implements resource.ResourceWithModifyPlan. It plans a new certificate if the renewal is due.
func (r *Resource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.Plan.Raw.IsNull() || req.State.Raw.IsNull() {
		return
	}
	var plan, state model
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() || !plan.due(state, time.Now()) {
		return
	}
	for _, attribute := range []string{"certificate_pem", "ca_certificate_pem", "serial", "not_after"} {
		resp.Diagnostics.Append(resp.Plan.SetAttribute(ctx, path.Root(attribute), types.StringUnknown())...)
	}
}

// due reports whether the operator needs a new certificate now. have is the model in the state.
func (m model) due(have model, now time.Time) bool {
	if !m.TTL.Equal(have.TTL) || have.CertificatePEM.ValueString() == "" {
		return true
	}
	end, err := time.Parse(time.RFC3339, have.NotAfter.ValueString())
	if err != nil || m.RenewBefore.IsUnknown() {
		return true
	}
	_, before, err := m.durations()
	return err == nil && !now.Before(end.Add(-before))
}

// Update implements resource.Resource.
func (r *Resource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var plan, have model
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &have)...)
	if resp.Diagnostics.HasError() {
		return
	}
	if plan.CertificatePEM.IsUnknown() {
		operator, err := r.renew(ctx, plan)
		if err != nil {
			_, key, _ := plan.key()
			resp.Diagnostics.Append(r.failure("Cannot renew the certificate of operator "+plan.ID.ValueString(), key,
				err))
			return
		}
		plan.set(operator)
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, plan)...)
}

func (r *Resource) renew(ctx context.Context, m model) (registration.Operator, error) {
	id, _, err := m.key()
	if err != nil {
		return registration.Operator{}, err
	}
	ttl, _, err := m.durations()
	if err != nil {
		return registration.Operator{}, fmt.Errorf("ttl: %w", err)
	}
	state, err := r.Bucket.KeyedCluster(ctx, m.ClusterID.ValueString())
	if err != nil {
		return registration.Operator{}, err
	}
	return registration.Renew(ctx, state, m.Tenant.ValueString(), id, ttl, writer)
}

// Delete implements resource.Resource. It replaces the operator's record with a tombstone. A damaged record stays as it
// is.
func (r *Resource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var m model
	if resp.Diagnostics.Append(req.State.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	id, key, err := m.key()
	if err == nil {
		var state *clusterstate.State
		if state, err = r.Bucket.KeyedCluster(ctx, m.ClusterID.ValueString()); err == nil {
			err = registration.Remove(ctx, state, m.Tenant.ValueString(), id, writer)
		}
	}
	switch {
	case errors.Is(err, clusterstate.ErrDamaged), errors.Is(err, authority.ErrUnsigned),
		errors.Is(err, authority.ErrSignature):
		resp.Diagnostics.Append(diagnostic.Failure{
			What:  fmt.Sprintf("Operator %s was not removed, because its record is damaged", m.ID.ValueString()),
			Where: r.Bucket.Place(key), Why: err,
			Do: "Servers refuse the operator. Do not restore an older version of the object: it would permit the " +
				"operator again.",
		}.Warning())
	case err != nil:
		resp.Diagnostics.Append(r.failure("Cannot remove operator "+m.ID.ValueString(), key, err))
	}
}

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
