package ec2

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/imds"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// boot starts the machine of an instance. Without real machines, the instance is running after the boot time.
func (s *Service) boot(i *instance) {
	if i.machine == nil {
		i.start++
	}
	if s.cfg.Machines == nil || i.keyRefused {
		i.due = s.cfg.Now().Add(s.bootTime)
		return
	}
	if i.machine != nil {
		s.wake(i)
		return
	}
	start := i.start
	primary, others := s.nics(i)
	machine, err := s.cfg.Machines.Start(MachineSpec{
		ID: i.id, Hostname: machineName(i.id, primary), Userdata: i.userdata, Image: i.image.id, Primary: primary,
		DMI: machineDMI(i.id),
		Metadata: imds.New(imds.Options{
			ID: i.id, Image: i.image.id, Userdata: i.userdata,
			TokensRequired: value(i.data.MetadataOptions.HTTPTokens) == "required",
			Value: func(path string) (string, bool) {
				s.mu.Lock()
				defer s.mu.Unlock()
				return s.metadata(i, path)
			},
		}),
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

// machineName returns the host name that EC2 derives from the IPv4 address, or from the instance ID if there is no IPv4
// address. https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/hostname-types.html
func machineName(id string, primary NIC) string {
	for _, a := range primary.Addresses {
		if a.Addr().Is4() {
			return "ip-" + strings.ReplaceAll(a.Addr().String(), ".", "-")
		}
	}
	return id
}

// machineDMI returns the DMI entries of an instance. Its UUID begins with "ec2".
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/identify_ec2_instances.html
func machineDMI(id string) map[string]string {
	digest := sha256.Sum256([]byte(id))
	text := hex.EncodeToString(digest[:16])
	uuid := "ec2" + text[3:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
	return map[string]string{
		"sys_vendor": "Amazon EC2", "product_name": "t3.micro", "product_uuid": uuid, "product_serial": uuid,
		"bios_vendor": "Amazon EC2", "bios_version": "1.0", "board_vendor": "Amazon EC2", "board_asset_tag": id,
		"chassis_vendor": "Amazon EC2", "chassis_asset_tag": "Amazon EC2",
	}
}

// unhook detaches the machine from an instance. Later events of the machine are ignored.
func (s *Service) unhook(i *instance) Machine {
	machine := i.machine
	i.machine = nil
	i.start++
	return machine
}

// halt stops the machine of an instance, and then runs the callback with the cloud's lock held. The caller holds the
// lock, and the machine may itself be waiting for the lock. So halt waits for the machine in the background. Without a
// machine, halt runs the callback immediately.
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

// putToSleep puts the machine of an instance to sleep, as halt stops one. The machine keeps its disk, and its memory if
// the instance hibernates. A machine that fails to fall asleep is stopped.
func (s *Service) putToSleep(i *instance, then func()) {
	machine, start, memory := i.machine, i.start, i.reason == byHibernate
	if machine == nil {
		then()
		return
	}
	go func() {
		err := machine.Sleep(memory)
		s.mu.Lock()
		defer s.mu.Unlock()
		if i.start != start { // another operation has changed the instance since
			return
		}
		if err != nil {
			s.cfg.Log.Error("machine did not fall asleep", "instance_id", i.id, "error", err)
			s.halt(i, then)
			return
		}
		then()
		s.settle()
	}()
}

// wake wakes the machine of an instance. The instance is running as soon as its machine begins to boot.
func (s *Service) wake(i *instance) {
	machine, start := i.machine, i.start
	go func() {
		err := machine.Wake()
		s.mu.Lock()
		defer s.mu.Unlock()
		if i.start != start { // another operation has changed the instance since
			return
		}
		if err != nil {
			s.cfg.Log.Error("machine did not wake", "instance_id", i.id, "error", err)
			s.end(i, stateShuttingDown, byFailure)
			return
		}
		i.due = s.cfg.Now()
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

// plug connects a network interface to the machine of an instance. unplug disconnects it. If the instance has no
// machine, both do nothing.
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
