package aws

import (
	"encoding/base64"
	"fmt"
	"slices"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/aws"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// maxUserdata is the maximum size of userdata in bytes, before it is encoded.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-add-user-data.html
const maxUserdata = 16 << 10

// runInstances makes the request for one VM. The request depends only on the arguments: EC2 answers a repeated client
// token with the same VM only if all other parameters are the same too.
func runInstances(req infra.CreateRequest, zone string) (*ec2.RunInstancesInput, error) {
	if req.InstanceType == "" || req.Subnet == "" {
		return nil, fmt.Errorf("instance type %q, subnet %q: both are needed", req.InstanceType, req.Subnet)
	}
	in, err := decodeArgs(req.Args)
	if err != nil {
		return nil, err
	}
	if in.ImageId == nil && in.LaunchTemplate == nil {
		return nil,
			fmt.Errorf(
				"args.ImageId: is missing; a template such as {{ .Image.name }} takes it from the shard's images")
	}
	userdata, err := encodeUserdata(req.Userdata)
	if err != nil {
		return nil, err
	}
	in.MinCount, in.MaxCount = sdk.Int32(1), sdk.Int32(1)
	in.ClientToken = sdk.String(req.Tags.Instance.String())
	in.InstanceType = types.InstanceType(req.InstanceType)
	in.UserData = userdata
	place(in, req.Subnet, zone)

	if in.MetadataOptions == nil {
		in.MetadataOptions = &types.InstanceMetadataOptionsRequest{}
	}
	in.MetadataOptions.HttpTokens = types.HttpTokensStateRequired
	in.MetadataOptions.HttpEndpoint = types.InstanceMetadataEndpointStateEnabled
	if in.MetadataOptions.HttpPutResponseHopLimit == nil {
		// Containers on the VM are one network hop further away. With a limit of one hop, they cannot read the userdata
		// with the nonce.
		in.MetadataOptions.HttpPutResponseHopLimit = sdk.Int32(1)
	}
	if in.InstanceInitiatedShutdownBehavior == "" {
		// If a VM shuts down, EC2 must terminate it. The leader creates a replacement in any case, and a VM that is
		// only stopped would still cost money.
		in.InstanceInitiatedShutdownBehavior = types.ShutdownBehaviorTerminate
	}
	if req.Tags.Spot {
		in.InstanceMarketOptions = &types.InstanceMarketOptionsRequest{MarketType: types.MarketTypeSpot,
			SpotOptions: &types.SpotMarketOptions{SpotInstanceType: types.SpotInstanceTypeOneTime,
				InstanceInterruptionBehavior: types.InstanceInterruptionBehaviorTerminate}}
	}
	spot := in.InstanceMarketOptions != nil && in.InstanceMarketOptions.MarketType == types.MarketTypeSpot
	in.TagSpecifications, err = tagSpecifications(encodeTags(req.Tags), in.TagSpecifications, spot)
	if err != nil {
		return nil, err
	}
	return in, nil
}

// place puts the instance into the subnet. It sets the zone too, so that EC2 refuses a subnet of another zone. A client
// token is valid in one zone only, so all calls of a shard must be for the same zone.
// https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html#run-instances-idempotency
func place(in *ec2.RunInstancesInput, subnet, zone string) {
	if in.Placement == nil {
		in.Placement = &types.Placement{}
	}
	in.Placement.AvailabilityZone = sdk.String(zone)
	if len(in.NetworkInterfaces) == 0 {
		in.SubnetId = sdk.String(subnet)
		return
	}
	// If the request has network interfaces, EC2 requires the subnet in the interfaces, not in the instance.
	if first := &in.NetworkInterfaces[primaryInterface(in.NetworkInterfaces)]; first.DeviceIndex == nil {
		first.DeviceIndex = sdk.Int32(0)
	}
	for i := range in.NetworkInterfaces {
		if in.NetworkInterfaces[i].SubnetId == nil {
			in.NetworkInterfaces[i].SubnetId = sdk.String(subnet)
		}
	}
}

// primaryInterface returns the position of the interface with device index 0, or 0 if no interface has it. The checks
// of args guarantee that an interface has index 0, or that the first interface has no index.
func primaryInterface(list []types.InstanceNetworkInterfaceSpecification) int {
	i := slices.IndexFunc(list, func(n types.InstanceNetworkInterfaceSpecification) bool {
		return n.DeviceIndex != nil && *n.DeviceIndex == 0
	})
	return max(i, 0)
}

// encodeUserdata encodes userdata in base64 for the API. If the configuration has encoded the userdata already
// (encoding base64 or gzip+base64), encodeUserdata does not encode it again. Userdata that is valid base64 is already
// encoded: all other forms that cloud-init knows have a # or a : in their first line.
func encodeUserdata(userdata []byte) (*string, error) {
	if len(userdata) == 0 {
		return nil, nil //nolint:nilnil // no userdata is a possible answer
	}
	raw := userdata
	if decoded, err := base64.StdEncoding.Strict().DecodeString(string(userdata)); err == nil {
		raw = decoded
	}
	if len(raw) > maxUserdata {
		return nil, fmt.Errorf("userdata: %d bytes, EC2 takes at most %d", len(raw), maxUserdata)
	}
	return sdk.String(base64.StdEncoding.EncodeToString(raw)), nil
}

// decodeArgs returns a request with the values of rendered args. The error lists all problems, each with its path.
func decodeArgs(args map[string]any) (*ec2.RunInstancesInput, error) {
	in := &ec2.RunInstancesInput{}
	decoded, found := contract.DecodeArgs(args, false)
	if err := infra.DecodeArgs(decoded, found, in); err != nil {
		return nil, err
	}
	return in, nil
}

// deref returns the value that p points to, or the zero value if p is nil.
func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
