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

// TestSnapshotAndLicensePermissions checks that a launch needs permission for each snapshot and license configuration
// that it names. The permission for a snapshot can depend on the snapshot's owner.
func TestSnapshotAndLicensePermissions(t *testing.T) {
	w := newTestRegion(t, nil)
	foreign := w.service.AddSnapshot("210987654321")
	const license = "arn:aws:license-manager:us-west-2:123456789012:license-configuration:lic-0a"
	in := w.input()
	in.BlockDeviceMappings = []types.BlockDeviceMapping{{DeviceName: aws.String("/dev/sdf"),
		Ebs: &types.EbsBlockDevice{SnapshotId: &foreign, VolumeSize: aws.Int32(8)}}}
	in.LicenseSpecifications = []types.LicenseConfigurationRequest{{LicenseConfigurationArn: aws.String(license)}}
	must(w.client.RunInstances(t.Context(), in))(t)
	snapshot := "arn:aws:ec2:us-west-2::snapshot/" + foreign
	for resource, owner := range map[string][]string{snapshot: {"210987654321"}, license: nil} {
		i := slices.IndexFunc(w.asked, func(a asked) bool {
			return a.action == "ec2:RunInstances" && a.resource == resource
		})
		if i < 0 || !slices.Equal(w.asked[i].context["ec2:Owner"], owner) {
			t.Errorf("a launch with %s asked for %+v, want RunInstances with the owner %q", resource, w.asked, owner)
		}
		w.deny = func(a asked) bool { return a.resource == resource }
		in.ClientToken = nil
		if _, err := w.client.RunInstances(t.Context(), in); code(t, err) != "UnauthorizedOperation" {
			t.Errorf("without permission for %s: %v", resource, err)
		}
		w.deny = nil
	}
	in.BlockDeviceMappings[0].Ebs.SnapshotId, in.ClientToken = aws.String("snap-0123456789abcdef0"), nil
	if _, err := w.client.RunInstances(t.Context(), in); code(t, err) != "InvalidSnapshot.NotFound" {
		t.Errorf("a snapshot that does not exist: %v", err)
	}
}

// TestPlacementPermissions checks that a launch needs permission for a placement group and for a group of hosts. On a
// dedicated host, the instance has the tenancy "host".
func TestPlacementPermissions(t *testing.T) {
	w := newTestRegion(t, nil)
	host := w.service.AddHost()
	w.service.AddPlacementGroup("near")
	const hosts = "arn:aws:resource-groups:us-west-2:123456789012:group/hosts"
	const here = "arn:aws:ec2:us-west-2:123456789012:"
	for _, test := range []struct {
		placement         types.Placement
		resource, tenancy string
	}{
		{types.Placement{GroupName: aws.String("near")}, here + "placement-group/near", "default"},
		{types.Placement{HostResourceGroupArn: aws.String(hosts)}, hosts, "host"},
		{types.Placement{HostId: &host, Tenancy: types.TenancyHost}, "", "host"},
		{types.Placement{Tenancy: types.TenancyDedicated}, "", "dedicated"},
	} {
		w.asked = nil
		in := w.input()
		in.Placement = &test.placement
		made := must(w.client.RunInstances(t.Context(), in))(t).Instances[0]
		if string(made.Placement.Tenancy) != test.tenancy {
			t.Errorf("%+v: the instance has the tenancy %s, want %s", test.placement, made.Placement.Tenancy,
				test.tenancy)
		}
		known := here + "instance/*"
		i := slices.IndexFunc(w.asked, func(a asked) bool { return a.resource == known })
		if i < 0 || !slices.Equal(w.asked[i].context["ec2:Tenancy"], []string{test.tenancy}) {
			t.Errorf("%+v asked for %+v, want the tenancy %s", test.placement, w.asked, test.tenancy)
		}
		if slices.ContainsFunc(w.asked, func(a asked) bool { return strings.Contains(a.resource, "dedicated-host") }) {
			t.Errorf("%+v asked for a dedicated host, for which EC2 has no permission: %+v", test.placement, w.asked)
		}
		if test.resource == "" {
			continue
		}
		w.deny = func(a asked) bool { return a.resource == test.resource }
		in.ClientToken = nil
		if _, err := w.client.RunInstances(t.Context(), in); code(t, err) != "UnauthorizedOperation" {
			t.Errorf("without permission for %s: %v", test.resource, err)
		}
		w.deny = nil
	}
	for want, placement := range map[string]types.Placement{
		"InvalidHostID.NotFound":        {HostId: aws.String("h-0123456789abcdef0"), Tenancy: types.TenancyHost},
		"InvalidParameterCombination":   {HostId: &host},
		"InvalidPlacementGroup.Unknown": {GroupName: aws.String("far")},
		"InvalidParameterValue":         {Tenancy: "cloud"},
	} {
		in := w.input()
		in.Placement = &placement
		if _, err := w.client.RunInstances(t.Context(), in); code(t, err) != want {
			t.Errorf("%+v: %v, want %s", placement, err, want)
		}
	}
}

