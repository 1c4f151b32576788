package ec2

import (
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
)

// identity is an IAM with one profile.
type identity struct{}

func (identity) InstanceProfile(nameOrARN string) (Profile, bool) {
	p := Profile{
		ARN: "arn:aws:iam::123456789012:instance-profile/agent", ID: "AIPAEXAMPLE", Name: "agent",
		RoleName: "agent-role",
		RoleARN:  "arn:aws:iam::123456789012:role/agent-role",
	}
	return p, nameOrARN == p.Name || nameOrARN == p.ARN
}

func (identity) RoleCredentials(role, session string) Credentials {
	return Credentials{Access: "ASIA" + role, Secret: "secret", Token: session}
}

func TestLaunchPermissions(t *testing.T) {
	w := newTestRegion(t, nil)
	w.service.SetIdentity(identity{})
	in := w.input()
	in.IamInstanceProfile = &types.IamInstanceProfileSpecification{Name: aws.String("agent")}
	in.MetadataOptions = &types.InstanceMetadataOptionsRequest{HttpTokens: types.HttpTokensStateRequired}
	in.TagSpecifications = []types.TagSpecification{
		{ResourceType: types.ResourceTypeInstance, Tags: []types.Tag{{Key: aws.String("nstance:cluster"),
			Value: aws.String("c")}}},
		{ResourceType: types.ResourceTypeVolume, Tags: []types.Tag{{Key: aws.String("nstance:cluster"),
			Value: aws.String("c")}}},
	}
	id := *must(w.client.RunInstances(t.Context(), in))(t).Instances[0].InstanceId
	here := "arn:aws:ec2:us-west-2:123456789012:"
	var got []string
	for _, a := range w.asked {
		got = append(got, a.action+" "+a.resource)
	}
	want := []string{
		"ec2:CreateTags " + here + "instance/*", "ec2:CreateTags " + here + "volume/*", "ec2:RunInstances " + here +
			"instance/*",
		"ec2:RunInstances " + here + "network-interface/*", "ec2:RunInstances " + here + "security-group/" + w.group,
		"ec2:RunInstances " + here + "subnet/" + w.subnetA,
		"ec2:RunInstances " + here + "volume/*", "ec2:RunInstances arn:aws:ec2:us-west-2::image/" + w.amd,
		"iam:PassRole arn:aws:iam::123456789012:role/agent-role",
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("asked for (-want +got):\n%s", diff)
	}
	context := func(action, resource string) policy.Context {
		for _, a := range w.asked {
			if a.action == action && strings.HasSuffix(a.resource, resource) {
				return a.context
			}
		}
		return nil
	}
	instance := context("ec2:RunInstances", "instance/*")
	for key, value := range map[string]string{
		"ec2:InstanceType": "t3.micro", "ec2:MetadataHttpTokens": "required", "aws:RequestTag/nstance:cluster": "c",
		"aws:TagKeys": "nstance:cluster", "ec2:Region": "us-west-2",
		"ec2:InstanceProfile": "arn:aws:iam::123456789012:instance-profile/agent", "ec2:AvailabilityZone": "us-west-2a",
		"ec2:InstanceMarketType": "on-demand",
	} {
		if !slices.Equal(instance[key], []string{value}) {
			t.Errorf("%s of the instance is %q, not %q", key, instance[key], value)
		}
	}
	if got := context("ec2:CreateTags", "instance/*")["ec2:CreateAction"]; !slices.Equal(got,
		[]string{"RunInstances"}) {
		t.Errorf("ec2:CreateAction is %q", got)
	}
	if got := context("iam:PassRole", "agent-role")["iam:PassedToService"]; !slices.Equal(got,
		[]string{"ec2.amazonaws.com"}) {
		t.Errorf("iam:PassedToService is %q", got)
	}
	if got := context("ec2:RunInstances", "network-interface/*"); !slices.Equal(got["ec2:Subnet"],
		[]string{here + "subnet/" + w.subnetA}) || !slices.Equal(got["ec2:Vpc"], []string{here + "vpc/" + w.vpc}) {
		t.Errorf("the interface lies in %q of %q", got["ec2:Subnet"], got["ec2:Vpc"])
	}

	w.asked = nil
	w.terminate(id)
	if len(w.asked) != 1 || w.asked[0].resource != here+"instance/"+id ||
		!slices.Equal(w.asked[0].context["ec2:ResourceTag/nstance:cluster"], []string{"c"}) ||
		!slices.Equal(w.asked[0].context["aws:ResourceTag/nstance:cluster"], []string{"c"}) {
		t.Errorf("terminating asked for %+v", w.asked)
	}

	// Each permission is necessary.
	for _, missing := range want {
		w.deny = func(a asked) bool { return a.action+" "+a.resource == missing }
		if _, err := w.client.RunInstances(t.Context(), in); code(t, err) != "UnauthorizedOperation" {
			t.Errorf("without %s: %v", missing, err)
		}
	}
	w.deny = nil
	in.ClientToken = nil // the SDK has set one
	in.IamInstanceProfile = &types.IamInstanceProfileSpecification{Name: aws.String("other")}
	if _, err := w.client.RunInstances(t.Context(), in); code(t, err) != "InvalidParameterValue" {
		t.Errorf("a profile that does not exist: %v", err)
	}
	left := must(w.client.DescribeInstances(t.Context(), &sdk.DescribeInstancesInput{}))(t)
	if len(left.Reservations) != 1 {
		t.Errorf("%d reservations", len(left.Reservations))
	}
}

