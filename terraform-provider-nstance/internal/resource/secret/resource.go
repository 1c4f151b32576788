// Package secret implements the resource nstance_secret, which stores a user's secret in the cluster's secrets store.
// Template files pass the secret to instances.
//
// Invariant: plan and state never contain the value.
package secret

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/name"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/bucket"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/base"
)

// Resource implements the Terraform resource nstance_secret.
type Resource struct {
	base.Resource
	base.Importer
}

// New returns the resource, not yet configured.
func New() resource.Resource { return &Resource{base.Resource{Name: "secret"}, importer} }

var importer = base.Importer{Example: "example/db-password", Parts: []base.Part{
	{Attribute: "cluster_id", Name: "cluster", Check: ident.ValidateClusterName},
	{Attribute: "name", Name: "name", Check: config.ValidateSecretSource},
}}

var (
	_ resource.ResourceWithModifyPlan  = (*Resource)(nil)
	_ resource.ResourceWithImportState = (*Resource)(nil)
)

type model struct {
	ClusterID       types.String `tfsdk:"cluster_id"`
	Name            types.String `tfsdk:"name"`
	ValueWO         types.String `tfsdk:"value_wo"`
	ValueWOVersion  types.Int64  `tfsdk:"value_wo_version"`
	EncryptionKeyID types.String `tfsdk:"encryption_key_id"`
}

// Schema implements resource.Resource.
func (r *Resource) Schema(_ context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	replace := []planmodifier.String{stringplanmodifier.RequiresReplace()}
	resp.Schema = schema.Schema{
		Version: base.Version,
		MarkdownDescription: "A secret for instances, sealed in the bucket, or in the service that the provider's " +
			"`secrets` names. Files of kind `secret` in a template name the secret as their `source`.",
		Attributes: map[string]schema.Attribute{
			"cluster_id": schema.StringAttribute{
				MarkdownDescription: "Name of the cluster. No other cluster can open the secret.",
				Required:            true,
				PlanModifiers:       replace,
				Validators:          []validator.String{name.Valid("cluster name", ident.ValidateClusterName)},
			},
			"name": schema.StringAttribute{
				MarkdownDescription: "Name of the secret.",
				Required:            true,
				PlanModifiers:       replace,
				Validators:          []validator.String{name.Valid("secret name", config.ValidateSecretSource)},
			},
			"value_wo": schema.StringAttribute{
				MarkdownDescription: "Value of the secret. It is read when the secret is created, and whenever " +
					"`value_wo_version` changes.",
				Required:  true,
				WriteOnly: true,
			},
			"value_wo_version": schema.Int64Attribute{
				MarkdownDescription: "Change this number to store the value again.",
				Required:            true,
			},
			"encryption_key_id": schema.StringAttribute{
				MarkdownDescription: "Identifies the encryption key that seals the secret: a truncated hash of the " +
					"key. Null if a secrets service holds the secret.",
				Computed: true,
			},
		},
	}
}

func (r *Resource) failure(what, name string, err error) diag.Diagnostic {
	do := bucket.Advice(err)
	if errors.Is(err, secretstore.ErrInvalid) {
		do = fmt.Sprintf("Give a value of 1 to %d bytes; let the secret depend on the resource that makes the value.",
			secretstore.MaxValue)
	}
	return diagnostic.Failure{What: what, Where: r.Bucket.SecretPlace(name), Why: err, Do: do}.Error()
}

// put stores the value, and returns the ID of the key that sealed it.
func (r *Resource) put(ctx context.Context, m model, cond secretstore.Condition) (types.String, error) {
	none := types.StringNull()
	if m.ValueWO.IsUnknown() {
		return none, fmt.Errorf("%w: the value is not known yet", secretstore.ErrInvalid)
	}
	if err := r.Bucket.CheckCluster(ctx, m.ClusterID.ValueString()); err != nil {
		return none, err
	}
	ring, err := r.Bucket.Ring(ctx)
	if err != nil {
		return none, err
	}
	secrets, err := r.Bucket.Secrets(ctx, m.ClusterID.ValueString(), ring)
	if err != nil {
		return none, err
	}
	if err := secrets.Put(ctx, m.Name.ValueString(), secretstore.NewValue([]byte(m.ValueWO.ValueString())),
		cond); err != nil {
		return none, err
	}
	if !r.Bucket.Sealed() {
		return none, nil
	}
	return types.StringValue(ring.Current.ID().String()), nil
}

