package group

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/document"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/servers"
)

// reading is the attribute spec of a plan, state or configuration.
type reading struct {
	spec config.GroupSpec
	// known means that Terraform knows every value.
	known    bool
	problems config.Problems
}

// readSpec decodes the attribute spec. It finds all mistakes in the known part that can be found without the
// configuration of the shard. The server validates the rest.
func readSpec(attributes map[string]tftypes.Value) reading {
	v := attributes["spec"]
	if !v.IsKnown() {
		return reading{}
	}
	text, unknown, err := document.Encode(v)
	if err != nil {
		return reading{problems: config.Problems{{Message: err.Error()}}}
	}
	r := reading{known: len(unknown) == 0}
	r.spec, r.problems = config.ParseDynamic(text, unknown...)
	return r
}

// diagnostics returns an error for each problem of the spec, with its path.
func (r reading) diagnostics() diag.Diagnostics {
	return diagnostic.OfDocument(r.problems.Errors(), "spec", "group")
}

// drifted returns the attribute spec for a group that another client has changed. Fields that mean the same as before
// keep their form.
func drifted(before tftypes.Value, have, now config.GroupSpec) (tftypes.Value, error) {
	var trees [2]any
	for i, spec := range []config.GroupSpec{have, now} {
		encoded, err := json.Marshal(spec)
		if err != nil {
			return tftypes.Value{}, err
		}
		if err := json.Unmarshal(encoded, &trees[i]); err != nil {
			return tftypes.Value{}, err
		}
	}
	return document.Update(before, trees[0], trees[1]), nil
}

// errNoSpec means that the answer of a server has no settings of the group.
var errNoSpec = errors.New("the server's answer has no spec_json: the server is older than this provider, upgrade it")

// specOf returns the group's own fields, without values that come from its template.
func specOf(status interface{ GetSpecJson() string }) (config.GroupSpec, error) {
	if status.GetSpecJson() == "" {
		return config.GroupSpec{}, errNoSpec
	}
	spec, problems := config.ParseGroup("", []byte(status.GetSpecJson()))
	if err := problems.Err(); err != nil {
		return config.GroupSpec{}, fmt.Errorf("the server's answer: spec_json: %w", err)
	}
	// Only the server sets these.
	spec.Deleted, spec.Removed, spec.Protected, spec.Overrides = false, nil, nil, nil
	return spec, nil
}

// readGroup returns the status of one group from the leader, or nil if the group does not exist.
func (r *Resource) readGroup(ctx context.Context, k key) (*nstancev1.GroupStatus, error) {
	var found *nstancev1.GroupStatus
	err := r.Servers.Call(ctx, k.shard, func(ctx context.Context, client servers.Client) error {
		answer, err := client.ListGroups(ctx, &nstancev1.ListGroupsRequest{})
		if err != nil {
			return err
		}
		found = nil
		for _, g := range answer.GetGroups() {
			if g.GetGroup() == k.name {
				found = g
			}
		}
		return nil
	})
	return found, err
}

func (r *Resource) upsert(ctx context.Context, k key, req *nstancev1.UpsertGroupRequest) (*nstancev1.GroupStatus,
	error) {
	var group *nstancev1.GroupStatus
	err := r.Servers.Call(ctx, k.shard, func(ctx context.Context, client servers.Client) error {
		answer, err := client.UpsertGroup(ctx, req)
		group = answer.GetGroup()
		return err
	})
	return group, err
}

// request returns a call that makes the group equal to want. The call removes each field that is set in have and not in
// want.
func request(name string, want, have config.GroupSpec) (*nstancev1.UpsertGroupRequest, error) {
	patch, err := config.PatchBetween(have, want)
	return &nstancev1.UpsertGroupRequest{Group: name, Patch: patch.JSON()}, err
}

