// Package serversready implements the resource nstance_servers_ready, which waits until a new server of a shard is
// ready.
//
// Invariant: the resource writes nothing. If no server becomes ready, the resource is not created, so that the next
// apply waits again.
package serversready

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-log/tflog"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/bucket"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/diagnostic"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/name"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/poll"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/upgrade"
)

// Resource implements the Terraform resource nstance_servers_ready.
type Resource struct{ bucket *bucket.Connection }

// New returns the resource, not yet configured.
func New() resource.Resource { return &Resource{} }

var _ resource.ResourceWithConfigure = (*Resource)(nil)

type model struct {
	Shard      types.String `tfsdk:"shard"`
	Generation types.String `tfsdk:"generation"`
	Timeout    types.String `tfsdk:"timeout"`
	Machine    types.String `tfsdk:"machine"`
}

// Metadata implements resource.Resource.
func (r *Resource) Metadata(_ context.Context, req resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_servers_ready"
}

// Configure implements resource.ResourceWithConfigure.
func (r *Resource) Configure(_ context.Context, req resource.ConfigureRequest, _ *resource.ConfigureResponse) {
	r.bucket = bucket.Of(req.ProviderData)
}

// Schema implements resource.Resource.
func (r *Resource) Schema(_ context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	replace := []planmodifier.String{stringplanmodifier.RequiresReplace()}
	resp.Schema = schema.Schema{
		Version: upgrade.Version,
		MarkdownDescription: "Waits until a server of the given generation is ready. An apply thus fails if an " +
			"image or a setting keeps new servers from becoming ready. The error has the server's reason. " +
			"Destroying the resource does nothing.",
		Attributes: map[string]schema.Attribute{
			"shard": schema.StringAttribute{
				MarkdownDescription: "Name of the shard.", Required: true, PlanModifiers: replace,
				Validators: []validator.String{name.Valid("shard", ident.ValidateName)},
			},
			"generation": schema.StringAttribute{
				MarkdownDescription: "Name of the servers' machine configuration: `NSTANCE_SERVER_GENERATION` in " +
					"their boot script. After a change, an apply waits for a server with the new name.",
				Required: true, PlanModifiers: replace,
			},
			"timeout": schema.StringAttribute{
				MarkdownDescription: "How long to wait for the server, such as `30m`. Default: `15m`.",
				Optional:            true, Computed: true, Default: stringdefault.StaticString("15m"),
			},
			"machine": schema.StringAttribute{
				MarkdownDescription: "The provider's ID of the machine whose server became ready.", Computed: true,
				PlanModifiers: []planmodifier.String{stringplanmodifier.UseStateForUnknown()},
			},
		},
	}
}

// Create implements resource.Resource.
func (r *Resource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var m model
	if resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	limit, err := time.ParseDuration(m.Timeout.ValueString())
	if err != nil {
		resp.Diagnostics.AddAttributeError(path.Root("timeout"), "Invalid timeout", err.Error())
		return
	}
	server, failure := r.wait(ctx, m.Shard.ValueString(), m.Generation.ValueString(), limit)
	if failure != nil {
		resp.Diagnostics.Append(failure)
		return
	}
	m.Machine = types.StringValue(server)
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
}

// wait waits until a server with the given generation is ready, and returns its ID. A problem that such a server
// reports during the wait ends the wait with an error. A problem that was reported before the wait does not end it,
// because another server may become ready.
func (r *Resource) wait(ctx context.Context, shard, generation string, limit time.Duration) (string, diag.Diagnostic) {
	state, err := r.bucket.Shard(ctx, "", shard)
	if err != nil {
		return "", r.failure(shard, "Cannot wait for a server of shard "+shard, err,
			"Check the provider's storage and credentials.")
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var last record.ServerReport
	var old objstore.Token
	first := true
	err = poll.Until(ctx, func(ctx context.Context) (bool, error) {
		report, token, err := state.ReadServerReport(ctx)
		if err != nil && !errors.Is(err, objstore.ErrNotFound) {
			return false, err
		}
		if first {
			first, old = false, token
		}
		last = report
		tflog.Info(ctx, "waiting for a server to become ready", map[string]any{"shard": shard,
			"generation": generation, "reported": report.Generation, "problem": report.Problem})
		return report.Generation == generation && (report.Problem == "" || token != old), nil
	})
	advice := "The old server still runs and leads, if there was one: nothing else of the shard is affected. " +
		"`nstance-admin doctor` shows the new server's console. Correct the image or the settings, and apply again."
	switch {
	case err == nil && last.Problem == "":
		return last.Machine, nil
	case err == nil || errors.Is(err, context.DeadlineExceeded) && last.Generation == generation:
		return "", r.failure(shard, fmt.Sprintf("The new server %s of shard %s did not become ready", last.Machine,
			shard), errors.New(last.Problem), advice)
	case errors.Is(err, context.DeadlineExceeded):
		return "", r.failure(shard, fmt.Sprintf("No new server of shard %s became ready within %s", shard, limit),
			fmt.Errorf("no server of generation %s has reported: its machine did not start, or does not reach the "+
				"bucket", generation), advice+" If there is no new machine, for example because the cloud has no "+
				"capacity, only the cloud knows why: see the scaling activities of the auto-scaling group, or the "+
				"errors of the managed instance group.")
	}
	return "", r.failure(shard, "Waiting for a server of shard "+shard+" failed", err, bucket.Advice(err))
}

func (r *Resource) failure(shard, what string, why error, do string) diag.Diagnostic {
	return diagnostic.Failure{What: what, Where: r.bucket.Place(keys.ServerReport(shard)), Why: why, Do: do}.Error()
}

// Read implements resource.Resource. It changes nothing: a server that was ready once is not checked again.
func (r *Resource) Read(context.Context, resource.ReadRequest, *resource.ReadResponse) {}

// Update implements resource.Resource. Only the timeout can change.
func (r *Resource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var m model
	resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...)
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
}

// Delete implements resource.Resource.
func (r *Resource) Delete(context.Context, resource.DeleteRequest, *resource.DeleteResponse) {}
