package aws

import (
	"context"
	"errors"
	"fmt"
	"strings"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/smithy-go"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

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
	cfg, err := awsconfig.LoadDefaultConfig(ctx) // The boot script sets the region.
	if err != nil {
		return nil, fmt.Errorf("load the AWS configuration: %w", err)
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
	var refusal smithy.APIError
	if errors.As(err, &refusal) && refusal.ErrorCode() == "ValidationError" &&
		strings.Contains(refusal.ErrorMessage(), "No active Lifecycle Action") {
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
