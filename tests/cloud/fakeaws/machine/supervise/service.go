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

// service is what init knows of one unit. Its fields are guarded by the manager's mutex.
type service struct {
	m    *Manager
	name string
	// definition is what was read last; nil: to be read.
	definition *unit.Service
	// run is nil while nothing runs nor is to be restarted.
	run *run

	state, sub, result, status, invocation string
	main                                   int // PID, 0 when there is none
	mainStatus                             syscall.WaitStatus
	mainEnded                              bool
	restarts                               int
	// starts are the times of the last ones, for the limit.
	starts []time.Time
}

// run is a service from the request to start it until it is down for good.
type run struct {
	// decided is closed when the start was successful or was not, which err tells.
	decided chan struct{}
	decide  func(error)
	err     error
	// stop is closed when it is to stop, done when nothing of it is left.
	stop     chan struct{}
	stopOnce func()
	done     chan struct{}
	// reload carries requests with where to answer.
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

// loop runs the service, again and again as its unit says.
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
		r.decide(fmt.Errorf("the service ended with result '%s'", result)) // unless it was up before
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

// end leaves the service down.
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

// mayStart counts a start against StartLimitBurst=.
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

// after is like time.After, and never for an endless span.
func after(d time.Duration) <-chan time.Time {
	if d == unit.Infinity {
		return nil
	}
	return time.After(d)
}

// removeRuntime removes the runtime directories of a service that is down, or between two of its lives.
func removeRuntime(def *unit.Service, down bool) {
	for _, d := range def.Directories {
		if d.Kind.Variable == "RUNTIME_DIRECTORY" && (def.PreserveRuntime == "no" || down &&
			def.PreserveRuntime == "restart") {
			_ = os.RemoveAll(d.Kind.Base + "/" + d.Path) // what stays is overwritten
		}
	}
}
