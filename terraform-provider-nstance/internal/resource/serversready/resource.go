// Package serversready implements the resource nstance_servers_ready, which waits until a new server of a shard is
// ready. The reason of a failure comes from the server's report in the bucket or, without a machine, from the cloud.
//
// Invariant: the resource writes nothing. If no server becomes ready, the resource is not created, so that the next
// apply waits again.
package serversready

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
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
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/name"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/bucket"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/machinegroup"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/machinegroup/all"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/poll"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/base"
)

// Resource implements the Terraform resource nstance_servers_ready.
type Resource struct{ base.Resource }

// New returns the resource, not yet configured.
func New() resource.Resource { return &Resource{base.Resource{Name: "servers_ready"}} }

type model struct {
	Shard        types.String       `tfsdk:"shard"`
	Generation   types.String       `tfsdk:"generation"`
	Timeout      types.String       `tfsdk:"timeout"`
	MachineGroup *machineGroupModel `tfsdk:"machine_group"`
	Machine      types.String       `tfsdk:"machine"`
}

type machineGroupModel struct {
	Kind    types.String `tfsdk:"kind"`
	Name    types.String `tfsdk:"name"`
	Region  types.String `tfsdk:"region"`
	Zone    types.String `tfsdk:"zone"`
	Project types.String `tfsdk:"project"`
}

