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

	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/cluster"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/clusterinfo"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/configmerge"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/configvalidate"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/encryptionkey"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/group"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/grouphash"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/instanceid"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/jsoncdecode"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/operator"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/operatoridentity"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/operatornonce"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/secret"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/serversready"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/shard"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/shardstatus"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/userdata"
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
	return []func() function.Function{configvalidate.New, configmerge.New, jsoncdecode.New, grouphash.New,
		instanceid.New}
}
