package supervise

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/machine/unit"
)

// States of a unit, and results of a service. systemctl(1), systemd.exec(5)
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
	r := &run{decided: make(chan struct{}), stop: make(chan struct{}), done: make(chan struct{}), reload: make(chan chan error)}
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

// lastWords is how long init waits until all that a service wrote is in the journal.
const lastWords = time.Second

// invocation is one life of a service, from its first process to its last.
type invocation struct {
	service *service
	def     *unit.Service
	run     *run

	id          string
	environment map[string]string
	account     account
	mailbox     *mailbox
	main        *process
	sessions    map[int]bool
	// outputs are closed when the output of a process was read to its end.
	outputs []<-chan struct{}

	result string
	// extended moves the deadline of the state that the service is in.
	extended time.Time
}

func (i *invocation) journal() *journal { return i.service.m.journal }

// execute returns when nothing of the invocation is left, with its result.
func (i *invocation) execute() string {
	i.result, i.id = success, newID()
	s := i.service
	s.m.mu.Lock()
	s.state, s.sub, s.invocation, s.main, s.status, s.mainEnded = activating, "start", i.id, 0, "", false
	s.m.mu.Unlock()
	if err := i.prepare(); err != nil {
		i.journal().say("%s: %v", s.name, err)
		return resource
	}
	if i.mailbox != nil {
		defer i.mailbox.close()
	}
	up := i.start()
	if up {
		i.journal().say("Started %s.", s.name)
		i.run.decide(nil)
		i.live()
	}
	s.set(deactivating, "stop")
	if up && i.result == success {
		i.control(i.def.Stop, i.def.TimeoutStop)
	}
	if i.result == watchdog {
		i.kill(i.def.WatchdogSignal, i.def.TimeoutAbort)
	} else {
		i.kill(i.def.KillSignal, i.def.TimeoutStop)
	}
	s.set(deactivating, "stop-post")
	i.environment["SERVICE_RESULT"] = i.result
	if i.ended() {
		code, status := "exited", strconv.Itoa(i.main.status.ExitStatus())
		if i.main.status.Signaled() {
			code, status = "killed", signalName(i.main.status.Signal())
		}
		i.environment["EXIT_CODE"], i.environment["EXIT_STATUS"] = code, status
	}
	i.control(i.def.StopPost, i.def.TimeoutStop)
	i.kill(syscall.SIGKILL, i.def.TimeoutStop)
	patience := time.After(lastWords)
	for _, read := range i.outputs {
		select {
		case <-read:
		case <-patience: // somebody else writes there too
		}
	}
	return i.result
}

// fail keeps the first reason.
func (i *invocation) fail(result string) {
	if i.result == success {
		i.result = result
	}
}

func (i *invocation) ended() bool {
	if i.main == nil {
		return false
	}
	select {
	case <-i.main.done:
		return true
	default:
		return false
	}
}

// start brings the service up and reports whether it is.
func (i *invocation) start() bool {
	begun := time.Now()
	if !i.control(i.def.StartPre, i.def.TimeoutStart) {
		return false
	}
	if i.def.Type == "oneshot" {
		for _, c := range i.def.Start {
			if !i.spawn(c) || !i.await(c, begun) {
				return false
			}
		}
		return i.control(i.def.StartPost, i.def.TimeoutStart)
	}
	c := i.def.Start[0]
	if !i.spawn(c) {
		return i.def.Type == "simple" && i.main != nil // its failure comes after it was started
	}
	if i.def.Type == "notify" && !i.awaitReady(begun) {
		return false
	}
	return i.control(i.def.StartPost, i.def.TimeoutStart)
}

// await waits for a command of a oneshot service.
func (i *invocation) await(c unit.Command, begun time.Time) bool {
	for {
		select {
		case <-i.main.done:
			result := i.mainResult()
			if c.IgnoreFailure {
				return true
			}
			i.fail(result)
			return result == success
		case d := <-i.mail():
			i.receive(d)
		case <-i.run.stop:
			return false
		case <-i.deadline(begun, i.def.TimeoutStart):
			i.fail(timedOut)
			return false
		}
	}
}

