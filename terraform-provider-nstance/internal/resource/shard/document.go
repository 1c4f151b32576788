package shard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
	docs "github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/document"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/bucket"
)

// document is a shard configuration, read from the attribute config of a plan, a state or a Terraform configuration.
type document struct {
	// shard holds the known part of the configuration. It is nil if nothing is known, or if the configuration is not
	// valid.
	shard *config.Shard
	// body is the text to write to the bucket. It is nil if a value is unknown or the configuration is not valid.
	body []byte
	// groupsKnown means that all values on which the groups' instances depend are known. Other values may be unknown.
	groupsKnown bool
	// subnetsUnknown means that groupsKnown is false only because subnets of pools are unknown.
	subnetsUnknown bool
	unknown        []string // paths of values that are not known yet
	diags          diag.Diagnostics
}

// cluster returns the name of the cluster, or "" if it is not known.
func (d document) cluster() string {
	if d.shard == nil {
		return ""
	}
	return d.shard.Cluster.ID
}

func (d document) name() string {
	if d.shard == nil {
		return ""
	}
	return d.shard.Server.Shard
}

// read decodes and validates the known part of the attribute config with the servers' own decoder. The result also
// holds the diagnostics.
func read(raw tftypes.Value) document {
	var d document
	v := docs.Attributes(raw)["config"]
	if !v.IsKnown() {
		d.unknown = []string{""}
		return d
	}
	if v.IsNull() {
		return d // the schema requires the attribute: this is the state of an import
	}
	text, unknown, err := docs.Encode(v)
	if err != nil {
		d.diags.AddAttributeError(path.Root("config"), "Invalid shard configuration", err.Error())
		return d
	}
	shard, problems := config.ParsePartial(text, unknown...)
	d.diags = diagnostic.OfDocument(problems, "config", "shard configuration")
	d.unknown = unknown
	if shard == nil || d.nameUnknown() {
		return d
	}
	d.shard, d.groupsKnown = shard, !slices.ContainsFunc(unknown, config.ConcernsGroups)
	d.subnetsUnknown = !d.groupsKnown && !slices.ContainsFunc(unknown, func(at string) bool {
		return config.ConcernsGroups(at) && !concernsSubnets(at)
	})
	if len(unknown) == 0 {
		d.body = config.Encode(shard)
	}
	return d
}

// nameUnknown reports whether the name of the shard is known only after the apply.
func (d document) nameUnknown() bool {
	return slices.ContainsFunc(d.unknown, func(at string) bool {
		return at == "" || at == "server" || at == "server.shard"
	})
}

// checkName returns an error in a plan for which the name of the shard is not known. While Terraform only validates,
// the variables of modules are not known either, so ValidateConfig accepts such a name.
func (d document) checkName() diag.Diagnostics {
	if !d.nameUnknown() {
		return nil
	}
	return diag.Diagnostics{diagnostic.Failure{
		What: "The name of the shard, config.server.shard, is not known",
		Why:  errors.New("it depends on a resource that is not applied yet"),
		Do:   "Write the name itself, or take it from a variable. It is part of the key of the configuration.",
	}.At(path.Root("config"))}
}

// concernsSubnets reports whether the value at a path may change the subnets of groups, but nothing else of groups.
func concernsSubnets(at string) bool { return strings.HasPrefix(at, "server.subnet_pools") }

// groups returns the values of the attributes that describe the static groups.
func groups(s *config.Shard) map[string]tftypes.Value {
	typ := hashesType()
	merged, _ := s.Merged(config.Groups{})
	full := s.WithDefaults()
	hashes, settings := map[string]tftypes.Value{}, map[string]tftypes.Value{}
	for key, group := range merged {
		hashes[key.String()] = tftypes.NewValue(typ.ElementType, map[string]tftypes.Value{
			"infra":   docs.Text(group.InfraHash),
			"runtime": docs.Text(group.RuntimeHash),
		})
		settings[key.String()] = docs.Text(full.SettingsOf(key, config.Groups{}).Document())
	}
	return map[string]tftypes.Value{"group_hashes": tftypes.NewValue(typ, hashes),
		"group_settings": tftypes.NewValue(tftypes.Map{ElementType: tftypes.String}, settings)}
}

// ValidateConfig implements resource.ResourceWithValidateConfig. It applies the server's own rules at plan time.
func (r *Resource) ValidateConfig(_ context.Context, req resource.ValidateConfigRequest,
	resp *resource.ValidateConfigResponse) {
	resp.Diagnostics.Append(read(req.Config.Raw).diags...)
}

