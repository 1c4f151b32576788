// Package operatoridentity implements the ephemeral resource nstance_operator_identity: the key and certificate of an
// operator for one run of Terraform.
//
// Invariants:
//   - The private key exists only in memory.
//   - The end of a run removes the operator that the run registered. If the run was interrupted, a later run removes
//     the operator after the operator's certificate has expired.
package operatoridentity

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/ephemeral"
	"github.com/hashicorp/terraform-plugin-framework/ephemeral/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/name"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/bucket"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/registration"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/base"
)

const (
	// writer is the prefix of the name by which operator records identify this resource as their writer.
	writer     = "terraform-identity"
	defaultTTL = time.Hour
	// privateKey is a key in Terraform's private data of the resource, not a cryptographic key. Open stores the
	// operator under it for Close.
	privateKey = "operator"
)

// Resource implements the ephemeral resource nstance_operator_identity.
type Resource struct{ base.Ephemeral }

// New returns the resource, not yet configured.
func New() ephemeral.EphemeralResource { return &Resource{base.Ephemeral{Name: "operator_identity"}} }

var (
	_ ephemeral.EphemeralResourceWithClose = (*Resource)(nil)
)

type (
	model struct {
		ClusterID        types.String `tfsdk:"cluster_id"`
		Tenant           types.String `tfsdk:"tenant"`
		TTL              types.String `tfsdk:"ttl"`
		OperatorID       types.String `tfsdk:"operator_id"`
		PrivateKeyPEM    types.String `tfsdk:"private_key_pem"`
		CertificatePEM   types.String `tfsdk:"certificate_pem"`
		CACertificatePEM types.String `tfsdk:"ca_certificate_pem"`
		NotAfter         types.String `tfsdk:"not_after"`
	}
	// registered identifies the operator that Close removes.
	registered struct {
		Cluster, Tenant string
		ID              ident.ID
	}
)

// Schema implements ephemeral.EphemeralResource.
func (r *Resource) Schema(_ context.Context, _ ephemeral.SchemaRequest, resp *ephemeral.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "Key and certificate of an operator for one run of Terraform, such as a pipeline's. " +
			"The operator is registered in the bucket when the run begins and removed when it ends. Neither plan " +
			"nor state contains its key. Give the identity to another configuration (an alias) of this provider as " +
			"its `operator`. The cluster must exist: let this resource depend on the `nstance_cluster`.\n\nEvery " +
			"plan registers an operator too, so the credentials of a plan must be able to write to the bucket and " +
			"to read the encryption key.",
		Attributes: map[string]schema.Attribute{
			"cluster_id": schema.StringAttribute{
				MarkdownDescription: "Name of the cluster.", Required: true,
				Validators: []validator.String{name.Valid("cluster name", ident.ValidateClusterName)},
			},
			"tenant": schema.StringAttribute{
				MarkdownDescription: "Tenant that the operator acts for. Default: `default`.", Optional: true,
				Validators: []validator.String{name.Valid("tenant", ident.ValidateTenantName)},
			},
			"ttl": schema.StringAttribute{
				MarkdownDescription: "How long the certificate lasts. It must outlast the run. Default: `1h`.",
				Optional:            true,
				Validators:          []validator.String{name.Parsed("ttl", registration.ParseTTL)},
			},
			"operator_id": schema.StringAttribute{MarkdownDescription: "ID of the operator.", Computed: true},
			"private_key_pem": schema.StringAttribute{MarkdownDescription: "The operator's private key, in PEM " +
				"(PKCS #8).",
				Computed: true, Sensitive: true},
			"certificate_pem": schema.StringAttribute{MarkdownDescription: "The operator's certificate.",
				Computed: true},
			"ca_certificate_pem": schema.StringAttribute{
				MarkdownDescription: "The CA certificates with which the operator verifies servers.", Computed: true},
			"not_after": schema.StringAttribute{MarkdownDescription: "When the certificate expires (RFC 3339).",
				Computed: true},
		},
	}
}

