// Package shard implements the resource nstance_shard, which manages the configuration of one shard,
// `config/{shard}.jsonc`.
//
// Invariants:
//   - The resource writes only a configuration that the server's own rules accept.
//   - A write replaces only the version that the plan was made from.
//   - The resource deletes the configuration only when the shard has no instances and no server can create new ones.
package shard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/tfsdk"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
	docs "github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/document"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/bucket"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/base"
)

const (
	defaultCreate = 5 * time.Minute
	// defaultUpdate is longer than the sum of the interval at which a leader polls the bucket (3 min) and the time for
	// a restart or a takeover.
	defaultUpdate = 15 * time.Minute
	defaultDelete = 10 * time.Minute
)

// Resource implements the Terraform resource nstance_shard.
type Resource struct {
	base.Resource
	base.Importer
}

// New returns the resource, not yet configured.
func New() resource.Resource { return &Resource{base.Resource{Name: "shard"}, importer} }

var importer = base.Importer{Example: "dev-1", Parts: []base.Part{
	{Attribute: "shard", Name: "shard", Check: ident.ValidateName},
}}

var (
	_ resource.ResourceWithValidateConfig = (*Resource)(nil)
	_ resource.ResourceWithModifyPlan     = (*Resource)(nil)
	_ resource.ResourceWithImportState    = (*Resource)(nil)
)

func (r *Resource) failure(what, name string, err error) diag.Diagnostic {
	return diagnostic.Failure{What: what, Where: r.Bucket.Place(keys.Config(name)), Why: err,
		Do: bucket.Advice(err)}.Error()
}

// Create implements resource.Resource.
func (r *Resource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	defer func() { resp.Diagnostics.Append(r.Bucket.Remember(ctx, resp.Private)...) }()
	want := read(req.Plan.Raw)
	resp.Diagnostics.Append(want.diags.Errors()...)
	if resp.Diagnostics.HasError() {
		return
	}
	if there, diags := r.existing(ctx, want); there {
		resp.Diagnostics.Append(diags...)
		return
	}
	token, diags := r.write(ctx, want, "")
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	values := computed(want, token)
	values["rolling_groups"] = rollingGroups(nil)
	resp.State.Raw = docs.Replaced(req.Plan.Raw, values)
	limit, diags := base.Timeout(ctx, req.Plan.GetAttribute, timeouts.Value.Create, defaultCreate)
	if resp.Diagnostics.Append(diags...); diags.HasError() {
		return
	}
	if diag := r.wait(ctx, req.Plan, want, token, limit, true, release{}); diag != nil {
		// This is a warning because an error would mark the shard as tainted, and the next apply would destroy it.
		resp.Diagnostics.AddWarning(diag.Summary(), diag.Detail())
	}
}

// Update implements resource.Resource.
func (r *Resource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	want, state := read(req.Plan.Raw), docs.Attributes(req.State.Raw)
	resp.Diagnostics.Append(want.diags.Errors()...)
	if resp.Diagnostics.HasError() {
		return
	}
	for attribute, name := range map[string]string{"shard": want.name(), "cluster_id": want.cluster()} {
		if have := docs.TextOf(state[attribute]); name != have {
			resp.Diagnostics.Append(diagnostic.Failure{
				What: fmt.Sprintf("The %s changes from %q to %q", attribute, have, name),
				Why:  errors.New("the name was not known when the plan was made, and a shard cannot be renamed"),
				Do: "Plan and apply again: now that the name is known, the shard will be replaced. Or set the old " +
					"name.",
			}.Error())
		}
	}
	if resp.Diagnostics.HasError() {
		return
	}
	token := objstore.Token(docs.TextOf(state["etag"]))
	before := read(req.State.Raw)
	changed := !bytes.Equal(want.body, before.body)
	if changed {
		var diags diag.Diagnostics
		token, diags = r.write(ctx, want, token)
		resp.Diagnostics.Append(diags...)
		if resp.Diagnostics.HasError() {
			return
		}
	}
	values := computed(want, token)
	values["rolling_groups"] = rolling(before, want, state)
	resp.State.Raw = docs.Replaced(req.Plan.Raw, values)
	limit, diags := base.Timeout(ctx, req.Plan.GetAttribute, timeouts.Value.Update, defaultUpdate)
	if resp.Diagnostics.Append(diags...); diags.HasError() {
		return
	}
	if diag := r.wait(ctx, req.Plan, want, token, limit, changed,
		releaseOf(before.shard, want.shard)); diag != nil {
		resp.Diagnostics.Append(diag)
	}
}

