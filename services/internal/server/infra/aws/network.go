package aws

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/nstance-kit/nstance/services/contract/reconnect"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/store/awscloud"
)

const (
	// acquireTimeout bounds one attempt to acquire the address. The caller must retry.
	acquireTimeout = 90 * time.Second
	// firmAfter is the time that the machine with the interface has to release it, if that machine still runs. The time
	// counts from the start of the attempt to acquire. After that time, the interface is detached by force.
	firmAfter = 5 * time.Second
	// lookSoon and lookLater are the intervals between two checks of the interface.
	lookSoon, lookLater = 250 * time.Millisecond, 2 * time.Second
)

// Acquire implements infra.LeaderNetwork. It detaches the network interface from the machine that has it, and attaches
// it to this machine. It returns when this machine can use the addresses and has routes for their replies. If nothing
// has to change, Acquire makes only one DescribeNetworkInterfaces call.
//
// Only the leader may call Acquire. Acquire first detaches without force. It uses force after firmAfter, or immediately
// if the holder is dead.
func (p *Provider) Acquire(ctx context.Context, machineID string) error {
	what := "take " + p.cfg.Network.Interface
	if err := p.checkNetwork(machineID); err != nil {
		return infra.Wrap(infra.Invalid, what, err)
	}
	ctx, cancel := context.WithTimeout(ctx, acquireTimeout)
	defer cancel()
	t := takeover{p: p, what: what, machine: machineID, began: p.cfg.Now()}
	for tries := 1; ; tries++ {
		done, err := t.step(ctx)
		if done {
			return nil
		}
		if err != nil && !passing(err) {
			return err
		}
		if sleepErr := p.cfg.Sleep(ctx, reconnect.Backoff(lookSoon, lookLater, tries)); sleepErr != nil {
			return infra.Wrap(infra.Indeterminate, what, errors.Join(fmt.Errorf("%w, and it is %s", sleepErr, t.seen),
				err))
		}
	}
}

// takeover is one attempt to acquire the address.
type takeover struct {
	p       *Provider
	what    string
	machine string
	began   time.Time
	// seen describes the last known state of the interface, for errors.
	seen string
	// asked is the ID of the attachment that the provider last asked EC2 to end. firmly reports whether it asked EC2 to
	// use force.
	asked  string
	firmly bool
}

// step asks EC2 for the state of the interface and makes the next call that the takeover needs. done is true if the
// takeover is complete. If step fails, and the function passing returns true for the error, the caller may call step
// again.
func (t *takeover) step(ctx context.Context) (done bool, err error) {
	eni, err := t.p.networkInterface(ctx, t.what)
	if err != nil {
		t.seen = cmp.Or(t.seen, "not known")
		return false, err
	}
	t.seen = sight(eni)
	attachment := eni.Attachment
	switch {
	case attachment == nil && eni.Status == types.NetworkInterfaceStatusAvailable:
		return false, t.attach(ctx)
	case attachment == nil:
		return false, nil // attaching
	case deref(attachment.InstanceId) != t.machine:
		return false, t.take(ctx, attachment)
	case attachment.Status != types.AttachmentStatusAttached:
		return false, nil
	}
	for _, addr := range t.p.cfg.Network.Addresses {
		if err := t.p.cfg.Answers(ctx, addr); err != nil {
			t.seen += ", but " + err.Error()
			return false, nil //nolint:nilerr // not yet: the machine has yet to configure it
		}
	}
	return true, nil
}

// take ends the attachment of the interface to another machine.
func (t *takeover) take(ctx context.Context, attachment *types.NetworkInterfaceAttachment) error {
	holder, id := deref(attachment.InstanceId), deref(attachment.AttachmentId)
	if holder == "" || deref(attachment.DeviceIndex) == 0 {
		return refused(t.what, "it is %s for good: the leader's interface must be one that can be detached", t.seen)
	}
	force := t.p.cfg.Now().Sub(t.began) >= firmAfter
	if t.asked == id && (t.firmly || !force) {
		return nil // already in progress
	}
	if !force {
		state, err := t.p.MachineState(ctx, holder)
		force = infra.ClassOf(err) == infra.NotFound || err == nil && !state.Alive()
	}
	t.asked, t.firmly = id, force
	t.p.cfg.Log.Info("taking the leader's network interface from its holder", "interface", t.p.cfg.Network.Interface,
		"holder", holder, "force", force)
	return t.p.detach(ctx, t.what, id, force)
}

