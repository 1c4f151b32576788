// Package aws describes Amazon Web Services to the shard configuration: VMs are EC2 instances.
package aws

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/cloud/apiargs"
)

// Name is the cloud's name.
const Name = "aws"

// OptionProfile is the only option in server.provider.options. It is the name of a profile in the SDK's configuration
// files. The default is the value of the variable AWS_PROFILE.
const OptionProfile = "profile"

// Attestation is a value of server.attestation.method. With it, an agent's proof is the instance identity document,
// which EC2 signs.
const Attestation = "aws-iid"

// Block describes the cloud.
var Block = cloud.Block{
	Name:              Name,
	NeedsZone:         true,
	NeedsInstanceType: true,
	HasImages:         true,
	SpotArgs:          [][]any{{"InstanceMarketOptions"}},
	Sleeps:            []string{"stopped", "suspended"},
	NeedsArgs:         []string{"ImageId", "LaunchTemplate"},
	Attestation:       Attestation,
	MaxUserdata:       16 << 10, // before the encoding in base64

	AttestationCertificates: true,
	// https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html
	Creates: cloud.Rate{AtOnce: 5, PerSecond: 2},

	LeaderNetwork: NetworkInterface{},
	LoadBalancer:  TargetGroups{},
	Identity:      Role{},
	CheckOptions:  checkOptions,
	CheckArgs:     call.CheckArgs,
	ObjectStores:  []cloud.ObjectStore{{Name: "s3", TakesEndpoint: true, RegionVariable: "AWS_REGION"}},
	SecretsStores: []cloud.SecretsStore{{Name: "aws-secrets-manager"}, {Name: "aws-parameter-store"}},
}

// NetworkInterface holds the leader's addresses.
type NetworkInterface struct {
	// AWS: ID of the network interface (eni-…) that has the addresses and moves to the leader.
	InterfaceID string `json:"interface_id,omitempty" rule:"required" support:"hidden"`
}

// Check implements [cloud.Checker].
func (n NetworkInterface) Check(string) []cloud.Problem {
	if n.InterfaceID == "" || strings.HasPrefix(n.InterfaceID, "eni-") {
		return nil
	}
	return []cloud.Problem{{Path: []any{"interface_id"},
		Message: fmt.Sprintf("%q does not begin with eni-", n.InterfaceID)}}
}

// TargetGroups are the target groups with which a group's instances are registered.
type TargetGroups struct {
	// AWS: the target groups; an instance is registered with each.
	TargetGroupARNs []string `json:"target_group_arns,omitempty" rule:"required" support:"hidden"`
}

// Role is the identity of servers that reach a bucket of another cloud or account.
type Role struct {
	// S3: ARN of the role that the servers assume. Servers on Google Cloud prove to AWS which service account their VM
	// has. Other servers use their AWS credentials.
	RoleARN string `json:"role_arn,omitempty" support:"hidden"`
	// S3: profile in the AWS configuration files of the servers, such as /etc/nstance/aws. It is for servers on your
	// own hardware. Their environment has the credentials of another bucket.
	Profile string `json:"profile,omitempty" support:"hidden"`
}

// roleARN is the form of the ARN of an IAM role, in all partitions of AWS.
var roleARN = regexp.MustCompile(`^arn:aws[a-z-]*:iam::[0-9]{12}:role/[\w+=,.@/-]+$`)

// Check implements [cloud.Checker].
func (r Role) Check(string) []cloud.Problem {
	switch {
	case r == Role{}:
		return []cloud.Problem{{Message: "has neither role_arn nor profile",
			Hint: "leave identity out to use the servers' own AWS credentials"}}
	case r.RoleARN != "" && !roleARN.MatchString(r.RoleARN):
		return []cloud.Problem{{Path: []any{"role_arn"}, Message: fmt.Sprintf("%q is not the ARN of a role", r.RoleARN),
			Hint: "such as arn:aws:iam::123456789012:role/nstance"}}
	}
	return nil
}

// MissingForHealth implements [cloud.HealthSource]: a target group needs no other field to report its targets' health.
func (TargetGroups) MissingForHealth() string { return "" }

func checkOptions(options map[string]string) []cloud.Problem {
	return cloud.ParseFields(options, "provider aws has no such option",
		map[string]cloud.Field[string]{OptionProfile: {}})
}

