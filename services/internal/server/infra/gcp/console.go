package gcp

import (
	"cmp"
	"context"
	"fmt"
	"strconv"

	"google.golang.org/api/compute/v1"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/gcp"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/store/googlecloud"
)

// readConsoles implements the function Consoles of infra.Cloud. It finds the shard's server machines by the labels that
// the Terraform module "shard" sets. It returns the output of their serial port 1. Compute Engine keeps no output of a
// deleted machine.
func readConsoles(ctx context.Context, shard *config.Shard) (found []infra.Console, err error) {
	access, err := googlecloud.Open(ctx)
	if err != nil {
		return nil, err
	}
	provider := shard.Server.Provider
	project := cmp.Or(provider.Options[contract.OptionProject], access.Project)
	if project == "" {
		return nil, googlecloud.ErrNoProject
	}
	service, err := compute.NewService(ctx, access.Options("compute")...)
	if err != nil {
		return nil, fmt.Errorf("make the Compute Engine client: %w", err)
	}
	servers := service.Instances.List(project, provider.Zone).Filter(fmt.Sprintf(
		"labels.nstance-cluster=%s AND labels.nstance-server=%s", shard.Cluster.ID, shard.Server.Shard))
	var all []*compute.Instance
	if err := servers.Pages(ctx, func(page *compute.InstanceList) error {
		all = append(all, page.Items...)
		return nil
	}); err != nil {
		return nil, fmt.Errorf("list the servers' machines: %w", err)
	}
	for _, machine := range all {
		out, err := service.Instances.GetSerialPortOutput(project, provider.Zone, machine.Name).Context(ctx).Do()
		if err != nil {
			return nil, fmt.Errorf("read the console of %s: %w", machine.Name, err)
		}
		found = append(found, infra.Console{Machine: strconv.FormatUint(machine.Id, 10), State: machine.Status,
			Output: out.Contents})
	}
	return found, nil
}
