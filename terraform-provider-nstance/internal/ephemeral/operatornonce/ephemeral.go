// Package operatornonce implements the ephemeral resource nstance_operator_nonce: a token for the registration of one
// operator.
package operatornonce

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/ephemeral"
	"github.com/hashicorp/terraform-plugin-framework/ephemeral/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/name"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/bucket"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/base"
)

// Resource implements the ephemeral resource nstance_operator_nonce.
type Resource struct{ base.Ephemeral }

// New returns the resource, not yet configured.
func New() ephemeral.EphemeralResource { return &Resource{base.Ephemeral{Name: "operator_nonce"}} }

type model struct {
	ClusterID  types.String `tfsdk:"cluster_id"`
	Tenant     types.String `tfsdk:"tenant"`
	Role       types.String `tfsdk:"role"`
	Expiry     types.String `tfsdk:"expiry"`
	Nonce      types.String `tfsdk:"nonce"`
	OperatorID types.String `tfsdk:"operator_id"`
	ExpiresAt  types.String `tfsdk:"expires_at"`
}

// Schema implements ephemeral.EphemeralResource.
func (r *Resource) Schema(_ context.Context, _ ephemeral.SchemaRequest, resp *ephemeral.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "A registration nonce for one operator, such as that of a Kubernetes cluster: a JWT " +
			"with which one operator registers once. It is never stored in plan or state. The cluster must exist: " +
			"let this resource depend on the `nstance_cluster`.\n\nEvery plan makes a nonce too, so the credentials " +
			"of a plan must be able to read the encryption key.",
		Attributes: map[string]schema.Attribute{
			"cluster_id": schema.StringAttribute{MarkdownDescription: "Name of the cluster.", Required: true,
				Validators: []validator.String{name.Valid("cluster_id", ident.ValidateClusterName)}},
			"tenant": schema.StringAttribute{MarkdownDescription: "Tenant of the operator. Default: `default`.",
				Optional: true, Validators: []validator.String{name.Valid("tenant", ident.ValidateTenantName)}},
			"role": schema.StringAttribute{MarkdownDescription: "What the operator may do: `viewer`, `operator` or " +
				"`admin`. Default: `operator`.", Optional: true,
				Validators: []validator.String{name.Valid("role", checkRole)}},
			"expiry": schema.StringAttribute{
				MarkdownDescription: "How long the nonce can be used, such as `30m`. Default: `3h`.", Optional: true,
				Validators: []validator.String{name.Parsed("expiry", parseExpiry)}},
			"nonce": schema.StringAttribute{
				MarkdownDescription: "The nonce, a JWT.",
				Computed:            true,
				Sensitive:           true,
			},
			"operator_id": schema.StringAttribute{MarkdownDescription: "ID that the operator will have after it has " +
				"registered.",
				Computed: true},
			"expires_at": schema.StringAttribute{MarkdownDescription: "When the nonce expires (RFC 3339).",
				Computed: true},
		},
	}
}

func checkRole(text string) error {
	if !slices.Contains(record.OperatorRoles, record.OperatorRole(text)) {
		return errors.New("it is not viewer, operator or admin")
	}
	return nil
}

// parseExpiry parses the lifetime of a nonce. The minimum is one second, and package [authority] limits the maximum.
func parseExpiry(text string) (time.Duration, error) {
	d, err := config.ParseDuration(text)
	switch {
	case err != nil:
		return 0, err
	case d.D() < time.Second:
		return 0, errors.New("it has to be a second at least")
	}
	return d.D(), nil
}

// Open implements ephemeral.EphemeralResource.
func (r *Resource) Open(ctx context.Context, req ephemeral.OpenRequest, resp *ephemeral.OpenResponse) {
	var m model
	resp.Diagnostics.Append(req.Config.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	nonce, claims, err := r.mint(ctx, m)
	where := r.Bucket.Place(keys.ClusterSecret(secretstore.NonceKey))
	switch {
	case errors.Is(err, secretstore.ErrNotFound):
		resp.Diagnostics.Append(diagnostic.Failure{
			What: "The registration nonce is not known yet", Where: where,
			Why: fmt.Errorf("cluster %s has no key for nonces", m.ClusterID.ValueString()),
			Do: "Nothing, if this apply creates the cluster and the nonce has depends_on = [<address of the " +
				"nstance_cluster>]. Otherwise create the cluster first, " +
				"or check the provider's storage.",
		}.Warning())
		fallthrough
	case errors.Is(err, bucket.ErrUnknown): // planning must work without the bucket
		m.Nonce, m.OperatorID, m.ExpiresAt = types.StringUnknown(), types.StringUnknown(), types.StringUnknown()
		resp.Diagnostics.Append(resp.Result.Set(ctx, m)...)
		return
	case err != nil:
		resp.Diagnostics.Append(diagnostic.Failure{
			What:  "Cannot make a registration nonce for an operator of cluster " + m.ClusterID.ValueString(),
			Where: where, Why: err, Do: bucket.Advice(err),
		}.Error())
		return
	}
	m.Nonce = types.StringValue(nonce.Reveal())
	m.OperatorID = types.StringValue(claims.ID.String())
	m.ExpiresAt = types.StringValue(claims.ExpiresAt.Format(time.RFC3339))
	resp.Diagnostics.Append(resp.Result.Set(ctx, m)...)
}

func (r *Resource) mint(ctx context.Context, m model) (authority.Nonce, authority.NonceClaims, error) {
	fail := func(err error) (authority.Nonce, authority.NonceClaims, error) {
		return authority.Nonce{}, authority.NonceClaims{}, err
	}
	spec := authority.NonceSpec{Role: authority.RoleOperator, Cluster: m.ClusterID.ValueString(),
		Tenant: ident.DefaultTenant}
	if !m.Tenant.IsNull() {
		spec.Tenant = m.Tenant.ValueString()
	}
	spec.OperatorRole = record.OperatorRole(m.Role.ValueString()) // "" without a value
	if !m.Expiry.IsNull() {
		var err error
		if spec.TTL, err = parseExpiry(m.Expiry.ValueString()); err != nil {
			return fail(fmt.Errorf("expiry: %w", err))
		}
	}
	state, err := r.Bucket.KeyedCluster(ctx, spec.Cluster)
	if err != nil {
		return fail(err)
	}
	key, err := state.LoadNonceKey(ctx)
	if err != nil {
		return fail(err)
	}
	return authority.MintNonce(key, spec, rand.Reader, time.Now())
}
