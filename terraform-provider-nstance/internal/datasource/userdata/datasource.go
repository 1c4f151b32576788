// Package userdata implements the data source nstance_userdata, which returns the boot scripts of servers and instances
// from package [bootscript].
//
// Invariant: the scripts depend on the arguments only, so they are known at plan time as soon as the arguments are.
package userdata

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"

	"github.com/nstance-kit/nstance/services/contract/bootscript"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/name"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/base"
)

// DataSource implements the data source nstance_userdata.
type DataSource struct{ base.DataSource }

// New returns the data source.
func New() datasource.DataSource { return &DataSource{base.DataSource{Name: "userdata"}} }

var _ datasource.DataSourceWithValidateConfig = (*DataSource)(nil)

const (
	roleServer = "server"
	roleAgent  = "agent"
)

type (
	model struct {
		Role            types.String `tfsdk:"role"`
		Shard           types.String `tfsdk:"shard"`
		Storage         types.String `tfsdk:"storage"`
		Bucket          types.String `tfsdk:"bucket"`
		Prefix          types.String `tfsdk:"prefix"`
		Region          types.String `tfsdk:"region"`
		LeaderInterface types.String `tfsdk:"leader_interface"`
		LeaderNetwork   types.Object `tfsdk:"leader_network"`
		ExtraArgs       types.List   `tfsdk:"extra_args"`
		Binaries        types.Map    `tfsdk:"binaries"`
		Environment     types.Map    `tfsdk:"environment"`
		CommandsBefore  types.List   `tfsdk:"commands_before"`
		Content         types.String `tfsdk:"content"`
		ContentBase64   types.String `tfsdk:"content_base64"`
	}
	leaderNetworkModel struct {
		MACAddress  types.String `tfsdk:"mac_address"`
		IPv4        types.String `tfsdk:"ipv4"`
		IPv4Gateway types.String `tfsdk:"ipv4_gateway"`
		IPv6        types.String `tfsdk:"ipv6"`
	}
	binaryModel struct {
		URL    string `tfsdk:"url"`
		SHA256 string `tfsdk:"sha256"`
	}
)

// Schema implements datasource.DataSource.
func (*DataSource) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	optional := func(doc string) schema.StringAttribute {
		return schema.StringAttribute{MarkdownDescription: doc, Optional: true}
	}
	texts := func(doc string) schema.ListAttribute {
		return schema.ListAttribute{MarkdownDescription: doc, Optional: true, ElementType: types.StringType}
	}
	kinds := config.ObjectStoreNames()
	resp.Schema = schema.Schema{
		MarkdownDescription: "The script that a machine boots with (userdata), for a server of a shard or for the " +
			"shard's instances. For instances, it is a template that the server renders. The script writes " +
			"`/etc/nstance/server.env` or `/etc/nstance/agent.env` and starts the unit `nstance-server` or " +
			"`nstance-agent` of the image. It is for a POSIX `sh`, holds no secret, and has less than 4 KiB without " +
			"the commands that you add.",
		Attributes: map[string]schema.Attribute{
			"role": schema.StringAttribute{
				MarkdownDescription: "Which program boots: `server`, or `agent` for the instances of a shard. For " +
					"`agent`, the content is a template for `defaults.userdata.content` of an `nstance_shard`.",
				Required:   true,
				Validators: []validator.String{stringvalidator.OneOf(roleServer, roleAgent)},
			},
			"shard": optional("Servers: the shard to serve. Required."),
			"storage": optional("Servers: kind of object store: " + name.List(kinds) + ". Default: `" + kinds[0] +
				"`."),
			"bucket": optional("Servers: name of the bucket. Required."),
			"prefix": optional("Servers: prefix of all keys in the bucket."),
			"region": optional("Servers: region of the bucket, for the SDK of the object store."),
			"leader_interface": optional(
				"Servers: ID of the network interface that moves to the leader, the same as in the shard's " +
					"configuration."),
			"leader_network": schema.SingleNestedAttribute{
				MarkdownDescription: "Servers: how systemd-networkd configures `leader_interface`. If left out, the " +
					"image itself must send replies from the interface's addresses through that interface.",
				Optional: true,
				Attributes: map[string]schema.Attribute{
					"mac_address": schema.StringAttribute{MarkdownDescription: "MAC address of the interface.",
						Required: true},
					"ipv4":         optional("IPv4 address of the interface."),
					"ipv4_gateway": optional("Router of the interface's subnet. Required with `ipv4`."),
					"ipv6":         optional("IPv6 address of the interface."),
				},
			},
			"extra_args": texts("Servers: more arguments of `nstance-server`, such as `--debug`."),
			"binaries": schema.MapNestedAttribute{
				MarkdownDescription: "Downloads of the program for images without it, by architecture: `amd64`, " +
					"`arm64`. The script checks the file's SHA-256 before it can run. If the image has no systemd " +
					"unit either, the script writes a plain one.",
				Optional: true,
				NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
					"url": schema.StringAttribute{MarkdownDescription: "URL of the program, https or http.",
						Required: true},
					"sha256": schema.StringAttribute{MarkdownDescription: "SHA-256 of the file, in hex.",
						Required: true},
				}},
			},
			"environment": schema.MapAttribute{
				MarkdownDescription: "Environment variables for the systemd unit, such as `NSTANCE_RECV_EXTENSIONS` " +
					"for agents.",
				Optional: true, ElementType: types.StringType,
			},
			"commands_before": texts(
				"Lines of `sh` that the script runs first. It ends at the first one that fails. For agents, the " +
					"lines are part of the template and may use `{{ quote .Vars.name }}`."),
			"content": schema.StringAttribute{MarkdownDescription: "The script.", Computed: true},
			"content_base64": schema.StringAttribute{
				MarkdownDescription: "The script in base64, as launch templates want it.",
				Computed:            true},
		},
	}
}

