package ec2

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// settle applies the changes that are due: transitional states end, spot interruptions happen, and ended instances and
// their tokens are forgotten.
func (s *Service) settle() {
	now := s.cfg.Now()
	for _, i := range sorted(s.instances) {
		if n := i.notice; n != nil && i.alive() && !now.Before(n.at) {
			s.interrupted(i)
		}
		if !i.due.IsZero() && !now.Before(i.due) {
			s.arrive(i)
		}
		if i.state == stateTerminated && now.Sub(i.changed) >= terminatedVisible {
			delete(s.instances, i.id)
			delete(s.tags, i.id)
		}
	}
	for id, r := range s.reservations {
		if !slices.ContainsFunc(r.instances, func(i *instance) bool {
			return i.state != stateTerminated || now.Sub(i.changed) < tokenValid
		}) {
			delete(s.reservations, id)
			delete(s.tokens, r.key)
		}
	}
}

// Settle applies the changes that are due, as every API call does. It takes the cloud's lock.
func (s *Service) Settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
}

// arrive ends a transitional state.
func (s *Service) arrive(i *instance) {
	i.due = time.Time{}
	switch i.state {
	case statePending:
		switch {
		case i.keyRefused && i.restarted:
			s.enter(i, stateStopped, byClient)
			s.releasePublic(i)
			return
		case i.keyRefused:
			s.end(i, stateShuttingDown, byClient)
			return
		}
		s.enter(i, stateRunning, nil)
	case stateShuttingDown:
		why, transition := i.reason, i.transition
		s.releaseInterfaces(i)
		s.releaseVolumes(i)
		s.enter(i, stateTerminated, why)
		i.transition, i.notice = transition, nil
		s.spotEnded(i)
	case stateStopping:
		why, transition := i.reason, i.transition
		s.enter(i, stateStopped, why)
		i.transition, i.notice = transition, nil
		s.releasePublic(i)
		if i.spot != nil && i.reason == bySpotStop {
			s.setSpot(i.spot, "disabled", "instance-stopped-no-capacity")
		}
	}
}

// end begins to terminate or stop an instance. The parameter into is the new state: shutting-down or stopping.
func (s *Service) end(i *instance, into string, why *stateReason) {
	takes := s.stopTime
	if i.state == stateStopped {
		takes = 0
	}
	s.enter(i, into, why)
	stop := s.halt
	if into == stateStopping {
		stop = s.putToSleep
	}
	stop(i, func() { i.due = s.cfg.Now().Add(takes) })
}

type stateXML struct {
	Code int    `xml:"code"`
	Name string `xml:"name"`
}

func stateOf(name string) stateXML { return stateXML{Code: stateCodes[name], Name: name} }

type stateChangeXML struct {
	Current  stateXML `xml:"currentState"`
	ID       string   `xml:"instanceId"`
	Previous stateXML `xml:"previousState"`
}

type stateChangesXML struct {
	Instances []stateChangeXML `xml:"instancesSet>item"`
}

// change runs the function `do` on each instance. It returns the state of each instance before and after `do`.
func change(instances []*instance, do func(i *instance)) stateChangesXML {
	var out stateChangesXML
	for _, i := range instances {
		before := i.state
		do(i)
		out.Instances = append(out.Instances, stateChangeXML{Current: stateOf(i.state), ID: i.id,
			Previous: stateOf(before)})
	}
	return out
}

// several returns the instances of a request. It returns an error if one of them does not exist, or if the caller may
// not perform the call's action on one of them. The operation then changes no instance, as on AWS.
func (s *Service) several(c *wire.Call, ids []string) ([]*instance, error) {
	instances, err := s.instancesByID(ids)
	if err != nil {
		return nil, err
	}
	return instances, s.allow(c, c.Action, ids...)
}

