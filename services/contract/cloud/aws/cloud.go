// Package aws describes Amazon Web Services to the shard configuration: VMs are EC2 instances.
package aws

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/cloud"
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
	NeedsArgs:         []string{"ImageId", "LaunchTemplate"},
	Attestation:       Attestation,
	MaxUserdata:       16 << 10, // before the encoding in base64

	AttestationCertificates: true,

	LeaderNetwork: NetworkInterface{},
	LoadBalancer:  TargetGroups{},
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

// MissingForHealth implements [cloud.HealthSource]: a target group needs no other field to report its targets' health.
func (TargetGroups) MissingForHealth() string { return "" }

func checkOptions(options map[string]string) []cloud.Problem {
	var found []cloud.Problem
	for _, name := range slices.Sorted(maps.Keys(options)) {
		if name != OptionProfile {
			found = append(found, cloud.Problem{Path: []any{name}, Message: "provider aws has no such option",
				Hint: "there is " + OptionProfile})
		}
	}
	return found
}