// ValidateConfig implements datasource.DataSourceWithValidateConfig.
func (*DataSource) ValidateConfig(ctx context.Context, req datasource.ValidateConfigRequest,
	resp *datasource.ValidateConfigResponse) {
	var m model
	resp.Diagnostics.Append(req.Config.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() || !req.Config.Raw.IsFullyKnown() {
		return // Read checks again
	}
	_, diags := m.script(ctx)
	resp.Diagnostics.Append(diags...)
}

// Read implements datasource.DataSource.
func (*DataSource) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	var m model
	resp.Diagnostics.Append(req.Config.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	script, diags := m.script(ctx)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	m.Content, m.ContentBase64 = types.StringValue(script), types.StringValue(
		base64.StdEncoding.EncodeToString([]byte(script)))
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
}

func (m model) script(ctx context.Context) (string, diag.Diagnostics) {
	var diags diag.Diagnostics
	var common bootscript.Common
	diags.Append(m.CommandsBefore.ElementsAs(ctx, &common.CommandsBefore, false)...)
	diags.Append(m.Environment.ElementsAs(ctx, &common.Environment, false)...)
	var binaries map[string]binaryModel
	diags.Append(m.Binaries.ElementsAs(ctx, &binaries, false)...)
	for arch, b := range binaries {
		if common.Binaries == nil {
			common.Binaries = map[string]bootscript.Binary{}
		}
		common.Binaries[arch] = bootscript.Binary{URL: b.URL, SHA256: b.SHA256}
	}
	var leader leaderNetworkModel
	if !m.LeaderNetwork.IsNull() {
		diags.Append(m.LeaderNetwork.As(ctx, &leader, basetypes.ObjectAsOptions{})...)
	}
	var extra []string
	diags.Append(m.ExtraArgs.ElementsAs(ctx, &extra, false)...)
	if diags.HasError() {
		return "", diags
	}
	if m.Role.ValueString() == roleAgent {
		return report(&diags)(m.agent(common))
	}
	storage := m.Storage.ValueString()
	if m.Storage.IsNull() {
		storage = config.ObjectStoreNames()[0]
	}
	return report(&diags)(bootscript.Server{
		Common: common, Shard: m.Shard.ValueString(), Storage: storage, Bucket: m.Bucket.ValueString(),
		Prefix: m.Prefix.ValueString(),
		Region: m.Region.ValueString(), LeaderInterface: m.LeaderInterface.ValueString(),
		LeaderNetwork: bootscript.LeaderNetwork{MAC: leader.MACAddress.ValueString(), IPv4: leader.IPv4.ValueString(),
			Gateway: leader.IPv4Gateway.ValueString(), IPv6: leader.IPv6.ValueString()},
		ExtraArgs: extra,
	}.Script())
}

// agent returns the script of an agent. It returns an error for each argument that only servers accept.
func (m model) agent(common bootscript.Common) (string, error) {
	var errs []error
	for _, only := range []struct {
		name  string
		value interface{ IsNull() bool }
	}{
		{"shard", m.Shard},
		{"storage", m.Storage},
		{"bucket", m.Bucket},
		{"prefix", m.Prefix},
		{"region", m.Region},
		{"leader_interface", m.LeaderInterface},
		{"leader_network", m.LeaderNetwork},
		{"extra_args", m.ExtraArgs},
	} {
		if !only.value.IsNull() {
			errs = append(errs, &bootscript.FieldError{Field: only.name,
				Err: errors.New("is for servers only: the server passes this value to instances")})
		}
	}
	if len(errs) > 0 {
		return "", errors.Join(errs...)
	}
	return bootscript.Agent{Common: common}.Script()
}

// report returns a function that adds a diagnostic to diags for each error of a script, at the argument with the
// mistake.
func report(diags *diag.Diagnostics) func(string, error) (string, diag.Diagnostics) {
	return func(script string, err error) (string, diag.Diagnostics) {
		for _, err := range parts(err) {
			var field *bootscript.FieldError
			at, why := path.Empty(), err
			name := "the arguments"
			if errors.As(err, &field) {
				name, why = field.Field, field.Err
				root := strings.FieldsFunc(name, func(r rune) bool { return r == '[' || r == '.' })
				at = path.Root(root[0])
			}
			diags.Append(diagnostic.Failure{What: "Invalid userdata: " + name, Why: why, Do: "Correct " + name +
				"."}.At(at))
		}
		return script, *diags
	}
}

// parts returns the errors that a joined error consists of.
func parts(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}
