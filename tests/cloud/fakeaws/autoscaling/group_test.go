package autoscaling

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	sdkec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"
)

func TestCapacity(t *testing.T) {
	w := newTestAccount(t)
	w.create(func(in *sdk.CreateAutoScalingGroupInput) {
		in.Tags = []types.Tag{
			{Key: aws.String("Name"), Value: aws.String("server"), PropagateAtLaunch: aws.Bool(true),
				ResourceId: aws.String("servers"), ResourceType: aws.String("auto-scaling-group")},
			{Key: aws.String("own"), Value: aws.String("x"), PropagateAtLaunch: aws.Bool(false)},
		}
	})
	members := w.inService()
	if len(members) != 1 {
		t.Fatalf("in service: %v", w.group().Instances)
	}
	tags := map[string]string{}
	for _, tag := range w.instance(members[0]).Tags {
		tags[*tag.Key] = *tag.Value
	}
	want := map[string]string{"Name": "server", "from": "template", "aws:autoscaling:groupName": "servers",
		"aws:ec2launchtemplate:id": w.template, "aws:ec2launchtemplate:version": "1"}
	if diff := cmp.Diff(want, tags); diff != "" {
		t.Errorf("tags of the instance (-want +got):\n%s", diff)
	}
	if state, _ := w.ec2.Metadata(members[0], "autoscaling/target-lifecycle-state"); state != "InService" {
		t.Errorf("its metadata is %q", state)
	}
	w.resize(4)
	zones := map[string]int{}
	for _, i := range w.group().Instances {
		zones[*i.AvailabilityZone]++
	}
	if diff := cmp.Diff(map[string]int{"us-west-2a": 2, "us-west-2b": 2}, zones); diff != "" {
		t.Errorf("zones (-want +got):\n%s", diff)
	}
	w.resize(0)
	if left := w.group().Instances; len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
	for _, bad := range []int32{5, -1} {
		_, err := w.client.UpdateAutoScalingGroup(t.Context(), &sdk.UpdateAutoScalingGroupInput{
			AutoScalingGroupName: aws.String("servers"), DesiredCapacity: &bad})
		if code(t, err) != "ValidationError" {
			t.Errorf("size %d: %v", bad, err)
		}
	}
	if all := w.activities(); len(all) != 8 || *all[7].Description != "Launching a new EC2 instance: "+members[0] ||
		all[7].StatusCode != types.ScalingActivityStatusCodeSuccessful {
		t.Errorf("activities: %+v", all)
	}
}

func TestReplacement(t *testing.T) {
	w := newTestAccount(t)
	w.create(func(in *sdk.CreateAutoScalingGroupInput) {
		in.DesiredCapacity, in.HealthCheckType, in.HealthCheckGracePeriod = aws.Int32(2), aws.String("ELB"),
			aws.Int32(60)
	})
	old := w.inService()
	_ = must(w.client.AttachLoadBalancerTargetGroups(t.Context(), &sdk.AttachLoadBalancerTargetGroupsInput{
		AutoScalingGroupName: aws.String("servers"), TargetGroupARNs: []string{targetGroup}}))(t)
	if all := must(w.client.DescribeLoadBalancerTargetGroups(t.Context(), &sdk.DescribeLoadBalancerTargetGroupsInput{
		AutoScalingGroupName: aws.String("servers")}))(t).LoadBalancerTargetGroups; len(all) != 1 ||
		*all[0].LoadBalancerTargetGroupARN != targetGroup || *all[0].State != "Added" {
		t.Errorf("the target groups are %+v", all)
	}
	if len(w.targets.groups[targetGroup]) != 2 {
		t.Errorf("targets: %v", w.targets.groups)
	}
	replaced := func(why string, id string) {
		t.Helper()
		w.sleep(time.Second)
		now := w.inService()
		if len(now) != 2 || slices.Contains(now, id) {
			t.Errorf("%s: in service are %v", why, now)
		}
		if _, registered := w.targets.groups[targetGroup][id]; registered || len(w.targets.groups[targetGroup]) != 2 {
			t.Errorf("%s: targets are %v", why, w.targets.groups[targetGroup])
		}
		if got := w.instance(id).State.Name; got != ec2types.InstanceStateNameTerminated {
			t.Errorf("%s: it is %s", why, got)
		}
		old = now
	}
	id := old[0]
	must(w.vms.TerminateInstances(t.Context(), &sdkec2.TerminateInstancesInput{InstanceIds: []string{id}}))(t)
	replaced("terminated by another client", id)
	id = old[0]
	w.ec2.Kill(id)
	replaced("killed", id)
	id = old[0]
	w.targets.groups[targetGroup][id] = "unhealthy"
	w.sleep(30 * time.Second)
	if !slices.Contains(w.inService(), id) {
		t.Error("the grace period was not kept")
	}
	w.sleep(time.Minute)
	replaced("an unhealthy target", id)
	if cause := *w.activities()[1].Cause; !strings.Contains(cause, "ELB system health check failure") {
		t.Errorf("the cause: %s", cause)
	}
	id = old[0]
	_ = must(w.client.SetInstanceHealth(t.Context(), &sdk.SetInstanceHealthInput{InstanceId: &id,
		HealthStatus: aws.String("Unhealthy"), ShouldRespectGracePeriod: aws.Bool(false)}))(t)
	replaced("marked as unhealthy", id)
	detach := &sdk.DetachLoadBalancerTargetGroupsInput{AutoScalingGroupName: aws.String("servers"),
		TargetGroupARNs: []string{targetGroup}}
	_ = must(w.client.DetachLoadBalancerTargetGroups(t.Context(), detach))(t)
	if len(w.targets.groups[targetGroup]) != 0 {
		t.Errorf("after detaching the targets are %v", w.targets.groups)
	}
	if _, err := w.client.DetachLoadBalancerTargetGroups(t.Context(), detach); code(t, err) != "ValidationError" {
		t.Errorf("another detaching: %v", err)
	}
}

