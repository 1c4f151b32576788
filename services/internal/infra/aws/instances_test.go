package aws

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"
)

// TestAddresses checks that a VM's addresses are those of all its interfaces, because an agent may call from any of
// them.
func TestAddresses(t *testing.T) {
	vm := describe(types.Instance{
		PrivateIpAddress: ptr("10.0.0.4"), PublicIpAddress: ptr("192.0.2.4"),
		NetworkInterfaces: []types.InstanceNetworkInterface{
			{PrivateIpAddresses: []types.InstancePrivateIpAddress{
				{PrivateIpAddress: ptr("10.0.0.4"),
					Association: &types.InstanceNetworkInterfaceAssociation{PublicIp: ptr("192.0.2.4")}},
				{PrivateIpAddress: ptr("10.0.0.5")}}},
			{PrivateIpAddresses: []types.InstancePrivateIpAddress{{PrivateIpAddress: ptr("10.0.1.4")}},
				Ipv6Addresses: []types.InstanceIpv6Address{{Ipv6Address: ptr("2001:db8:0:0:0:0:0:4")}}},
		},
	})
	want := []string{"10.0.0.4", "192.0.2.4", "10.0.0.5", "10.0.1.4", "2001:db8::4"}
	if diff := cmp.Diff(want, vm.Addresses); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
}
