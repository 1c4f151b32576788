package group

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/terraform-plugin-go/tftypes"
	"google.golang.org/protobuf/types/known/durationpb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/servers"
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

// specOf returns the group's own fields, without values that come from its template. It returns an error if the server
// is too old to report the group's own fields, or reports invalid JSON.
func specOf(group *nstancev1.GroupStatus) (config.GroupSpec, error) {
	text := group.GetSpecJson()
	if text == "" {
		return config.GroupSpec{},
			errors.New("the server's answer has no spec_json: the server is older than this provider, upgrade it")
	}
	if !json.Valid([]byte(text)) { // the text must be valid without the wrapper below
		return config.GroupSpec{}, errors.New("the server's answer: spec_json is not JSON")
	}
	const before, after = `{"t": {"g": `, `}}`
	groups, problems := config.ParseGroups("", []byte(before+text+after))
	if err := problems.Err(); err != nil {
		return config.GroupSpec{}, fmt.Errorf("the server's answer: %w", err)
	}
	return groups.Tenants["t"]["g"], nil
}

// request returns a call that makes the group equal to want. The call clears each optional field that is set in have
// and not in want. Both specs must be valid.
func request(name string, want, have config.GroupSpec) *nstancev1.UpsertGroupRequest {
	req := &nstancev1.UpsertGroupRequest{
		Group: name, Template: want.Template, InstanceType: want.InstanceType,
		InstanceTypes: slices.Clone(want.InstanceTypes), SubnetPool: want.SubnetPool,
		LoadBalancers: slices.Clone(want.LoadBalancers), MaxUnhealthy: want.MaxUnhealthy,
	}
	unset := func(field string, wanted, had bool) {
		if had && !wanted {
			req.ClearFields = append(req.ClearFields, field)
		}
	}
	if want.Size != nil {
		size := uint32(*want.Size)
		req.Size = &size
	}
	unset("size", want.Size != nil, have.Size != nil)
	unset("instance_type", want.InstanceType != "", have.InstanceType != "")
	unset("instance_types", len(want.InstanceTypes) > 0, len(have.InstanceTypes) > 0)
	unset("subnet_pool", want.SubnetPool != "", have.SubnetPool != "")
	if len(want.Vars) > 0 {
		req.SetVars, req.Vars = true, want.Vars
	}
	unset("vars", len(want.Vars) > 0, len(have.Vars) > 0)
	if len(want.Args) > 0 {
		text, err := json.Marshal(want.Args)
		if err != nil {
			panic("group: " + err.Error()) // not reached: the arguments were decoded from JSON
		}
		req.ArgsJson = string(text)
	}
	unset("args_json", len(want.Args) > 0, len(have.Args) > 0)
	unset("load_balancers", len(want.LoadBalancers) > 0, len(have.LoadBalancers) > 0)
	if want.DrainTimeout != nil {
		req.DrainTimeout = durationpb.New(want.DrainTimeout.D())
	}
	unset("drain_timeout", want.DrainTimeout != nil, have.DrainTimeout != nil)
	if want.MaxSurge != nil {
		surge := uint32(*want.MaxSurge)
		req.MaxSurge = &surge
	}
	unset("max_surge", want.MaxSurge != nil, have.MaxSurge != nil)
	for _, field := range []struct {
		name        string
		value       any
		to          *string
		wanted, had bool
	}{
		{"rollout_json", want.Rollout, &req.RolloutJson, want.Rollout != nil, have.Rollout != nil},
		{"disruption_json", want.Disruption, &req.DisruptionJson, want.Disruption != nil, have.Disruption != nil},
		{"purchase_json", want.Purchase, &req.PurchaseJson, want.Purchase != nil, have.Purchase != nil},
		{"schedules_json", want.Schedules, &req.SchedulesJson, len(want.Schedules) > 0, len(have.Schedules) > 0},
	} {
		unset(field.name, field.wanted, field.had)
		if !field.wanted {
			continue
		}
		text, err := json.Marshal(field.value)
		if err != nil {
			panic("group: " + err.Error()) // not reached: the types have no value that JSON cannot hold
		}
		*field.to = string(text)
	}
	unset("max_unhealthy", want.MaxUnhealthy != "", have.MaxUnhealthy != "")
	return req
}

func computed(k key, group *nstancev1.GroupStatus) map[string]tftypes.Value {
	return map[string]tftypes.Value{
		"id": textValue(k.String()), "tenant": textValue(k.tenant), "etag": textValue(group.GetEtag()),
		"infra_hash":   textValue(group.GetInfraHash()),
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
