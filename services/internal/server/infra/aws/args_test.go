package aws

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

func ptr[T any](v T) *T { return &v }

func tree(t testing.TB, text string) map[string]any {
	t.Helper()
	var args map[string]any
	if err := json.Unmarshal([]byte(text), &args); err != nil {
		t.Fatal(err)
	}
	return args
}

var ignoreUnexported = cmp.FilterPath(func(p cmp.Path) bool {
	field, ok := p.Last().(cmp.StructField)
	return ok && strings.HasPrefix(field.Name(), "noSmithy") || ok && field.Name() == "ResultMetadata"
}, cmp.Ignore())

func TestArgsBecomeARequest(t *testing.T) {
	text := `{
		"ImageId": "ami-1", "EbsOptimized": true, "SecurityGroupIds": ["sg-1", "sg-2"], "KeyName": null, "Ipv6AddressCount": 1,
		"IamInstanceProfile": {"Arn": "arn:aws:iam::123456789012:instance-profile/p"},
		"BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": "20", "VolumeType": "gp3", "Encrypted": "true", "Iops": 3000}}],
		"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.05", "ValidUntil": "2030-01-02T03:04:05Z"}},
		"MetadataOptions": {"HttpPutResponseHopLimit": 2, "HttpTokens": "required"},
		"Placement": {"Tenancy": "default", "PartitionNumber": 3},
		"TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "team", "Value": "a"}]}]
	}`
	want := ec2.RunInstancesInput{
		ImageId: ptr("ami-1"), EbsOptimized: ptr(true), SecurityGroupIds: []string{"sg-1", "sg-2"},
		Ipv6AddressCount: ptr(int32(1)),
		IamInstanceProfile: &types.IamInstanceProfileSpecification{Arn: ptr(
			"arn:aws:iam::123456789012:instance-profile/p")},
		BlockDeviceMappings: []types.BlockDeviceMapping{{DeviceName: ptr("/dev/xvda"), Ebs: &types.EbsBlockDevice{
			VolumeSize: ptr(int32(20)), VolumeType: types.VolumeTypeGp3, Encrypted: ptr(true),
			Iops: ptr(int32(3000))}}},
		InstanceMarketOptions: &types.InstanceMarketOptionsRequest{MarketType: types.MarketTypeSpot,
			SpotOptions: &types.SpotMarketOptions{MaxPrice: ptr("0.05"),
				ValidUntil: ptr(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC))}},
		MetadataOptions: &types.InstanceMetadataOptionsRequest{HttpPutResponseHopLimit: ptr(int32(2)),
			HttpTokens: types.HttpTokensStateRequired},
		Placement: &types.Placement{Tenancy: types.TenancyDefault, PartitionNumber: ptr(int32(3))},
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeInstance,
			Tags: []types.Tag{{Key: ptr("team"), Value: ptr("a")}}}},
	}
	got, err := decodeArgs(tree(t, text))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&want, got, ignoreUnexported); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
}

// TestWrongArgsAreRefused checks that decodeArgs refuses args that the validation of the configuration would refuse.
func TestWrongArgsAreRefused(t *testing.T) {
	_, err := decodeArgs(tree(t, `{"Placement": {"Tenacy": "x"}, "BlockDeviceMappings": [{"Ebs": {"VolumeSize": "{{ 1 }}"}}]}`))
	want := `args.BlockDeviceMappings[0].Ebs.VolumeSize: want a whole number, have "{{ 1 }}"
args.Placement.Tenacy: RunInstances has no such field (did you mean "Tenancy"?)`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func request() infra.CreateRequest {
	id, err := ident.NewID("knd", time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), strings.NewReader("12345678"))
	if err != nil {
		panic(err)
	}
	return infra.CreateRequest{
		Tags: infra.Tags{Owner: infra.Owner{Cluster: "c", Shard: "s"}, Tenant: "default", Instance: id, Term: 3,
			InfraHash: "abc", Group: "g", Template: "t",
			Kind: "knd", CreatedAt: time.Date(2030, 1, 2, 3, 4, 5, 6_000_000, time.UTC)},
		InstanceType: "t3.small", Subnet: "subnet-1", Args: map[string]any{"ImageId": "ami-1"},
		Userdata: []byte("#!/bin/sh\n"),
	}
}

