package group

import (
	"context"

	"github.com/hashicorp/terraform-plugin-go/tftypes"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/document"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/servers"
)

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