// attach attaches the interface to this machine at the lowest free device index.
func (t *takeover) attach(ctx context.Context) error {
	self, err := t.p.instance(ctx, t.what, t.machine)
	if err != nil {
		return err
	}
	index := freeIndex(self.NetworkInterfaces)
	_, err = call(ctx, t.what, "AttachNetworkInterface", t.p.cfg.EC2.AttachNetworkInterface,
		&ec2.AttachNetworkInterfaceInput{NetworkInterfaceId: sdk.String(t.p.cfg.Network.Interface),
			InstanceId: sdk.String(t.machine), DeviceIndex: sdk.Int32(index)}, t.p.rates.changing)
	return err
}

// freeIndex returns the lowest device index, from 1 on, that no interface has.
func freeIndex(interfaces []types.InstanceNetworkInterface) int32 {
	for index := int32(1); ; index++ {
		if !slices.ContainsFunc(interfaces, func(n types.InstanceNetworkInterface) bool {
			return n.Attachment != nil && deref(n.Attachment.DeviceIndex) == index
		}) {
			return index
		}
	}
}

// Release implements infra.LeaderNetwork. It requests the detachment and does not wait for it.
func (p *Provider) Release(ctx context.Context, machineID string) error {
	what := "give up " + p.cfg.Network.Interface
	if err := p.checkNetwork(machineID); err != nil {
		return infra.Wrap(infra.Invalid, what, err)
	}
	eni, err := p.networkInterface(ctx, what)
	if err != nil {
		return err
	}
	a := eni.Attachment
	if a == nil || deref(a.InstanceId) != machineID || a.Status == types.AttachmentStatusDetaching ||
		a.Status == types.AttachmentStatusDetached {
		return nil
	}
	if err := p.detach(ctx, what, deref(a.AttachmentId), false); err != nil && !passing(err) {
		return err
	}
	return nil
}

func (p *Provider) checkNetwork(machineID string) error {
	switch {
	case p.cfg.Network.Interface == "":
		return errors.New("server.leader_network.interface_id is not set")
	case machineID == "":
		return errors.New("this machine's instance ID is not known: the instance metadata service does not answer")
	}
	return nil
}

func (p *Provider) detach(ctx context.Context, what, attachment string, force bool) error {
	_, err := call(ctx, what, "DetachNetworkInterface", p.cfg.EC2.DetachNetworkInterface,
		&ec2.DetachNetworkInterfaceInput{AttachmentId: &attachment, Force: &force}, p.rates.changing)
	return err
}

// networkInterface describes the leader's network interface and checks its zone and addresses against the
// configuration.
func (p *Provider) networkInterface(ctx context.Context, what string) (types.NetworkInterface, error) {
	id := p.cfg.Network.Interface
	out, err := call(ctx, what, "DescribeNetworkInterfaces", p.cfg.EC2.DescribeNetworkInterfaces,
		&ec2.DescribeNetworkInterfacesInput{NetworkInterfaceIds: []string{id}})
	if err != nil && infra.ClassOf(err) != infra.NotFound {
		return types.NetworkInterface{}, err
	}
	i := -1
	if err == nil {
		i = slices.IndexFunc(out.NetworkInterfaces, func(n types.NetworkInterface) bool {
			return deref(n.NetworkInterfaceId) == id
		})
	}
	if i < 0 {
		return types.NetworkInterface{}, infra.Errorf(infra.NotFound, what,
			"server.leader_network.interface_id: there is no %s in this account and region", id)
	}
	eni := out.NetworkInterfaces[i]
	if zone := deref(eni.AvailabilityZone); zone != p.cfg.Zone {
		return eni,
			refused(what,
				"server.leader_network.interface_id: %s is in %s, the shard is in %s: an interface does not leave "+
					"its zone", id, zone, p.cfg.Zone)
	}
	has := addressesOf(eni)
	for _, addr := range p.cfg.Network.Addresses {
		if !slices.Contains(has, addr) {
			return eni, refused(what, "server.leader_network: %s is not an address of %s, which has %s", addr, id,
				listText(has))
		}
	}
	return eni, nil
}