// awaitReady waits for READY=1.
func (i *invocation) awaitReady(begun time.Time) bool {
	for {
		select {
		case d := <-i.mail():
			if m := i.receive(d); m.ready {
				return true
			}
		case <-i.main.done:
			if !i.drain() {
				if i.fail(i.mainResult()); i.result == success {
					i.fail(protocol) // it ended well, but never was up
				}
				return false
			}
			return true
		case <-i.run.stop:
			return false
		case <-i.deadline(begun, i.def.TimeoutStart):
			i.journal().say("%s: start operation timed out. Terminating.", i.service.name)
			i.fail(timedOut)
			return false
		}
	}
}

// drain reads what a process said just before it ended and reports whether it was READY=1.
func (i *invocation) drain() bool {
	for {
		select {
		case d := <-i.mail():
			if i.receive(d).ready {
				return true
			}
		case <-time.After(20 * time.Millisecond):
			return false
		}
	}
}

func (i *invocation) mail() <-chan datagram {
	if i.mailbox == nil {
		return nil
	}
	return i.mailbox.in
}

// deadline is when a state that began then has lasted too long.
func (i *invocation) deadline(begun time.Time, timeout time.Duration) <-chan time.Time {
	if timeout == unit.Infinity {
		return nil
	}
	end := begun.Add(timeout)
	if i.extended.After(end) {
		end = i.extended
	}
	return time.After(time.Until(end))
}

// live watches over the service until it ends, is to be stopped or does not feed the watchdog.
func (i *invocation) live() {
	if i.def.Type == "oneshot" {
		if i.def.RemainAfterExit {
			i.service.set(active, "exited")
			<-i.run.stop
		}
		return
	}
	i.service.set(active, "running")
	fed := time.Now()
	span := i.def.Watchdog
	for {
		var bite <-chan time.Time
		if span > 0 {
			bite = time.After(time.Until(fed.Add(span)))
		}
		select {
		case d := <-i.mail():
			m := i.receive(d)
			if m.fed || m.ready {
				fed = time.Now()
			}
			if m.watchdog > 0 {
				span = m.watchdog
			}
			if m.trigger {
				i.bite("asked for it")
				return
			}
			switch {
			case m.ready:
				i.service.set(active, "running")
			case m.reloading:
				i.service.set(reloading, "reload")
			case m.stopping:
				i.service.set(deactivating, "stop-sigterm")
			}
		case <-bite:
			i.bite("timed out")
			return
		case <-i.main.done:
			i.fail(i.mainResult())
			if i.result == success && i.def.RemainAfterExit {
				i.service.set(active, "exited")
				<-i.run.stop
			}
			return
		case answer := <-i.run.reload:
			i.service.set(reloading, "reload")
			var err error
			if before := i.result; !i.control(i.def.Reload, i.def.TimeoutStart) {
				err, i.result = errors.New("ExecReload= failed"), before // which is no failure of the service
			}
			i.service.set(active, "running")
			answer <- err
		case <-i.run.stop:
			return
		}
	}
}

func (i *invocation) bite(why string) {
	i.journal().say("%s: Watchdog %s (limit %s)!", i.service.name, why, i.def.Watchdog)
	i.fail(watchdog)
}

// receive takes note of what the service said, when the sender may say it.
func (i *invocation) receive(d datagram) message {
	pids := []int{}
	switch i.def.NotifyAccess {
	case "main":
		if i.main != nil {
			pids = append(pids, i.main.pid)
		}
	case "exec", "all":
		pids = members(i.id, i.sessions)
	}
	// A sender that has ended meanwhile is in no list.
	if !slices.Contains(pids, d.pid) && i.def.NotifyAccess != "all" {
		i.journal().say("%s: Got notification message from PID %d, but reception is not permitted", i.service.name, d.pid)
		return message{}
	}
	m, err := parseMessage(d.text)
	if err != nil {
		i.journal().say("%s: notification from PID %d: %v", i.service.name, d.pid, err)
		return message{}
	}
	for _, entry := range m.unknown {
		i.journal().say("%s: notification from PID %d: %q is not understood", i.service.name, d.pid, entry)
	}
	if m.extend > 0 {
		i.extended = time.Now().Add(m.extend)
	}
	if m.mainPID > 0 {
		if p, ok := i.service.m.processes.adopt(m.mainPID); ok {
			i.main = p
		}
	}
	s := i.service
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if m.status != nil {
		s.status = *m.status
	}
	if i.main != nil {
		s.main = i.main.pid
	}
	return m
}

