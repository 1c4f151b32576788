// Package encryptionkey implements the ephemeral resource nstance_encryption_key: 32 random bytes for write-only
// arguments.
package encryptionkey

import (
	"context"
	"crypto/rand"
	"encoding/base64"

	"github.com/hashicorp/terraform-plugin-framework/ephemeral"
	"github.com/hashicorp/terraform-plugin-framework/ephemeral/schema"
	"github.com/hashicorp/terraform-plugin-framework/path"

	"github.com/nstance-kit/nstance/services/contract/envelope"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/base"
)

// Resource implements the ephemeral resource nstance_encryption_key.
type Resource struct{ base.Ephemeral }

// New returns the resource.
func New() ephemeral.EphemeralResource { return &Resource{base.Ephemeral{Name: "encryption_key"}} }

// Schema implements ephemeral.EphemeralResource.
func (*Resource) Schema(_ context.Context, _ ephemeral.SchemaRequest, resp *ephemeral.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "Makes a new encryption key in every plan and apply, for write-only arguments of " +
			"secrets in a cloud's secrets service. The key is never stored in plan or state.",
		Attributes: map[string]schema.Attribute{
			"key_base64": schema.StringAttribute{
				MarkdownDescription: "32 random bytes in base64.",
				Computed:            true,
				Sensitive:           true,
			},
		},
	}
}

// Open implements ephemeral.EphemeralResource.
func (*Resource) Open(ctx context.Context, _ ephemeral.OpenRequest, resp *ephemeral.OpenResponse) {
	var key [envelope.KeySize]byte
	_, _ = rand.Read(key[:]) // never fails: crypto/rand ends the program instead
	resp.Diagnostics.Append(resp.Result.SetAttribute(ctx, path.Root("key_base64"),
		base64.StdEncoding.EncodeToString(key[:]))...)
}