func TestLaunchFailure(t *testing.T) {
	w := newTestAccount(t)
	w.faults.NoCapacity("", "us-west-2a", "", "InsufficientInstanceCapacity")
	w.create(nil)
	if zone := *w.group().Instances[0].AvailabilityZone; zone != "us-west-2b" {
		t.Errorf("launched in %s", zone)
	}
	w.faults.NoCapacity("", "us-west-2b", "", "InsufficientInstanceCapacity")
	w.resize(2)
	newest := w.activities()[0]
	if newest.StatusCode != types.ScalingActivityStatusCodeFailed || !strings.Contains(*newest.StatusMessage,
		"sufficient t3.micro capacity") {
		t.Errorf("the activity: %+v", newest)
	}
	before := len(w.activities())
	w.sleep(time.Second)
	if got := len(w.activities()); got != before {
		t.Errorf("retried immediately")
	}
	w.faults.Clear()
	w.sleep(5 * time.Second)
	if got := w.inService(); len(got) != 2 {
		t.Errorf("in service with capacity: %v", got)
	}
}

func TestUpdateAndDelete(t *testing.T) {
	w := newTestAccount(t)
	w.create(func(in *sdk.CreateAutoScalingGroupInput) { in.DesiredCapacity = aws.Int32(3) })
	update := func(in *sdk.UpdateAutoScalingGroupInput) error {
		in.AutoScalingGroupName = aws.String("servers")
		_, err := w.client.UpdateAutoScalingGroup(t.Context(), in)
		return err
	}
	if err := update(&sdk.UpdateAutoScalingGroupInput{MaxSize: aws.Int32(1),
		DefaultCooldown: aws.Int32(10)}); err != nil {
		t.Fatal(err)
	}
	g := w.group()
	if *g.DesiredCapacity != 1 || *g.DefaultCooldown != 10 || len(g.Instances) != 1 ||
		*g.VPCZoneIdentifier != w.subnets[0]+","+w.subnets[1] {
		t.Errorf("the group: %+v", g)
	}
	if err := update(&sdk.UpdateAutoScalingGroupInput{MinSize: aws.Int32(2)}); code(t, err) != "ValidationError" {
		t.Errorf("a minimum above the maximum: %v", err)
	}
	if _, err := w.client.CreateAutoScalingGroup(t.Context(), w.input(nil)); code(t, err) != "AlreadyExists" {
		t.Errorf("created twice: %v", err)
	}
	if _, err := w.client.DeleteAutoScalingGroup(t.Context(), &sdk.DeleteAutoScalingGroupInput{
		AutoScalingGroupName: aws.String("servers")}); code(t, err) != "ResourceInUse" {
		t.Errorf("deleted with an instance: %v", err)
	}
	id := *g.Instances[0].InstanceId
	must(w.client.DeleteAutoScalingGroup(t.Context(), &sdk.DeleteAutoScalingGroupInput{
		AutoScalingGroupName: aws.String("servers"), ForceDelete: aws.Bool(true)}))(t)
	if left := must(w.client.DescribeAutoScalingGroups(t.Context(), &sdk.DescribeAutoScalingGroupsInput{}))(
		t).AutoScalingGroups; len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
	if got := w.instance(id).State.Name; got != ec2types.InstanceStateNameTerminated {
		t.Errorf("its instance is %s", got)
	}
	if _, err := w.client.DescribeScalingActivities(t.Context(), &sdk.DescribeScalingActivitiesInput{
		AutoScalingGroupName: aws.String("servers")}); code(t, err) != "ValidationError" {
		t.Errorf("activities of a group that is gone: %v", err)
	}
	all := must(w.client.DescribeScalingActivities(t.Context(), &sdk.DescribeScalingActivitiesInput{
		IncludeDeletedGroups: aws.Bool(true)}))(t).Activities
	if len(all) == 0 || *all[0].AutoScalingGroupState != "Deleted" {
		t.Errorf("activities of deleted groups: %+v", all)
	}
}

