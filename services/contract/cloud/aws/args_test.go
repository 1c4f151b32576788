package aws

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/nstance-kit/nstance/services/contract/cloud"
)

func tree(t testing.TB, text string) map[string]any {
	t.Helper()
	var args map[string]any
	if err := json.Unmarshal([]byte(text), &args); err != nil {
		t.Fatal(err)
	}
	return args
}

// describe writes a problem as a line: path, message and hint.
func describe(p cloud.Problem) string {
	path := ""
	for _, element := range p.Path {
		switch element := element.(type) {
		case int:
			path += fmt.Sprintf("[%d]", element)
		case string:
			if strings.Contains(element, " ") {
				path += fmt.Sprintf("[%q]", element)
			} else {
				path += "." + element
			}
		}
	}
	line := strings.TrimPrefix(path, ".") + ": " + p.Message
	if p.Hint != "" {
		line += " (" + p.Hint + ")"
	}
	return line
}

func TestWrongArgs(t *testing.T) {
	for text, want := range map[string]string{
		`{"ImageID": "ami-1"}`:                            `ImageID: RunInstances has no such field (did you mean "ImageId"?)`,
		`{"imageId": "ami-1"}`:                            `imageId: RunInstances has no such field (did you mean "ImageId"?)`,
		`{"noSmithyDocumentSerde": {}}`:                   `noSmithyDocumentSerde: RunInstances has no such field (see the request parameters`,
		`{"a b": 1}`:                                      `["a b"]: RunInstances has no such field`,
		`{"Placement": {"Tenacy": "x"}}`:                  `Placement.Tenacy: RunInstances has no such field (did you mean "Tenancy"?)`,
		`{"BlockDeviceMappings": [{"Ebs": {"Size": 1}}]}`: `BlockDeviceMappings[0].Ebs.Size: RunInstances has no such field`,
		`{"BlockDeviceMappings": {}}`:                     `BlockDeviceMappings: want a list, have an object`,
		`{"Placement": []}`:                               `Placement: want an object, have a list`,
		`{"Placement": {"Tenancy": 1}}`:                   `Placement.Tenancy: want a text, have 1`,
		`{"SecurityGroupIds": ["a", 1]}`:                  `SecurityGroupIds[1]: want a text, have 1`,
		`{"EbsOptimized": "yes"}`:                         `EbsOptimized: want true or false, have "yes"`,
		`{"Ipv6AddressCount": 1.5}`:                       `Ipv6AddressCount: want a whole number, have 1.5`,
		`{"Ipv6AddressCount": "1e3"}`:                     `Ipv6AddressCount: want a whole number, have "1e3"`,
		`{"Ipv6AddressCount": 4294967296}`:                `Ipv6AddressCount: want a whole number, have 4.294967296e+09`,
		`{"Ipv6AddressCount": " 1"}`:                      `Ipv6AddressCount: want a whole number, have " 1"`,
		`{"InstanceMarketOptions": {"SpotOptions": {"ValidUntil": "soon"}}}`:                   `InstanceMarketOptions.SpotOptions.ValidUntil: want a time such as`,
		`{"InstanceMarketOptions": {"SpotOptions": {"SpotInstanceType": "persistent"}}}`:       `InstanceMarketOptions.SpotOptions.SpotInstanceType: is always "one-time"`,
		`{"InstanceMarketOptions": {"SpotOptions": {"InstanceInterruptionBehavior": "stop"}}}`: `InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior: is always "terminate"`,
		`{"ClientToken": "x"}`:                              `ClientToken: cannot be set in args (it is the instance's ID)`,
		`{"InstanceType": "x"}`:                             `InstanceType: cannot be set in args`,
		`{"SubnetId": "x"}`:                                 `SubnetId: cannot be set in args`,
		`{"UserData": "x"}`:                                 `UserData: cannot be set in args`,
		`{"MinCount": 1}`:                                   `MinCount: cannot be set in args`,
		`{"MaxCount": 1}`:                                   `MaxCount: cannot be set in args`,
		`{"DryRun": true}`:                                  `DryRun: cannot be set in args`,
		`{"DisableApiTermination": true}`:                   `DisableApiTermination: cannot be set in args`,
		`{"MetadataOptions": {"HttpTokens": "optional"}}`:   `MetadataOptions.HttpTokens: is always "required"`,
		`{"MetadataOptions": {"HttpEndpoint": "disabled"}}`: `MetadataOptions.HttpEndpoint: is always "enabled"`,
		`{"NetworkInterfaces": [{"SubnetId": "x"}]}`:        `NetworkInterfaces[0].SubnetId: cannot be set in args`,
		`{"NetworkInterfaces": [{"DeviceIndex": 1}]}`:       `NetworkInterfaces: none has DeviceIndex 0`,
		`{"NetworkInterfaces": [{"DeviceIndex": 0, "NetworkInterfaceId": "x"}]}`:                                                 `NetworkInterfaces[0].NetworkInterfaceId: only one instance`,
		`{"NetworkInterfaces": [{"DeviceIndex": 0}], "SecurityGroupIds": ["x"]}`:                                                 `SecurityGroupIds: cannot be set beside NetworkInterfaces`,
		`{"IamInstanceProfile": {"Arn": "a", "Name": "b"}}`:                                                                      `IamInstanceProfile: has Arn and Name`,
		`{"LaunchTemplate": {"LaunchTemplateId": "a", "LaunchTemplateName": "b"}}`:                                               `LaunchTemplate: has LaunchTemplateId and LaunchTemplateName`,
		`{"Placement": {"GroupId": "a", "GroupName": "b"}}`:                                                                      `Placement: has GroupId and GroupName`,
		`{"Placement": {"HostId": "a", "HostResourceGroupArn": "b"}}`:                                                            `Placement: has HostId and HostResourceGroupArn`,
		`{"Placement": {"AvailabilityZoneId": "x"}}`:                                                                             `Placement: the zone is the shard's`,
		`{"Placement": {"AvailabilityZone": "x"}}`:                                                                               `Placement: the zone is the shard's`,
		`{"TagSpecifications": [{"Tags": []}]}`:                                                                                  `TagSpecifications[0].ResourceType: is missing`,
		`{"TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "nstance:shard", "Value": "x"}]}]}`:                `TagSpecifications[0].Tags[0].Key: tags that begin with nstance:`,
		`{"TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": ""}, {"Key": "a", "Value": "x"}]}]}`: `TagSpecifications[0].Tags[1].Key: tag "a" is there twice`,
		`{"TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "AWS:x", "Value": "x"}]}]}`:                        `TagSpecifications[0].Tags[0]: tag "AWS:x"`,
		`{"ImageId": "resolve:ssm:/aws/service/debian/release/12/latest/amd64"}`:                                                 `ImageId: a parameter of Systems Manager is not permitted (name`,
	} {
		for _, templates := range []bool{true, false} {
			_, problems := DecodeArgs(tree(t, text), templates)
			if len(problems) != 1 || !strings.HasPrefix(describe(problems[0]), want) {
				t.Errorf("%s, templates allowed: %t:\ngot  %+v\nwant %s", text, templates, problems, want)
			}
		}
	}
}