func TestTemplatePermissions(t *testing.T) {
	w := newTestRegion(t, nil)
	id := must(w.client.CreateLaunchTemplate(t.Context(), &sdk.CreateLaunchTemplateInput{LaunchTemplateName: aws.String(
		"web"), LaunchTemplateData: &types.RequestLaunchTemplateData{
		ImageId: &w.amd, InstanceType: types.InstanceTypeT3Micro,
		NetworkInterfaces: []types.LaunchTemplateInstanceNetworkInterfaceSpecificationRequest{
			{DeviceIndex: aws.Int32(0), SubnetId: &w.subnetA}},
	}}))(t).LaunchTemplate.LaunchTemplateId
	w.asked = nil
	must(w.client.RunInstances(t.Context(), &sdk.RunInstancesInput{
		MinCount: aws.Int32(1), MaxCount: aws.Int32(1), LaunchTemplate: &types.LaunchTemplateSpecification{
			LaunchTemplateId: id}, InstanceType: types.InstanceTypeT3Small,
	}))(t)
	got := map[string]string{}
	for _, a := range w.asked {
		kind, _, _ := strings.Cut(a.resource[strings.LastIndexByte(a.resource, ':')+1:], "/")
		got[kind] = a.context["ec2:IsLaunchTemplateResource"][0]
		if template := a.context["ec2:LaunchTemplate"]; len(template) != 1 || !strings.HasSuffix(template[0], *id) {
			t.Errorf("%s: the template is %q", a.resource, template)
		}
	}
	want := map[string]string{
		"image": "true", "launch-template": "true", "subnet": "true", "security-group": "true",
		"network-interface": "true", "volume": "true", "instance": "false",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("differs from the template (-want +got):\n%s", diff)
	}
}

// TestEveryOperationIsAuthorized checks that every operation on the resources in machinery asks for permission.
func TestEveryOperationIsAuthorized(t *testing.T) {
	w := newTestRegion(t, nil)
	id := w.run(nil).InstanceId
	template := must(w.client.CreateLaunchTemplate(t.Context(), &sdk.CreateLaunchTemplateInput{
		LaunchTemplateName: aws.String("one"), LaunchTemplateData: &types.RequestLaunchTemplateData{ImageId: &w.amd}}))(
		t).LaunchTemplate.LaunchTemplateId
	w.deny = func(asked) bool { return true }
	ctx := t.Context()
	calls := map[string]func() error{
		"RunInstances": func() error { _, err := w.client.RunInstances(ctx, w.input()); return err },
		"TerminateInstances": func() error {
			_, err := w.client.TerminateInstances(ctx, &sdk.TerminateInstancesInput{InstanceIds: []string{*id}})
			return err
		},
		"DescribeInstances": func() error {
			_, err := w.client.DescribeInstances(ctx, &sdk.DescribeInstancesInput{})
			return err
		},
		"DescribeImages": func() error {
			_, err := w.client.DescribeImages(ctx, &sdk.DescribeImagesInput{})
			return err
		},
		"CreateLaunchTemplate": func() error {
			_, err := w.client.CreateLaunchTemplate(ctx, &sdk.CreateLaunchTemplateInput{
				LaunchTemplateName: aws.String("two"), LaunchTemplateData: &types.RequestLaunchTemplateData{
					ImageId: &w.amd}})
			return err
		},
		"CreateLaunchTemplateVersion": func() error {
			_, err := w.client.CreateLaunchTemplateVersion(ctx, &sdk.CreateLaunchTemplateVersionInput{
				LaunchTemplateId: template, LaunchTemplateData: &types.RequestLaunchTemplateData{ImageId: &w.amd}})
			return err
		},
		"ModifyLaunchTemplate": func() error {
			_, err := w.client.ModifyLaunchTemplate(ctx, &sdk.ModifyLaunchTemplateInput{LaunchTemplateId: template,
				DefaultVersion: aws.String("1")})
			return err
		},
		"DeleteLaunchTemplate": func() error {
			_, err := w.client.DeleteLaunchTemplate(ctx, &sdk.DeleteLaunchTemplateInput{LaunchTemplateId: template})
			return err
		},
		"DescribeLaunchTemplates": func() error {
			_, err := w.client.DescribeLaunchTemplates(ctx, &sdk.DescribeLaunchTemplatesInput{})
			return err
		},
		"DescribeLaunchTemplateVersions": func() error {
			_, err := w.client.DescribeLaunchTemplateVersions(ctx, &sdk.DescribeLaunchTemplateVersionsInput{
				LaunchTemplateId: template})
			return err
		},
	}
	for name, call := range calls {
		if got := code(t, call()); got != "UnauthorizedOperation" {
			t.Errorf("%s without permissions: %q", name, got)
		}
	}
}