// Open implements ephemeral.EphemeralResource.
func (r *Resource) Open(ctx context.Context, req ephemeral.OpenRequest, resp *ephemeral.OpenResponse) {
	var m model
	if resp.Diagnostics.Append(req.Config.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	made, err := r.register(ctx, &m)
	where := r.Bucket.Place(keys.OperatorPrefix())
	switch {
	case errors.Is(err, secretstore.ErrNotFound):
		resp.Diagnostics.Append(diagnostic.Failure{
			What: "The operator's identity is not known yet", Where: where,
			Why: fmt.Errorf("cluster %s has no CA", m.ClusterID.ValueString()),
			Do: "Nothing, if this apply creates the cluster and the identity has depends_on = [<address of the " +
				"nstance_cluster>]. Otherwise create the cluster first, " +
				"or check the provider's storage.",
		}.Warning())
		fallthrough
	case errors.Is(err, bucket.ErrUnknown): // planning must work without the bucket
		for _, v := range []*types.String{&m.OperatorID, &m.PrivateKeyPEM, &m.CertificatePEM, &m.CACertificatePEM,
			&m.NotAfter} {
			*v = types.StringUnknown()
		}
		resp.Diagnostics.Append(resp.Result.Set(ctx, m)...)
		return
	case err != nil:
		resp.Diagnostics.Append(diagnostic.Failure{
			What: "Cannot register an operator of cluster " + m.ClusterID.ValueString(), Where: where, Why: err,
			Do: bucket.Advice(err),
		}.Error())
		return
	}
	note, err := json.Marshal(made)
	if err != nil {
		panic("operatoridentity: " + err.Error()) // not reached: all fields are strings
	}
	resp.Diagnostics.Append(resp.Private.SetKey(ctx, privateKey, note)...)
	resp.Diagnostics.Append(resp.Result.Set(ctx, m)...)
}

func (r *Resource) register(ctx context.Context, m *model) (registered, error) {
	fail := func(err error) (registered, error) { return registered{}, err }
	made := registered{Cluster: m.ClusterID.ValueString(), Tenant: ident.DefaultTenant}
	if !m.Tenant.IsNull() {
		made.Tenant = m.Tenant.ValueString()
	}
	ttl := defaultTTL
	if !m.TTL.IsNull() {
		var err error
		if ttl, err = registration.ParseTTL(m.TTL.ValueString()); err != nil {
			return fail(fmt.Errorf("ttl: %w", err))
		}
	}
	state, err := r.Bucket.KeyedCluster(ctx, made.Cluster)
	if err != nil {
		return fail(err)
	}
	if err := sweep(ctx, state, made.Tenant, time.Now()); err != nil {
		return fail(err)
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return fail(err)
	}
	operator, err := registration.Register(ctx, state, made.Tenant, public, ttl, writer)
	if err != nil {
		return fail(err)
	}
	key, err := authority.EncodePrivateKey(private)
	if err != nil {
		return fail(err)
	}
	made.ID = operator.ID
	m.OperatorID = types.StringValue(made.ID.String())
	m.PrivateKeyPEM = types.StringValue(string(key))
	m.CertificatePEM = types.StringValue(string(authority.EncodeCertificate(operator.Certificate)))
	m.CACertificatePEM = types.StringValue(string(authority.EncodeBundle(operator.Bundle...)))
	m.NotAfter = types.StringValue(operator.Certificate.NotAfter.UTC().Format(time.RFC3339))
	return made, nil
}

// Close implements ephemeral.EphemeralResourceWithClose. It reports a failure as a warning, because a later run removes
// the operator.
func (r *Resource) Close(ctx context.Context, req ephemeral.CloseRequest, resp *ephemeral.CloseResponse) {
	note, diags := req.Private.GetKey(ctx, privateKey)
	if resp.Diagnostics.Append(diags...); note == nil || diags.HasError() {
		return
	}
	made, err := parseNote(note)
	if err == nil {
		err = r.remove(ctx, made)
	}
	if err != nil {
		resp.Diagnostics.Append(diagnostic.Failure{
			What:  "Operator " + made.ID.String() + " of this run is not removed",
			Where: r.Bucket.Place(keys.OperatorPrefix()), Why: err,
			Do: "Nothing is to do: its key ended with this run, and the next run removes the record when the " +
				"certificate has expired.",
		}.Warning())
	}
}

// parseNote parses and checks the private data that Open stored.
func parseNote(note []byte) (registered, error) {
	var made registered
	decoder := json.NewDecoder(bytes.NewReader(note))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&made); err != nil {
		return registered{}, fmt.Errorf("the run's own note: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return registered{}, errors.New("the run's own note: something follows it")
	}
	if err := ident.ValidateClusterName(made.Cluster); err != nil {
		return registered{}, fmt.Errorf("the run's own note: cluster: %w", err)
	}
	if err := ident.ValidateTenantName(made.Tenant); err != nil {
		return registered{}, fmt.Errorf("the run's own note: tenant: %w", err)
	}
	if made.ID.Prefix() != ident.OperatorPrefix {
		return registered{}, fmt.Errorf("the run's own note: %q is no operator's ID", made.ID)
	}
	return made, nil
}

func (r *Resource) remove(ctx context.Context, made registered) error {
	state, err := r.Bucket.KeyedCluster(ctx, made.Cluster)
	if err != nil {
		return err
	}
	return forget(ctx, state, made.Tenant, made.ID)
}

// forget removes an operator and its tombstone. A tombstone only prevents a second registration with the same nonce,
// and this operator registered without a nonce.
func forget(ctx context.Context, state *clusterstate.State, tenant string, id ident.ID) error {
	if err := registration.Remove(ctx, state, tenant, id, writer); err != nil {
		return err
	}
	return state.DeleteOperator(ctx, tenant, id)
}

// sweep removes operators that interrupted runs did not remove, once their certificates have expired. It searches one
// tenant.
func sweep(ctx context.Context, state *clusterstate.State, tenant string, now time.Time) error {
	all, err := state.ListOperators(ctx, tenant)
	if err != nil {
		return err
	}
	for _, rec := range all {
		if strings.HasPrefix(rec.Writer, writer+"-") && now.After(rec.Certificate.NotAfter) {
			if err := forget(ctx, state, tenant, rec.ID); err != nil {
				return err
			}
		}
	}
	return nil
}
