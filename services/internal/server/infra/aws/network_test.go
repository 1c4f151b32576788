package aws

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

const (
	eni    = "eni-1"
	self   = "i-00000001"
	other  = "i-00000002"
	leader = "10.0.0.9"
)

// network implements EC2 for tests, with one network interface and some machines. Its time advances with every describe
// call.
type network struct {
	EC2
	now   time.Time
	calls []string

	attachment string // ID, or "" for none
	holder     string
	status     types.AttachmentStatus
	index      int32
	settle     int // describe calls until attaching or detaching is done
	left       int
	stubborn   bool // the holder's machine detaches only by force
	states     map[string]types.InstanceStateName
	used       []int32 // device indexes in use on this machine
	answersIn  int     // checks until the attached address answers
	zone       string
	free       types.NetworkInterfaceStatus // status without an attachment
	bound      types.NetworkInterfaceStatus // status with an attachment
	fail       map[string][]error           // errors of each call, in order
}

func newNetwork() *network {
	return &network{now: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), zone: "zone-a", used: []int32{0},
		free: types.NetworkInterfaceStatusAvailable, bound: types.NetworkInterfaceStatusInUse,
		states: map[string]types.InstanceStateName{self: types.InstanceStateNameRunning,
			other: types.InstanceStateNameRunning}, fail: map[string][]error{}}
}

// held attaches the interface to another machine and gives that machine a state. The empty state means that EC2 does
// not know the machine.
func (n *network) held(state types.InstanceStateName) *network {
	n.attachment, n.holder, n.status, n.index = "eni-attach-1", other, types.AttachmentStatusAttached, 1
	if n.states[other] = state; state == "" {
		delete(n.states, other)
	}
	return n
}

func (n *network) called(name string) error {
	n.calls = append(n.calls, name)
	name, _, _ = strings.Cut(name, " ")
	if list := n.fail[name]; len(list) > 0 {
		n.fail[name] = list[1:]
		return list[0]
	}
	return nil
}

func apiError(code string) error {
	return &smithy.OperationError{ServiceID: "EC2", Err: &smithy.GenericAPIError{Code: code, Message: "injected"}}
}

func (n *network) DescribeNetworkInterfaces(_ context.Context, in *ec2.DescribeNetworkInterfacesInput,
	_ ...func(*ec2.Options)) (*ec2.DescribeNetworkInterfacesOutput, error) {
	if err := n.called("describe"); err != nil {
		return nil, err
	}
	if n.left > 0 {
		if n.left--; n.left == 0 {
			switch n.status {
			case types.AttachmentStatusAttaching:
				n.status = types.AttachmentStatusAttached
			case types.AttachmentStatusDetaching:
				n.attachment = ""
			}
		}
	}
	out := types.NetworkInterface{NetworkInterfaceId: ptr(in.NetworkInterfaceIds[0]), AvailabilityZone: &n.zone,
		PrivateIpAddress: ptr(leader),
		Ipv6Addresses:    []types.NetworkInterfaceIpv6Address{{Ipv6Address: ptr("2001:db8::9")}},
		Status:           n.free}
	if n.attachment != "" {
		out.Status = n.bound
		out.Attachment = &types.NetworkInterfaceAttachment{AttachmentId: ptr(n.attachment), InstanceId: ptr(n.holder),
			Status: n.status, DeviceIndex: ptr(n.index)}
	}
	return &ec2.DescribeNetworkInterfacesOutput{NetworkInterfaces: []types.NetworkInterface{out}}, nil
}

func (n *network) DescribeInstances(_ context.Context, in *ec2.DescribeInstancesInput,
	_ ...func(*ec2.Options)) (*ec2.DescribeInstancesOutput, error) {
	id := in.InstanceIds[0]
	if err := n.called("instance " + id); err != nil {
		return nil, err
	}
	state, ok := n.states[id]
	if !ok {
		return nil, apiError("InvalidInstanceID.NotFound")
	}
	instance := types.Instance{InstanceId: &id, State: &types.InstanceState{Name: state}}
	for _, index := range n.used {
		instance.NetworkInterfaces = append(instance.NetworkInterfaces,
			types.InstanceNetworkInterface{Attachment: &types.InstanceNetworkInterfaceAttachment{DeviceIndex: &index}})
	}
	return &ec2.DescribeInstancesOutput{Reservations: []types.Reservation{{Instances: []types.Instance{instance}}}}, nil
}