func computed(d document, token objstore.Token) map[string]tftypes.Value {
	values := groups(d.shard)
	maps.Copy(values, map[string]tftypes.Value{"shard": docs.Text(d.name()), "cluster_id": docs.Text(d.cluster()),
		"etag": docs.Text(string(token))})
	return values
}

// existing reports whether the shard that a resource creates has a configuration already, and returns the errors. A
// resource does not take over a configuration that another resource wrote, even one with the same content: the destroy
// of one of the two would empty the shard.
func (r *Resource) existing(ctx context.Context, want document) (bool, diag.Diagnostics) {
	name := want.name()
	state, err := r.Bucket.Shard(ctx, want.cluster(), name)
	if err != nil {
		return true, diag.Diagnostics{r.failure("Cannot write the configuration of shard "+name, name, err)}
	}
	if !r.Bucket.Claim(keys.Config(name)) {
		return true, diag.Diagnostics{r.existsError(name, errors.New("another nstance_shard of this run creates it"))}
	}
	_, token, err := state.ReadConfig(ctx, name)
	switch {
	case err == nil:
		return true, diag.Diagnostics{r.existsError(name,
			fmt.Errorf("the bucket has version %s, which this resource did not write", token))}
	case !errors.Is(err, objstore.ErrNotFound):
		return true, diag.Diagnostics{r.failure("Cannot write the configuration of shard "+name, name, err)}
	}
	return false, nil
}

// existsError is the error of a resource that creates a shard that has a configuration.
func (r *Resource) existsError(name string, why error) diag.Diagnostic {
	return diagnostic.Failure{
		What: fmt.Sprintf("Shard %s has a configuration already", name), Where: r.Bucket.Place(keys.Config(name)),
		Why: why,
		Do: fmt.Sprintf(
			"If the resource was renamed, write a moved block from its former address. If an apply was interrupted, "+
				"or "+
				"if this resource should manage the shard from now on, import it: terraform import <address of the "+
				"nstance_shard> %s. If another Terraform configuration manages it, give this shard another name. "+
				"Nothing was written.", name),
	}.Error()
}

// write stores the configuration in the bucket and returns its version. It replaces only the version with the given
// token, or creates the configuration if token is "". If the bucket already holds the same text, write returns the
// bucket's version.
func (r *Resource) write(ctx context.Context, want document, token objstore.Token) (objstore.Token, diag.Diagnostics) {
	name := want.name()
	if err := r.checkCluster(ctx, want); err != nil {
		return "", diag.Diagnostics{r.Bucket.ForeignCluster(want.cluster(), path.Root("cluster_id"), err)}
	}
	fail := func(err error) (objstore.Token, diag.Diagnostics) {
		return "", diag.Diagnostics{r.failure("Cannot write the configuration of shard "+name, name, err)}
	}
	state, err := r.Bucket.Shard(ctx, want.cluster(), name)
	if err != nil {
		return fail(err)
	}
	written, err := state.WriteConfig(ctx, name, want.body, token)
	if err == nil || !errors.Is(err, objstore.ErrConflict) {
		if err != nil {
			return fail(err)
		}
		return written, nil
	}
	have, haveToken, rerr := state.ReadConfig(ctx, name)
	missing := errors.Is(rerr, objstore.ErrNotFound)
	switch {
	case rerr != nil && !missing:
		return fail(fmt.Errorf("%w; the version in the bucket cannot be read: %w", err, rerr))
	case rerr == nil && bytes.Equal(have, want.body):
		return haveToken, nil // an interrupted apply wrote it
	}
	conflict := diagnostic.Failure{Where: r.Bucket.Place(keys.Config(name))}
	switch {
	case token == "":
		return "", diag.Diagnostics{r.existsError(name,
			fmt.Errorf("the bucket has version %s, which this resource did not write", haveToken))}
	case missing:
		conflict.What = fmt.Sprintf("The configuration of shard %s was removed meanwhile", name)
		conflict.Why = fmt.Errorf("the plan was made from version %s, and the bucket has no version now", token)
		conflict.Do = "Another program is destroying this shard. Nothing was written. To keep the shard, plan and " +
			"apply again: the apply creates the configuration again."
	default:
		conflict.What = fmt.Sprintf("The configuration of shard %s was changed meanwhile", name)
		conflict.Why = fmt.Errorf("the plan was made from version %s, and the bucket has version %s now", token,
			haveToken)
		conflict.Do = "Another apply or config push wrote it at the same time. Nothing was written. Plan again: the " +
			"plan shows the other change; apply it to undo that change."
	}
	return "", diag.Diagnostics{conflict.Error()}
}