// TestVolumeKeyPermissions checks a launch whose volume needs a KMS key for which the caller has no permission. The
// request succeeds. The instance is pending, and EC2 then terminates it with the documented reason.
func TestVolumeKeyPermissions(t *testing.T) {
	w := newTestRegion(t, nil)
	const key = "arn:aws:kms:us-west-2:123456789012:key/00000000-0000-0000-0000-000000000001"
	w.service.AddKey(Key{ARN: key})
	launch := func(id string) types.Instance {
		t.Helper()
		in := w.input()
		in.BlockDeviceMappings = []types.BlockDeviceMapping{{DeviceName: aws.String("/dev/xvda"),
			Ebs: &types.EbsBlockDevice{Encrypted: aws.Bool(true), KmsKeyId: &id}}}
		made := must(w.client.RunInstances(t.Context(), in))(t).Instances[0]
		if made.State.Name != types.InstanceStateNamePending {
			t.Errorf("the answer has the state %s, want pending", made.State.Name)
		}
		var got types.Instance
		for range 3 { // Each call ends one transitional state.
			got = must(w.client.DescribeInstances(t.Context(), &sdk.DescribeInstancesInput{
				InstanceIds: []string{*made.InstanceId}}))(t).Reservations[0].Instances[0]
		}
		return got
	}
	for _, id := range []string{key, "00000000-0000-0000-0000-000000000001", "alias/aws/ebs"} {
		if got := launch(id); got.State.Name != types.InstanceStateNameRunning {
			t.Errorf("with the key %s: %s, want running", id, got.State.Name)
		}
	}
	refused := func(what, id string) {
		t.Helper()
		if got := launch(id); got.State.Name != types.InstanceStateNameTerminated || got.StateReason == nil ||
			*got.StateReason.Code != "Client.InternalError" ||
			*got.StateReason.Message != "Client.InternalError: Client error on launch" {
			t.Errorf("%s: %s, %+v, want terminated with Client.InternalError", what, got.State.Name, got.StateReason)
		}
	}
	refused("a key that does not exist", key+"2")
	for _, action := range volumeKeyActions {
		w.asked = nil
		w.deny = func(a asked) bool { return a.action == action }
		refused("without "+action, key)
		last := w.asked[slices.IndexFunc(w.asked, w.deny)]
		if !slices.Equal(last.context["kms:ViaService"], []string{"ec2.us-west-2.amazonaws.com"}) ||
			action == "kms:CreateGrant" && !slices.Equal(last.context["kms:GrantIsForAWSResource"], []string{"true"}) {
			t.Errorf("%s was asked for with %v", action, last.context)
		}
	}
	w.deny = nil

	// This launch template encrypts a volume with a KMS key. If an AWS service launches an instance from the template,
	// the key policy must permit the service to use the key.
	template := must(w.client.CreateLaunchTemplate(t.Context(), &sdk.CreateLaunchTemplateInput{
		LaunchTemplateName: aws.String("encrypted"), LaunchTemplateData: &types.RequestLaunchTemplateData{
			ImageId: &w.amd, InstanceType: types.InstanceTypeT3Micro,
			BlockDeviceMappings: []types.LaunchTemplateBlockDeviceMappingRequest{{DeviceName: aws.String("/dev/xvda"),
				Ebs: &types.LaunchTemplateEbsBlockDeviceRequest{Encrypted: aws.Bool(true), KmsKeyId: aws.String(key)}}},
		}}))(t).LaunchTemplate
	byService := func() types.InstanceStateName {
		t.Helper()
		id, err := w.service.Launch(Launch{Template: TemplateRef{ID: *template.LaunchTemplateId, Version: "1"},
			Subnet: w.subnetA, By: "autoscaling.amazonaws.com"})
		if err != nil {
			t.Fatal(err)
		}
		var got types.InstanceStateName
		for range 3 {
			got = must(w.client.DescribeInstances(t.Context(), &sdk.DescribeInstancesInput{
				InstanceIds: []string{id}}))(t).Reservations[0].Instances[0].State.Name
		}
		return got
	}
	if got := byService(); got != types.InstanceStateNameTerminated {
		t.Errorf("a launch by Auto Scaling, which the key's policy does not name: %s, want terminated", got)
	}
	w.service.AddKey(Key{ARN: key, Services: []string{"autoscaling.amazonaws.com"}})
	if got := byService(); got != types.InstanceStateNameRunning {
		t.Errorf("a launch by Auto Scaling, which the key's policy names: %s, want running", got)
	}
}

// TestEveryOperationIsAuthorized checks that every operation on the resources in the type resources, such as instances
// and images, fails without permission.
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
