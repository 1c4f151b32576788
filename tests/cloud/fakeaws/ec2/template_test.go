package ec2

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// fullTemplate returns every setting that aws_launch_template of hashicorp/aws 5.100 supports.
func fullTemplate() *types.RequestLaunchTemplateData {
	return &types.RequestLaunchTemplateData{
		BlockDeviceMappings: []types.LaunchTemplateBlockDeviceMappingRequest{
			{DeviceName: aws.String("/dev/xvda"), Ebs: &types.LaunchTemplateEbsBlockDeviceRequest{
				DeleteOnTermination: aws.Bool(true), Encrypted: aws.Bool(true), Iops: aws.Int32(3000),
				KmsKeyId: aws.String("k"), SnapshotId: aws.String("snap-1"), Throughput: aws.Int32(125),
				VolumeInitializationRate: aws.Int32(100), VolumeSize: aws.Int32(20), VolumeType: types.VolumeTypeGp3,
			}},
			{DeviceName: aws.String("/dev/sdb"), NoDevice: aws.String("")},
			{DeviceName: aws.String("/dev/sdc"), VirtualName: aws.String("ephemeral0")},
		},
		CapacityReservationSpecification: &types.LaunchTemplateCapacityReservationSpecificationRequest{
			CapacityReservationPreference: types.CapacityReservationPreferenceOpen,
			CapacityReservationTarget:     &types.CapacityReservationTarget{CapacityReservationId: aws.String("cr-1")},
		},
		CpuOptions: &types.LaunchTemplateCpuOptionsRequest{
			AmdSevSnp: types.AmdSevSnpSpecificationDisabled, CoreCount: aws.Int32(2), ThreadsPerCore: aws.Int32(1)},
		CreditSpecification:   &types.CreditSpecificationRequest{CpuCredits: aws.String("standard")},
		DisableApiStop:        aws.Bool(false),
		DisableApiTermination: aws.Bool(true),
		EbsOptimized:          aws.Bool(true),
		EnclaveOptions:        &types.LaunchTemplateEnclaveOptionsRequest{Enabled: aws.Bool(false)},
		HibernationOptions:    &types.LaunchTemplateHibernationOptionsRequest{Configured: aws.Bool(false)},
		IamInstanceProfile: &types.LaunchTemplateIamInstanceProfileSpecificationRequest{
			Arn: aws.String("arn:aws:iam::1:instance-profile/x")},
		ImageId:                           aws.String("ami-1"),
		InstanceInitiatedShutdownBehavior: types.ShutdownBehaviorTerminate,
		InstanceMarketOptions: &types.LaunchTemplateInstanceMarketOptionsRequest{MarketType: types.MarketTypeSpot,
			SpotOptions: &types.LaunchTemplateSpotMarketOptionsRequest{
				InstanceInterruptionBehavior: types.InstanceInterruptionBehaviorStop, MaxPrice: aws.String("0.1"),
				SpotInstanceType: types.SpotInstanceTypePersistent,
				ValidUntil:       aws.Time(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)),
			}},
		InstanceRequirements: &types.InstanceRequirementsRequest{
			MemoryMiB:            &types.MemoryMiBRequest{Min: aws.Int32(1024), Max: aws.Int32(4096)},
			VCpuCount:            &types.VCpuCountRangeRequest{Min: aws.Int32(1)},
			MemoryGiBPerVCpu:     &types.MemoryGiBPerVCpuRequest{Min: aws.Float64(0.5)},
			CpuManufacturers:     []types.CpuManufacturer{types.CpuManufacturerAmd},
			AllowedInstanceTypes: []string{"m7g.*"}, BareMetal: types.BareMetalExcluded,
			InstanceGenerations:   []types.InstanceGeneration{types.InstanceGenerationCurrent},
			LocalStorageTypes:     []types.LocalStorageType{types.LocalStorageTypeSsd},
			NetworkInterfaceCount: &types.NetworkInterfaceCountRequest{Min: aws.Int32(2)},
		},
		KernelId: aws.String("aki-1"),
		KeyName:  aws.String("key"),
		LicenseSpecifications: []types.LaunchTemplateLicenseConfigurationRequest{
			{LicenseConfigurationArn: aws.String("arn:l")}},
		MaintenanceOptions: &types.LaunchTemplateInstanceMaintenanceOptionsRequest{
			AutoRecovery: types.LaunchTemplateAutoRecoveryStateDisabled},
		MetadataOptions: &types.LaunchTemplateInstanceMetadataOptionsRequest{
			HttpEndpoint:            types.LaunchTemplateInstanceMetadataEndpointStateEnabled,
			HttpProtocolIpv6:        types.LaunchTemplateInstanceMetadataProtocolIpv6Disabled,
			HttpPutResponseHopLimit: aws.Int32(2), HttpTokens: types.LaunchTemplateHttpTokensStateRequired,
			InstanceMetadataTags: types.LaunchTemplateInstanceMetadataTagsStateEnabled,
		},
		Monitoring: &types.LaunchTemplatesMonitoringRequest{Enabled: aws.Bool(true)},
		NetworkInterfaces: []types.LaunchTemplateInstanceNetworkInterfaceSpecificationRequest{{
			AssociateCarrierIpAddress: aws.Bool(false), AssociatePublicIpAddress: aws.Bool(true),
			DeleteOnTermination: aws.Bool(true), Description: aws.String("d"), DeviceIndex: aws.Int32(0),
			ConnectionTrackingSpecification: &types.ConnectionTrackingSpecificationRequest{
				TcpEstablishedTimeout: aws.Int32(60), UdpStreamTimeout: aws.Int32(61), UdpTimeout: aws.Int32(30)},
			Groups: []string{"sg-1", "sg-2"}, InterfaceType: aws.String("interface"),
			Ipv4PrefixCount: aws.Int32(1), Ipv6AddressCount: aws.Int32(1),
			Ipv6Addresses:    []types.InstanceIpv6AddressRequest{{Ipv6Address: aws.String("2001:db8::1")}},
			NetworkCardIndex: aws.Int32(0), NetworkInterfaceId: aws.String("eni-1"),
			PrimaryIpv6: aws.Bool(true), PrivateIpAddress: aws.String("10.0.0.9"),
			SecondaryPrivateIpAddressCount: aws.Int32(1), SubnetId: aws.String("subnet-1"),
			PrivateIpAddresses: []types.PrivateIpAddressSpecification{{Primary: aws.Bool(true),
				PrivateIpAddress: aws.String("10.0.0.9")}},
			Ipv4Prefixes: []types.Ipv4PrefixSpecificationRequest{{Ipv4Prefix: aws.String("10.0.0.16/28")}},
			Ipv6Prefixes: []types.Ipv6PrefixSpecificationRequest{{Ipv6Prefix: aws.String("2001:db8::/80")}},
		}},
		NetworkPerformanceOptions: &types.LaunchTemplateNetworkPerformanceOptionsRequest{
			BandwidthWeighting: types.InstanceBandwidthWeightingDefault},
		Placement: &types.LaunchTemplatePlacementRequest{
			Affinity: aws.String("a"), AvailabilityZone: aws.String("us-west-2a"), GroupName: aws.String("g"),
			HostId: aws.String("h"), PartitionNumber: aws.Int32(3), SpreadDomain: aws.String("s"),
			Tenancy: types.TenancyDefault,
		},
		PrivateDnsNameOptions: &types.LaunchTemplatePrivateDnsNameOptionsRequest{
			EnableResourceNameDnsAAAARecord: aws.Bool(true), EnableResourceNameDnsARecord: aws.Bool(true),
			HostnameType: types.HostnameTypeResourceName,
		},
		RamDiskId:        aws.String("ari-1"),
		SecurityGroupIds: []string{"sg-3"},
		SecurityGroups:   []string{"default"},
		TagSpecifications: []types.LaunchTemplateTagSpecificationRequest{{ResourceType: types.ResourceTypeInstance,
			Tags: []types.Tag{{Key: aws.String("a"), Value: aws.String("b")},
				{Key: aws.String("empty"), Value: aws.String("")}}}},
		UserData: encode("#!/bin/sh\n"),
	}
}