// TestAllowedArgs checks args that are near to wrong ones.
func TestAllowedArgs(t *testing.T) {
	for _, text := range []string{
		`{"IamInstanceProfile": {"Arn": "a"}, "LaunchTemplate": {"LaunchTemplateName": "b"}}`,
		`{"Placement": {"GroupName": "a", "HostId": "b", "Tenancy": "host"}}`,
		`{"MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled", "HttpPutResponseHopLimit": 2}}`,
		`{"NetworkInterfaces": [{"DeviceIndex": 1, "SubnetId": "other"}, {"DeviceIndex": 0}]}`,
		`{"NetworkInterfaces": [{"Groups": ["sg-1"]}], "SecurityGroupIds": []}`,
		`{"TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": ""}]},
			{"ResourceType": "volume", "Tags": [{"Key": "a", "Value": ""}]}]}`,
	} {
		if _, problems := DecodeArgs(tree(t, text), false); len(problems) > 0 {
			t.Errorf("%s: %v", text, problems)
		}
	}
}

// TestMostTags counts the tags for each type of resource: EC2 accepts 50, and the server adds its own to some.
func TestMostTags(t *testing.T) {
	spec := func(resource, key string, n int) string {
		tags := make([]string, n)
		for i := range tags {
			tags[i] = fmt.Sprintf(`{"Key": "%s%d", "Value": ""}`, key, i)
		}
		return fmt.Sprintf(`{"ResourceType": %q, "Tags": [%s]}`, resource, strings.Join(tags, ","))
	}
	const name = `{"ResourceType": "instance", "Tags": [{"Key": "Name", "Value": "x"}]}`
	for text, want := range map[string]int{
		spec("instance", "k", maxTags-ServerTags):                   0,
		spec("instance", "k", maxTags-ServerTags) + "," + name:      0,
		spec("instance", "k", maxTags-ServerTags+1):                 1,
		spec("instance", "k", 30) + "," + spec("instance", "l", 10): 1,
		spec("instance", "k", 30) + "," + spec("volume", "l", 30):   0,
		spec("elastic-gpu", "k", maxTags):                           0,
		spec("elastic-gpu", "k", maxTags+1):                         1,
	} {
		_, problems := DecodeArgs(tree(t, `{"TagSpecifications": [`+text+`]}`), false)
		if len(problems) != want {
			t.Errorf("%.60s…: %v, want %d problems", text, problems, want)
		}
	}
}

