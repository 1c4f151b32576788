package aws

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	contract "github.com/nstance-kit/nstance/services/contract/cloud/aws"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/store/awscloud"
)

// Cloud returns the infra.Cloud of AWS. Its VMs are EC2 instances.
func Cloud() infra.Cloud {
	return infra.Cloud{Config: contract.Block, Open: openProvider, Identity: identify, Member: openMember,
		Consoles: readConsoles}
}

func openProvider(ctx context.Context, env infra.Env) (infra.Provider, error) {
	cfg, err := SDK(ctx, env.Shard.Server.Provider, env.Throttled)
	if err != nil {
		return nil, err
	}
	return Open(cfg, env.Shard, env.Log)
}

func identify(ctx context.Context, env infra.Env) (infra.Machine, error) {
	cfg, err := SDK(ctx, env.Shard.Server.Provider, env.Throttled)
	if err != nil {
		return infra.Machine{}, err
	}
	id, err := MachineID(ctx, NewIMDS(cfg))
	return infra.Machine{ID: id, Named: true}, err
}

// IMDS lists the methods of the instance metadata service that the provider uses.
type IMDS interface {
	GetMetadata(context.Context, *imds.GetMetadataInput, ...func(*imds.Options)) (*imds.GetMetadataOutput, error)
}

// metadataTimeout bounds the request for this machine's ID. Without a metadata service, no answer ever arrives.
const metadataTimeout = 4 * time.Second

// NewIMDS makes a client of the instance metadata service. It uses version 2 only, at the SDK's default address or at
// AWS_EC2_METADATA_SERVICE_ENDPOINT.
func NewIMDS(cfg sdk.Config) IMDS {
	return imds.NewFromConfig(cfg, func(o *imds.Options) {
		o.EnableFallback = sdk.FalseTernary
		o.HTTPClient = nil // use the package's own client, with timeouts of one second
	})
}

var instanceID = regexp.MustCompile(`^i-[0-9a-f]{8,32}$`)

// MachineID returns the instance ID of the machine that this program runs on. It fails within metadataTimeout if there
// is no metadata service.
func MachineID(ctx context.Context, metadata IMDS) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, metadataTimeout)
	defer cancel()
	out, err := metadata.GetMetadata(ctx, &imds.GetMetadataInput{Path: "instance-id"})
	if err != nil {
		return "", fmt.Errorf("ask the instance metadata service for this machine's ID: %w", err)
	}
	defer out.Content.Close()
	text, err := io.ReadAll(io.LimitReader(out.Content, 128))
	if err != nil {
		return "", fmt.Errorf("read this machine's ID from the instance metadata service: %w", err)
	}
	if !instanceID.Match(text) {
		return "", fmt.Errorf("the instance metadata service says that this machine's ID is %q", text)
	}
	return string(text), nil
}

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
func readConsole(ctx context.Context, client EC2, id *string) (string, error) {
	out, err := client.GetConsoleOutput(ctx, &ec2.GetConsoleOutputInput{InstanceId: id, Latest: sdk.Bool(true)})
	if awscloud.CodeOf(err) == "UnsupportedOperation" {
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

// LaunchHook is the name of the lifecycle hook with which an Auto Scaling group waits for a new server.
const LaunchHook = "nstance-server-ready"

// Member implements infra.Member with a lifecycle hook and SetInstanceHealth.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/lifecycle-hooks.html
type Member struct {
	Client         AutoScaling
	Group, Machine string
}

var _ infra.Member = (*Member)(nil)

func openMember(ctx context.Context, group string) (infra.Member, error) {
	cfg, err := awscloud.Load(ctx, cloud.Access{}) // The boot script sets the region.
	if err != nil {
		return nil, err
	}
	machine, err := MachineID(ctx, NewIMDS(cfg))
	if err != nil {
		return nil, err
	}
	return &Member{Client: autoscaling.NewFromConfig(cfg), Group: group, Machine: machine}, nil
}

// MachineID implements infra.Member.
func (m *Member) MachineID() string { return m.Machine }

// Ready implements infra.Member.
func (m *Member) Ready(ctx context.Context) error { return m.complete(ctx, "CONTINUE") }

// Abandon implements infra.Member.
func (m *Member) Abandon(ctx context.Context) error { return m.complete(ctx, "ABANDON") }

// complete ends the wait of the Auto Scaling group for this machine. Auto Scaling answers ValidationError if it does
// not wait for the machine.
func (m *Member) complete(ctx context.Context, result string) error {
	_, err := m.Client.CompleteLifecycleAction(ctx, &autoscaling.CompleteLifecycleActionInput{
		AutoScalingGroupName: &m.Group, InstanceId: &m.Machine, LifecycleHookName: sdk.String(LaunchHook),
		LifecycleActionResult: &result})
	if awscloud.CodeOf(err) == "ValidationError" && strings.Contains(err.Error(), "No active Lifecycle Action") {
		return infra.ErrNotAwaited
	}
	if err != nil {
		return fmt.Errorf("complete the lifecycle action of %s in %s with %s: %w", m.Machine, m.Group, result, err)
	}
	return nil
}

// Replace implements infra.Member.
func (m *Member) Replace(ctx context.Context) error {
	_, err := m.Client.SetInstanceHealth(ctx, &autoscaling.SetInstanceHealthInput{
		InstanceId: &m.Machine, HealthStatus: sdk.String("Unhealthy"), ShouldRespectGracePeriod: sdk.Bool(true)})
	if err != nil {
		return fmt.Errorf("report %s as unhealthy: %w", m.Machine, err)
	}
	return nil
}