// mainResult is what the end of the main process means.
func (i *invocation) mainResult() string {
	status := i.main.status
	s := i.service
	s.m.mu.Lock()
	s.main, s.mainStatus, s.mainEnded = 0, status, true
	s.m.mu.Unlock()
	how, code := "exited", strconv.Itoa(status.ExitStatus())
	if status.Signaled() {
		how, code = "killed", signalName(status.Signal())
	}
	if status != 0 {
		i.journal().say("%s: Main process exited, code=%s, status=%s", s.name, how, code)
	}
	return i.judge(status, i.def.Type != "oneshot")
}

// judge names an end. The signals by which one asks daemons to end are no failure of a daemon.
func (i *invocation) judge(status syscall.WaitStatus, daemon bool) string {
	switch {
	case status.Exited() && status.ExitStatus() == 0, i.def.SuccessCodes.Has(status):
		return success
	case status.Exited():
		return "exit-code"
	case daemon && slices.Contains([]syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGPIPE}, status.Signal()):
		return success
	case status.CoreDump():
		return "core-dump"
	}
	return "signal"
}

// restarts decides by Restart=. systemd.service(5), table 2.
func (i *invocation) restarts(result string) bool {
	if i.ended() && i.def.RestartPrevent.Has(i.main.status) {
		return false
	}
	switch i.def.Restart {
	case "always":
		return true
	case "on-success":
		return result == success
	case "on-failure":
		return result != success
	case "on-abnormal":
		return result != success && result != "exit-code"
	case "on-abort":
		return result == "signal" || result == "core-dump"
	case "on-watchdog":
		return result == watchdog
	}
	return false
}

// kill ends all processes of the invocation, first with a signal and after the timeout for good.
func (i *invocation) kill(sig syscall.Signal, timeout time.Duration) {
	if i.def.KillMode == "none" {
		return
	}
	s := i.service
	for _, pid := range i.targets(i.def.KillMode == "mixed" || i.def.KillMode == "process") {
		s.set(deactivating, "stop-sigterm")
		signalProcess(pid, sig)
		signalProcess(pid, syscall.SIGCONT)
	}
	if gone := i.awaitEmpty(time.Now(), timeout, i.def.KillMode == "process", i.def.KillMode == "mixed"); !gone {
		s.set(deactivating, "stop-sigkill")
		i.journal().say("%s: State '%s' timed out. Killing.", s.name, "stop-"+signalName(sig))
		i.fail(timedOut)
		for _, pid := range i.targets(i.def.KillMode == "process") {
			signalProcess(pid, syscall.SIGKILL)
		}
		i.awaitEmpty(time.Now(), unit.Infinity, i.def.KillMode == "process", false)
	}
	if i.main != nil && i.ended() {
		s.m.mu.Lock()
		noted := s.mainEnded
		s.m.mu.Unlock()
		if !noted {
			i.fail(i.mainResult())
		}
	}
}

func signalProcess(pid int, sig syscall.Signal) { _ = syscall.Kill(pid, sig) } // it may have ended meanwhile

func (i *invocation) targets(mainOnly bool) []int {
	pids := members(i.id, i.sessions)
	if i.main == nil || i.ended() {
		if mainOnly {
			return nil
		}
		return pids
	}
	if mainOnly || !slices.Contains(pids, i.main.pid) {
		pids = append(slices.DeleteFunc(pids, func(int) bool { return mainOnly }), i.main.pid)
	}
	return pids
}

