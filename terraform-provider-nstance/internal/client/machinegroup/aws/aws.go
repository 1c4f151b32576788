// Package aws looks at Auto Scaling groups.
package aws

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/store/awscloud"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/machinegroup"
)

// activities is the number of scaling activities to read.
const activities = 50

// Cloud returns AWS. A group is named by its name and region. Default of the region: that of the bucket.
func Cloud() machinegroup.Cloud { return machinegroup.Cloud{Name: "aws", Open: open} }

type group struct {
	client       *autoscaling.Client
	name, region string
}

func open(ctx context.Context, place machinegroup.Place, access cloud.Access) (machinegroup.Group, error) {
	access.Region = cmp.Or(place.Region, access.Region)
	cfg, err := awscloud.Load(ctx, access)
	if err != nil {
		return nil, err
	}
	return &group{autoscaling.NewFromConfig(cfg), place.Name, cfg.Region}, nil
}

// String implements machinegroup.Group.
func (g *group) String() string { return fmt.Sprintf("Auto Scaling group %s in %s", g.name, g.region) }

// Look implements machinegroup.Group. It ignores launches before the newest instance refresh, because they may be of
// another launch template. A group does not tell whether its machines are current, because a refresh that fails leaves
// machines of both templates.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ts-as-capacity.html
func (g *group) Look(ctx context.Context) (machinegroup.State, error) {
	refreshes, err := g.client.DescribeInstanceRefreshes(ctx, &autoscaling.DescribeInstanceRefreshesInput{
		AutoScalingGroupName: &g.name, MaxRecords: sdk.Int32(1)}) // the newest
	if err != nil {
		return machinegroup.State{}, err
	}
	var since time.Time
	for _, refresh := range refreshes.InstanceRefreshes {
		if refresh.StartTime == nil { // it is pending
			return machinegroup.State{}, nil
		}
		since = *refresh.StartTime
	}
	out, err := g.client.DescribeScalingActivities(ctx, &autoscaling.DescribeScalingActivitiesInput{
		AutoScalingGroupName: &g.name, MaxRecords: sdk.Int32(activities)})
	if err != nil {
		return machinegroup.State{}, err
	}
	launches := slices.DeleteFunc(out.Activities, func(a types.Activity) bool {
		return !strings.HasPrefix(sdk.ToString(a.Description), "Launching") || sdk.ToTime(a.StartTime).Before(since)
	})
	slices.SortStableFunc(launches, func(a, b types.Activity) int {
		return sdk.ToTime(b.StartTime).Compare(sdk.ToTime(a.StartTime))
	})
	var state machinegroup.State
	for _, launch := range launches {
		// The launch of a machine that runs, but does not become ready, is canceled.
		if launch.StatusCode != types.ScalingActivityStatusCodeFailed {
			break
		}
		if state.Refusals++; state.Refusals == 1 {
			state.Refusal = cmp.Or(sdk.ToString(launch.StatusMessage), sdk.ToString(launch.Description))
		}
	}
	return state, nil
}
