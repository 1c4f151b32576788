package ec2

import "github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"

// boot starts the machine of an instance. Without real machines, the instance is running after the boot time.
func (s *Service) boot(i *instance) {
	i.start++
	if s.cfg.Machines == nil || i.keyRefused {
		i.due = s.cfg.Now().Add(s.bootTime)
		return
	}
	start := i.start
	primary, others := s.nics(i)
	machine, err := s.cfg.Machines.Start(MachineSpec{
		ID: i.id, Userdata: i.userdata, Image: i.image.id, Primary: primary,
		TokensRequired: value(i.data.MetadataOptions.HTTPTokens) == "required",
		HopLimit:       int(value(i.data.MetadataOptions.HTTPPutResponseHopLimit)),
		Metadata: func(path string) (string, bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.metadata(i, path)
		},
		Exited: func() { s.exited(i, start) },
	})
	if err != nil {
		s.cfg.Log.Error("machine did not start", "instance_id", i.id, "error", err)
		s.end(i, stateShuttingDown, byFailure)
		return
	}
	i.machine, i.console = machine, machine.Console
	for _, nic := range others {
		if err := machine.Plug(nic); err != nil {
			s.cfg.Log.Error("network interface not plugged", "instance_id", i.id, "mac", nic.MAC, "error", err)
		}
	}
	i.due = s.cfg.Now() // the machine has started: the next settle sets the state to running
}

// unhook detaches the machine from an instance. Later events of the machine are ignored.
func (s *Service) unhook(i *instance) Machine {
	machine := i.machine
	i.machine = nil
	i.start++
	return machine
}

// halt stops the machine of an instance in the background, because processes in the machine may wait for the cloud.
// halt calls then with the lock held when the machine has stopped, or immediately without a machine.
func (s *Service) halt(i *instance, then func()) {
	machine := s.unhook(i)
	if machine == nil {
		then()
		return
	}
	start := i.start
	go func() {
		machine.Stop()
		s.mu.Lock()
		defer s.mu.Unlock()
		if i.start != start { // another operation has changed the instance since
			return
		}
		then()
		s.settle()
	}()
}

// exited handles the exit of a machine. InstanceInitiatedShutdownBehavior decides whether the instance stops or
// terminates.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_ChangingInstanceInitiatedShutdownBehavior.html
func (s *Service) exited(i *instance, start int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i.start != start || !i.alive() {
		return
	}
	machine := s.unhook(i)
	into := stateStopping
	if value(i.data.InstanceInitiatedShutdownBehavior) == "terminate" || i.spot != nil && i.spot.kind == "one-time" {
		into = stateShuttingDown
	}
	s.enter(i, into, byInstance)
	i.due = s.cfg.Now().Add(s.stopTime)
	if machine != nil {
		go machine.Stop() // frees what its init left behind
	}
	s.settle()
}

// plug connects a network interface to a running machine. unplug disconnects it. Both do nothing without a machine.
func (s *Service) plug(instanceID string, nic NIC) error {
	i := s.instances[instanceID]
	if i == nil || i.machine == nil {
		return nil
	}
	if err := i.machine.Plug(nic); err != nil {
		return wire.Errorf(500, "InternalError", "fakeaws: plug %s into %s: %v", nic.MAC, instanceID, err)
	}
	return nil
}

func (s *Service) unplug(instanceID, mac string) error {
	i := s.instances[instanceID]
	if i == nil || i.machine == nil {
		return nil
	}
	if err := i.machine.Unplug(mac); err != nil {
		return wire.Errorf(500, "InternalError", "fakeaws: unplug %s from %s: %v", mac, instanceID, err)
	}
	return nil
}