//go:generate go test -run ^TestArgFieldsAreCurrent$ . -update

// call is the API call that takes args.
var call = apiargs.Call{
	Name: "RunInstances", Reference: "the request parameters of RunInstances in the EC2 API reference",
	Fields: argFields, Root: "RunInstancesInput", Reserved: reserved,
	Rules: func(d *apiargs.Decoder, args map[string]any) { argsDecoder{d}.checkRules(args) },
}

// reserved are the fields of RunInstances that args may not set, each with the reason.
var reserved = map[string]string{
	"ClientToken":           "it is the instance's ID",
	"DisableApiTermination": "the server must be able to delete its instances",
	"DryRun":                "nothing would be created",
	"InstanceType":          "it is the group's instance_type",
	"MaxCount":              "every call creates one instance",
	"MinCount":              "every call creates one instance",
	"SubnetId":              reasonSubnet,
	"UserData":              "it is the template's userdata",
}

const reasonSubnet = "it is taken from the group's subnet_pool"

// DecodeArgs is [apiargs.Call.DecodeArgs] of the call.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html
func DecodeArgs(args map[string]any, templates bool) (map[string]any, []cloud.Problem) {
	return call.DecodeArgs(args, templates)
}

// argsDecoder checks args against the additional rules of the server.
type argsDecoder struct{ *apiargs.Decoder }

// TagPrefix is the prefix of the tags that only the server writes.
const TagPrefix = "nstance:"

// Limits of tags, in characters. https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html#tag-restrictions
const (
	maxTagKey   = 128
	maxTagValue = 256
	maxTags     = 50
)

// ServerTags is the number of tags that the server adds to each resource of an instance: its own, and Name.
const ServerTags = 14

// taggedByServer holds the resource types to which the server adds its tags.
var taggedByServer = []string{"instance", "volume", "network-interface", "spot-instances-request"}

// CheckTag reports a tag that AWS refuses or changes.
func CheckTag(key, value string) error {
	switch {
	case key == "":
		return errors.New("a tag has no key")
	case strings.HasPrefix(strings.ToLower(key), "aws:"):
		return fmt.Errorf("tag %q: keys that begin with aws: are reserved by AWS", key)
	case !utf8.ValidString(key) || !utf8.ValidString(value) || strings.ContainsFunc(key+value, unicode.IsControl):
		return fmt.Errorf("tag %q: tags are UTF-8 without control characters", key)
	case utf8.RuneCountInString(key) > maxTagKey:
		return fmt.Errorf("tag %q: the key is longer than %d characters", key, maxTagKey)
	case utf8.RuneCountInString(value) > maxTagValue:
		return fmt.Errorf("tag %q: the value is longer than %d characters", key, maxTagValue)
	}
	return nil
}

// checkRules reports values in decoded args that would break the server's own guarantees.
func (d argsDecoder) checkRules(args map[string]any) {
	d.checkFixed(args, "required", "instances must not answer version 1 of the metadata service",
		"MetadataOptions", "HttpTokens")
	d.checkFixed(args, "enabled", "the agent reads termination notices from there", "MetadataOptions", "HttpEndpoint")
	d.checkFixed(args, "one-time", "a persistent request would start the instance again after its end",
		"InstanceMarketOptions", "SpotOptions", "SpotInstanceType")
	d.checkFixed(args, "terminate", "every other behaviour needs a persistent request",
		"InstanceMarketOptions", "SpotOptions", "InstanceInterruptionBehavior")
	if image, _ := args["ImageId"].(string); strings.HasPrefix(image, "resolve:ssm:") {
		// EC2 reads the parameter with the server's permissions.
		d.ReportWritten([]any{"ImageId"}, "name the image in images", "a parameter of Systems Manager is not permitted")
	}
	if names, _ := args["SecurityGroups"].([]any); len(names) > 0 {
		d.ReportWritten([]any{"SecurityGroups"}, "EC2 takes names only without a subnet: use SecurityGroupIds",
			apiargs.SetByServer)
	}
	d.checkInterfaces(args)
	d.checkExclusive(args, "IamInstanceProfile", "Arn", "Name")
	d.checkExclusive(args, "LaunchTemplate", "LaunchTemplateId", "LaunchTemplateName")
	d.checkExclusive(args, "Placement", "GroupId", "GroupName")
	d.checkExclusive(args, "Placement", "HostId", "HostResourceGroupArn")
	if placement, ok := args["Placement"].(map[string]any); ok &&
		(placement["AvailabilityZone"] != nil || placement["AvailabilityZoneId"] != nil) {
		d.Report([]any{"Placement"}, "", "the zone is the shard's, server.provider.zone")
	}
	d.checkTags(args)
}

