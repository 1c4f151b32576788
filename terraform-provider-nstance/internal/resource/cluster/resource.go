// Package cluster implements the resource nstance_cluster, which manages the objects in the bucket that all shards
// share: the CA, the key that signs registration nonces, and the secrets, which the encryption key seals.
//
// Invariants:
//   - Plan and state never contain a private key.
//   - The resource never creates a second CA for a cluster that has one.
package cluster

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/objectvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/boolplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/name"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/bucket"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/base"
)

// Resource implements the Terraform resource nstance_cluster.
type Resource struct {
	base.Resource
	base.Importer
}

// New returns the resource, not yet configured.
func New() resource.Resource { return &Resource{base.Resource{Name: "cluster"}, importer} }

var importer = base.Importer{Example: "example", Parts: []base.Part{
	{Attribute: "id", Name: "cluster", Check: ident.ValidateClusterName},
}}

var (
	_ resource.ResourceWithValidateConfig = (*Resource)(nil)
	_ resource.ResourceWithModifyPlan     = (*Resource)(nil)
	_ resource.ResourceWithImportState    = (*Resource)(nil)
)

func (r *Resource) failure(what, key string, err error) diag.Diagnostic {
	do := bucket.Advice(err)
	switch {
	case errors.Is(err, clusterstate.ErrCALost):
		do = "Check the provider's storage: with another bucket or prefix the cluster may be found. If the secret " +
			"is lost, restore it from a backup or an older version " +
			"of the bucket's object: no second CA is made, because no agent that runs would trust it."
	case errors.Is(err, objstore.ErrConflict):
		do = "Remove ca_certificate_pem and ca_private_key_pem_wo to take over the CA that the cluster has, or use " +
			"another bucket or prefix."
	}
	return diagnostic.Failure{What: what, Where: r.Bucket.Place(key), Why: err, Do: do}.Error()
}

// ValidateConfig implements resource.ResourceWithValidateConfig.
func (r *Resource) ValidateConfig(ctx context.Context, req resource.ValidateConfigRequest,
	resp *resource.ValidateConfigResponse) {
	var config model
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	if resp.Diagnostics.HasError() {
		return
	}
	if text := config.CACertificatePEM; !text.IsNull() && !text.IsUnknown() {
		if _, err := authority.ParseBundle([]byte(text.ValueString())); err != nil {
			resp.Diagnostics.Append(diagnostic.Failure{What: "Invalid CA certificate", Why: err,
				Do: "Give exactly one certificate in PEM."}.At(path.Root("ca_certificate_pem")))
		}
	}
	if text := config.EncryptionKeyWO; !text.IsNull() && !text.IsUnknown() {
		if _, err := keyring.Parse([]byte(text.ValueString())); err != nil {
			resp.Diagnostics.Append(badKey(err))
		}
	}
}

func badKey(err error) diag.Diagnostic {
	return diagnostic.Failure{
		What: "Invalid encryption key", Why: err,
		Do: "Give 32 random bytes in base64, such as the ephemeral resource nstance_encryption_key makes.",
	}.At(path.Root("encryption_key_wo"))
}

// ModifyPlan implements resource.ResourceWithModifyPlan. It refuses to destroy or replace a protected cluster. It
// refuses a new encryption key if the old key is not available. If the replacement of the CA is due, ModifyPlan adds it
// to the plan.
func (r *Resource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	var plan, config, before model
	if req.State.Raw.IsNull() {
		resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
		if cluster := plan.ID.ValueString(); cluster != "" {
			r.Bucket.Glance(ctx, func(ctx context.Context) {
				if err := r.Bucket.CheckCluster(ctx, cluster); err != nil {
					resp.Diagnostics.Append(r.Bucket.ForeignCluster(cluster, path.Root("id"), err))
				}
			})
		}
		return
	}
	resp.Diagnostics.Append(req.State.Get(ctx, &before)...)
	destroys := req.Plan.Raw.IsNull()
	if !destroys {
		resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
		resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
		// A change of one of these attributes replaces the cluster (see Schema).
		destroys = !plan.ID.Equal(before.ID) ||
			!config.CACertificatePEM.IsNull() && !plan.CACertificatePEM.Equal(before.CACertificatePEM)
	}
	switch {
	case resp.Diagnostics.HasError():
	case destroys && before.DeletionProtection.ValueBool():
		resp.Diagnostics.Append(diagnostic.Failure{
			What: "Cannot destroy cluster " + before.ID.ValueString(),
			Why:  errors.New("it has deletion_protection"),
			Do: "Nothing was changed. To destroy the cluster, set deletion_protection = false, apply, and destroy " +
				"again.",
		}.Error())
	case destroys:
		if warning := r.warnOfDestroy(ctx, before); warning != nil {
			resp.Diagnostics.Append(warning)
		}
	case r.Bucket.Known() && r.Bucket.Sealed() && keyChanges(before, plan):
		resp.Diagnostics.Append(r.checkKeyChange(ctx, before, config)...)
	}
	if !destroys && !resp.Diagnostics.HasError() && rotationDue(plan, before, time.Now()) {
		plan.markRotation()
		resp.Diagnostics.Append(resp.Plan.Set(ctx, plan)...)
	}
}