// checkCluster returns an error if the configuration names another cluster than the CA in the bucket. A configuration
// that has the cluster's objects in another bucket is not checked.
func (r *Resource) checkCluster(ctx context.Context, want document) error {
	if want.shard == nil || want.cluster() == "" || want.shard.Cluster.Storage != nil {
		return nil
	}
	return r.Bucket.CheckCluster(ctx, want.cluster())
}

// Read implements resource.Resource. If the bucket holds another version of the configuration than the state, Read
// copies that version to the state, and the plan shows the differences. Read also warns if the leader has not applied
// the version in the bucket, because a plan does not show that.
func (r *Resource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	if !r.Bucket.Known() {
		return // planning must work without the bucket
	}
	defer r.Bucket.AfterRead(ctx, resp)
	attributes := docs.Attributes(req.State.Raw)
	name, seen := docs.TextOf(attributes["shard"]), docs.TextOf(attributes["etag"])
	state, err := r.Bucket.Shard(ctx, docs.TextOf(attributes["cluster_id"]), name)
	if err != nil {
		resp.Diagnostics.Append(r.failure("Cannot read the configuration of shard "+name, name, err))
		return
	}
	body, token, err := state.ReadConfig(ctx, name)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		resp.State.RemoveResource(ctx)
		return
	case err != nil:
		resp.Diagnostics.Append(r.failure("Cannot read the configuration of shard "+name, name, err))
		return
	}
	if failure, copied := r.Bucket.NotHome(r.Bucket.CheckHome(ctx, name)); copied {
		resp.Diagnostics.Append(failure.Warning())
	} else {
		resp.Diagnostics.Append(r.checkApplied(ctx, state, name, token)...)
		resp.Diagnostics.Append(r.haltedGroups(ctx, state, name, body)...)
	}
	if string(token) != seen || attributes["config"].IsNull() {
		resp.Diagnostics.Append(r.refresh(&resp.State, name, body, token)...)
	}
}

// refresh copies body, the configuration in the bucket, to the Terraform state. What means the same as before keeps its
// form.
func (r *Resource) refresh(state *tfsdk.State, name string, body []byte, token objstore.Token) diag.Diagnostics {
	attributes, diags := docs.Attributes(state.Raw), diag.Diagnostics{}
	before := read(state.Raw)
	s, problems := config.ParseStored(keys.Config(name), body)
	update := map[string]tftypes.Value{"etag": docs.Text(string(token))}
	if s == nil {
		diags.Append(diagnostic.Failure{
			What:  fmt.Sprintf("The configuration of shard %s in the bucket is not valid", name),
			Where: r.Bucket.Place(keys.Config(name)), Why: problems.Err(),
			Do: "The servers keep the last one that was valid. Apply this configuration to replace it.",
		}.Warning())
		tree, _ := config.ParseTree("", body)
		update["config"] = docs.Decode(tree)
	} else {
		update["config"] = docs.Update(attributes["config"], treeOf(before.body), treeOf(config.Encode(s)))
		maps.Copy(update, groups(s))
		if attributes["rolling_groups"].IsNull() {
			update["rolling_groups"] = rollingGroups(nil)
		}
		update["cluster_id"] = docs.Text(s.Cluster.ID)
	}
	state.Raw = docs.Replaced(state.Raw, update)
	return diags
}

// treeOf decodes a document. It returns nil for no document.
func treeOf(body []byte) (tree any) {
	if body != nil {
		_ = json.Unmarshal(body, &tree) // the body is the result of config.Encode
	}
	return tree
}