func TestCreateRefusals(t *testing.T) {
	w := newTestAccount(t)
	for name, change := range map[string]func(in *sdk.CreateAutoScalingGroupInput){
		"no such subnet": func(in *sdk.CreateAutoScalingGroupInput) {
			in.VPCZoneIdentifier = aws.String("subnet-00000000000000000")
		},
		"no subnet":   func(in *sdk.CreateAutoScalingGroupInput) { in.VPCZoneIdentifier = nil },
		"no template": func(in *sdk.CreateAutoScalingGroupInput) { in.LaunchTemplate = nil },
		"no such template": func(in *sdk.CreateAutoScalingGroupInput) {
			in.LaunchTemplate.LaunchTemplateId = aws.String("lt-00000000000000000")
		},
		"no such version": func(in *sdk.CreateAutoScalingGroupInput) {
			in.LaunchTemplate.Version = aws.String("7")
		},
		"no such target group": func(in *sdk.CreateAutoScalingGroupInput) {
			in.TargetGroupARNs = []string{targetGroup + "2"}
		},
		"too many wanted": func(in *sdk.CreateAutoScalingGroupInput) { in.DesiredCapacity = aws.Int32(5) },
		"min over max":    func(in *sdk.CreateAutoScalingGroupInput) { in.MinSize = aws.Int32(5) },
		"a health check":  func(in *sdk.CreateAutoScalingGroupInput) { in.HealthCheckType = aws.String("PING") },
		"a policy":        func(in *sdk.CreateAutoScalingGroupInput) { in.TerminationPolicies = []string{"Mine"} },
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := w.client.CreateAutoScalingGroup(t.Context(), w.input(change)); code(t,
				err) != "ValidationError" {
				t.Errorf("got %v", err)
			}
		})
	}
	if len(w.service.groups) != 0 {
		t.Error("a refused group exists")
	}
}

// TestPermissions checks that the creator of a group needs permission to launch its instances.
func TestPermissions(t *testing.T) {
	w := newTestAccount(t)
	in := w.input(func(in *sdk.CreateAutoScalingGroupInput) {
		in.Tags = []types.Tag{{Key: aws.String("cluster"), Value: aws.String("c"), PropagateAtLaunch: aws.Bool(true)}}
	})
	for _, action := range []string{"autoscaling:CreateAutoScalingGroup", "ec2:RunInstances", "ec2:CreateTags",
		"iam:PassRole"} {
		w.deny = func(a asked) bool { return a.action == action }
		if _, err := w.client.CreateAutoScalingGroup(t.Context(), in); code(t, err) != "AccessDenied" {
			t.Errorf("without %s: %v", action, err)
		}
	}
	w.deny, w.asked = nil, nil
	must(w.client.CreateAutoScalingGroup(t.Context(), in))(t)
	create := w.asked[0]
	if !strings.HasSuffix(create.resource, ":autoScalingGroupName/servers") ||
		!slices.Equal(create.context["aws:RequestTag/cluster"], []string{"c"}) ||
		!slices.Equal(create.context["autoscaling:MaxSize"], []string{"4"}) {
		t.Errorf("creating asked for %+v", create)
	}
	w.asked = nil
	w.ec2.Kill(w.inService()[0])
	w.asked = nil
	w.sleep(time.Second)
	if len(w.asked) != 0 {
		t.Errorf("the service itself asked for %+v", w.asked)
	}
	w.resize(2)
	if a := w.asked[0]; a.action != "autoscaling:UpdateAutoScalingGroup" ||
		!slices.Equal(a.context["aws:ResourceTag/cluster"], []string{"c"}) {
		t.Errorf("resizing asked for %+v", a)
	}
	name := aws.String("servers")
	w.deny = func(asked) bool { return true }
	ctx := t.Context()
	for what, call := range map[string]func() error{
		"update": func() error {
			_, err := w.client.UpdateAutoScalingGroup(ctx, &sdk.UpdateAutoScalingGroupInput{AutoScalingGroupName: name})
			return err
		},
		"delete": func() error {
			_, err := w.client.DeleteAutoScalingGroup(ctx, &sdk.DeleteAutoScalingGroupInput{AutoScalingGroupName: name})
			return err
		},
		"describe": func() error {
			_, err := w.client.DescribeAutoScalingGroups(ctx, &sdk.DescribeAutoScalingGroupsInput{})
			return err
		},
		"unknown": func() error {
			_, err := w.client.DeleteAutoScalingGroup(ctx, &sdk.DeleteAutoScalingGroupInput{
				AutoScalingGroupName: aws.String("other")})
			return err
		},
		"activities": func() error {
			_, err := w.client.DescribeScalingActivities(ctx, &sdk.DescribeScalingActivitiesInput{})
			return err
		},
		"refresh": func() error {
			_, err := w.client.StartInstanceRefresh(ctx, &sdk.StartInstanceRefreshInput{AutoScalingGroupName: name})
			return err
		},
	} {
		if got := code(t, call()); got != "AccessDenied" {
			t.Errorf("%s without permissions: %q", what, got)
		}
	}
}