func (s *Service) terminateInstances(c *wire.Call) (any, error) {
	var in struct {
		DryRun, Force, SkipOsShutdown bool
		InstanceID                    []string `query:"InstanceId"`
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
	for _, i := range instances {
		if i.protection && i.alive() {
			return nil,
				failf("OperationNotPermitted",
					"The instance '%s' may not be terminated. Modify its 'disableApiTermination' instance attribute "+
						"and try again.", i.id)
		}
	}
	return change(instances, func(i *instance) {
		if i.alive() {
			s.end(i, stateShuttingDown, byUser)
		}
	}), nil
}

// interrupted terminates or stops a spot instance, as its interruption notice demands.
func (s *Service) interrupted(i *instance) {
	action := i.notice.action
	i.notice = nil
	if action == "terminate" {
		s.end(i, stateShuttingDown, bySpot)
		return
	}
	if i.state == stateRunning || i.state == statePending {
		s.end(i, stateStopping, bySpotStop)
	}
}

// Interrupt gives a spot instance its interruption notice. The interruption happens at the given time. On AWS, it
// happens two minutes after the notice. Interrupt takes the cloud's lock and reports whether the instance is a spot
// instance that is alive.
func (s *Service) Interrupt(id string, at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.instances[id]
	if i == nil || !i.alive() || i.spot == nil {
		return false
	}
	i.notice = &spotNotice{at: at, action: i.spot.behavior}
	if i.rebalance.IsZero() {
		i.rebalance = s.cfg.Now()
	}
	code := "marked-for-termination"
	if i.spot.behavior != "terminate" {
		code = "marked-for-stop"
	}
	s.setSpot(i.spot, "active", code)
	return true
}

// Rebalance gives an instance a rebalance recommendation. It takes the cloud's lock.
func (s *Service) Rebalance(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.instances[id]; i != nil && i.alive() {
		i.rebalance = s.cfg.Now()
	}
}

// scheduledEvent is a scheduled event in the form of the metadata service.
type scheduledEvent struct{ NotBefore, Code, Description, EventId, NotAfter, State string }

// Schedule gives an instance a scheduled event with the given code, such as "instance-retirement", which begins at the
// given time. With an empty code, it removes the instance's events. It takes the cloud's lock.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/viewing_scheduled_events.html
func (s *Service) Schedule(id, code string, begins time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.instances[id]
	if i == nil || !i.alive() {
		return
	}
	if code == "" {
		i.events = nil
		return
	}
	gmt := func(t time.Time) string { return t.UTC().Format("2 Jan 2006 15:04:05") + " GMT" }
	i.events = append(i.events, scheduledEvent{NotBefore: gmt(begins), NotAfter: gmt(begins.Add(2 * time.Hour)),
		Code: code, Description: "scheduled " + code, State: "active",
		EventId: fmt.Sprintf("instance-event-%017x", begins.UnixNano())})
}

// Kill terminates an instance immediately and without notice. For a spot instance, the reason is lost capacity. For
// other instances, it is a termination by a user. Kill takes the cloud's lock and returns when the instance's machine,
// if any, has stopped.
func (s *Service) Kill(id string) { s.kill(id, nil) }

// FailLaunch terminates an instance as EC2 does when a launch fails late, for example because a KMS key cannot be used.
// The code and the message are the instance's state reason. FailLaunch takes the cloud's lock.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/troubleshooting-launch.html
func (s *Service) FailLaunch(id, code, message string) {
	s.kill(id, &stateReason{Code: code, Message: code + ": " + message})
}

func (s *Service) kill(id string, reason *stateReason) {
	s.mu.Lock()
	i := s.instances[id]
	if i == nil || !i.alive() {
		s.mu.Unlock()
		return
	}
	why := byUser
	if i.spot != nil {
		why = bySpot
	}
	why = cmp.Or(reason, why)
	machine := s.unhook(i)
	s.enter(i, stateShuttingDown, why)
	s.mu.Unlock()
	if machine != nil {
		machine.Stop()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i.state == stateShuttingDown {
		s.arrive(i)
	}
}
