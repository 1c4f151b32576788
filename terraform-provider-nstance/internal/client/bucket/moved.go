package bucket

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/resource"

	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
)

// location is the part of the bucket's location that a private state remembers. The endpoint is not part of it, because
// the same bucket may have several.
type location struct{ Provider, Bucket, Prefix string }

func (l location) String() string {
	text := fmt.Sprintf("%s bucket %q", l.Provider, l.Bucket)
	if l.Provider == "file" {
		text = "directory " + l.Bucket
	}
	if l.Prefix != "" {
		text += ", prefix " + l.Prefix
	}
	return text
}

// memory is the private state of a resource.
type memory interface {
	GetKey(ctx context.Context, key string) ([]byte, diag.Diagnostics)
	SetKey(ctx context.Context, key string, value []byte) diag.Diagnostics
}

// locationKey is the key of the [location] in a private state.
const locationKey = "location"

// Remember stores the bucket's location in the private state of a resource. Call it after a successful create.
func (c *Connection) Remember(ctx context.Context, private memory) diag.Diagnostics {
	at := c.location()
	if at == nil {
		return nil
	}
	text, err := json.Marshal(at)
	if err != nil {
		return diag.Diagnostics{diag.NewErrorDiagnostic("Cannot store the location of the bucket", err.Error())}
	}
	return private.SetKey(ctx, locationKey, text)
}

func (c *Connection) location() *location {
	if !c.Known() || c.settings.Storage == nil {
		return nil
	}
	at := c.settings.Storage
	return &location{at.Provider, at.Bucket, strings.Trim(at.Prefix, "/")}
}

// AfterRead completes the read of a resource. If the resource was not found, and was in another bucket before,
// AfterRead adds an error. Otherwise the next apply would make a second one, while the first one still has servers
// and VMs. If the resource was found, AfterRead remembers the bucket.
func (c *Connection) AfterRead(ctx context.Context, resp *resource.ReadResponse) {
	at := c.location()
	if at == nil {
		return
	}
	missing := resp.State.Raw.IsNull()
	if !missing && !resp.Diagnostics.HasError() {
		resp.Diagnostics.Append(c.Remember(ctx, resp.Private)...)
		return
	}
	text, diags := resp.Private.GetKey(ctx, locationKey)
	var before location
	if diags.HasError() || json.Unmarshal(text, &before) != nil || before == *at {
		return
	}
	why := fmt.Errorf("the provider's storage is now the %s", at)
	if missing {
		why = fmt.Errorf("%w, which does not have it", why)
	}
	resp.Diagnostics.Append(diagnostic.Failure{
		What: "The resource is in another bucket", Where: before.String(),
		Why: why,
		Do: "Set the provider's storage to that bucket again: a bucket cannot be renamed. To move the cluster, stop " +
			"its servers, copy all objects to the new bucket, make that bucket the home of the shards with " +
			"nstance-admin cluster restore, and plan again.",
	}.Error())
}