func TestTerminationPolicy(t *testing.T) {
	w := newTestAccount(t)
	w.create(func(in *sdk.CreateAutoScalingGroupInput) { in.VPCZoneIdentifier = &w.subnets[0] })
	first := w.inService()[0]
	w.sleep(time.Minute)
	w.resize(2)
	w.resize(1)
	if left := w.inService(); len(left) != 1 || left[0] == first {
		t.Errorf("the instance closest to its next hour is %s, left is %v", first, left)
	}
}

func TestLifecycleHooks(t *testing.T) {
	w := newTestAccount(t)
	w.create(func(in *sdk.CreateAutoScalingGroupInput) { in.DesiredCapacity = aws.Int32(0) })
	name := aws.String("servers")
	must(w.client.PutLifecycleHook(t.Context(), &sdk.PutLifecycleHookInput{AutoScalingGroupName: name,
		LifecycleHookName: aws.String("up"), LifecycleTransition: aws.String(launching)}))(t)
	must(w.client.PutLifecycleHook(t.Context(), &sdk.PutLifecycleHookInput{
		AutoScalingGroupName: name, LifecycleHookName: aws.String("down"), LifecycleTransition: aws.String(ending),
		HeartbeatTimeout: aws.Int32(60),
	}))(t)
	w.resize(1)
	member := func() types.Instance {
		t.Helper()
		if all := w.group().Instances; len(all) == 1 {
			return all[0]
		}
		t.Fatalf("members: %+v", w.group().Instances)
		return types.Instance{}
	}
	id := *member().InstanceId
	if got := member().LifecycleState; got != types.LifecycleStatePendingWait {
		t.Errorf("while it comes up: %s", got)
	}
	must(w.client.CompleteLifecycleAction(t.Context(), &sdk.CompleteLifecycleActionInput{
		AutoScalingGroupName: name, LifecycleHookName: aws.String("up"), InstanceId: &id,
		LifecycleActionResult: aws.String("CONTINUE"),
	}))(t)
	if got := member().LifecycleState; got != types.LifecycleStateInService {
		t.Errorf("then: %s", got)
	}
	w.resize(0)
	if got := member().LifecycleState; got != types.LifecycleStateTerminatingWait {
		t.Errorf("on its way out: %s", got)
	}
	if state, _ := w.ec2.Metadata(id, "autoscaling/target-lifecycle-state"); state != "Terminated" {
		t.Errorf("its metadata is %q", state)
	}
	w.sleep(time.Minute)
	if left := w.group().Instances; len(left) != 0 {
		t.Errorf("after the hook's time: %+v", left)
	}
	hooks := must(w.client.DescribeLifecycleHooks(t.Context(), &sdk.DescribeLifecycleHooksInput{
		AutoScalingGroupName: name}))(t).LifecycleHooks
	if len(hooks) != 2 || *hooks[0].DefaultResult != "ABANDON" || *hooks[0].HeartbeatTimeout != 3600 {
		t.Errorf("hooks: %+v", hooks)
	}
	must(w.client.DeleteLifecycleHook(t.Context(), &sdk.DeleteLifecycleHookInput{AutoScalingGroupName: name,
		LifecycleHookName: aws.String("up")}))(t)
	w.resize(1)
	if got := member().LifecycleState; got != types.LifecycleStateInService {
		t.Errorf("without the hook: %s", got)
	}
}