// TestTemplateDescribesItsData checks that the answer about a template contains the data with which the template was
// created, field by field.
func TestTemplateDescribesItsData(t *testing.T) {
	w := newTestRegion(t, nil)
	request := fullTemplate()
	created := must(w.client.CreateLaunchTemplate(t.Context(), &sdk.CreateLaunchTemplateInput{
		LaunchTemplateName: aws.String("full"), LaunchTemplateData: request,
		VersionDescription: aws.String("the first"),
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeLaunchTemplate,
			Tags: []types.Tag{{Key: aws.String("t"), Value: aws.String("u")}}}},
	}))(t).LaunchTemplate
	if *created.DefaultVersionNumber != 1 || *created.LatestVersionNumber != 1 || *created.Tags[0].Key != "t" {
		t.Errorf("created: %+v", created)
	}
	out := must(w.client.DescribeLaunchTemplateVersions(t.Context(), &sdk.DescribeLaunchTemplateVersionsInput{
		LaunchTemplateId: created.LaunchTemplateId, Versions: []string{"$Latest"}}))(t)
	if got := *out.LaunchTemplateVersions[0].VersionDescription; got != "the first" {
		t.Errorf("description %q", got)
	}
	answer := out.LaunchTemplateVersions[0].LaunchTemplateData
	if diff := cmp.Diff(plainly(reflect.ValueOf(request)), plainly(reflect.ValueOf(answer)),
		cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-written +read):\n%s", diff)
	}
}