func (n *network) AttachNetworkInterface(_ context.Context, in *ec2.AttachNetworkInterfaceInput,
	_ ...func(*ec2.Options)) (*ec2.AttachNetworkInterfaceOutput, error) {
	if err := n.called(fmt.Sprintf("attach %s %d", *in.InstanceId, *in.DeviceIndex)); err != nil {
		return nil, err
	}
	if n.attachment != "" {
		return nil, apiError("InvalidNetworkInterface.InUse")
	}
	n.attachment, n.holder, n.index, n.status, n.left = "eni-attach-2", *in.InstanceId, *in.DeviceIndex,
		types.AttachmentStatusAttaching, n.settle
	if n.settle == 0 {
		n.status = types.AttachmentStatusAttached
	}
	return &ec2.AttachNetworkInterfaceOutput{}, nil
}

func (n *network) DetachNetworkInterface(_ context.Context, in *ec2.DetachNetworkInterfaceInput,
	_ ...func(*ec2.Options)) (*ec2.DetachNetworkInterfaceOutput, error) {
	if err := n.called(fmt.Sprintf("detach %s %t", *in.AttachmentId, *in.Force)); err != nil {
		return nil, err
	}
	if n.attachment != *in.AttachmentId {
		return nil, apiError("InvalidAttachmentID.NotFound")
	}
	n.status = types.AttachmentStatusDetaching
	if n.left = max(n.settle, 1); n.stubborn && !*in.Force {
		n.left = 0
	}
	return &ec2.DetachNetworkInterfaceOutput{}, nil
}

func (n *network) provider(t *testing.T) *Provider {
	t.Helper()
	p, err := New(Config{Zone: "zone-a", EC2: n, Network: Network{Interface: eni,
		Addresses: []netip.Addr{netip.MustParseAddr(leader)}},
		Now: func() time.Time { return n.now },
		Sleep: func(ctx context.Context, d time.Duration) error {
			n.now = n.now.Add(d)
			if n.now.Sub(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)) > 10*time.Minute {
				return context.DeadlineExceeded
			}
			return ctx.Err()
		},
		Answers: func(_ context.Context, addr netip.Addr) error {
			if n.answersIn--; n.answersIn >= 0 || n.holder != self {
				return errors.New(addr.String() + " is not here yet")
			}
			return nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestTakeOver(t *testing.T) {
	for name, tc := range map[string]struct {
		network *network
		with    func(n *network)
		want    []string
	}{
		"free": {newNetwork(), nil, []string{"describe", "instance " + self, "attach " + self + " 1",
			"describe"}},
		"slow": {newNetwork(), func(n *network) {
			n.settle, n.answersIn = 2, 2
		}, []string{"describe", "instance " + self, "attach " + self + " 1", "describe", "describe", "describe",
			"describe"}},
		"index taken": {newNetwork(), func(n *network) {
			n.used = []int32{0, 1, 3}
		}, []string{"describe", "instance " + self, "attach " + self + " 2", "describe"}},
		"race for index": {newNetwork(), func(n *network) {
			n.fail["attach"] = []error{apiError("InvalidParameterValue")}
		}, []string{"describe", "instance " + self, "attach " + self + " 1", "describe", "instance " + self, "attach " +
			self + " 1", "describe"}},
		"held": {newNetwork().held(types.InstanceStateNameRunning), nil,
			[]string{"describe", "instance " + other, "detach eni-attach-1 false", "describe", "instance " + self,
				"attach " + self + " 1", "describe"}},
		"held, but called available": {newNetwork().held(types.InstanceStateNameRunning), func(n *network) {
			n.bound = types.NetworkInterfaceStatusAvailable
		}, []string{"describe", "instance " + other, "detach eni-attach-1 false", "describe", "instance " + self,
			"attach " + self + " 1", "describe"}},
		"dead holder": {newNetwork().held(types.InstanceStateNameTerminated), func(n *network) {
			n.stubborn = true
		}, []string{"describe", "instance " + other, "detach eni-attach-1 true", "describe", "instance " + self,
			"attach " + self + " 1", "describe"}},
		"stopped holder": {newNetwork().held(types.InstanceStateNameStopped), func(n *network) {
			n.stubborn = true
		}, []string{"describe", "instance " + other, "detach eni-attach-1 true", "describe", "instance " + self,
			"attach " + self + " 1", "describe"}},
		"vanished holder": {newNetwork().held(""), func(n *network) {
			n.stubborn = true
		}, []string{"describe", "instance " + other, "detach eni-attach-1 true", "describe", "instance " + self,
			"attach " + self + " 1", "describe"}},
		"lets go itself": {newNetwork().held(types.InstanceStateNameRunning), func(n *network) {
			n.fail["detach"] = []error{apiError("InvalidAttachmentID.NotFound")}
			n.status, n.left = types.AttachmentStatusDetaching, 2
		}, []string{"describe", "instance " + other, "detach eni-attach-1 false", "describe", "instance " + self,
			"attach " + self + " 1", "describe"}},
		"holder's state not known": {newNetwork().held(types.InstanceStateNameRunning), func(n *network) {
			n.fail["instance"] = []error{apiError("RequestLimitExceeded")}
		}, []string{"describe", "instance " + other, "detach eni-attach-1 false", "describe", "instance " + self,
			"attach " + self + " 1", "describe"}},
		"throttled": {newNetwork(), func(n *network) {
			n.fail["describe"] = []error{apiError("RequestLimitExceeded")}
		}, []string{"describe", "describe", "instance " + self, "attach " + self + " 1", "describe"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := tc.network
			if tc.with != nil {
				tc.with(n)
			}
			p := n.provider(t)
			if err := p.Acquire(t.Context(), self); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, n.calls); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			n.calls = nil
			if err := p.Acquire(t.Context(), self); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"describe"}, n.calls); diff != "" {
				t.Errorf("a repeat (-want +got):\n%s", diff)
			}
		})
	}
}

