package group

import (
	"context"
	"maps"

	"github.com/hashicorp/terraform-plugin-go/tftypes"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/servers"
)

// readGroup returns the status of one group from the leader, or nil if the group does not exist.
func (r *Resource) readGroup(ctx context.Context, k key) (*nstancev1.GroupStatus, error) {
	var found *nstancev1.GroupStatus
	err := r.servers.Call(ctx, k.shard, func(ctx context.Context, client servers.Client) error {
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
	err := r.servers.Call(ctx, k.shard, func(ctx context.Context, client servers.Client) error {
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
		"id": textValue(k.String()), "tenant": textValue(k.tenant), "etag": textValue(group.GetEtag()),
		"infra_hash":   textValue(group.GetInfraHash()),
		"settings":     textValue(config.MarkDefaults(group.GetMergedJson(), group.GetDefaults())),
		"runtime_hash": textValue(group.GetRuntimeHash()),
	}
}

// attributesOf returns the attributes of a plan, state or configuration by name. It returns nil for a null value.
func attributesOf(raw tftypes.Value) map[string]tftypes.Value {
	var out map[string]tftypes.Value
	if raw.IsKnown() && !raw.IsNull() {
		if err := raw.As(&out); err != nil {
			panic("group: " + err.Error()) // not reached: a resource is an object
		}
	}
	return out
}

// replaced returns a copy of an object in which the given attributes are replaced.
func replaced(raw tftypes.Value, with map[string]tftypes.Value) tftypes.Value {
	out := maps.Clone(attributesOf(raw)) // As shares the map of the value
	for name, v := range with {
		out[name] = v
	}
	return tftypes.NewValue(raw.Type(), out)
}

func textValue(s string) tftypes.Value { return tftypes.NewValue(tftypes.String, s) }

func textOf(v tftypes.Value) string {
	var s string
	if v.IsKnown() && !v.IsNull() && v.As(&s) == nil {
		return s
	}
	return ""
}