func TestInstanceRefresh(t *testing.T) {
	for name, lowest := range map[string]int32{"one after the other": 50, "replacements first": 100} {
		t.Run(name, func(t *testing.T) {
			w := newTestAccount(t)
			w.create(func(in *sdk.CreateAutoScalingGroupInput) { in.DesiredCapacity = aws.Int32(2) })
			old := w.inService()
			servers := aws.String("servers")
			start := &sdk.StartInstanceRefreshInput{AutoScalingGroupName: servers,
				Preferences: &types.RefreshPreferences{MinHealthyPercentage: &lowest, InstanceWarmup: aws.Int32(10)}}
			id := must(w.client.StartInstanceRefresh(t.Context(), start))(t).InstanceRefreshId
			if _, err := w.client.StartInstanceRefresh(t.Context(), start); code(t,
				err) != "InstanceRefreshInProgress" {
				t.Errorf("two at a time: %v", err)
			}
			status := func() types.InstanceRefresh {
				return must(w.client.DescribeInstanceRefreshes(t.Context(),
					&sdk.DescribeInstanceRefreshesInput{AutoScalingGroupName: servers,
						InstanceRefreshIds: []string{*id}}))(t).InstanceRefreshes[0]
			}
			fewest := 2
			for range 100 {
				if status().Status == types.InstanceRefreshStatusSuccessful {
					break
				}
				w.sleep(time.Second)
				serving := 0
				for _, i := range w.group().Instances {
					if i.LifecycleState == types.LifecycleStateInService {
						serving++
					}
				}
				fewest = min(fewest, serving)
			}
			if r := status(); r.Status != types.InstanceRefreshStatusSuccessful || *r.PercentageComplete != 100 {
				t.Errorf("the refresh: %+v", r)
			}
			now := w.inService()
			if len(now) != 2 || slices.Contains(now, old[0]) || slices.Contains(now, old[1]) {
				t.Errorf("before %v, after %v", old, now)
			}
			if lowest == 100 && fewest < 2 {
				t.Errorf("only %d were in service for a while", fewest)
			}
			// With SkipMatching, a refresh does not replace members that already have the group's launch template.
			start.Preferences.SkipMatching = aws.Bool(true)
			id = must(w.client.StartInstanceRefresh(t.Context(), start))(t).InstanceRefreshId
			w.sleep(0)
			if got := status().Status; got != types.InstanceRefreshStatusSuccessful {
				t.Errorf("with all matching: %s", got)
			}
			if got := w.inService(); !slices.Equal(got, now) {
				t.Errorf("replaced although they match: %v", got)
			}
			start.Preferences.SkipMatching = nil
			id = must(w.client.StartInstanceRefresh(t.Context(), start))(t).InstanceRefreshId
			must(w.client.CancelInstanceRefresh(t.Context(), &sdk.CancelInstanceRefreshInput{
				AutoScalingGroupName: servers}))(t)
			w.sleep(time.Minute)
			w.sleep(time.Minute)
			if got := status().Status; got != types.InstanceRefreshStatusCancelled {
				t.Errorf("cancelled: %s", got)
			}
			if _, err := w.client.CancelInstanceRefresh(t.Context(), &sdk.CancelInstanceRefreshInput{
				AutoScalingGroupName: servers}); code(t, err) != "ActiveInstanceRefreshNotFound" {
				t.Errorf("cancelled twice: %v", err)
			}
		})
	}
}

func TestPages(t *testing.T) {
	w := newTestAccount(t)
	for _, name := range []string{"a", "b", "c"} {
		w.create(func(in *sdk.CreateAutoScalingGroupInput) {
			in.AutoScalingGroupName, in.DesiredCapacity = &name, aws.Int32(0)
		})
	}
	var found []string
	pages := sdk.NewDescribeAutoScalingGroupsPaginator(w.client, &sdk.DescribeAutoScalingGroupsInput{
		MaxRecords: aws.Int32(2)})
	for pages.HasMorePages() {
		for _, g := range must(pages.NextPage(t.Context()))(t).AutoScalingGroups {
			found = append(found, *g.AutoScalingGroupName)
		}
	}
	if diff := cmp.Diff([]string{"a", "b", "c"}, found); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