// Create implements resource.Resource.
func (r *Resource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	defer func() { resp.Diagnostics.Append(r.Bucket.Remember(ctx, resp.Private)...) }()
	var plan, config model
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	if resp.Diagnostics.HasError() {
		return
	}
	cluster, what := plan.ID.ValueString(), "Cannot create cluster "+plan.ID.ValueString()
	ring, err := r.ring(ctx, config)
	if err != nil {
		resp.Diagnostics.Append(r.failure(what, keys.ClusterSecret(secretstore.CAKey), err))
		return
	}
	state, err := r.Bucket.Cluster(ctx, cluster, ring)
	if err == nil {
		err = r.ensure(ctx, state, config)
	}
	if err != nil {
		resp.Diagnostics.Append(r.failure(what, keys.ClusterSecret(secretstore.CAKey), err))
		return
	}
	resp.Diagnostics.Append(r.observe(ctx, state, &plan, state.CABundle, what)...)
	if !resp.Diagnostics.HasError() { // after an error, the next apply adopts what this one created
		resp.Diagnostics.Append(resp.State.Set(ctx, plan)...)
	}
}

func (r *Resource) ensure(ctx context.Context, state *clusterstate.State, config model) error {
	if config.CAPrivateKeyPEMWO.IsNull() {
		if _, _, err := state.EnsureCA(ctx); err != nil {
			return err
		}
	} else {
		ca, err := authority.ImportCA(config.ID.ValueString(), []byte(config.CACertificatePEM.ValueString()),
			[]byte(config.CAPrivateKeyPEMWO.ValueString()), rand.Reader, time.Now())
		if err != nil {
			return err
		}
		if _, err := state.StoreCA(ctx, ca); err != nil {
			return err
		}
	}
	_, _, err := state.EnsureNonceKey(ctx)
	return err
}

// knownCA returns a function that reads the trust bundle without the encryption key. The bundle must be signed by the
// CA in the Terraform state m. After an import, the state has no CA, and the function does not check the signature.
func knownCA(state *clusterstate.State, m model) func(context.Context) ([]*x509.Certificate, error) {
	known, err := authority.ParseBundle([]byte(m.CACertificatePEM.ValueString()))
	if err != nil {
		return state.UnverifiedCABundle
	}
	return func(ctx context.Context) ([]*x509.Certificate, error) { return state.CABundleSignedBy(ctx, known) }
}

// observe fills in the computed attributes from the bucket. It needs no encryption key.
func (r *Resource) observe(ctx context.Context, state *clusterstate.State, m *model,
	readBundle func(context.Context) ([]*x509.Certificate, error), what string) diag.Diagnostics {
	bundle, err := readBundle(ctx)
	if err != nil {
		return diag.Diagnostics{r.failure(what, keys.ClusterCA(), err)}
	}
	ca := bundle[0]
	m.CARotating = types.BoolValue(len(bundle) > 1)
	if len(bundle) > 1 || !sameCertificate(m.CACertificatePEM.ValueString(), ca) {
		m.CACertificatePEM = types.StringValue(string(authority.EncodeBundle(bundle...)))
	}
	m.CAFingerprint = types.StringValue(authority.Fingerprint(ca))
	m.CANotAfter = types.StringValue(ca.NotAfter.UTC().Format(time.RFC3339))
	m.CAKeyID = types.StringValue(hex.EncodeToString(ca.SubjectKeyId))
	if m.EncryptionKeyID, err = r.Bucket.KeyID(ctx, secretstore.CAKey, m.EncryptionKeyID); err != nil {
		return diag.Diagnostics{r.failure(what, keys.ClusterSecret(secretstore.CAKey), err)}
	}
	return nil
}

