// Package group implements the resource nstance_group, which manages a dynamic group of a shard through the shard's
// servers.
//
// Invariants:
//   - The attributes hold exactly the group's own fields, without values that come from its template.
//   - An update changes a group only if the group's fields are still those that the plan was made from.
//   - The resource never changes a static group. Static groups belong to the configuration of the shard.
package group

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/document"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/name"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/servers"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/resource/base"
)

const (
	defaultWait   = 10 * time.Minute
	defaultDelete = 15 * time.Minute
)

// Resource implements the Terraform resource nstance_group.
type Resource struct {
	base.Resource
	base.Importer
}

// New returns the resource, not yet configured.
func New() resource.Resource { return &Resource{base.Resource{Name: "group"}, importer} }

var importer = base.Importer{Example: "dev-1/default/workers", Parts: []base.Part{
	{Attribute: "shard", Name: "shard", Check: ident.ValidateName},
	{Attribute: "tenant", Name: "tenant", Check: ident.ValidateTenantName},
	{Attribute: "name", Name: "group", Check: ident.ValidateName},
}}

var (
	_ resource.ResourceWithValidateConfig = (*Resource)(nil)
	_ resource.ResourceWithModifyPlan     = (*Resource)(nil)
	_ resource.ResourceWithImportState    = (*Resource)(nil)
)

// key identifies a group.
type key struct{ shard, tenant, name string }

func (k key) String() string { return k.shard + "/" + k.tenant + "/" + k.name }

func keyOf(attributes map[string]tftypes.Value) key {
	return key{document.TextOf(attributes["shard"]), document.TextOf(attributes["tenant"]),
		document.TextOf(attributes["name"])}
}

func failure(what string, k key, err error) diag.Diagnostic {
	return diagnostic.Failure{What: what + " group " + k.name, Where: "shard " + k.shard, Why: err,
		Do: servers.Advice(err)}.Error()
}

// tenant returns the tenant of the provider's operator identity. It returns a diagnostic if the identity cannot be
// read, or if k names another tenant.
func (r *Resource) tenant(k key) (string, diag.Diagnostic) {
	identity, err := r.Servers.Identity()
	if err != nil {
		return "", failure("Cannot look after", k, err)
	}
	if tenant := identity.Who.Tenant; k.tenant == "" || k.tenant == tenant {
		return tenant, nil
	}
	return "", diagnostic.Failure{
		What: "The tenant of group " + k.name + " is not the operator's",
		Why: fmt.Errorf(
			"the group is of tenant %s, the identity in the provider's operator block is of tenant %s, and a server "+
				"gives it no other tenant's groups", k.tenant, identity.Who.Tenant),
		Do: "Correct tenant, or use a configuration of the provider with an identity of that tenant (an alias).",
	}.At(path.Root("tenant"))
}

// Create implements resource.Resource.
func (r *Resource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	attributes := document.Attributes(req.Plan.Raw)
	k, want := keyOf(attributes), readSpec(attributes)
	if resp.Diagnostics.Append(want.diagnostics()...); resp.Diagnostics.HasError() {
		return
	}
	var diagnose diag.Diagnostic
	if k.tenant, diagnose = r.tenant(k); diagnose != nil {
		resp.Diagnostics.Append(diagnose)
		return
	}
	upsert, err := request(k.name, want.spec, config.GroupSpec{})
	var group *nstancev1.GroupStatus
	if err == nil {
		upsert.MustCreate = true
		group, err = r.upsert(ctx, k, upsert)
	}
	if status.Code(err) == codes.AlreadyExists {
		resp.Diagnostics.Append(r.exists(ctx, k, err))
		return
	}
	if err != nil {
		resp.Diagnostics.Append(failure("Cannot create", k, err))
		return
	}
	resp.State.Raw = document.Replaced(req.Plan.Raw, computed(k, group))
	if diagnose := r.wait(ctx, req.Plan.GetAttribute, k, timeouts.Value.Create); diagnose != nil {
		// This is a warning because an error would mark the group as tainted, and the next apply would destroy it.
		resp.Diagnostics.AddWarning(diagnose.Summary(), diagnose.Detail())
	}
}