// Schema implements resource.Resource.
func (r *Resource) Schema(_ context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	replace := []planmodifier.String{stringplanmodifier.RequiresReplace()}
	resp.Schema = schema.Schema{
		Version: base.Version,
		MarkdownDescription: "Waits until a server of the given generation is ready. An apply thus fails if an " +
			"image or a setting keeps new servers from becoming ready. The error has the server's reason. If " +
			"the cloud refuses to start a machine for a server, twice or for a minute, the error has the cloud's " +
			"reason. " +
			"Destroying the resource does nothing.",
		Attributes: map[string]schema.Attribute{
			"shard": schema.StringAttribute{
				MarkdownDescription: "Name of the shard.", Required: true, PlanModifiers: replace,
				Validators: []validator.String{name.Valid("shard", ident.ValidateName)},
			},
			"generation": schema.StringAttribute{
				MarkdownDescription: "Name of the servers' machine configuration: `NSTANCE_SERVER_GENERATION` in " +
					"their boot script. After a change, an apply waits for a server with the new name. If the cloud " +
					"itself knows whether the machines of `machine_group` are healthy and have the newest " +
					"configuration (" + name.List(all.Knowing()) + "), an apply waits for that, and the name need " +
					"not be in the boot script.",
				Required: true, PlanModifiers: replace,
			},
			"timeout": schema.StringAttribute{
				MarkdownDescription: "How long to wait for the server, such as `30m`. Default: `15m`.",
				Optional:            true, Computed: true, Default: stringdefault.StaticString("15m"),
			},
			"machine_group": schema.SingleNestedAttribute{
				MarkdownDescription: "The cloud's group of machines for the servers. An apply asks the cloud why no " +
					"machine starts there, with the credentials of the provider's `storage`. If these may not read " +
					"the group, the apply goes on waiting until its time limit.",
				Optional: true,
				Attributes: map[string]schema.Attribute{
					"kind": schema.StringAttribute{
						MarkdownDescription: "Cloud of the group: " + name.List(all.Names()) + ".", Required: true,
						Validators: []validator.String{stringvalidator.OneOf(all.Names()...)},
					},
					"name": schema.StringAttribute{MarkdownDescription: "Name of the group.", Required: true},
					"region": schema.StringAttribute{
						MarkdownDescription: "Region of the group. Default: the bucket's region.", Optional: true,
					},
					"zone": schema.StringAttribute{
						MarkdownDescription: "Zone of the group, if the group belongs to a zone.", Optional: true,
					},
					"project": schema.StringAttribute{
						MarkdownDescription: "Project of the group, if the cloud has projects. Default: that of the " +
							"credentials.", Optional: true,
					},
				},
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
	server, failure := r.wait(ctx, m.Shard.ValueString(), m.Generation.ValueString(), m.MachineGroup, limit)
	if failure != nil {
		resp.Diagnostics.Append(failure)
		return
	}
	m.Machine = types.StringValue(server)
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
}

// wait waits until a server with the given generation is ready, and returns its ID. A problem that such a server
// reports during the wait ends the wait with an error. A problem that was reported before the wait does not end it,
// because another server may become ready. The cloud's final refusal of a machine in the group also ends the wait.
func (r *Resource) wait(ctx context.Context, shard, generation string, place *machineGroupModel, limit time.Duration) (
	string, diag.Diagnostic) {
	state, err := r.Bucket.Shard(ctx, "", shard)
	if err != nil {
		return "", r.failure(shard, "Cannot wait for a server of shard "+shard, err,
			"Check the provider's storage and credentials.")
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var machineGroup machinegroup.Group
	if place != nil {
		machineGroup = all.Open(ctx, place.place(), r.Bucket.Access())
	}
	watch := machinegroup.NewWatch(machineGroup, time.Now)
	var last record.ServerReport
	var machines machinegroup.State
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
		if report.Generation == generation && (report.Problem == "" || token != old) {
			return true, nil
		}
		machines = watch.Look(ctx)
		tflog.Info(ctx, "waiting for a server to become ready", map[string]any{"shard": shard,
			"generation": generation, "reported": report.Generation, "problem": report.Problem,
			"machines": watch.Found()})
		return machines.Current || machines.Refusal != "", nil
	})
	const kept = "The old server still runs and leads, if there was one: nothing else of the shard is affected. "
	const advice = kept + "`nstance-admin doctor` shows the new server's console. Correct the image or the settings, " +
		"and apply again."
	switch {
	case err == nil && machines.Refusal != "":
		return "", diagnostic.Failure{What: "The cloud starts no new server of shard " + shard,
			Where: machineGroup.String(), Why: errors.New(machines.Refusal),
			Do: kept + "The cloud tries again by itself. Correct the settings of the servers, choose another " +
				"instance type, or raise the quota, and apply again. If the cloud only lacks room at present, apply " +
				"again later.",
		}.Error()
	case err == nil && machines.Current:
		return machines.Machine, nil
	case err == nil && last.Problem == "":
		return last.Machine, nil
	case err == nil || errors.Is(err, context.DeadlineExceeded) && last.Generation == generation:
		return "", r.failure(shard, fmt.Sprintf("The new server %s of shard %s did not become ready", last.Machine,
			shard), errors.New(last.Problem), advice)
	case errors.Is(err, context.DeadlineExceeded):
		why := fmt.Sprintf("no server of generation %s has reported: its machine did not start, or does not reach the "+
			"bucket", generation)
		if found := watch.Found(); found != "" {
			why += "; " + found
		}
		return "", r.failure(shard, fmt.Sprintf("No new server of shard %s became ready within %s", shard, limit),
			errors.New(why), advice)
	}
	return "", r.failure(shard, "Waiting for a server of shard "+shard+" failed", err, bucket.Advice(err))
}

func (m *machineGroupModel) place() machinegroup.Place {
	return machinegroup.Place{Kind: m.Kind.ValueString(), Name: m.Name.ValueString(), Region: m.Region.ValueString(),
		Zone: m.Zone.ValueString(), Project: m.Project.ValueString()}
}

func (r *Resource) failure(shard, what string, why error, do string) diag.Diagnostic {
	return diagnostic.Failure{What: what, Where: r.Bucket.Place(keys.ServerReport(shard)), Why: why, Do: do}.Error()
}

// Read implements resource.Resource. It changes nothing: a server that was ready once is not checked again.
func (r *Resource) Read(context.Context, resource.ReadRequest, *resource.ReadResponse) {}

// Update implements resource.Resource. Only the timeout and the group of machines can change.
func (r *Resource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var m model
	resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...)
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
}

// Delete implements resource.Resource.
func (r *Resource) Delete(context.Context, resource.DeleteRequest, *resource.DeleteResponse) {}
