package supervise

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/machine/unit"
)

// The states of a unit are those of systemctl(1). The results of a service are those of systemd.exec(5).
const (
	inactive     = "inactive"
	activating   = "activating"
	active       = "active"
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
	// definition is what the unit file contained when it was last read. Nil means that the file must be read again.
	definition *unit.Service
	// run is nil unless the service runs or waits for a restart.
	run *run

	state, sub, result string
	main               int // PID; 0 without a process.
	restarts           int
	// starts are the times of those starts that count towards StartLimitBurst=.
	starts []time.Time
}

// run is one request to start a service, with all restarts that follow. It lasts until the service is not restarted any
// more.
type run struct {
	// decided is closed when the start has succeeded or failed. err is set before that.
	decided chan struct{}
	decide  func(error)
	err     error
	// "stop" is closed to ask the service to stop. "done" is closed when the service has ended and is not restarted.
	stop     chan struct{}
	stopOnce func()
	done     chan struct{}
}

func newRun() *run {
	r := &run{decided: make(chan struct{}), stop: make(chan struct{}), done: make(chan struct{})}
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

func (s *service) setMain(pid int) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.main = pid
}

// loop runs the service and restarts it as its unit defines.
func (s *service) loop(r *run) {
	defer close(r.done)
	for {
		def, err := s.m.definition(s)
		if err != nil {
			s.end(r, resource, err)
			return
		}
		if !s.mayStart(def) {
			s.m.journal.logf("%s: Start request repeated too quickly.", s.name)
			s.end(r, limitHit, errors.New("start request repeated too quickly"))
			if def.PowerOff {
				s.m.journal.logf("poweroff: %s was started too often", s.name)
				s.m.goDown("poweroff")
			}
			return
		}
		if path := unmet(def); path != "" {
			s.m.journal.logf("%s was skipped because of an unmet condition check (ConditionPathExists=%s).", s.name,
				path)
			s.set(inactive, "dead")
			s.m.finish(s, r)
			r.decide(nil)
			return
		}
		i := &invocation{service: s, def: def, run: r}
		result := i.execute()
		if result != success {
			s.m.journal.logf("%s: Failed with result '%s'.", s.name, result)
		}
		r.decide(fmt.Errorf("the service ended with result '%s'", result)) // Without effect if it was up before.
		if r.stopping() || !def.Restart {
			s.end(r, result, nil)
			return
		}
		s.m.mu.Lock()
		s.state, s.sub, s.result = activating, "auto-restart", result
		s.restarts++
		n := s.restarts
		s.m.mu.Unlock()
		select {
		case <-r.stop:
			s.end(r, success, nil)
			return
		case <-after(def.RestartAfter):
		}
		s.m.journal.logf("%s: Scheduled restart job, restart counter is at %d.", s.name, n)
	}
}

// unmet returns the first path in the unit's ConditionPathExists= that does not exist. If all exist, it returns "".
func unmet(def *unit.Service) string {
	for _, path := range def.Conditions {
		if _, err := os.Stat(path); err != nil {
			return path
		}
	}
	return ""
}

// end records that the service is down.
func (s *service) end(r *run, result string, err error) {
	s.m.mu.Lock()
	s.result = result
	if s.state, s.sub = inactive, "dead"; result != success {
		s.state, s.sub = failed, failed
	}
	s.m.mu.Unlock()
	if err != nil {
		s.m.journal.logf("Failed to start %s: %v", s.name, err)
	} else {
		s.m.journal.logf("Stopped %s.", s.name)
	}
	s.m.finish(s, r)
	r.decide(err)
}

// mayStart reports whether StartLimitBurst= permits a start of the service now. If it does, mayStart records this
// start.
func (s *service) mayStart(def *unit.Service) bool {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if def.StartLimitInterval == 0 {
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