// exists returns the diagnostic for a create call that failed because the group exists.
func (r *Resource) exists(ctx context.Context, k key, err error) diag.Diagnostic {
	group, lerr := r.readGroup(ctx, k)
	if lerr == nil && group.GetIsStatic() {
		return diagnostic.Failure{
			What: "Group " + k.name + " is static", Where: "shard " + k.shard,
			Why: fmt.Errorf("name: %s/%s is a group of the shard's configuration", k.tenant, k.name),
			Do:  "Change it there (groups of the nstance_shard), or give this group another name.",
		}.At(path.Root("name"))
	}
	return diagnostic.Failure{
		What: "Group " + k.name + " exists already", Where: "shard " + k.shard, Why: err,
		Do: fmt.Sprintf(
			"If this resource should manage it, import it: terraform import <address of the nstance_group> %s. If "+
				"the operator or another Terraform configuration does, give this group "+
				"another name. Nothing was changed.", k),
	}.At(path.Root("name"))
}

// Update implements resource.Resource.
func (r *Resource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	attributes := document.Attributes(req.Plan.Raw)
	k, want, have := keyOf(attributes), readSpec(attributes), readSpec(document.Attributes(req.State.Raw))
	if resp.Diagnostics.Append(want.diagnostics()...); resp.Diagnostics.HasError() {
		return
	}
	if _, diagnose := r.tenant(k); diagnose != nil {
		resp.Diagnostics.Append(diagnose)
		return
	}
	group, err := r.readGroup(ctx, k)
	if err == nil && group == nil {
		err = errors.New("the group was deleted after the plan was made: plan again")
	}
	if err != nil {
		resp.Diagnostics.Append(failure("Cannot update", k, err))
		return
	}
	// The same apply may change the group's template, which changes the group's ETag, too. So the group's own fields,
	// not the ETag, show whether another client changed the group. The state keeps the plan's values of the fields that
	// only the other client changed: the next plan shows them, unless they are in ignore_changes.
	now, err := specOf(group)
	to := merged(canonical(have.spec), canonical(want.spec), canonical(now))
	if names := conflicts(canonical(have.spec), canonical(want.spec), canonical(now)); err == nil && len(names) > 0 {
		err = status.Errorf(codes.Aborted, "the plan changes %s, which changed after the plan was made",
			strings.Join(names, ", "))
	}
	if err == nil && !same(now, to) {
		var upsert *nstancev1.UpsertGroupRequest
		if upsert, err = request(k.name, to, now); err == nil {
			upsert.MustExist, upsert.ExpectedEtag = true, group.GetEtag()
			group, err = r.upsert(ctx, k, upsert)
		}
	}
	switch {
	case status.Code(err) == codes.Aborted:
		resp.Diagnostics.Append(diagnostic.Failure{
			What: "Group " + k.name + " was changed meanwhile", Where: "shard " + k.shard, Why: err,
			Do: "Another apply, the operator or nstance-admin changed it. Nothing was changed now. Plan again: the " +
				"plan shows the other change; apply it to undo that change.",
		}.Error())
		return
	case err != nil:
		resp.Diagnostics.Append(failure("Cannot update", k, err))
		return
	}
	resp.State.Raw = document.Replaced(req.Plan.Raw, computed(k, group))
	if diagnose := r.wait(ctx, req.Plan.GetAttribute, k, timeouts.Value.Update); diagnose != nil {
		resp.Diagnostics.Append(diagnose)
	}
}

// Read implements resource.Resource. Changes that other clients made to the group are shown as drift.
func (r *Resource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	attributes := document.Attributes(req.State.Raw)
	k := keyOf(attributes)
	imported := attributes["etag"].IsNull()
	if !r.Servers.Known(k.shard) && !imported {
		return // planning must work without a server
	}
	if _, diagnose := r.tenant(k); diagnose != nil {
		resp.Diagnostics.Append(diagnose)
		return
	}
	group, err := r.readGroup(ctx, k)
	switch {
	case errors.Is(err, servers.ErrNoAddress) && errors.Is(err, objstore.ErrNotFound):
		resp.State.RemoveResource(ctx) // the shard never had a leader, or it was destroyed
		return
	case (errors.Is(err, servers.ErrUnreachable) || errors.Is(err, servers.ErrNoAddress)) && !imported:
		resp.Diagnostics.Append(diagnostic.Failure{
			What: "Group " + k.name + " was not read", Where: "shard " + k.shard, Why: err,
			Do: "If the shard's servers are scaled to zero, do nothing: changes made elsewhere are not seen. " +
				"Otherwise: " +
				servers.Advice(err),
		}.Warning())
		return
	case err != nil:
		resp.Diagnostics.Append(failure("Cannot read", k, err))
		return
	case group == nil || group.GetDeleting():
		resp.State.RemoveResource(ctx)
		return
	case group.GetIsStatic():
		resp.Diagnostics.Append(diagnostic.Failure{
			What: "Group " + k.name + " is static", Where: "shard " + k.shard,
			Why: errors.New("it is now a group of the shard's configuration"),
			Do:  "Remove this nstance_group from the configuration: it no longer manages anything.",
		}.Warning())
		resp.State.RemoveResource(ctx)
		return
	}
	if halted := group.GetHalted(); halted != nil {
		resp.Diagnostics.Append(diagnostic.Failure{
			What: "The rollout of group " + k.name + " is halted", Where: "shard " + k.shard,
			Why: errors.New(halted.GetMessage()),
			Do: "Correct the group's configuration and apply it. To try the same configuration again, run " +
				"`nstance-admin group resume " + k.name + "`.",
		}.Warning())
	}
	spec, err := specOf(group)
	if err != nil {
		resp.Diagnostics.Append(failure("Cannot read", k, err))
		return
	}
	update := computed(k, group)
	if before := readSpec(attributes); !same(before.spec, spec) {
		if update["spec"], err = drifted(attributes["spec"], canonical(before.spec), canonical(spec)); err != nil {
			resp.Diagnostics.Append(failure("Cannot read", k, err))
			return
		}
	}
	resp.State.Raw = document.Replaced(req.State.Raw, update)
}