// damaged returns a warning if an object that [Resource.observe] reads is damaged, and else nil. With an error instead,
// the plan of everything else would fail too.
func (r *Resource) damaged(ctx context.Context, m model,
	readBundle func(context.Context) ([]*x509.Certificate, error)) diag.Diagnostic {
	failure := diagnostic.Failure{
		What:  "The CA of cluster " + m.ID.ValueString() + " cannot be read",
		Where: r.Bucket.Place(keys.ClusterCA()),
		Do:    "Delete the object: the next apply derives it from the CA's key.",
	}
	if _, failure.Why = readBundle(ctx); !errors.Is(failure.Why, clusterstate.ErrDamaged) {
		failure.Where = r.Bucket.SecretPlace(secretstore.CAKey)
		failure.Do = "Restore the object from a backup or from an older version of it: no second CA is made, because " +
			"no agent that runs would trust it."
		_, failure.Why = r.Bucket.KeyID(ctx, secretstore.CAKey, m.EncryptionKeyID)
	}
	if !errors.Is(failure.Why, clusterstate.ErrDamaged) {
		return nil
	}
	return failure.Warning()
}

// sameCertificate reports whether a PEM text, in any formatting, contains exactly the certificate cert.
func sameCertificate(text string, cert *x509.Certificate) bool {
	certs, err := authority.ParseBundle([]byte(text))
	return err == nil && len(certs) == 1 && certs[0].Equal(cert)
}

// Read implements resource.Resource.
func (r *Resource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	if !r.Bucket.Known() {
		return // planning must work without the bucket
	}
	defer r.Bucket.AfterRead(ctx, resp)
	var m model
	resp.Diagnostics.Append(req.State.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	what := "Cannot read cluster " + m.ID.ValueString()
	store, err := r.Bucket.Store(ctx)
	if err != nil {
		resp.Diagnostics.Append(r.failure(what, keys.ClusterCA(), err))
		return
	}
	_, err = store.Get(ctx, keys.ClusterCA())
	if errors.Is(err, objstore.ErrNotFound) {
		// Without the resource in the state, the next apply calls Create. Create derives the certificate from the CA's
		// key, or makes a new CA if that key does not exist.
		resp.State.RemoveResource(ctx)
		return
	}
	if err == nil {
		var exists bool
		exists, err = r.Bucket.HasSecret(ctx, m.ID.ValueString(), secretstore.CAKey)
		switch {
		case errors.Is(err, bucket.ErrUnknown):
			return // planning must work without the secrets store
		case err == nil && !exists:
			err = clusterstate.ErrCALost
		}
	}
	if err != nil {
		resp.Diagnostics.Append(r.failure(what, keys.ClusterSecret(secretstore.CAKey), err))
		return
	}
	state, err := r.Bucket.Cluster(ctx, m.ID.ValueString(), keyring.Ring{})
	if err != nil {
		resp.Diagnostics.Append(r.failure(what, keys.ClusterCA(), err))
		return
	}
	if warning := r.damaged(ctx, m, knownCA(state, m)); warning != nil {
		resp.Diagnostics.Append(warning)
		return
	}
	resp.Diagnostics.Append(r.copied(ctx, state)...)
	resp.Diagnostics.Append(r.observe(ctx, state, &m, knownCA(state, m), what)...)
	if !resp.Diagnostics.HasError() {
		resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
	}
}

// copied warns if the bucket is not the home of the cluster's shards. It describes the first such shard.
func (r *Resource) copied(ctx context.Context, state *clusterstate.State) (diags diag.Diagnostics) {
	r.Bucket.Glance(ctx, func(ctx context.Context) {
		shards, err := state.Shards(ctx)
		if err != nil {
			return
		}
		for _, shard := range shards {
			if failure, ok := r.Bucket.NotHome(r.Bucket.CheckHome(ctx, shard)); ok {
				diags.Append(failure.Warning())
				return
			}
		}
	})
	return diags
}

// Update implements resource.Resource. If the encryption key changed, it seals all secrets under the new key. If the
// plan includes a replacement of the CA, it begins or continues the replacement.
func (r *Resource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var plan, config, before model
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &before)...)
	if resp.Diagnostics.HasError() {
		return
	}
	what := "Cannot update cluster " + plan.ID.ValueString()
	if r.Bucket.Sealed() && keyChanges(before, plan) {
		if err := r.reseal(ctx, before, config); err != nil {
			resp.Diagnostics.Append(r.failure("Cannot seal all secrets of cluster "+plan.ID.ValueString()+
				" under the new key", keys.SecretPrefix(), err))
			return
		}
	}
	ring, rotates := keyring.Ring{}, plan.CARotating.IsUnknown()
	if rotates {
		var err error
		if ring, err = r.ring(ctx, config); err != nil {
			resp.Diagnostics.Append(r.failure(what, keys.ClusterSecret(secretstore.CAKey), err))
			return
		}
	}
	state, err := r.Bucket.Cluster(ctx, plan.ID.ValueString(), ring)
	if err != nil {
		resp.Diagnostics.Append(r.failure(what, keys.ClusterCA(), err))
		return
	}
	readBundle := knownCA(state, before)
	if rotates {
		warnings, err := r.rotateCA(ctx, state, plan.ID.ValueString())
		if err != nil {
			resp.Diagnostics.Append(r.failure("Cannot replace the CA of cluster "+plan.ID.ValueString(),
				keys.ClusterSecret(secretstore.CAKey), err))
			return
		}
		resp.Diagnostics.Append(warnings...)
		readBundle = state.CABundle
	}
	resp.Diagnostics.Append(r.observe(ctx, state, &plan, readBundle, what)...)
	if !resp.Diagnostics.HasError() {
		resp.Diagnostics.Append(resp.State.Set(ctx, plan)...)
	}
}

