package ec2

import (
	"net/netip"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// SetHibernatable sets how long after its start an instance can hibernate. On AWS, this takes about two minutes. With
// 0, the default, an instance can hibernate as soon as it runs. It takes the cloud's lock.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/troubleshoot-instance-hibernate.html
func (s *Service) SetHibernatable(after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hibernatable = after
}

// stopInstances stops or hibernates instances.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StopInstances.html
func (s *Service) stopInstances(c *wire.Call) (any, error) {
	var in struct {
		DryRun, Force, Hibernate, SkipOsShutdown bool
		InstanceID                               []string `query:"InstanceId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	instances, err := s.several(c, in.InstanceID)
	if err != nil {
		return nil, err
	}
	if err := dryRun(in.DryRun); err != nil {
		return nil, err
	}
	why := byUser
	if in.Hibernate {
		why = byHibernate
	}
	for _, i := range instances {
		if err := s.stoppable(i, in.Hibernate); err != nil {
			return nil, err
		}
	}
	return change(instances, func(i *instance) {
		if i.state == stateRunning {
			s.end(i, stateStopping, why)
		}
	}), nil
}

// stoppable returns the error of a stop that EC2 refuses. An instance that stops or is stopped can be stopped again,
// which has no effect.
func (s *Service) stoppable(i *instance, hibernate bool) error {
	switch {
	case i.state != stateRunning && i.state != stateStopping && i.state != stateStopped:
		return failf("IncorrectInstanceState",
			"This instance '%s' is not in a state from which it can be stopped.", i.id)
	case i.spot != nil && i.spot.kind == "one-time":
		return failf("UnsupportedOperation", "You can't stop the Spot Instance '%s' because it is associated with a "+
			"one-time Spot Instance request. You can only stop Spot Instances associated with persistent Spot "+
			"Instance requests.", i.id)
	case value(i.data.DisableAPIStop):
		return failf("OperationNotPermitted", "The instance '%s' may not be stopped. Modify its 'disableApiStop' "+
			"instance attribute and try again.", i.id)
	case hibernate && (i.data.HibernationOptions == nil || !value(i.data.HibernationOptions.Configured)):
		return failf("UnsupportedHibernationConfiguration",
			"The instance can't be hibernated because it was not configured at launch for hibernation: %s", i.id)
	case hibernate && i.state == stateRunning && s.cfg.Now().Sub(i.launched) < s.hibernatable:
		return failf("UnsupportedOperation", "Instance %s is not ready to hibernate yet, retry in a few minutes", i.id)
	}
	return nil
}

// startInstances starts stopped instances.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StartInstances.html
func (s *Service) startInstances(c *wire.Call) (any, error) {
	var in struct {
		DryRun     bool
		InstanceID []string `query:"InstanceId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	instances, err := s.several(c, in.InstanceID)
	if err != nil {
		return nil, err
	}
	if err := dryRun(in.DryRun); err != nil {
		return nil, err
	}
	vcpus, _ := s.used()
	for _, i := range instances {
		if i.state == stateStopped && i.spot == nil {
			vcpus += i.kind.vcpus
		}
		if err := s.startable(i, vcpus); err != nil {
			return nil, err
		}
	}
	return change(instances, func(i *instance) {
		if i.state == stateStopped {
			s.start(c, i)
		}
	}), nil
}

// startable returns the error of a start that EC2 refuses. The parameter vcpus is the number of vCPUs of all on-demand
// instances after the start.
func (s *Service) startable(i *instance, vcpus int) error {
	switch {
	case i.state == stateRunning || i.state == statePending:
		return nil
	case i.state != stateStopped:
		return failf("IncorrectInstanceState",
			"The instance '%s' is not in a state from which it can be started.", i.id)
	case i.spot != nil && i.reason == bySpotStop:
		return failf("IncorrectSpotRequestState", "You can't start the Spot Instance '%s' because the associated Spot "+
			"Instance request is not in an appropriate state to support start.", i.id)
	case i.spot == nil && s.vcpuLimit > 0 && vcpus > s.vcpuLimit:
		return s.tooManyVCPUs()
	case s.cfg.Faults != nil:
		return s.cfg.Faults.Capacity(i.kind.name, i.zone, i.subnet)
	}
	return nil
}

// start starts a stopped instance. If the caller may not create a grant for a volume's KMS key, the instance stops
// again. https://repost.aws/knowledge-center/kms-iam-ec2-permission
func (s *Service) start(c *wire.Call, i *instance) {
	i.keyRefused = slices.ContainsFunc(i.volumes, func(id string) bool {
		v := s.volumes[id]
		return v != nil && !s.mayUseKey(c, v.kmsKey, "", "kms:CreateGrant")
	})
	s.enter(i, statePending, nil)
	i.launched, i.restarted = i.changed, true
	for _, eni := range i.public {
		eni.Public = s.newPublicAddress()
	}
	i.public = nil
	s.boot(i)
}

// releasePublic takes away the public addresses that AWS assigned to an instance. The instance gets new ones when it
// starts. Private and elastic addresses stay.
func (s *Service) releasePublic(i *instance) {
	for _, eni := range s.attached(i.id) {
		if eni.Public.IsValid() {
			i.public = append(i.public, eni)
			eni.Public = netip.Addr{}
		}
	}
}