// Delete implements resource.Resource.
func (r *Resource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	k := keyOf(document.Attributes(req.State.Raw))
	if _, diagnose := r.tenant(k); diagnose != nil {
		resp.Diagnostics.Append(diagnose)
		return
	}
	group, err := r.readGroup(ctx, k)
	switch {
	case errors.Is(err, servers.ErrNoAddress) && errors.Is(err, objstore.ErrNotFound):
		return
	case errors.Is(err, servers.ErrUnreachable) || errors.Is(err, servers.ErrNoAddress):
		resp.Diagnostics.Append(r.withoutServer(ctx, k, err))
		return
	case err != nil:
		resp.Diagnostics.Append(failure("Cannot destroy", k, err))
		return
	case group == nil:
		return
	case group.GetIsStatic():
		resp.Diagnostics.Append(diagnostic.Failure{
			What: "Group " + k.name + " is static now and was not deleted", Where: "shard " + k.shard,
			Do: "To delete the group, remove it from the shard's configuration.",
		}.Warning())
		return
	}
	err = r.Servers.Call(ctx, k.shard, func(ctx context.Context, client servers.Client) error {
		_, err := client.DeleteGroup(ctx, &nstancev1.DeleteGroupRequest{Group: k.name, ExpectedEtag: group.GetEtag()})
		return err
	})
	if err != nil && status.Code(err) != codes.NotFound {
		resp.Diagnostics.Append(failure("Cannot destroy", k, err))
		return
	}
	if diagnose := r.awaitGone(ctx, req.State.GetAttribute, k); diagnose != nil {
		resp.Diagnostics.Append(diagnose)
	}
}

// withoutServer returns the diagnostic for the destroy of a group while no server of its shard answers. If the shard is
// terminating, it is a warning: the group goes with the shard.
func (r *Resource) withoutServer(ctx context.Context, k key, err error) diag.Diagnostic {
	terminating := false
	r.Servers.Bucket().Glance(ctx, func(ctx context.Context) {
		state, err := r.Servers.Bucket().Shard(ctx, "", k.shard)
		if err != nil {
			return
		}
		body, _, err := state.ReadConfig(ctx, k.shard)
		if err != nil {
			terminating = errors.Is(err, objstore.ErrNotFound) // the shard was destroyed
			return
		}
		s, _ := config.ParseStored(k.shard, body)
		terminating = s != nil && s.Terminating
	})
	if terminating {
		return diagnostic.Failure{
			What: "Group " + k.name + " was not deleted, because its shard is terminating", Where: "shard " + k.shard,
			Why: err, Do: "Do nothing: the destroy of the shard deletes the group's instances.",
		}.Warning()
	}
	return diagnostic.Failure{
		What: "Cannot destroy group " + k.name, Where: "shard " + k.shard, Why: err,
		Do: servers.Advice(err) +
			" If the shard will have no server any more, let Terraform forget the group: write a " +
			"removed block with destroy = false, or run terraform state rm <address of the nstance_group>. Then " +
			"destroy the nstance_shard, with force_destroy = true: it removes the group too.",
	}.Error()
}

// same reports whether two specs have the same canonical form.
func same(a, b config.GroupSpec) bool {
	return reflect.DeepEqual(canonical(a), canonical(b))
}