func addressesOf(eni types.NetworkInterface) (addrs []netip.Addr) {
	add := func(text string) {
		if addr, err := netip.ParseAddr(text); err == nil && !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	add(deref(eni.PrivateIpAddress))
	for _, a := range eni.PrivateIpAddresses {
		add(deref(a.PrivateIpAddress))
	}
	for _, a := range eni.Ipv6Addresses {
		add(deref(a.Ipv6Address))
	}
	return addrs
}

func listText(addrs []netip.Addr) string {
	texts := make([]string, len(addrs))
	for i, a := range addrs {
		texts[i] = a.String()
	}
	return cmp.Or(strings.Join(texts, ", "), "none")
}

// sight describes the state of an interface in words.
func sight(eni types.NetworkInterface) string {
	a := eni.Attachment
	if a == nil {
		return cmp.Or(string(eni.Status), "in an unknown state")
	}
	holder := cmp.Or(deref(a.InstanceId), deref(a.InstanceOwnerId), "something")
	if a.Status == types.AttachmentStatusDetaching {
		return "detaching from " + holder
	}
	return cmp.Or(string(a.Status), "attached") + " to " + holder
}

// passingCodes lists the error codes of temporary problems. Examples: another server has just changed the interface, or
// a change is in progress.
var passingCodes = []string{
	"IncorrectState", "IncorrectInstanceState", "InvalidAttachment.NotFound", "InvalidAttachmentID.NotFound",
	"InvalidNetworkInterface.InUse",
	// AttachNetworkInterface returns InvalidParameterValue if another interface has just taken the device index.
	"InvalidNetworkInterfaceAttachmentID.NotFound", "InvalidParameterValue",
}

// passing reports whether the caller should describe the interface again after an error.
func passing(err error) bool {
	switch infra.ClassOf(err) {
	case infra.Throttled, infra.Indeterminate:
		return true
	default:
		return slices.Contains(passingCodes, awscloud.CodeOf(err))
	}
}

// answers checks with the kernel that an address belongs to this machine, that it can be used, and that replies from it
// leave by its interface. An interface can have an IPv6 address that is not usable until it is known to be unique (RFC
// 4862, section 5.4). The check sends no packets to other machines.
func answers(ctx context.Context, addr netip.Addr) error {
	on, err := interfaceOf(addr)
	if err != nil {
		return err
	}
	if err := infra.Answers(ctx, addr); err != nil {
		return err
	}
	by, err := replyInterface(addr)
	if err != nil {
		return fmt.Errorf("no route for replies from %s, an address of %s: %w", addr, on, err)
	}
	if by != on {
		return fmt.Errorf("replies from %s, an address of %s, leave by %s, and EC2 drops them: the boot script of the "+
			"servers must write the network configuration of the leader's interface (leader_network)", addr, on, by)
	}
	return nil
}

// interfaceOf returns the name of this machine's interface that has the address.
func interfaceOf(addr netip.Addr) (string, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("read the interfaces of this machine: %w", err)
	}
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		if err != nil {
			continue // The interface was removed meanwhile.
		}
		if slices.ContainsFunc(addrs, func(a net.Addr) bool {
			n, ok := a.(*net.IPNet)
			if !ok {
				return false
			}
			own, _ := netip.AddrFromSlice(n.IP)
			return own.Unmap() == addr
		}) {
			return i.Name, nil
		}
	}
	return "", fmt.Errorf("%s is on none of this machine's interfaces", addr)
}
