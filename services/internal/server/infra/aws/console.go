package aws

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// readConsoles implements the Consoles function of infra.Cloud. It finds the machines by the tags from the Terraform
// module "shard". EC2 keeps terminated instances and their consoles for about an hour.
func readConsoles(ctx context.Context, shard *config.Shard) (found []infra.Console, err error) {
	cfg, err := SDK(ctx, shard.Server.Provider, nil)
	if err != nil {
		return nil, err
	}
	client := ec2.NewFromConfig(cfg)
	pages := ec2.NewDescribeInstancesPaginator(client, &ec2.DescribeInstancesInput{Filters: []types.Filter{
		{Name: sdk.String("tag:nstance:cluster"), Values: []string{shard.Cluster.ID}},
		{Name: sdk.String("tag:nstance:server"), Values: []string{shard.Server.Shard}},
	}})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fmt.Errorf("list the servers' machines: %w", err)
		}
		for _, reservation := range page.Reservations {
			for _, instance := range reservation.Instances {
				output, err := readConsole(ctx, client, instance.InstanceId)
				if err != nil {
					return nil, err
				}
				found = append(found, infra.Console{Machine: sdk.ToString(instance.InstanceId),
					State: string(instance.State.Name), Output: output})
			}
		}
	}
	return found, nil
}

// readConsole returns the console output of a machine, or "" if EC2 has none yet. For instance types without the Nitro
// hypervisor, EC2 has the output only up to the last change of state.
func readConsole(ctx context.Context, client *ec2.Client, id *string) (string, error) {
	out, err := client.GetConsoleOutput(ctx, &ec2.GetConsoleOutputInput{InstanceId: id, Latest: sdk.Bool(true)})
	var refusal smithy.APIError
	if errors.As(err, &refusal) && refusal.ErrorCode() == "UnsupportedOperation" {
		out, err = client.GetConsoleOutput(ctx, &ec2.GetConsoleOutputInput{InstanceId: id})
	}
	if err != nil {
		return "", fmt.Errorf("read the console of %s: %w", sdk.ToString(id), err)
	}
	text, err := base64.StdEncoding.DecodeString(sdk.ToString(out.Output))
	if err != nil {
		return "", fmt.Errorf("read the console of %s: %w", sdk.ToString(id), err)
	}
	return string(text), nil
}
