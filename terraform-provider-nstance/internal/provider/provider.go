// Package provider implements the Terraform provider: its configuration and the lists of its resources, data sources
// and functions.
package provider

import (
	"context"
	"os"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/ephemeral"
	"github.com/hashicorp/terraform-plugin-framework/function"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/nstance-kit/nstance/services/api/tunnel"
	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/contexts"
	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/open"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/bucket"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/servers"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/datasource/admincontext"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/datasource/clusterinfo"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/datasource/shardstatus"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/datasource/userdata"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/ephemeral/encryptionkey"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/ephemeral/operatoridentity"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/ephemeral/operatornonce"
	functions "github.com/nstance-kit/nstance/terraform-provider-nstance/internal/function"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/cluster"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/group"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/operator"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/secret"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/serversready"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/shard"
)

// Provider implements the Terraform provider nstance.
type Provider struct{ version string }

// New returns a constructor of the provider with the given version.
func New(version string) func() provider.Provider {
	return func() provider.Provider { return &Provider{version} }
}

var (
	_ provider.ProviderWithFunctions          = (*Provider)(nil)
	_ provider.ProviderWithEphemeralResources = (*Provider)(nil)
)

// Metadata implements provider.Provider.
func (p *Provider) Metadata(_ context.Context, _ provider.MetadataRequest, resp *provider.MetadataResponse) {
	resp.TypeName, resp.Version = "nstance", p.version
}

// Resources implements provider.Provider.
func (p *Provider) Resources(context.Context) []func() resource.Resource {
	return []func() resource.Resource{cluster.New, shard.New, group.New, operator.New, secret.New,
		serversready.New}
}

// DataSources implements provider.Provider.
func (p *Provider) DataSources(context.Context) []func() datasource.DataSource {
	return []func() datasource.DataSource{admincontext.New, clusterinfo.New, shardstatus.New, userdata.New}
}

// EphemeralResources implements provider.ProviderWithEphemeralResources.
func (p *Provider) EphemeralResources(context.Context) []func() ephemeral.EphemeralResource {
	return []func() ephemeral.EphemeralResource{encryptionkey.New, operatornonce.New, operatoridentity.New}
}

// Functions implements provider.ProviderWithFunctions.
func (p *Provider) Functions(context.Context) []func() function.Function {
	return functions.All()
}

// The provider reads these environment variables in place of attributes that the operator block does not set.
// nstance-admin reads the same variables.
var (
	serversVariable  = contexts.Variable("servers")
	viaVariable      = contexts.Variable("via")
	identityVariable = contexts.Variable("identity-dir")
)

type (
	model struct {
		Storage           types.Object `tfsdk:"storage"`
		Secrets           types.Object `tfsdk:"secrets"`
		EncryptionKey     types.Object `tfsdk:"encryption_key"`
		OldEncryptionKeys types.List   `tfsdk:"old_encryption_keys"`
		Operator          types.Object `tfsdk:"operator"`
	}
	storageModel struct {
		Provider   types.String `tfsdk:"provider"`
		Bucket     types.String `tfsdk:"bucket"`
		Prefix     types.String `tfsdk:"prefix"`
		Region     types.String `tfsdk:"region"`
		Endpoint   types.String `tfsdk:"endpoint"`
		PathStyle  types.Bool   `tfsdk:"path_style"`
		Profile    types.String `tfsdk:"profile"`
		AssumeRole types.Object `tfsdk:"assume_role"`
		Encrypt    types.Bool   `tfsdk:"encrypt"`
		KMSKeyID   types.String `tfsdk:"kms_key_id"`
	}
	roleModel struct {
		ARN         types.String `tfsdk:"role_arn"`
		ExternalID  types.String `tfsdk:"external_id"`
		SessionName types.String `tfsdk:"session_name"`
	}
	secretsModel struct {
		Provider  types.String `tfsdk:"provider"`
		Prefix    types.String `tfsdk:"prefix"`
		ProjectID types.String `tfsdk:"project_id"`
	}
	// keyModel has the fields of [config.KeySource].
	keyModel struct {
		Provider  string `tfsdk:"provider"`
		Source    string `tfsdk:"source"`
		ProjectID string `tfsdk:"project_id"`
	}
	operatorModel struct {
		Servers          types.Map    `tfsdk:"servers"`
		Via              types.Map    `tfsdk:"via"`
		IdentityDir      types.String `tfsdk:"identity_dir"`
		CACertificatePEM types.String `tfsdk:"ca_certificate_pem"`
		CertificatePEM   types.String `tfsdk:"certificate_pem"`
		PrivateKeyPEM    types.String `tfsdk:"private_key_pem"`
	}
)