// ModifyPlan implements resource.ResourceWithModifyPlan. It refuses the name of another cluster than the bucket's: no
// server could open the secret.
func (r *Resource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.Plan.Raw.IsNull() {
		return
	}
	var plan, before model
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if !req.State.Raw.IsNull() {
		resp.Diagnostics.Append(req.State.Get(ctx, &before)...)
	}
	cluster := plan.ClusterID.ValueString()
	if resp.Diagnostics.HasError() || cluster == "" || plan.ClusterID.Equal(before.ClusterID) {
		return
	}
	r.Bucket.Glance(ctx, func(ctx context.Context) {
		if err := r.Bucket.CheckCluster(ctx, cluster); err != nil {
			resp.Diagnostics.Append(r.Bucket.ForeignCluster(cluster, path.Root("cluster_id"), err))
		}
	})
}

// Create implements resource.Resource.
func (r *Resource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	defer func() { resp.Diagnostics.Append(r.Bucket.Remember(ctx, resp.Private)...) }()
	var config, plan model
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if resp.Diagnostics.HasError() {
		return
	}
	name := config.Name.ValueString()
	id, err := r.put(ctx, config, secretstore.IfAbsent)
	switch {
	case errors.Is(err, secretstore.ErrExists):
		resp.Diagnostics.Append(diagnostic.Failure{
			What: fmt.Sprintf("Secret %s exists", name), Where: r.Bucket.SecretPlace(name),
			Why: errors.New("this resource did not store it"),
			Do: fmt.Sprintf(
				"If this resource should manage it, import it: terraform import <address of the nstance_secret> "+
					"%s/%s. Otherwise choose another name. Nothing was written.",
				config.ClusterID.ValueString(), name),
		}.Error())
	case err != nil:
		resp.Diagnostics.Append(r.failure("Cannot store secret "+name, name, err))
	default:
		plan.EncryptionKeyID = id
		resp.Diagnostics.Append(resp.State.Set(ctx, plan)...)
	}
}

// Update implements resource.Resource. Terraform calls it when the version of the value changed.
func (r *Resource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var config, plan model
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if resp.Diagnostics.HasError() {
		return
	}
	id, err := r.put(ctx, config, secretstore.Any)
	if err != nil {
		resp.Diagnostics.Append(r.failure("Cannot store secret "+config.Name.ValueString(), config.Name.ValueString(),
			err))
		return
	}
	plan.EncryptionKeyID = id
	resp.Diagnostics.Append(resp.State.Set(ctx, plan)...)
}

// Read implements resource.Resource. It has no encryption key to decrypt the value, so it cannot detect that the value
// has changed.
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
	name := m.Name.ValueString()
	exists, err := r.Bucket.HasSecret(ctx, m.ClusterID.ValueString(), name)
	switch {
	case errors.Is(err, bucket.ErrUnknown):
		return // planning must work without the secrets store
	case err == nil && !exists:
		resp.State.RemoveResource(ctx)
		return
	case err == nil:
		m.EncryptionKeyID, err = r.Bucket.KeyID(ctx, name, m.EncryptionKeyID)
	}
	if errors.Is(err, clusterstate.ErrDamaged) {
		resp.Diagnostics.Append(diagnostic.Failure{
			What: fmt.Sprintf("Secret %s cannot be opened", name), Where: r.Bucket.SecretPlace(name), Why: err,
			Do: "Change value_wo_version: the apply then stores the value again. Or restore the object from a backup " +
				"or from an older version of it.",
		}.Warning())
		return
	}
	if err != nil {
		resp.Diagnostics.Append(r.failure("Cannot read secret "+name, name, err))
		return
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
}

// Delete implements resource.Resource.
func (r *Resource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var m model
	resp.Diagnostics.Append(req.State.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	name := m.Name.ValueString()
	secrets, err := r.Bucket.Secrets(ctx, m.ClusterID.ValueString(), keyring.Ring{})
	if err == nil {
		err = secrets.Delete(ctx, name)
	}
	if err != nil {
		resp.Diagnostics.Append(r.failure("Cannot delete secret "+name, name, err))
	}
}