// checkFixed reports the text at path if it differs from want, the only text allowed. It does not report a template.
func (d argsDecoder) checkFixed(args map[string]any, want, reason string, path ...any) {
	var value any = args
	for _, name := range path {
		object, _ := value.(map[string]any)
		value = object[name.(string)] //nolint:forcetypeassert // the callers' constants
	}
	if text, _ := value.(string); text != "" && text != want && !d.IsTemplate(text) {
		d.Report(path, reason, "is always %q", want)
	}
}

// checkExclusive reports an object that has both fields, of which EC2 accepts only one.
func (d argsDecoder) checkExclusive(args map[string]any, object, one, other string) {
	if fields, ok := args[object].(map[string]any); ok && fields[one] != nil && fields[other] != nil {
		d.ReportWritten([]any{object}, "remove one of them", "has %s and %s, which exclude each other", one, other)
	}
}

func (d argsDecoder) checkInterfaces(args map[string]any) {
	interfaces := apiargs.Objects(args["NetworkInterfaces"])
	if len(interfaces) == 0 {
		return
	}
	primary := primaryInterface(interfaces)
	for i, n := range interfaces {
		if i == primary && n["SubnetId"] != nil {
			d.Report([]any{"NetworkInterfaces", i, "SubnetId"}, reasonSubnet, apiargs.SetByServer)
		}
		if n["NetworkInterfaceId"] != nil {
			d.Report([]any{"NetworkInterfaces", i, "NetworkInterfaceId"}, "",
				"only one instance could have an interface that exists already")
		}
	}
	if primary < 0 {
		d.Report([]any{"NetworkInterfaces"}, "", "none has DeviceIndex 0")
	}
	if ids, _ := args["SecurityGroupIds"].([]any); len(ids) > 0 {
		d.Report([]any{"SecurityGroupIds"}, "put them into NetworkInterfaces[0].Groups",
			"cannot be set beside NetworkInterfaces")
	}
}

// primaryInterface returns the position of the interface with DeviceIndex 0. If there is none, it returns 0 if the
// first interface has no DeviceIndex, and else -1.
func primaryInterface(interfaces []map[string]any) int {
	for i, n := range interfaces {
		if n["DeviceIndex"] == int64(0) {
			return i
		}
	}
	if interfaces[0]["DeviceIndex"] == nil {
		return 0
	}
	return -1
}

func (d argsDecoder) checkTags(args map[string]any) {
	keys := map[string]map[string]bool{} // by type of resource
	for i, spec := range apiargs.Objects(args["TagSpecifications"]) {
		at := []any{"TagSpecifications", i}
		resource, _ := spec["ResourceType"].(string)
		if resource == "" {
			d.Report(append(at, "ResourceType"), "", "is missing")
		}
		if keys[resource] == nil {
			keys[resource] = map[string]bool{}
		}
		seen := map[string]bool{}
		for j, tag := range apiargs.Objects(spec["Tags"]) {
			key, _ := tag["Key"].(string)
			value, _ := tag["Value"].(string)
			if seen[key] {
				d.ReportWritten(append(at, "Tags", j, "Key"), "", "tag %q is there twice", key)
			}
			seen[key] = true
			keys[resource][key] = true
			if err := CheckTag(key, value); err != nil {
				d.Report(append(at, "Tags", j), "", "%v", err)
			}
			if strings.HasPrefix(key, TagPrefix) {
				d.Report(append(at, "Tags", j, "Key"), "", "tags that begin with %s are the server's", TagPrefix)
			}
		}
		limit := maxTags
		if slices.Contains(taggedByServer, resource) {
			delete(keys[resource], "Name") // one of ServerTags
			limit -= ServerTags
		}
		if n := len(keys[resource]); n > limit {
			d.ReportWritten(append(at, "Tags"), "",
				"%d tags for each %s, more than %d: EC2 accepts %d, and the server adds "+
					"its own", n, resource, limit, maxTags)
		}
	}
}