// awaitEmpty waits until no process is left and keeps listening to the service. killRest ends the others when the main process has ended.
func (i *invocation) awaitEmpty(begun time.Time, timeout time.Duration, mainOnly, killRest bool) bool {
	for {
		rest := i.targets(mainOnly)
		if len(rest) == 0 {
			return true
		}
		if killRest && (i.main == nil || i.ended()) {
			for _, pid := range rest {
				signalProcess(pid, syscall.SIGKILL)
			}
		}
		select {
		case d := <-i.mail():
			i.receive(d)
		case <-i.deadline(begun, timeout):
			return false
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// control runs commands beside the main process, one after the other, and reports whether they succeeded.
func (i *invocation) control(list []unit.Command, timeout time.Duration) bool {
	for _, c := range list {
		begun := time.Now()
		p, err := i.run1(c, false)
		if err != nil {
			i.journal().say("%s: %v", i.service.name, err)
		}
		if p == nil {
			i.fail(resource)
			return false
		}
		if !i.awaitControl(c, p, begun, timeout) {
			return false
		}
	}
	return true
}

func (i *invocation) awaitControl(c unit.Command, p *process, begun time.Time, timeout time.Duration) bool {
	for {
		select {
		case <-p.done:
			if result := i.judge(p.status, false); result != success && !c.IgnoreFailure {
				i.journal().say("%s: Control process exited, %s failed: %s", i.service.name, c.Path, result)
				i.fail(result)
				return false
			}
			return true
		case d := <-i.mail():
			i.receive(d)
		case <-i.deadline(begun, timeout):
			i.journal().say("%s: %s timed out. Killing.", i.service.name, c.Path)
			i.fail(timedOut)
			for _, pid := range members("-", map[int]bool{p.pid: true}) {
				signalProcess(pid, syscall.SIGKILL)
			}
			<-p.done
			return false
		}
	}
}

// spawn starts a main process and reports whether it runs what it should.
func (i *invocation) spawn(c unit.Command) bool {
	p, err := i.run1(c, true)
	i.main = p
	if err != nil {
		i.journal().say("%s: %v", i.service.name, err)
	}
	if p == nil {
		i.fail(resource)
		return false
	}
	s := i.service
	s.m.mu.Lock()
	s.main, s.mainEnded = p.pid, false
	s.m.mu.Unlock()
	if err != nil {
		<-p.done
		if i.def.Type != "simple" {
			i.fail(i.mainResult())
		}
		return false
	}
	return true
}

// run1 starts one process of the service.
func (i *invocation) run1(c unit.Command, main bool) (*process, error) {
	environment := maps.Clone(i.environment)
	if i.main != nil && !i.ended() {
		environment["MAINPID"] = strconv.Itoa(i.main.pid)
	}
	pids := []string{"SYSTEMD_EXEC_PID"}
	if !main {
		delete(environment, "WATCHDOG_USEC")
	} else if i.def.Watchdog > 0 {
		pids = append(pids, "WATCHDOG_PID")
	}
	sp := spec{Path: lookPath(c.Path), Argv: c.Argv(environment), Environment: list(environment), PIDVariables: pids, Directory: i.def.WorkingDirectory,
		DirectoryOptional: i.def.WorkingDirectoryOptional, UMask: i.def.UMask, Limits: i.def.Limits}
	if !c.Privileged {
		sp.UID, sp.GID, sp.Groups = i.account.uid, i.account.gid, i.account.groups
		sp.Bounding, sp.Ambient, sp.NoNewPrivileges = i.def.Bounding, i.def.Ambient&i.service.m.capabilities, i.def.NoNewPrivileges
	}
	if sp.Directory == "~" {
		sp.Directory = i.account.home
	}
	p, read, err := i.service.m.launch(i.service.name, sp, i.def.StandardOutput == "null", i.def.StandardError == "null", nil)
	if p != nil {
		i.sessions[p.pid] = true
		i.outputs = append(i.outputs, read)
	}
	return p, err
}

func list(environment map[string]string) []string {
	var l []string
	for _, name := range slices.Sorted(maps.Keys(environment)) {
		l = append(l, name+"="+environment[name])
	}
	return l
}

// removeRuntime removes the runtime directories of a service that is down, or between two of its lives.
func removeRuntime(def *unit.Service, down bool) {
	for _, d := range def.Directories {
		if d.Kind.Variable == "RUNTIME_DIRECTORY" && (def.PreserveRuntime == "no" || down && def.PreserveRuntime == "restart") {
			_ = os.RemoveAll(d.Kind.Base + "/" + d.Path) // what stays is overwritten
		}
	}
}