// TestInterfaceIsDetachedByForce checks that the interface is detached by force if another machine still runs and does
// not release it within firmAfter.
func TestInterfaceIsDetachedByForce(t *testing.T) {
	n := newNetwork().held(types.InstanceStateNameRunning)
	n.stubborn, n.settle = true, 2
	began := n.now
	if err := n.provider(t).Acquire(t.Context(), self); err != nil {
		t.Fatal(err)
	}
	var detached []string
	for _, call := range n.calls {
		if strings.HasPrefix(call, "detach") {
			detached = append(detached, call)
		}
	}
	if diff := cmp.Diff([]string{"detach eni-attach-1 false", "detach eni-attach-1 true"}, detached); diff != "" {
		t.Errorf("detached (-want +got):\n%s", diff)
	}
	if took := n.now.Sub(began); took < firmAfter || took > 3*firmAfter {
		t.Errorf("it took %s", took)
	}
}

func TestAcquireErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		with    func(n *network, p *Provider)
		class   infra.Class
		message string
	}{
		"no such interface": {func(n *network, _ *Provider) {
			n.fail["describe"] = []error{apiError("InvalidNetworkInterfaceID.NotFound")}
		}, infra.NotFound, "there is no eni-1 in this account and region"},
		"not allowed to look": {func(n *network, _ *Provider) {
			n.fail["describe"] = []error{apiError("UnauthorizedOperation")}
		}, infra.Denied, "DescribeNetworkInterfaces"},
		"never described": {func(n *network, _ *Provider) {
			n.fail["describe"] = slices.Repeat([]error{apiError("RequestLimitExceeded")}, 1000)
		}, infra.Indeterminate, "it is not known"},
		"another zone": {func(n *network, _ *Provider) {
			n.zone = "zone-b"
		}, infra.Invalid, "eni-1 is in zone-b, the shard is in zone-a"},
		"another address": {func(_ *network, p *Provider) {
			p.cfg.Network.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.8")}
		}, infra.Invalid,
			"10.0.0.8 is not an address of eni-1, which has 10.0.0.9, 2001:db8::9"},
		"not allowed": {func(n *network, _ *Provider) {
			n.fail["attach"] = []error{apiError("UnauthorizedOperation")}
		}, infra.Denied, "AttachNetworkInterface"},
		"primary interface": {func(n *network, _ *Provider) {
			n.held(types.InstanceStateNameRunning).index = 0
		}, infra.Invalid, "must be one that can be detached"},
		"attached to something else": {func(n *network, _ *Provider) {
			n.held(types.InstanceStateNameRunning).holder = ""
		}, infra.Invalid, "must be one that can be detached"},
		"never configured": {func(n *network, _ *Provider) {
			n.answersIn = 1 << 30
		}, infra.Indeterminate, "it is attached to i-00000001, but 10.0.0.9 is not here yet"},
		"never free": {func(n *network, _ *Provider) {
			n.held(types.InstanceStateNameRunning).settle = 1 << 30
		}, infra.Indeterminate, "it is detaching from i-00000002"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork()
			p := n.provider(t)
			tc.with(n, p)
			err := p.Acquire(t.Context(), self)
			if infra.ClassOf(err) != tc.class || !strings.Contains(fmt.Sprint(err), tc.message) {
				t.Errorf("error %v of class %q, want %q with %q", err, infra.ClassOf(err), tc.class, tc.message)
			}
		})
	}
	n := newNetwork()
	if err := n.provider(t).Acquire(t.Context(), ""); err == nil || len(n.calls) != 0 {
		t.Errorf("a machine without ID: %v after %v", err, n.calls)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n = newNetwork().held(types.InstanceStateNameRunning)
	n.stubborn = true
	if err := n.provider(t).Acquire(ctx, self); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
	if _, err := New(Config{Zone: "zone-a", Network: Network{Addresses: []netip.Addr{
		netip.MustParseAddr(leader)}}}); err == nil || !strings.Contains(err.Error(), "interface_id") {
		t.Errorf("an address without interface: %v", err)
	}
}

