package aws

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/ident"
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
	vm = describe(types.Instance{PublicIpAddress: ptr("192.0.2.4"), Ipv6Address: ptr("2001:db8::4"),
		NetworkInterfaces: []types.InstanceNetworkInterface{{PrivateIpAddresses: []types.InstancePrivateIpAddress{{
			Association: &types.InstanceNetworkInterfaceAssociation{PublicIp: ptr("192.0.2.5")}}}}}})
	want = []string{"192.0.2.4", "2001:db8::4", "192.0.2.5"}
	if diff := cmp.Diff(want, vm.Addresses); diff != "" {
		t.Errorf("public addresses (-want +got):\n%s", diff)
	}
}

// TestIPv6OfPrimaryInterface checks that a VM's IPv6 address is not that of another interface, such as the leader's.
func TestIPv6OfPrimaryInterface(t *testing.T) {
	nic := func(index int32, address string) types.InstanceNetworkInterface {
		return types.InstanceNetworkInterface{
			Attachment:    &types.InstanceNetworkInterfaceAttachment{DeviceIndex: &index},
			Ipv6Addresses: []types.InstanceIpv6Address{{Ipv6Address: &address}}}
	}
	for _, nics := range [][]types.InstanceNetworkInterface{{nic(0, "2001:db8::4"), nic(1, "2001:db8::5")},
		{nic(1, "2001:db8::5"), nic(0, "2001:db8::4")}} {
		if vm := describe(types.Instance{NetworkInterfaces: nics}); vm.IPv6 != "2001:db8::4" {
			t.Errorf("IPv6 %s", vm.IPv6)
		}
	}
}

// TestInstanceWithoutTags checks that the client token replaces a tag with the instance ID that a person has removed.
func TestInstanceWithoutTags(t *testing.T) {
	id := request().Tags.Instance
	for token, want := range map[string]ident.ID{id.String(): id, "somebody's": {}} {
		if vm := describe(types.Instance{ClientToken: &token}); vm.Tags.Instance != want {
			t.Errorf("token %q: instance %s, want %s", token, vm.Tags.Instance, want)
		}
	}
}

// TestEndedBy checks that an end that somebody wanted has no reason.
func TestEndedBy(t *testing.T) {
	const spot = "Server.SpotInstanceTermination"
	for _, c := range []struct {
		code, message string
		state         types.InstanceStateName
		want          string
	}{
		{spot, "Spot: no more", types.InstanceStateNameTerminated, "Spot: no more"},
		{spot, "Spot: no more", types.InstanceStateNameRunning, ""},
		{"Client.UserInitiatedShutdown", "by a user", types.InstanceStateNameTerminated, ""},
		{"Client.InstanceInitiatedShutdown", "by itself", types.InstanceStateNameTerminated, ""},
	} {
		got := endedBy(types.Instance{State: &types.InstanceState{Name: c.state},
			StateReason: &types.StateReason{Code: &c.code, Message: &c.message}})
		if got != c.want {
			t.Errorf("%s of an instance that is %s: %q, want %q", c.code, c.state, got, c.want)
		}
	}
}