// plainly converts the SDK's structures to maps, because requests and answers use different types with the same fields.
func plainly(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return plainly(v.Elem())
	case reflect.Struct:
		if at, ok := v.Interface().(time.Time); ok {
			return at.String()
		}
		out := map[string]any{}
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				if p := plainly(v.Field(i)); p != nil {
					out[f.Name] = p
				}
			}
		}
		return out
	case reflect.Slice:
		var out []any
		for i := range v.Len() {
			out = append(out, plainly(v.Index(i)))
		}
		if out == nil {
			return nil
		}
		return out
	case reflect.String:
		if v.String() == "" {
			return nil
		}
		return v.String()
	}
	return v.Interface()
}

func TestTemplateVersions(t *testing.T) {
	w := newTestRegion(t, nil)
	id := must(w.client.CreateLaunchTemplate(t.Context(), &sdk.CreateLaunchTemplateInput{
		LaunchTemplateName: aws.String("web"), LaunchTemplateData: &types.RequestLaunchTemplateData{ImageId: &w.amd,
			InstanceType: types.InstanceTypeT3Micro},
	}))(t).LaunchTemplate.LaunchTemplateId
	second := must(w.client.CreateLaunchTemplateVersion(t.Context(), &sdk.CreateLaunchTemplateVersionInput{
		LaunchTemplateName: aws.String("web"), SourceVersion: aws.String("1"),
		LaunchTemplateData: &types.RequestLaunchTemplateData{InstanceType: types.InstanceTypeT3Small},
	}))(t).LaunchTemplateVersion
	if *second.VersionNumber != 2 || *second.DefaultVersion ||
		second.LaunchTemplateData.InstanceType != types.InstanceTypeT3Small ||
		*second.LaunchTemplateData.ImageId != w.amd {
		t.Errorf("the second version: %+v", second)
	}
	launch := func(version string) types.InstanceType {
		t.Helper()
		in := &sdk.RunInstancesInput{SubnetId: &w.subnetA, MinCount: aws.Int32(1), MaxCount: aws.Int32(1),
			LaunchTemplate: &types.LaunchTemplateSpecification{LaunchTemplateId: id, Version: &version}}
		return must(w.client.RunInstances(t.Context(), in))(t).Instances[0].InstanceType
	}
	if d, l := launch("$Default"), launch("$Latest"); d != types.InstanceTypeT3Micro || l != types.InstanceTypeT3Small {
		t.Errorf("default is %s, latest %s", d, l)
	}
	must(w.client.ModifyLaunchTemplate(t.Context(), &sdk.ModifyLaunchTemplateInput{LaunchTemplateId: id,
		DefaultVersion: aws.String("2")}))(t)
	if d := launch("$Default"); d != types.InstanceTypeT3Small {
		t.Errorf("the new default is %s", d)
	}
	third := must(w.client.CreateLaunchTemplateVersion(t.Context(), &sdk.CreateLaunchTemplateVersionInput{
		LaunchTemplateId: id, LaunchTemplateData: &types.RequestLaunchTemplateData{ImageId: &w.amd}}))(t)
	if *third.LaunchTemplateVersion.VersionNumber != 3 {
		t.Errorf("a number was given again: %d", *third.LaunchTemplateVersion.VersionNumber)
	}
	all := must(w.client.DescribeLaunchTemplateVersions(t.Context(), &sdk.DescribeLaunchTemplateVersionsInput{
		LaunchTemplateId: id}))(t).LaunchTemplateVersions
	if len(all) != 3 || *all[0].VersionNumber != 3 || *all[1].VersionNumber != 2 {
		t.Errorf("versions: %+v", all)
	}
	refusals := map[string]error{
		"InvalidLaunchTemplateName.AlreadyExistsException": failure(w.client.CreateLaunchTemplate(t.Context(),
			&sdk.CreateLaunchTemplateInput{
				LaunchTemplateName: aws.String("web"), LaunchTemplateData: &types.RequestLaunchTemplateData{
					ImageId: &w.amd},
			})),
		"InvalidLaunchTemplateId.VersionNotFound": failure(w.client.DescribeLaunchTemplateVersions(t.Context(),
			&sdk.DescribeLaunchTemplateVersionsInput{LaunchTemplateId: id, Versions: []string{"9"}})),
		"InvalidLaunchTemplateId.NotFound": failure(w.client.DeleteLaunchTemplate(t.Context(),
			&sdk.DeleteLaunchTemplateInput{LaunchTemplateId: aws.String("lt-00000000000000000")})),
		"InvalidLaunchTemplateId.Malformed": failure(w.client.DeleteLaunchTemplate(t.Context(),
			&sdk.DeleteLaunchTemplateInput{LaunchTemplateId: aws.String("web")})),
		"InvalidLaunchTemplateName.NotFoundException": failure(w.client.DescribeLaunchTemplates(t.Context(),
			&sdk.DescribeLaunchTemplatesInput{LaunchTemplateNames: []string{"wed"}})),
		"InvalidUserData.Malformed": failure(w.client.CreateLaunchTemplateVersion(t.Context(),
			&sdk.CreateLaunchTemplateVersionInput{
				LaunchTemplateId: id, LaunchTemplateData: &types.RequestLaunchTemplateData{UserData: aws.String("!")},
			})),
	}
	for want, err := range refusals {
		if got := code(t, err); got != want {
			t.Errorf("got %q (%v), want %q", got, err, want)
		}
	}
	must(w.client.DeleteLaunchTemplate(t.Context(), &sdk.DeleteLaunchTemplateInput{LaunchTemplateId: id}))(t)
	if left := must(w.client.DescribeLaunchTemplates(t.Context(), &sdk.DescribeLaunchTemplatesInput{}))(
		t).LaunchTemplates; len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
}

