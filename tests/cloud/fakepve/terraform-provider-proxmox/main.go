// Command terraform-provider-proxmox replaces the provider bpg/proxmox in the tests of modules/proxmox/servers. Its
// schema has only the arguments that this module sets. It can plan, but refuses to create anything.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
)

func main() {
	err := providerserver.Serve(context.Background(), func() provider.Provider { return schemaProvider{} },
		providerserver.ServeOpts{Address: "registry.terraform.io/bpg/proxmox"})
	if err != nil {
		fmt.Fprintln(os.Stderr, "terraform-provider-proxmox:", err)
		os.Exit(1)
	}
}

type schemaProvider struct{}

func (schemaProvider) Metadata(_ context.Context, _ provider.MetadataRequest, answer *provider.MetadataResponse) {
	answer.TypeName = "proxmox"
}

func (schemaProvider) Schema(context.Context, provider.SchemaRequest, *provider.SchemaResponse) {}

func (schemaProvider) Configure(context.Context, provider.ConfigureRequest, *provider.ConfigureResponse) {
}

func (schemaProvider) DataSources(context.Context) []func() datasource.DataSource { return nil }

func (schemaProvider) Resources(context.Context) []func() resource.Resource {
	return []func() resource.Resource{
		func() resource.Resource { return schemaResource{"proxmox_virtual_environment_file", fileSchema} },
		func() resource.Resource { return schemaResource{"proxmox_virtual_environment_vm", vmSchema} },
	}
}

// schemaResource is a resource that can be planned only.
type schemaResource struct {
	name   string
	schema schema.Schema
}

func (r schemaResource) Metadata(_ context.Context, _ resource.MetadataRequest, answer *resource.MetadataResponse) {
	answer.TypeName = r.name
}

func (r schemaResource) Schema(_ context.Context, _ resource.SchemaRequest, answer *resource.SchemaResponse) {
	answer.Schema = r.schema
}

func (r schemaResource) Create(_ context.Context, _ resource.CreateRequest, answer *resource.CreateResponse) {
	answer.Diagnostics.AddError(r.name+" was not created", "This provider has a schema only. Use bpg/proxmox.")
}

func (r schemaResource) Read(_ context.Context, _ resource.ReadRequest, answer *resource.ReadResponse) {
	answer.Diagnostics.AddError(r.name+" was not read", "This provider has a schema only. Use bpg/proxmox.")
}

func (r schemaResource) Update(_ context.Context, _ resource.UpdateRequest, answer *resource.UpdateResponse) {
	answer.Diagnostics.AddError(r.name+" was not changed", "This provider has a schema only. Use bpg/proxmox.")
}

func (r schemaResource) Delete(_ context.Context, _ resource.DeleteRequest, answer *resource.DeleteResponse) {
	answer.Diagnostics.AddError(r.name+" was not deleted", "This provider has a schema only. Use bpg/proxmox.")
}
