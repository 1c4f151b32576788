// Package cluster implements the resource nstance_cluster, which manages the objects in the bucket that all shards
// share: the CA, the key that signs registration nonces, and the secrets, which the encryption key seals.
//
// Invariants:
//   - Plan and state never contain a private key.
//   - The resource never creates a second CA for a cluster that has one.
package cluster

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/objectvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/boolplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/name"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/base"
)

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