// Schema implements resource.Resource.
func (r *Resource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	attributes := map[string]schema.Attribute{}
	attributes["config"] = schema.DynamicAttribute{
		MarkdownDescription: "The configuration: an object as the [reference of the " +
			"configuration](https://github.com/nstance-kit/nstance/blob/main/docs/reference/configuration.md) " +
			"describes it, of which `cluster` and `server` are required. A plan checks it by the servers' own rules, " +
			"and refuses a field that does not exist, with its path. A field with null counts as unset. The function " +
			"`jsonc_decode` reads a configuration from a file, and `config_merge` merges several.",
		Required: true,
	}
	attributes["wait_for_leader"] = schema.BoolAttribute{
		MarkdownDescription: "Wait until the shard's leader has applied the configuration. A time-out is an error " +
			"when the shard is updated. When it is created, a time-out is only a warning, because an error would " +
			"mark the new shard as tainted, and the next apply would empty it.\n\nIf the provider has an `operator` " +
			"block and the leader answers, an apply always makes the leader apply the configuration immediately, " +
			"waits for that, and reports why the leader refuses it. If no leader answers, an apply without " +
			"`wait_for_leader` ends when the configuration is in the bucket. The leader looks for a new " +
			"configuration " +
			"every 10 s.",
		Optional: true,
	}
	attributes["deletion_protection"] = schema.BoolAttribute{
		MarkdownDescription: "Refuse every plan that destroys or replaces the shard, until an apply has set this to " +
			"`false`.",
		Optional: true,
	}
	attributes["force_destroy"] = schema.BoolAttribute{
		MarkdownDescription: "Let a destroy remove the shard's records of instances even if no server can terminate " +
			"their VMs. A warning then names these VMs: they run on, and cost money, until you terminate them.",
		Optional: true,
	}
	patience := timeouts.Attributes(ctx, timeouts.Opts{
		Create: true, Update: true, Delete: true,
		CreateDescription: "How long to wait for the leader. Default: `5m`.",
		UpdateDescription: "How long to wait for the leader. Default: `15m`.",
		DeleteDescription: "How long to wait until the leader has emptied the shard. Default: `10m`.",
	}).(schema.SingleNestedAttribute)
	patience.MarkdownDescription = "How long things may take, such as `30m`."
	attributes["timeouts"] = patience
	attributes["shard"] = schema.StringAttribute{
		MarkdownDescription: "Name of the shard, which is also its import ID.",
		Computed:            true,
	}
	attributes["cluster_id"] = schema.StringAttribute{
		MarkdownDescription: "Name of the cluster.",
		Computed:            true,
	}
	attributes["etag"] = schema.StringAttribute{
		MarkdownDescription: "Version of the configuration in the bucket.",
		Computed:            true,
	}
	attributes["rolling_groups"] = schema.ListAttribute{
		MarkdownDescription: "Static groups, as `tenant/name`, whose instances are replaced, in waves of up to " +
			"max_surge, because their infrastructure configuration changes or their pool loses a subnet. In a plan " +
			"these are the groups that the change will replace, afterwards those that the last change replaced. " +
			"Dynamic groups are replaced with their templates; the plan's warning names them.",
		Computed: true, ElementType: types.StringType,
	}
	attributes["group_hashes"] = schema.MapNestedAttribute{
		MarkdownDescription: "Hashes of the static groups, by `tenant/name`.",
		Computed:            true,
		NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
			"infra": schema.StringAttribute{
				MarkdownDescription: "Infra hash. A change of it replaces the group's instances, in waves of up to " +
					"max_surge.",
				Computed: true,
			},
			"runtime": schema.StringAttribute{
				MarkdownDescription: "Runtime hash. After a change of it, running instances get the new files and " +
					"settings.",
				Computed: true,
			},
		}},
	}
	attributes["group_settings"] = schema.MapAttribute{
		MarkdownDescription: "All settings of the static groups, by `tenant/name`, as JSON: those of the group, and " +
			"those that it inherits from its template, from the shard and from the defaults. `$defaults` lists the " +
			"paths of those that nobody has written. What an operator sets at run time is not in it.",
		Computed: true, ElementType: types.StringType,
	}
	resp.Schema = schema.Schema{
		Version: base.Version,
		MarkdownDescription: "One shard's configuration: what its servers run, and the groups of VMs that they keep " +
			"alive.\n\nDestroying the resource first marks the " +
			"configuration as terminating, waits until the shard's leader has emptied the shard, and then removes " +
			"the configuration and all other objects of the shard in the bucket. The election lock stays if servers " +
			"still run. Destroy the servers' machines after this resource (`depends_on`).",
		Attributes: attributes,
	}
}

func hashesType() tftypes.Map {
	return tftypes.Map{ElementType: tftypes.Object{AttributeTypes: map[string]tftypes.Type{"infra": tftypes.String,
		"runtime": tftypes.String}}}
}

// rollingGroups returns the value of the attribute `rolling_groups`.
func rollingGroups(groups []string) tftypes.Value {
	out := make([]tftypes.Value, len(groups))
	for i, name := range groups {
		out[i] = docs.Text(name)
	}
	return tftypes.NewValue(tftypes.List{ElementType: tftypes.String}, out)
}