// model holds the attributes of the resource nstance_cluster.
type model struct {
	ID                     types.String `tfsdk:"id"`
	CACertificatePEM       types.String `tfsdk:"ca_certificate_pem"`
	CAPrivateKeyPEMWO      types.String `tfsdk:"ca_private_key_pem_wo"`
	CAEarlyRenewal         types.String `tfsdk:"ca_early_renewal"`
	EncryptionKey          types.Object `tfsdk:"encryption_key"`
	EncryptionKeyWO        types.String `tfsdk:"encryption_key_wo"`
	EncryptionKeyWOVersion types.Int64  `tfsdk:"encryption_key_wo_version"`
	DeletionProtection     types.Bool   `tfsdk:"deletion_protection"`
	ForceDestroy           types.Bool   `tfsdk:"force_destroy"`
	CAFingerprint          types.String `tfsdk:"ca_fingerprint"`
	CANotAfter             types.String `tfsdk:"ca_not_after"`
	CAKeyID                types.String `tfsdk:"ca_key_id"`
	CARotating             types.Bool   `tfsdk:"ca_rotating"`
	EncryptionKeyID        types.String `tfsdk:"encryption_key_id"`
}

// Schema implements resource.Resource.
func (r *Resource) Schema(_ context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	computed := func(doc string) schema.StringAttribute {
		return schema.StringAttribute{
			MarkdownDescription: doc,
			Computed:            true,
			PlanModifiers:       []planmodifier.String{stringplanmodifier.UseStateForUnknown()},
		}
	}
	resp.Schema = schema.Schema{
		Version: base.Version,
		MarkdownDescription: "The keys that all shards of a cluster share: the CA and the key that signs " +
			"registration nonces. They are sealed in the bucket, or kept in the service that the provider's " +
			"`secrets` names. The resource uses existing keys, and makes missing ones.\n\nDestroying the resource " +
			"is refused while a shard has a configuration or records of instances in the bucket. It removes the " +
			"cluster's secrets and operators too, and its journal.",
		Attributes: map[string]schema.Attribute{
			"id": schema.StringAttribute{
				MarkdownDescription: "Name of the cluster, at most 30 characters. Also the import ID.",
				Required:            true,
				PlanModifiers:       []planmodifier.String{stringplanmodifier.RequiresReplace()},
				Validators:          []validator.String{name.Valid("cluster name", ident.ValidateClusterName)},
			},
			"ca_certificate_pem": schema.StringAttribute{
				MarkdownDescription: "The CA's certificate. Set it, together with `ca_private_key_pem_wo`, to bring " +
					"a CA of your own; otherwise one is made. While the CA is being replaced, the attribute holds " +
					"the new and the old certificate.",
				Optional: true,
				Computed: true,
				PlanModifiers: []planmodifier.String{stringplanmodifier.UseStateForUnknown(),
					stringplanmodifier.RequiresReplaceIfConfigured()},
			},
			"ca_private_key_pem_wo": schema.StringAttribute{
				MarkdownDescription: "Private key of a CA of your own, in PEM (PKCS #8, SEC 1 or PKCS #1). It is " +
					"read when the cluster is created, and kept only sealed in the bucket.",
				Optional:  true,
				WriteOnly: true,
				Validators: []validator.String{stringvalidator.AlsoRequires(
					path.MatchRoot("ca_certificate_pem"))},
			},
			"ca_early_renewal": schema.StringAttribute{
				MarkdownDescription: "How long before the CA expires it is replaced, such as `90d`. Give more than " +
					"the 30 days that certificates of operators last. From that time on, each apply takes the steps " +
					"of `nstance-admin cluster rotate-ca` that are possible, and a warning says what the next one " +
					"waits for. All shards of the cluster must have their configuration in this bucket. If left " +
					"out, the CA is not replaced.",
				Optional: true,
				Validators: []validator.String{
					name.Valid("ca_early_renewal", checkEarlyRenewal),
					stringvalidator.ConflictsWith(path.MatchRoot("ca_certificate_pem")),
				},
			},
			"encryption_key": schema.SingleNestedAttribute{
				MarkdownDescription: "Where the key that seals the cluster's secrets is kept, instead of the " +
					"provider's `encryption_key`. The servers need the same key. A change of the source is a change " +
					"of the key: the apply seals all secrets again with the key in the new source. Until then the " +
					"old source must stay readable, or `old_encryption_keys` of the provider must name the old key.",
				Optional: true,
				Attributes: map[string]schema.Attribute{
					"provider": schema.StringAttribute{
						MarkdownDescription: "Where the key is kept.",
						Required:            true,
						Validators:          []validator.String{stringvalidator.OneOf(config.KeySourceNames()...)},
					},
					"source": schema.StringAttribute{
						MarkdownDescription: "Name of the environment variable, path of the file, or name or ARN " +
							"of the secret or parameter.",
						Required: true,
					},
				},
				Validators: []validator.Object{objectvalidator.ConflictsWith(
					path.MatchRoot("encryption_key_wo"), path.MatchRoot("encryption_key_wo_version"))},
			},
			"encryption_key_wo": schema.StringAttribute{
				MarkdownDescription: "The key that seals the cluster's secrets, 32 bytes in base64, instead of the " +
					"provider's `encryption_key`. The servers need the same key. When it is " +
					"changed, the provider's `encryption_key` or `old_encryption_keys` must still name the key " +
					"before it.",
				Optional:  true,
				WriteOnly: true,
			},
			"encryption_key_wo_version": schema.Int64Attribute{
				MarkdownDescription: "A change of this number seals all secrets again with the current key: " +
					"`encryption_key_wo`, or else the provider's `encryption_key`. The plan fails if the key before " +
					"that is not available.",
				Optional:   true,
				Validators: []validator.Int64{int64validator.AtLeast(0)},
			},
			"deletion_protection": schema.BoolAttribute{
				MarkdownDescription: "Refuse every plan that destroys or replaces the cluster, until an apply has " +
					"set this to `false`.",
				Optional: true,
			},
			"force_destroy": schema.BoolAttribute{
				MarkdownDescription: "Let a destroy remove the cluster's keys although shards have a configuration " +
					"or " +
					"records of instances. Their servers and agents can never connect again.",
				Optional: true,
			},
			"ca_fingerprint": computed("SHA-256 of the CA's certificate, in hexadecimal."),
			"ca_not_after":   computed("When the CA's certificate expires (RFC 3339)."),
			"ca_key_id":      computed("Subject key identifier of the CA, in hexadecimal."),
			"ca_rotating": schema.BoolAttribute{
				MarkdownDescription: "Whether the CA is being replaced. Meanwhile the cluster trusts the new and " +
					"the old CA.",
				Computed:      true,
				PlanModifiers: []planmodifier.Bool{boolplanmodifier.UseStateForUnknown()},
			},
			"encryption_key_id": schema.StringAttribute{
				MarkdownDescription: "Identifies the encryption key that seals the CA: a truncated hash of the key. " +
					"Null if a secrets service holds the CA's key.",
				Computed: true,
			},
		},
	}
}