func canonical(spec config.GroupSpec) config.GroupSpec {
	const tenant, name = "t", "g"
	groups, _ := config.ParseGroups("", config.EncodeGroups(config.Groups{
		Tenants: map[string]map[string]config.GroupSpec{tenant: {name: spec}}}))
	return groups.Tenants[tenant][name]
}

// Schema implements resource.Resource.
func (r *Resource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	attributes := map[string]schema.Attribute{}
	attributes["spec"] = schema.DynamicAttribute{
		MarkdownDescription: "The group: an object with the fields of a group in the shard's configuration, of which " +
			"`template` is required. Fields that are not set come from the template, or else from the shard. The " +
			"[reference of the configuration](https://github.com/nstance-kit/nstance/blob/main/docs/reference/" +
			"configuration.md) lists the fields. A plan refuses a field that does not exist, with its path.",
		Required: true,
	}
	fixed := []planmodifier.String{stringplanmodifier.RequiresReplace()}
	attributes["shard"] = schema.StringAttribute{
		MarkdownDescription: "Name of the shard.", Required: true, PlanModifiers: fixed,
		Validators: []validator.String{name.Valid("shard", ident.ValidateName)},
	}
	attributes["name"] = schema.StringAttribute{
		MarkdownDescription: "Name of the group, unique in shard and tenant.", Required: true, PlanModifiers: fixed,
		Validators: []validator.String{name.Valid("group", ident.ValidateName)},
	}
	attributes["tenant"] = schema.StringAttribute{
		MarkdownDescription: "Tenant of the group. Default: the tenant of the provider's operator identity, which " +
			"makes all calls. Another tenant is an error.",
		Optional: true, Computed: true,
		PlanModifiers: []planmodifier.String{stringplanmodifier.UseStateForUnknown(),
			stringplanmodifier.RequiresReplace()},
		Validators: []validator.String{name.Valid("tenant", ident.ValidateTenantName)},
	}
	attributes["wait_for_instances"] = schema.BoolAttribute{
		MarkdownDescription: "Wait until the group has its size in healthy instances that are up to date. A " +
			"time-out is an error when the group is updated, and a warning when it is created: an " +
			"error would mark the new group as tainted, and the next apply would replace it.",
		Optional: true,
	}
	patience := timeouts.Attributes(ctx, timeouts.Opts{
		Create: true, Update: true, Delete: true,
		CreateDescription: "How long `wait_for_instances` waits. Default: `10m`.",
		UpdateDescription: "How long `wait_for_instances` waits. Default: `10m`.",
		DeleteDescription: "How long to wait until the group's instances are drained and gone. Default: `15m`.",
	}).(schema.SingleNestedAttribute)
	patience.MarkdownDescription = "How long things may take, such as `30m`."
	attributes["timeouts"] = patience
	attributes["id"] = schema.StringAttribute{
		MarkdownDescription: "`shard/tenant/name`, which is also the import ID.", Computed: true,
		PlanModifiers: []planmodifier.String{stringplanmodifier.UseStateForUnknown()},
	}
	attributes["etag"] = schema.StringAttribute{
		MarkdownDescription: "Version of the group, including what it inherits from its template.", Computed: true,
	}
	attributes["infra_hash"] = schema.StringAttribute{
		MarkdownDescription: "Hash of the settings that instances are made from. A change of it replaces them, in " +
			"waves of up to max_surge.",
		Computed: true,
	}
	attributes["runtime_hash"] = schema.StringAttribute{
		MarkdownDescription: "Hash of the files and settings that running instances receive. A change of it is sent " +
			"to them.",
		Computed: true,
	}
	attributes["settings"] = schema.StringAttribute{
		MarkdownDescription: "All settings of the group that are in force, as JSON: its own, and those that it " +
			"inherits from its template, from the shard and from the defaults. `$defaults` lists the paths of those " +
			"that nobody has written.",
		Computed: true,
	}
	resp.Schema = schema.Schema{
		Version: base.Version,
		MarkdownDescription: "A dynamic group of a shard. It is managed through the operator API of the shard's " +
			"servers, so the provider needs an `operator` block. Changes made elsewhere show as drift. Put " +
			"`spec.size` into `ignore_changes` if something else scales the group. A static group is part of an " +
			"`nstance_shard`, and cannot be managed with this resource. While no server of the shard can be reached, " +
			"a plan warns and does not look for drift.\n\nDestroying the resource drains the group's instances, and " +
			"waits until they are gone.",
		Attributes: attributes,
	}
}