// ModifyPlan implements resource.ResourceWithModifyPlan. It compares plan and state. It looks into the bucket
// only for a new name of the cluster, and for what operators set at run time.
func (r *Resource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	protected := docs.FlagOf(docs.Attributes(req.State.Raw)["deletion_protection"])
	if req.Plan.Raw.IsNull() && protected {
		resp.Diagnostics.Append(protectedError(docs.TextOf(docs.Attributes(req.State.Raw)["shard"])))
	}
	if req.Plan.Raw.IsNull() && !protected {
		resp.Diagnostics.Append(endsWarning(read(req.State.Raw))...)
	}
	if req.Plan.Raw.IsNull() || req.Plan.Raw.Equal(req.State.Raw) {
		return
	}
	after := read(req.Plan.Raw)
	after.diags.Append(after.checkName()...)
	if after.diags.HasError() {
		resp.Diagnostics.Append(after.diags...) // errors in values that were unknown to ValidateConfig
		return
	}
	if cluster := after.cluster(); cluster != docs.TextOf(docs.Attributes(req.State.Raw)["cluster_id"]) {
		r.Bucket.Glance(ctx, func(ctx context.Context) {
			if err := r.checkCluster(ctx, after); err != nil {
				resp.Diagnostics.Append(r.Bucket.ForeignCluster(cluster, path.Root("config"), err))
			}
		})
		if resp.Diagnostics.HasError() {
			return
		}
	}
	planned := map[string]tftypes.Value{}
	if name := after.name(); name != "" {
		planned["shard"] = docs.Text(name)
	}
	if cluster := after.cluster(); cluster != "" {
		planned["cluster_id"] = docs.Text(cluster)
	}
	if after.groupsKnown {
		maps.Copy(planned, groups(after.shard))
		planned["rolling_groups"] = rollingGroups(nil)
	}
	if req.State.Raw.IsNull() && after.groupsKnown {
		change := config.ChangeOf(&config.Shard{}, after.shard, false)
		if summary, detail := change.Warning(); summary != "" {
			resp.Diagnostics.AddWarning(summary+" in shard "+after.name(), detail)
		}
	}
	if state := docs.Attributes(req.State.Raw); state != nil {
		before := read(req.State.Raw)
		if after.groupsKnown {
			planned["rolling_groups"] = rolling(before, after, state)
		}
		if after.body != nil && bytes.Equal(after.body, before.body) {
			planned["etag"] = state["etag"]
		}
		for _, name := range []string{"shard", "cluster_id"} {
			if v, known := planned[name]; known && !v.Equal(state[name]) {
				resp.RequiresReplace.Append(path.Root(name))
			}
		}
		if len(resp.RequiresReplace) > 0 && protected {
			resp.Diagnostics.Append(protectedError(docs.TextOf(state["shard"])))
			return
		}
		if len(resp.RequiresReplace) > 0 {
			resp.Diagnostics.Append(endsWarning(before)...)
		} else if resp.Diagnostics.Append(r.checkSecrets(ctx, before, after)...); resp.Diagnostics.HasError() {
			return
		}
		if len(resp.RequiresReplace) == 0 && after.shard != nil && movesLeader(before, after) {
			resp.Diagnostics.AddWarning("The address of the leader of shard "+after.name()+" changes", "The present "+
				"leader tells connected VMs the new address. A VM that is not connected while the servers "+
				"restart or are replaced is lost and replaced, unless agents use a DNS name "+
				"(leader_network.dns_name). Give operators, nstance-admin and the provider's operator block the new "+
				"address too.")
		}
		if len(resp.RequiresReplace) == 0 && (after.groupsKnown || after.subnetsUnknown) && before.body != nil {
			change := config.ChangeOf(before.shard, after.shard, after.subnetsUnknown)
			if summary, detail := change.Warning(); summary != "" {
				resp.Diagnostics.AddWarning(summary+" in shard "+after.name(), detail)
			}
			resp.Diagnostics.Append(r.overridden(ctx, before, after)...)
		}
	}
	resp.Plan.Raw = docs.Replaced(req.Plan.Raw, planned)
}