func failure[V any](_ V, err error) error { return err }

// TestRequestOverTemplate checks for each structure in a request that the request takes precedence over its template.
func TestRequestOverTemplate(t *testing.T) {
	w := newTestRegion(t, nil)
	id := must(w.client.CreateLaunchTemplate(t.Context(), &sdk.CreateLaunchTemplateInput{LaunchTemplateName: aws.String(
		"web"), LaunchTemplateData: &types.RequestLaunchTemplateData{
		ImageId: &w.amd, InstanceType: types.InstanceTypeT3Micro, UserData: encode("of the template"),
		SecurityGroupIds: []string{w.group},
		MetadataOptions: &types.LaunchTemplateInstanceMetadataOptionsRequest{
			HttpTokens: types.LaunchTemplateHttpTokensStateRequired, HttpPutResponseHopLimit: aws.Int32(1)},
		BlockDeviceMappings: []types.LaunchTemplateBlockDeviceMappingRequest{
			{DeviceName: aws.String("/dev/xvda"), Ebs: &types.LaunchTemplateEbsBlockDeviceRequest{
				VolumeSize: aws.Int32(10)}},
			{DeviceName: aws.String("/dev/sdb"), Ebs: &types.LaunchTemplateEbsBlockDeviceRequest{
				VolumeSize: aws.Int32(11)}},
		},
		TagSpecifications: []types.LaunchTemplateTagSpecificationRequest{{ResourceType: types.ResourceTypeInstance,
			Tags: []types.Tag{
				{Key: aws.String("kept"), Value: aws.String("1")}, {Key: aws.String("changed"), Value: aws.String("1")},
			}}},
	}}))(t).LaunchTemplate.LaunchTemplateId
	got := must(w.client.RunInstances(t.Context(), &sdk.RunInstancesInput{
		SubnetId: &w.subnetA, MinCount: aws.Int32(1), MaxCount: aws.Int32(1),
		LaunchTemplate:  &types.LaunchTemplateSpecification{LaunchTemplateId: id},
		MetadataOptions: &types.InstanceMetadataOptionsRequest{HttpPutResponseHopLimit: aws.Int32(5)},
		BlockDeviceMappings: []types.BlockDeviceMapping{{DeviceName: aws.String("/dev/sdb"),
			Ebs: &types.EbsBlockDevice{VolumeSize: aws.Int32(12)}}},
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeInstance,
			Tags: []types.Tag{{Key: aws.String("changed"), Value: aws.String("2")}}}},
	}))(t).Instances[0]
	tags := map[string]string{}
	for _, tag := range got.Tags {
		tags[*tag.Key] = *tag.Value
	}
	want := map[string]string{"kept": "1", "changed": "2", "aws:ec2launchtemplate:id": *id,
		"aws:ec2launchtemplate:version": "1"}
	if diff := cmp.Diff(want, tags); diff != "" {
		t.Errorf("tags (-want +got):\n%s", diff)
	}
	if got.MetadataOptions.HttpTokens != types.HttpTokensStateRequired ||
		*got.MetadataOptions.HttpPutResponseHopLimit != 5 {
		t.Errorf("metadata options: %+v", got.MetadataOptions)
	}
	if *got.SecurityGroups[0].GroupId != w.group {
		t.Errorf("groups: %+v", got.SecurityGroups)
	}
	sizes := map[string]int32{}
	w.service.mu.Lock()
	for _, v := range w.service.volumes {
		sizes[v.device] = v.size
	}
	w.service.mu.Unlock()
	if diff := cmp.Diff(map[string]int32{"/dev/xvda": 10, "/dev/sdb": 12}, sizes); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
	// The template itself is unchanged.
	version := must(w.client.DescribeLaunchTemplateVersions(t.Context(),
		&sdk.DescribeLaunchTemplateVersionsInput{LaunchTemplateId: id}))(t).LaunchTemplateVersions[0]
	if *version.LaunchTemplateData.MetadataOptions.HttpPutResponseHopLimit != 1 ||
		*version.LaunchTemplateData.BlockDeviceMappings[1].Ebs.VolumeSize != 11 {
		t.Errorf("a launch changed its template: %+v", version.LaunchTemplateData)
	}
}