func TestRequestIsOurs(t *testing.T) {
	in, err := runInstances(request(), "zone-a")
	if err != nil {
		t.Fatal(err)
	}
	userdata := base64.StdEncoding.EncodeToString([]byte("#!/bin/sh\n"))
	want := &ec2.RunInstancesInput{
		ImageId: ptr("ami-1"), InstanceType: "t3.small", SubnetId: ptr("subnet-1"), MinCount: ptr(int32(1)),
		MaxCount:    ptr(int32(1)),
		ClientToken: ptr(request().Tags.Instance.String()), UserData: &userdata,
		Placement:                         &types.Placement{AvailabilityZone: ptr("zone-a")},
		InstanceInitiatedShutdownBehavior: types.ShutdownBehaviorTerminate,
		MetadataOptions: &types.InstanceMetadataOptionsRequest{
			HttpTokens: types.HttpTokensStateRequired, HttpEndpoint: types.InstanceMetadataEndpointStateEnabled,
			HttpPutResponseHopLimit: ptr(int32(1))},
	}
	if diff := cmp.Diff(want, in, ignoreUnexported, cmpopts.IgnoreFields(ec2.RunInstancesInput{},
		"TagSpecifications")); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	if n := len(*in.ClientToken); n == 0 || n > 64 {
		t.Errorf("a client token of %d characters", n)
	}
	again, err := runInstances(request(), "zone-a")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(in, again, ignoreUnexported); diff != "" {
		t.Errorf("a repeat is another request:\n%s", diff)
	}
}

func TestInterfacesGetTheSubnet(t *testing.T) {
	req := request()
	req.Args = tree(t,
		`{"ImageId": "ami-1", "NetworkInterfaces": [{"DeviceIndex": 1, "SubnetId": "subnet-2"}, {"DeviceIndex": 0, "Groups": ["sg-1"]}, {"DeviceIndex": 2}]}`)
	in, err := runInstances(req, "zone-a")
	if err != nil {
		t.Fatal(err)
	}
	var subnets []string
	for _, n := range in.NetworkInterfaces {
		subnets = append(subnets, deref(n.SubnetId))
	}
	if diff := cmp.Diff([]string{"subnet-2", "subnet-1", "subnet-1"}, subnets); diff != "" || in.SubnetId != nil {
		t.Errorf("subnets (-want +got), and %q for the instance:\n%s", deref(in.SubnetId), diff)
	}
	req.Args = tree(t, `{"ImageId": "ami-1", "NetworkInterfaces": [{"Groups": ["sg-1"]}]}`)
	if in, err = runInstances(req, "zone-a"); err != nil || *in.NetworkInterfaces[0].DeviceIndex != 0 {
		t.Errorf("an interface without index: %v, %v", in.NetworkInterfaces, err)
	}
}

func TestArgsOverrideDefaults(t *testing.T) {
	req := request()
	req.Args = tree(t,
		`{"ImageId": "ami-1", "InstanceInitiatedShutdownBehavior": "stop", "MetadataOptions": {"HttpPutResponseHopLimit": 3},
		"Placement": {"GroupName": "p"}}`)
	in, err := runInstances(req, "zone-a")
	if err != nil {
		t.Fatal(err)
	}
	if in.InstanceInitiatedShutdownBehavior != types.ShutdownBehaviorStop ||
		*in.MetadataOptions.HttpPutResponseHopLimit != 3 || *in.Placement.GroupName != "p" ||
		*in.Placement.AvailabilityZone != "zone-a" {
		t.Errorf("request %+v", in)
	}
}

func TestUserdata(t *testing.T) {
	gzip := append([]byte{0x1f, 0x8b, 8, 0}, "binary"...)
	for name, tc := range map[string]struct{ have, want []byte }{
		"script":  {[]byte("#!/bin/sh\nexit\n"), []byte("#!/bin/sh\nexit\n")},
		"encoded": {[]byte(base64.StdEncoding.EncodeToString(gzip)), gzip},
		"binary":  {gzip, gzip},
		"largest": {[]byte("#" + strings.Repeat("x", maxUserdata-1)), []byte("#" + strings.Repeat("x", maxUserdata-1))},
	} {
		text, err := encodeUserdata(tc.have)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := base64.StdEncoding.DecodeString(*text)
		if err != nil || string(got) != string(tc.want) {
			t.Errorf("%s: the instance sees %q (%v), want %q", name, got, err, tc.want)
		}
	}
	if _, err := encodeUserdata([]byte("#" + strings.Repeat("x", maxUserdata))); err == nil {
		t.Error("userdata of more than 16 KiB was taken")
	}
	if text, err := encodeUserdata(nil); text != nil || err != nil {
		t.Errorf("no userdata became %v, %v", text, err)
	}
}

// TestLaunchTemplateHasTheImage checks that args need no image if they name a launch template.
func TestLaunchTemplateHasTheImage(t *testing.T) {
	req := request()
	req.Args = map[string]any{"LaunchTemplate": map[string]any{"LaunchTemplateId": "lt-1"}}
	if _, err := runInstances(req, "zone-a"); err != nil {
		t.Error(err)
	}
}

// TestFirstInterfaceIsPrimary checks that the first network interface gets device index 0 if none has it.
func TestFirstInterfaceIsPrimary(t *testing.T) {
	in := &ec2.RunInstancesInput{NetworkInterfaces: []types.InstanceNetworkInterfaceSpecification{{},
		{DeviceIndex: ptr(int32(1))}}}
	place(in, "subnet-1", "zone-a")
	if index := in.NetworkInterfaces[0].DeviceIndex; index == nil || *index != 0 {
		t.Errorf("interfaces %+v", in.NetworkInterfaces)
	}
}
