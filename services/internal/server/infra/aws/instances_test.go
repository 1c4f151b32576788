package aws

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
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

// listed implements EC2 with one page of instances.
type listed struct {
	EC2
	instances []types.Instance
}

func (l listed) DescribeInstances(context.Context, *ec2.DescribeInstancesInput, ...func(*ec2.Options)) (
	*ec2.DescribeInstancesOutput, error) {
	return &ec2.DescribeInstancesOutput{Reservations: []types.Reservation{{Instances: l.instances}}}, nil
}

// TestInstanceWithCopiedTags checks which instance is found if several have the tags of one.
func TestInstanceWithCopiedTags(t *testing.T) {
	instance := func(id string, state types.InstanceStateName, day int) types.Instance {
		return types.Instance{InstanceId: &id, State: &types.InstanceState{Name: state},
			Tags:       []types.Tag{{Key: ptr("nstance:instance-id"), Value: ptr(request().Tags.Instance.String())}},
			LaunchTime: ptr(time.Date(2030, 1, day, 0, 0, 0, 0, time.UTC))}
	}
	const running, terminated = types.InstanceStateNameRunning, types.InstanceStateNameTerminated
	for name, others := range map[string][]types.Instance{
		"the live one": {instance("i-1", terminated, 2), instance("i-2", running, 1), instance("i-3", terminated, 3)},
		"the youngest live one": {instance("i-1", running, 1), instance("i-2", running, 3),
			instance("i-3", running, 2), instance("i-4", terminated, 4)},
		"the youngest dead one":            {instance("i-3", terminated, 1), instance("i-2", terminated, 2)},
		"always the same of the same time": {instance("i-2", running, 1), instance("i-1", running, 1)},
	} {
		for range 2 {
			p, err := New(Config{Zone: "zone-a", EC2: listed{instances: others}})
			if err != nil {
				t.Fatal(err)
			}
			vm, err := p.FindByInstance(t.Context(), infra.Owner{}, request().Tags.Instance)
			if err != nil || vm.ProviderID != "i-2" {
				t.Errorf("%s: found %s, %v", name, vm.ProviderID, err)
			}
			slices.Reverse(others)
		}
	}
}
