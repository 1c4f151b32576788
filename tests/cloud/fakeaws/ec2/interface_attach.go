package ec2

import (
	"slices"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

func noAttachment(id string) error {
	return failf("InvalidAttachmentID.NotFound", "The interface attachment '%s' does not exist.", id)
}

// attachInterface attaches an interface to an instance.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_AttachNetworkInterface.html
func (s *Service) attachInterface(c *wire.Call) (any, error) {
	var in struct {
		NetworkInterfaceID string `query:"NetworkInterfaceId"`
		InstanceID         string `query:"InstanceId"`
		DeviceIndex        *int
		NetworkCardIndex   int
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "AttachNetworkInterface", in.InstanceID, in.NetworkInterfaceID); err != nil {
		return nil, err
	}
	s.settle()
	if in.DeviceIndex == nil {
		return nil, missing("deviceIndex")
	}
	i, err := s.interfaceByID(in.NetworkInterfaceID)
	if err != nil {
		return nil, err
	}
	if in.InstanceID == "" {
		return nil, missing("instanceId")
	}
	vm, err := s.instanceByID(in.InstanceID)
	if err != nil {
		return nil, err
	}
	attached := s.attached(vm.id)
	switch {
	case i.own() != nil:
		return nil, i.own()
	case i.Attachment != nil: // attached or still detaching
		return nil, failf("InvalidNetworkInterface.InUse", "Interface: [%s] in use.", i.id)
	case vm.state != stateRunning && vm.state != stateStopped:
		return nil, failf("IncorrectState", "Instance '%s' is not 'running' or 'stopped'.", vm.id)
	case vm.zone != i.Zone:
		return nil,
			failf("InvalidParameterCombination",
				"You may not attach a network interface to an instance if they are not in the same availability zone")
	case *in.DeviceIndex < 0 || in.NetworkCardIndex != 0:
		return nil, invalid("deviceIndex", *in.DeviceIndex)
	case slices.ContainsFunc(attached, func(o *Interface) bool { return o.Attachment.Index == *in.DeviceIndex }):
		return nil,
			failf("InvalidParameterValue", "Instance '%s' already has an interface attached at device index '%d'.",
				vm.id, *in.DeviceIndex)
	case len(attached) >= vm.kind.interfaces:
		return nil, failf("AttachmentLimitExceeded", "Interface count %d exceeds the limit for %s", len(attached)+1,
			vm.kind.name)
	}
	s.attach(i, vm.id, *in.DeviceIndex, false, s.cfg.Attaching)
	if err := s.plug(vm.id, s.nic(i)); err != nil {
		i.Attachment = nil
		return nil, err
	}
	return struct {
		ID   string `xml:"attachmentId"`
		Card int    `xml:"networkCardIndex"`
	}{i.Attachment.ID, 0}, nil
}

// detachInterface ends an attachment.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DetachNetworkInterface.html
func (s *Service) detachInterface(c *wire.Call) (any, error) {
	var in struct {
		AttachmentID string `query:"AttachmentId"`
		Force        bool
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	var i *Interface
	for _, other := range s.interfaces {
		if other.Attachment != nil && other.Attachment.ID == in.AttachmentID {
			i = other
		}
	}
	if i == nil {
		if err := s.allowAny(c, "DetachNetworkInterface"); err != nil {
			return nil, err
		}
		if in.AttachmentID == "" {
			return nil, missing("attachmentId")
		}
		return nil, noAttachment(in.AttachmentID)
	}
	ids := []string{i.id}
	if i.Attachment.Instance != "" {
		ids = []string{i.Attachment.Instance, i.id}
	}
	if err := s.allow(c, "DetachNetworkInterface", ids...); err != nil {
		return nil, err
	}
	a := i.Attachment
	switch {
	case a.Instance == "":
		return nil, failf("OperationNotPermitted", "You are not allowed to manage 'ela-attach' attachments.")
	case a.Index == 0:
		return nil,
			failf("OperationNotPermitted",
				"The network interface at device index 0 and networkCard index 0 cannot be detached.")
	case a.detaching && in.Force:
		s.detached(i)
	case a.detaching: // already detaching
	default:
		if err := s.unplug(a.Instance, i.MAC); err != nil && !in.Force {
			return nil, err
		}
		a.detaching, a.due = true, s.now().Add(s.cfg.Attaching)
		s.settleInterfaces()
	}
	return ok, nil
}
