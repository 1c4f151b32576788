// Package provider owns the provider itself: its configuration and the list of what it has.
package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/ephemeral"
	"github.com/hashicorp/terraform-plugin-framework/function"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/provider/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/objstore/open"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/bucket"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/cluster"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/configvalidate"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/encryptionkey"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/instanceid"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/operatornonce"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/secret"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/shard"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/userdata"
)

// Provider is the provider.
type Provider struct{ version string }

// New returns a maker of the provider.
func New(version string) func() provider.Provider {
	return func() provider.Provider { return &Provider{version} }
}

var (
	_ provider.ProviderWithFunctions          = (*Provider)(nil)
	_ provider.ProviderWithEphemeralResources = (*Provider)(nil)
)

type (
	model struct {
		Storage           types.Object `tfsdk:"storage"`
		EncryptionKey     types.Object `tfsdk:"encryption_key"`
		OldEncryptionKeys types.List   `tfsdk:"old_encryption_keys"`
	}
	storageModel struct {
		Provider  types.String `tfsdk:"provider"`
		Bucket    types.String `tfsdk:"bucket"`
		Prefix    types.String `tfsdk:"prefix"`
		Region    types.String `tfsdk:"region"`
		Endpoint  types.String `tfsdk:"endpoint"`
		PathStyle types.Bool   `tfsdk:"path_style"`
	}
	keyModel struct {
		Provider types.String `tfsdk:"provider"`
		Source   types.String `tfsdk:"source"`
	}
)

// Metadata implements provider.Provider.
func (p *Provider) Metadata(_ context.Context, _ provider.MetadataRequest, resp *provider.MetadataResponse) {
	resp.TypeName, resp.Version = "nstance", p.version
}

// Schema implements provider.Provider.
func (p *Provider) Schema(_ context.Context, _ provider.SchemaRequest, resp *provider.SchemaResponse) {
	key := map[string]schema.Attribute{
		"provider": schema.StringAttribute{
			MarkdownDescription: "What holds the key: `env` or `file`.",
			Required:            true,
			Validators:          []validator.String{stringvalidator.OneOf("env", "file")},
		},
		"source": schema.StringAttribute{
			MarkdownDescription: "Name of the environment variable (default `" + config.DefaultKeyVariable + "`), or path of the file.",
			Optional:            true,
		},
	}
	resp.Schema = schema.Schema{
		MarkdownDescription: "Nstance keeps fleets of VMs alive. This provider writes what its servers read from a bucket: the CA, secrets, and the configuration of each shard. " +
			"Everything here may be unknown at plan: a plan needs neither the bucket nor the key.",
		Attributes: map[string]schema.Attribute{
			"storage": schema.SingleNestedAttribute{
				MarkdownDescription: "The bucket. Credentials come from the usual places of its SDK: environment, profiles, roles.",
				Optional:            true,
				Attributes: map[string]schema.Attribute{
					"provider": schema.StringAttribute{
						MarkdownDescription: "Kind of object store: `s3` or `file`.",
						Required:            true,
						Validators:          []validator.String{stringvalidator.OneOf("s3", "file")},
					},
					"bucket": schema.StringAttribute{
						MarkdownDescription: "Name of the bucket; for `file`, a directory.",
						Required:            true,
						Validators:          []validator.String{stringvalidator.LengthAtLeast(1)},
					},
					"prefix":     schema.StringAttribute{MarkdownDescription: "What every key in the bucket starts with.", Optional: true},
					"region":     schema.StringAttribute{MarkdownDescription: "Region of the bucket.", Optional: true},
					"endpoint":   schema.StringAttribute{MarkdownDescription: "URL of an S3-compatible store that is not AWS's own.", Optional: true},
					"path_style": schema.BoolAttribute{MarkdownDescription: "Name the bucket in the path of the URL and not in the host, as most S3-compatible stores want it.", Optional: true},
				},
			},
			"encryption_key": schema.SingleNestedAttribute{
				MarkdownDescription: "The key that seals secrets in the bucket, the same that the servers use: 32 bytes, raw or base64.",
				Optional:            true,
				Attributes:          key,
			},
			"old_encryption_keys": schema.ListNestedAttribute{
				MarkdownDescription: "Keys that only open what was sealed before the key was changed.",
				Optional:            true,
				NestedObject:        schema.NestedAttributeObject{Attributes: key},
			},
		},
	}
}

// Configure implements provider.Provider. It reaches for nothing.
func (p *Provider) Configure(ctx context.Context, req provider.ConfigureRequest, resp *provider.ConfigureResponse) {
	var m model
	resp.Diagnostics.Append(req.Config.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	settings := bucket.Settings{StorageUnknown: !known(ctx, m.Storage), KeysUnknown: !known(ctx, m.EncryptionKey) || !known(ctx, m.OldEncryptionKeys)}
	if !m.Storage.IsNull() && !settings.StorageUnknown {
		var s storageModel
		resp.Diagnostics.Append(m.Storage.As(ctx, &s, basetypes.ObjectAsOptions{})...)
		settings.Storage = &open.Location{
			Provider: s.Provider.ValueString(), Bucket: s.Bucket.ValueString(), Prefix: s.Prefix.ValueString(),
			Region: s.Region.ValueString(), Endpoint: s.Endpoint.ValueString(), PathStyle: s.PathStyle.ValueBool(),
		}
	}
	if !settings.KeysUnknown {
		if !m.EncryptionKey.IsNull() {
			var k keyModel
			resp.Diagnostics.Append(m.EncryptionKey.As(ctx, &k, basetypes.ObjectAsOptions{})...)
			settings.Keys.EncryptionKey = &config.KeySource{Provider: k.Provider.ValueString(), Source: k.Source.ValueString()}
		}
		var old []keyModel
		if !m.OldEncryptionKeys.IsNull() {
			resp.Diagnostics.Append(m.OldEncryptionKeys.ElementsAs(ctx, &old, false)...)
		}
		for _, k := range old {
			settings.Keys.OldEncryptionKeys = append(settings.Keys.OldEncryptionKeys, config.KeySource{Provider: k.Provider.ValueString(), Source: k.Source.ValueString()})
		}
	}
	connection := bucket.New(settings)
	resp.ResourceData, resp.EphemeralResourceData = connection, connection
}

// known reports whether a value, with everything in it, is known.
func known(ctx context.Context, v interface {
	ToTerraformValue(context.Context) (tftypes.Value, error)
}) bool {
	value, err := v.ToTerraformValue(ctx)
	return err == nil && value.IsFullyKnown()
}

// Resources implements provider.Provider.
func (p *Provider) Resources(context.Context) []func() resource.Resource {
	return []func() resource.Resource{cluster.New, shard.New, secret.New}
}

// DataSources implements provider.Provider.
func (p *Provider) DataSources(context.Context) []func() datasource.DataSource {
	return []func() datasource.DataSource{userdata.New}
}

// EphemeralResources implements provider.ProviderWithEphemeralResources.
func (p *Provider) EphemeralResources(context.Context) []func() ephemeral.EphemeralResource {
	return []func() ephemeral.EphemeralResource{encryptionkey.New, operatornonce.New}
}

// Functions implements provider.ProviderWithFunctions.
func (p *Provider) Functions(context.Context) []func() function.Function {
	return []func() function.Function{configvalidate.New, instanceid.New}
}