// Configure implements provider.Provider. It performs no I/O.
func (p *Provider) Configure(ctx context.Context, req provider.ConfigureRequest, resp *provider.ConfigureResponse) {
	var m model
	resp.Diagnostics.Append(req.Config.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	settings := bucket.Settings{StorageUnknown: !known(ctx, m.Storage), StoreUnknown: !known(ctx, m.Secrets),
		KeysUnknown: !known(ctx, m.EncryptionKey) || !known(ctx, m.OldEncryptionKeys)}
	if !m.Storage.IsNull() && !settings.StorageUnknown {
		var s storageModel
		resp.Diagnostics.Append(m.Storage.As(ctx, &s, basetypes.ObjectAsOptions{})...)
		settings.Storage = &objstore.Location{
			Provider: s.Provider.ValueString(), Bucket: s.Bucket.ValueString(), Prefix: s.Prefix.ValueString(),
			Region: s.Region.ValueString(), Endpoint: s.Endpoint.ValueString(), PathStyle: s.PathStyle.ValueBool(),
			Profile: s.Profile.ValueString(), Encrypt: s.Encrypt.ValueBool(), KMSKeyID: s.KMSKeyID.ValueString(),
		}
		if !s.AssumeRole.IsNull() {
			var r roleModel
			resp.Diagnostics.Append(s.AssumeRole.As(ctx, &r, basetypes.ObjectAsOptions{})...)
			settings.Storage.AssumeRole = cloud.Role{ARN: r.ARN.ValueString(),
				ExternalID: r.ExternalID.ValueString(), SessionName: r.SessionName.ValueString()}
		}
		if err := open.Validate(*settings.Storage); err != nil {
			resp.Diagnostics.AddAttributeError(path.Root("storage"), "The provider's storage is wrong", err.Error()+".")
		}
	}
	if !m.Secrets.IsNull() && !settings.StoreUnknown {
		var s secretsModel
		resp.Diagnostics.Append(m.Secrets.As(ctx, &s, basetypes.ObjectAsOptions{})...)
		settings.Secrets = config.Secrets{Provider: s.Provider.ValueString(), Prefix: s.Prefix.ValueString(),
			ProjectID: s.ProjectID.ValueString()}
	}
	if !settings.KeysUnknown {
		if !m.EncryptionKey.IsNull() {
			var k keyModel
			resp.Diagnostics.Append(m.EncryptionKey.As(ctx, &k,
				basetypes.ObjectAsOptions{UnhandledNullAsEmpty: true})...)
			source := config.KeySource(k)
			settings.Secrets.EncryptionKey = &source
		}
		var old []keyModel
		if !m.OldEncryptionKeys.IsNull() {
			resp.Diagnostics.Append(m.OldEncryptionKeys.ElementsAs(ctx, &old, true)...)
		}
		for _, k := range old {
			settings.Secrets.OldEncryptionKeys = append(settings.Secrets.OldEncryptionKeys, config.KeySource(k))
		}
	}
	if settings.StorageUnknown { // its profile and role are also for the services that hold secrets and keys
		settings.StoreUnknown, settings.KeysUnknown = true, true
	}
	operator, diags := m.operator(ctx)
	resp.Diagnostics.Append(diags...)
	connection := servers.New(operator, bucket.New(settings))
	resp.ResourceData, resp.DataSourceData, resp.EphemeralResourceData = connection, connection, connection
}

func (m model) operator(ctx context.Context) (servers.Settings, diag.Diagnostics) {
	settings := servers.Settings{Unknown: !known(ctx, m.Operator)}
	if settings.Unknown {
		return settings, nil
	}
	var o operatorModel
	var diags diag.Diagnostics
	addresses := map[string]string{}
	if !m.Operator.IsNull() {
		diags.Append(m.Operator.As(ctx, &o, basetypes.ObjectAsOptions{})...)
		if !o.Servers.IsNull() {
			diags.Append(o.Servers.ElementsAs(ctx, &addresses, false)...)
		}
	}
	settings.CA, settings.Certificate, settings.PrivateKey = o.CACertificatePEM.ValueString(),
		o.CertificatePEM.ValueString(), o.PrivateKeyPEM.ValueString()
	if settings.IdentityDir = o.IdentityDir.ValueString(); settings.IdentityDir == "" && settings.PrivateKey == "" {
		settings.IdentityDir = os.Getenv(identityVariable)
	}
	settings.Via = o.ways(ctx, &diags)
	settings.Addresses = map[string][]string{}
	if o.Servers.IsNull() {
		shards, err := endpoints.Parse(os.Getenv(serversVariable))
		if err != nil {
			diags.Append(diagnostic.Failure{
				What: "Invalid " + serversVariable, Why: err,
				Do: "Write shard=host:port,… into the variable, or set operator.servers.",
			}.At(path.Root("operator")))
		}
		for _, shard := range shards {
			settings.Addresses[shard.Name] = shard.Addrs
		}
		return settings, diags
	}
	for shard, text := range addresses {
		addrs, err := endpoints.ParseAddrs(text)
		if err != nil {
			at := path.Root("operator").AtName("servers").AtMapKey(shard)
			diags.Append(diagnostic.Failure{What: "Invalid address", Why: err, Do: "Correct " + at.String() +
				"."}.At(at))
			continue
		}
		settings.Addresses[shard] = addrs
	}
	return settings, diags
}

// ways reads operator.via, or its environment variable.
func (o operatorModel) ways(ctx context.Context, diags *diag.Diagnostics) map[string]tunnel.Way {
	if o.Via.IsNull() {
		ways, err := tunnel.Parse(os.Getenv(viaVariable))
		if err != nil {
			diags.Append(diagnostic.Failure{What: "Invalid " + viaVariable, Why: err,
				Do: "Correct the variable, or set operator.via."}.At(path.Root("operator")))
		}
		return ways
	}
	texts, ways := map[string]string{}, map[string]tunnel.Way{}
	diags.Append(o.Via.ElementsAs(ctx, &texts, false)...)
	for shard, text := range texts {
		var err error
		if ways[shard], err = tunnel.ParseWay(text); err != nil {
			at := path.Root("operator").AtName("via").AtMapKey(shard)
			diags.Append(diagnostic.Failure{What: "Invalid way", Why: err, Do: "Correct " + at.String() + "."}.At(at))
		}
	}
	return ways
}

// known reports whether a value and all values in it are known.
func known(ctx context.Context, v interface {
	ToTerraformValue(context.Context) (tftypes.Value, error)
}) bool {
	value, err := v.ToTerraformValue(ctx)
	return err == nil && value.IsFullyKnown()
}