func TestMetadataTree(t *testing.T) {
	w := newTestRegion(t, nil)
	w.service.SetIdentity(identity{})
	id := *w.run(func(in *sdk.RunInstancesInput) {
		in.IamInstanceProfile = &types.IamInstanceProfileSpecification{Name: aws.String("agent")}
		in.UserData = encode("hello")
		in.MetadataOptions = &types.InstanceMetadataOptionsRequest{
			InstanceMetadataTags: types.InstanceMetadataTagsStateEnabled}
		in.TagSpecifications = []types.TagSpecification{{ResourceType: types.ResourceTypeInstance,
			Tags: []types.Tag{{Key: aws.String("Name"), Value: aws.String("a")}}}}
	}).InstanceId
	i := w.describe(id)
	mac := *i.NetworkInterfaces[0].MacAddress
	at := "network/interfaces/macs/" + mac + "/"
	for path, want := range map[string]string{
		"instance-id": id, "ami-id": w.amd, "instance-type": "t3.micro", "local-ipv4": "10.0.1.4",
		"local-hostname": "ip-10-0-1-4.us-west-2.compute.internal", "mac": mac,
		"hostname": "ip-10-0-1-4.us-west-2.compute.internal", "placement/availability-zone": "us-west-2a",
		"placement/region":          "us-west-2",
		"iam/security-credentials/": "agent-role", "network/interfaces/macs/": mac + "/", at + "vpc-id": w.vpc, at +
			"local-ipv4s": "10.0.1.4", at + "device-number": "0",
		at + "subnet-id": w.subnetA, at + "vpc-ipv4-cidr-block": "10.0.0.0/16", at + "security-group-ids": w.group, at +
			"interface-id": *i.NetworkInterfaces[0].NetworkInterfaceId,
		"tags/instance/Name": "a", "instance-life-cycle": "on-demand", "user-data": "hello",
		"placement": "availability-zone\navailability-zone-id\nregion",
	} {
		if got, ok := w.service.Metadata(id, path); !ok || got != want {
			t.Errorf("%s is %q, not %q", path, got, want)
		}
	}
	for _, path := range []string{"spot/instance-action", "public-keys/", "events/recommendations/rebalance",
		"iam/security-credentials/other", "autoscaling/target-lifecycle-state", "nothing"} {
		if got, ok := w.service.Metadata(id, path); ok {
			t.Errorf("%s is %q, and should not be", path, got)
		}
	}
	credentials, _ := w.service.Metadata(id, "iam/security-credentials/agent-role")
	if !strings.Contains(credentials, `"AccessKeyId":"ASIAagent-role"`) ||
		!strings.Contains(credentials, `"Token":"`+id+`"`) || !strings.Contains(credentials, `"Code":"Success"`) {
		t.Errorf("credentials: %s", credentials)
	}
	if document, _ := w.service.Metadata(id, "dynamic/instance-identity/document"); !strings.Contains(document,
		`"instanceId": "`+id+`"`) {
		t.Errorf("identity: %s", document)
	}
	w.service.Rebalance(id)
	if _, ok := w.service.Metadata(id, "events/recommendations/rebalance"); !ok {
		t.Error("no rebalance recommendation")
	}
	w.service.Schedule(id, "system-reboot", time.Date(2019, 1, 21, 9, 0, 43, 0, time.UTC))
	events, _ := w.service.Metadata(id, "events/maintenance/scheduled")
	if !strings.Contains(events, `"NotBefore": "21 Jan 2019 09:00:43 GMT"`) ||
		!strings.Contains(events, `"Code": "system-reboot"`) || !strings.Contains(events, `"State": "active"`) {
		t.Errorf("scheduled events: %s", events)
	}
	w.service.Schedule(id, "", time.Time{})
	if events, ok := w.service.Metadata(id, "events/maintenance/scheduled"); ok {
		t.Errorf("withdrawn events: %s", events)
	}
}