func computed(k key, group *nstancev1.GroupStatus) map[string]tftypes.Value {
	return map[string]tftypes.Value{
		"id": document.Text(k.String()), "tenant": document.Text(k.tenant), "etag": document.Text(group.GetEtag()),
		"infra_hash":   document.Text(group.GetInfraHash()),
		"settings":     document.Text(config.MarkDefaults(group.GetMergedJson(), group.GetDefaults())),
		"runtime_hash": document.Text(group.GetRuntimeHash()),
	}
}

// conflicts returns the fields that the plan changes and that another client changed to another value since the plan
// was made. The plan changes `have` to `want`; the server has `now`. The specs must be canonical.
func conflicts(have, want, now config.GroupSpec) (names []string) {
	eachField(have, want, now, func(name string, have, want, now reflect.Value) {
		if !equal(want, have) && !equal(now, have) && !equal(now, want) {
			names = append(names, name)
		}
	})
	return names
}

// merged returns now with the changes of the plan, from have to want.
func merged(have, want, now config.GroupSpec) config.GroupSpec {
	out := now
	to := reflect.ValueOf(&out).Elem()
	i := 0
	eachField(have, want, now, func(_ string, have, want, _ reflect.Value) {
		if !equal(want, have) {
			to.Field(i).Set(want)
		}
		i++
	})
	return out
}

func eachField(have, want, now config.GroupSpec, do func(name string, have, want, now reflect.Value)) {
	a, b, c := reflect.ValueOf(have), reflect.ValueOf(want), reflect.ValueOf(now)
	for i := range a.NumField() {
		name, _, _ := strings.Cut(a.Type().Field(i).Tag.Get("json"), ",")
		do(name, a.Field(i), b.Field(i), c.Field(i))
	}
}

func equal(a, b reflect.Value) bool { return reflect.DeepEqual(a.Interface(), b.Interface()) }

// ValidateConfig implements resource.ResourceWithValidateConfig.
func (r *Resource) ValidateConfig(_ context.Context, req resource.ValidateConfigRequest,
	resp *resource.ValidateConfigResponse) {
	resp.Diagnostics.Append(readSpec(document.Attributes(req.Config.Raw)).diagnostics()...)
}

// ModifyPlan implements resource.ResourceWithModifyPlan. It compares plan and state only, and does not call a server.
func (r *Resource) ModifyPlan(_ context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.Plan.Raw.IsNull() || req.State.Raw.IsNull() || req.Plan.Raw.Equal(req.State.Raw) {
		return
	}
	attributes, state := document.Attributes(req.Plan.Raw), document.Attributes(req.State.Raw)
	after, before := readSpec(attributes), readSpec(state)
	if !after.known || len(after.problems) > 0 {
		return // the apply validates again
	}
	if same(after.spec, before.spec) {
		// Only attributes of the resource itself changed, such as a timeout. The group stays the same.
		keep := map[string]tftypes.Value{}
		for _, name := range []string{"etag", "infra_hash", "runtime_hash", "settings"} {
			keep[name] = state[name]
		}
		resp.Plan.Raw = document.Replaced(req.Plan.Raw, keep)
		return
	}
	if rolls(canonical(before.spec), canonical(after.spec)) && len(resp.RequiresReplace) == 0 {
		k := keyOf(attributes)
		resp.Diagnostics.AddWarning("Instances will be replaced in group "+k.name+" of shard "+k.shard,
			"What instances are made from changes: they are replaced, in waves of up to max_surge.")
	}
}

// rolls reports whether a change of the group's own fields changes the infrastructure configuration of its instances.
func rolls(before, after config.GroupSpec) bool {
	return before.Template != after.Template || before.InstanceType != after.InstanceType ||
		before.SubnetPool != after.SubnetPool || revision(before) != revision(after) ||
		!reflect.DeepEqual(before.Args, after.Args)
}

func revision(spec config.GroupSpec) string {
	if spec.Rollout == nil {
		return ""
	}
	return spec.Rollout.Revision
}