func TestCheckTag(t *testing.T) {
	for _, tag := range [][2]string{{"k", ""}, {"k", "v"}, {strings.Repeat("é", maxTagKey), strings.Repeat("é",
		maxTagValue)}} {
		if err := CheckTag(tag[0], tag[1]); err != nil {
			t.Errorf("%.20q: %v", tag, err)
		}
	}
	for _, tag := range [][2]string{{"", "v"}, {"aws:k", "v"}, {"\xff", "v"}, {"k", "\xff"}, {"k\n", "v"},
		{"k", "v\x00"},
		{strings.Repeat("k", maxTagKey+1), "v"}, {"k", strings.Repeat("v", maxTagValue+1)}} {
		if CheckTag(tag[0], tag[1]) == nil {
			t.Errorf("%.20q is accepted", tag)
		}
	}
}

func TestTemplatesMatchAnyType(t *testing.T) {
	text := `{"ImageId": "{{ .Image.base }}", "EbsOptimized": "{{ .Vars.ebs }}", "BlockDeviceMappings": [{"Ebs": {"VolumeSize": "{{ .Vars.disk }}"}}],
		"InstanceMarketOptions": {"SpotOptions": {"ValidUntil": "{{ .Vars.until }}", "SpotInstanceType": "{{ .Vars.kind }}"}},
		"MetadataOptions": {"HttpTokens": "{{ .Vars.tokens }}"}}`
	if problems := call.CheckArgs(tree(t, text)); len(problems) > 0 {
		t.Errorf("before rendering: %v", problems)
	}
	if _, problems := DecodeArgs(tree(t, text), false); len(problems) != 5 {
		t.Errorf(
			"after rendering: %d problems, want one for each of the five values that need another type or a fixed "+
				"text: %v",
			len(problems), problems)
	}
	if problems := call.CheckArgs(tree(t, `{"Placement": "{{ .Vars.all }}"}`)); len(problems) != 1 {
		t.Errorf("a template in the place of an object: %v", problems)
	}
}

func FuzzArgs(f *testing.F) {
	f.Add(`{"ImageId": "ami-1", "Placement": {"PartitionNumber": "3"}}`)
	f.Add(`{"NetworkInterfaces": [{"DeviceIndex": 0, "Groups": ["sg-1"]}, null]}`)
	f.Add(`{"InstanceMarketOptions": {"SpotOptions": {"ValidUntil": "2030-01-02T03:04:05Z"}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		var args map[string]any
		if json.Unmarshal([]byte(text), &args) != nil {
			return
		}
		decoded, problems := DecodeArgs(args, false)
		if len(problems) > 0 {
			return
		}
		if again := call.CheckArgs(args); len(again) > 0 {
			t.Errorf("accepted after rendering, refused before: %v", again)
		}
		encoded, err := json.Marshal(decoded)
		if err != nil {
			t.Fatal(err)
		}
		decoder := json.NewDecoder(bytes.NewReader(encoded))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&ec2.RunInstancesInput{}); err != nil {
			t.Errorf("the SDK's type does not take %s: %v", encoded, err)
		}
		for name := range args {
			if _, forbidden := reserved[name]; forbidden {
				t.Errorf("%s was accepted", name)
			}
		}
	})
}