// endsWarning returns the warning of a plan that destroys or replaces a shard. It returns nil if the shard has no
// static group with instances and no template for dynamic groups.
func endsWarning(before document) diag.Diagnostics {
	if before.shard == nil {
		return nil
	}
	var groups []string
	merged, _ := before.shard.Merged(config.Groups{})
	for key, group := range merged {
		if group.Size > 0 {
			groups = append(groups, key.String())
		}
	}
	if len(groups)+len(before.shard.Templates) == 0 {
		return nil
	}
	slices.Sort(groups)
	which := "those of all dynamic groups"
	if len(groups) > 0 {
		which = "those of the static groups (" + strings.Join(groups, ", ") + ") and of all dynamic groups"
	}
	return diag.Diagnostics{diag.NewWarningDiagnostic("All instances of shard "+before.name()+" will end",
		"The shard is destroyed, also if another shard replaces it. Its instances are drained and deleted first: "+
			which+".")}
}

// overridden warns of changes that have no effect because an operator pinned another value, and of those that end an
// operator's value.
func (r *Resource) overridden(ctx context.Context, before, after document) (diags diag.Diagnostics) {
	if before.shard == nil || bytes.Equal(before.body, after.body) {
		return nil
	}
	r.Bucket.Glance(ctx, func(ctx context.Context) {
		state, err := r.Bucket.Shard(ctx, after.cluster(), after.name())
		if err != nil {
			return
		}
		overrides, _, _, err := state.ReadGroups(ctx)
		if err != nil {
			return
		}
		kept, ended := config.Overridden(before.shard, after.shard, overrides)
		if len(kept) > 0 {
			diags.AddWarning("Pinned values override changes in shard "+after.name(), strings.Join(kept, "\n"))
		}
		if len(ended) > 0 {
			diags.AddWarning("The apply ends values that were set at run time in shard "+after.name(),
				strings.Join(ended, "\n"))
		}
	})
	return diags
}

// checkSecrets refuses another store of secrets in which servers would not find the cluster's CA. If the store is known
// only after the apply, the plan at that time refuses it.
func (r *Resource) checkSecrets(ctx context.Context, before, after document) diag.Diagnostics {
	if before.shard == nil || after.shard == nil || slices.ContainsFunc(after.unknown, func(at string) bool {
		return at == "cluster" || strings.HasPrefix(at, "cluster.secrets")
	}) {
		return nil
	}
	from, to := bucket.StoreOf(before.shard.Cluster.Secrets), bucket.StoreOf(after.shard.Cluster.Secrets)
	if from == to || r.Bucket.CanUse(ctx, after.shard.Cluster) {
		return nil
	}
	return diag.Diagnostics{diagnostic.Failure{
		What: fmt.Sprintf("The secrets of cluster %s do not move", after.cluster()), Where: from.String(),
		Why: fmt.Errorf("cluster.secrets of shard %s names another store, %s: no server would find the cluster's CA "+
			"and secrets in it", after.name(), to),
		Do: "Set cluster.secrets back. If you have copied all secrets to the new store, name that store in the " +
			"provider's secrets too, so that the plan finds the CA's key in it.",
	}.Error()}
}

// protectedError is the error of a plan that destroys or replaces a protected shard.
func protectedError(name string) diag.Diagnostic {
	return diagnostic.Failure{
		What: "Cannot destroy shard " + name, Why: errors.New("it has deletion_protection"),
		Do: "Nothing was changed. To destroy the shard, set deletion_protection = false, apply, and destroy again.",
	}.Error()
}

// movesLeader reports whether a change may give the leader another address. It returns true if the new address is not
// known yet.
func movesLeader(before, after document) bool {
	if before.shard == nil || before.shard.Server.LeaderNetwork == nil {
		return false
	}
	from, to := before.shard.Server.LeaderNetwork, after.shard.Server.LeaderNetwork
	if slices.ContainsFunc(after.unknown, func(at string) bool {
		return at == "server" || strings.HasPrefix(at, "server.leader_network")
	}) {
		return true
	}
	return to == nil || from.IPv4 != to.IPv4 || from.IPv6 != to.IPv6 || from.InterfaceID != to.InterfaceID
}

// rolling returns the value of `rolling_groups` after a change from before to after. If the configuration is unchanged,
// it returns the value in state, which describes the last change.
func rolling(before, after document, state map[string]tftypes.Value) tftypes.Value {
	switch {
	case before.body != nil && bytes.Equal(before.body, after.body):
		return state["rolling_groups"]
	case before.shard == nil || after.shard == nil:
		return rollingGroups(nil) // the previous configuration was not valid
	}
	return rollingGroups(config.ChangeOf(before.shard, after.shard, false).Rolling())
}