func TestRelease(t *testing.T) {
	for name, tc := range map[string]struct {
		network *network
		want    []string
	}{
		"free":             {newNetwork(), []string{"describe"}},
		"another server's": {newNetwork().held(types.InstanceStateNameRunning), []string{"describe"}},
		"ours": {&network{attachment: "a", holder: self, status: types.AttachmentStatusAttached, index: 1,
			zone: "zone-a"}, []string{"describe", "detach a false"}},
		"still attaching": {&network{attachment: "a", holder: self, status: types.AttachmentStatusAttaching, index: 1,
			zone: "zone-a"}, []string{"describe", "detach a false"}},
		"already detaching": {&network{attachment: "a", holder: self, status: types.AttachmentStatusDetaching, index: 1,
			zone: "zone-a"}, []string{"describe"}},
		"already detached": {&network{attachment: "a", holder: self, status: types.AttachmentStatusDetached, index: 1,
			zone: "zone-a"}, []string{"describe"}},
		"gone by then": {&network{attachment: "a", holder: self, status: types.AttachmentStatusAttached, index: 1,
			zone: "zone-a",
			fail: map[string][]error{"detach": {apiError("InvalidAttachmentID.NotFound")}}},
			[]string{"describe", "detach a false"}},
	} {
		if err := tc.network.provider(t).Release(t.Context(), self); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(tc.want, tc.network.calls); diff != "" {
			t.Errorf("%s: calls (-want +got):\n%s", name, diff)
		}
	}
	for _, call := range []string{"describe", "detach"} {
		n := &network{attachment: "a", holder: self, status: types.AttachmentStatusAttached, index: 1, zone: "zone-a",
			fail: map[string][]error{call: {apiError("UnauthorizedOperation")}}}
		if err := n.provider(t).Release(t.Context(), self); infra.ClassOf(err) != infra.Denied {
			t.Errorf("not allowed to %s: %v", call, err)
		}
	}
}

// TestInterfaceInTransition checks that an interface without an attachment is attached only if it is available, and
// that the answer of EC2 may lack attachments.
func TestInterfaceInTransition(t *testing.T) {
	for status, attached := range map[types.NetworkInterfaceStatus]bool{types.NetworkInterfaceStatusAvailable: true,
		types.NetworkInterfaceStatusInUse: false, types.NetworkInterfaceStatusAssociated: false} {
		n := newNetwork()
		n.free = status
		err := n.provider(t).Acquire(t.Context(), self)
		if tried := slices.Contains(n.calls, "attach "+self+" 1"); tried != attached || (err == nil) != attached {
			t.Errorf("%s: attached %v, %v", status, tried, err)
		}
	}
	one := types.InstanceNetworkInterface{Attachment: &types.InstanceNetworkInterfaceAttachment{DeviceIndex: ptr(
		int32(1))}}
	if index := freeIndex([]types.InstanceNetworkInterface{{}, one}); index != 2 {
		t.Errorf("free index %d, want 2", index)
	}
}

// TestAddressesOfInterface checks that the leader's address may be any address of its interface.
func TestAddressesOfInterface(t *testing.T) {
	got := addressesOf(types.NetworkInterface{PrivateIpAddress: ptr("10.0.0.4"),
		PrivateIpAddresses: []types.NetworkInterfacePrivateIpAddress{{PrivateIpAddress: ptr("10.0.0.4")},
			{PrivateIpAddress: ptr("10.0.0.5")}, {}},
		Ipv6Addresses: []types.NetworkInterfaceIpv6Address{{Ipv6Address: ptr("2001:db8::4")}}})
	if text := listText(got); text != "10.0.0.4, 10.0.0.5, 2001:db8::4" {
		t.Errorf("addresses %s", text)
	}
}

// TestAnswers checks the function answers with the real kernel.
