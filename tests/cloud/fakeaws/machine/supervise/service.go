package supervise

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/machine/unit"
)

// States of a unit, and results of a service. systemctl(1), systemd.exec(5).
const (
	inactive     = "inactive"
	activating   = "activating"
	active       = "active"
	reloading    = "reloading"
	deactivating = "deactivating"
	failed       = "failed"

	success  = "success"
	timedOut = "timeout"
	watchdog = "watchdog"
	protocol = "protocol"
	resource = "resources"
	limitHit = "start-limit-hit"
)

// service is init's state of one unit. The manager's mutex guards its fields.
type service struct {
	m    *Manager
	name string
	// definition is the unit as last read. If it is nil, the unit must be read again.
	definition *unit.Service
	// run is nil unless the service runs or waits for a restart.
	run *run

	state, sub, result, status, invocation string
	main                                   int // PID; 0 without a process.
	mainStatus                             syscall.WaitStatus
	mainEnded                              bool
	restarts                               int
	// starts are the times of the recent starts, for StartLimitBurst=.
	starts []time.Time
}

// run is the time from a request to start a service until the service stays down. It covers restarts.
type run struct {
	// decided is closed when the start has succeeded or failed. err is set before.
	decided chan struct{}
	decide  func(error)
	err     error
	// stop is closed to ask the service to stop. done is closed when nothing of the service is left.
	stop     chan struct{}
	stopOnce func()
	done     chan struct{}
	// reload carries requests to reload. Each request is a channel for the answer.
	reload chan chan error
}

func newRun() *run {
	r := &run{decided: make(chan struct{}), stop: make(chan struct{}), done: make(chan struct{}),
		reload: make(chan chan error)}
	var once sync.Once
	r.decide = func(err error) {
		once.Do(func() {
			r.err = err
			close(r.decided)
		})
	}
	r.stopOnce = sync.OnceFunc(func() { close(r.stop) })
	return r
}

func (r *run) stopping() bool {
	select {
	case <-r.stop:
		return true
	default:
		return false
	}
}

func (s *service) set(state, sub string) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.state, s.sub = state, sub
}

// loop runs the service and restarts it as its unit defines.
func (s *service) loop(r *run) {
	defer close(r.done)
	for {
		def, err := s.m.definition(s)
		if err != nil {
			s.end(r, nil, resource, err)
			return
		}
		if !s.mayStart(def) {
			s.m.journal.say("%s: Start request repeated too quickly.", s.name)
			s.end(r, def, limitHit, fmt.Errorf("start request repeated too quickly"))
			s.m.act(def.StartLimitAction, s.name+" was started too often")
			return
		}
		if ok, asserted := s.m.met(def); !ok {
			s.set(inactive, "dead")
			s.m.finish(s, r)
			if asserted {
				err = errors.New("an assertion of the unit is not met")
			}
			r.decide(err)
			return
		}
		i := &invocation{service: s, def: def, run: r, sessions: map[int]bool{}}
		result := i.execute()
		if result != success {
			s.m.journal.say("%s: Failed with result '%s'.", s.name, result)
		}
		r.decide(fmt.Errorf("the service ended with result '%s'", result)) // Without effect if it was up before.
		if r.stopping() || !i.restarts(result) {
			s.end(r, def, result, nil)
			if result != success {
				s.m.act(def.FailureAction, s.name+" failed")
			} else if !r.stopping() {
				s.m.act(def.SuccessAction, s.name+" ended")
			}
			return
		}
		removeRuntime(def, false)
		s.m.mu.Lock()
		s.state, s.sub, s.result = activating, "auto-restart", result
		s.restarts++
		n := s.restarts
		s.m.mu.Unlock()
		select {
		case <-r.stop:
			s.end(r, def, success, nil)
			return
		case <-after(def.RestartAfter):
		}
		s.m.journal.say("%s: Scheduled restart job, restart counter is at %d.", s.name, n)
	}
}

// end records that the service is down.
func (s *service) end(r *run, def *unit.Service, result string, err error) {
	if def != nil {
		removeRuntime(def, true)
	}
	s.m.mu.Lock()
	s.result = result
	if s.state, s.sub = inactive, "dead"; result != success {
		s.state, s.sub = failed, failed
	}
	s.m.mu.Unlock()
	if err != nil {
		s.m.journal.say("Failed to start %s: %v", s.name, err)
	} else {
		s.m.journal.say("Stopped %s.", s.name)
	}
	s.m.finish(s, r)
	r.decide(err)
}

// mayStart counts a start against StartLimitBurst=. It reports whether the start is within the limit.
func (s *service) mayStart(def *unit.Service) bool {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if def.StartLimitInterval == 0 || def.StartLimitBurst == 0 {
		return true
	}
	now := time.Now()
	s.starts = slices.DeleteFunc(s.starts, func(t time.Time) bool { return now.Sub(t) >= def.StartLimitInterval })
	if len(s.starts) >= def.StartLimitBurst {
		return false
	}
	s.starts = append(s.starts, now)
	return true
}

// after is like time.After, but returns nil for an infinite duration.
func after(d time.Duration) <-chan time.Time {
	if d == unit.Infinity {
		return nil
	}
	return time.After(d)
}

// removeRuntime removes the runtime directories of a service that is down or about to restart, as far as
// RuntimeDirectoryPreserve= permits.
func removeRuntime(def *unit.Service, down bool) {
	for _, d := range def.Directories {
		if d.Kind.Variable == "RUNTIME_DIRECTORY" && (def.PreserveRuntime == "no" || down &&
			def.PreserveRuntime == "restart") {
			_ = os.RemoveAll(d.Kind.Base + "/" + d.Path) // The next start overwrites what is left.
		}
	}
}
