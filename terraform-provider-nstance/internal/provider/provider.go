// Package provider implements the Terraform provider: its configuration and the lists of its resources, data sources
// and functions.
package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/ephemeral"
	"github.com/hashicorp/terraform-plugin-framework/function"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/resource"

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
	return []func() datasource.DataSource{clusterinfo.New, shardstatus.New, userdata.New}
}

// EphemeralResources implements provider.ProviderWithEphemeralResources.
func (p *Provider) EphemeralResources(context.Context) []func() ephemeral.EphemeralResource {
	return []func() ephemeral.EphemeralResource{encryptionkey.New, operatornonce.New, operatoridentity.New}
}

// Functions implements provider.ProviderWithFunctions.
func (p *Provider) Functions(context.Context) []func() function.Function {
	return functions.All()
}
