package supervise

import (
	"errors"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/machine/unit"
)

// lastWords limits how long init waits until the journal contains all output of a service that has ended.
const lastWords = time.Second

// invocation is one run of a service, from its first process to its last.
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
	// outputs has a channel for each process. A channel is closed when the output of its process was read to the end.
	outputs []<-chan struct{}

	result string
	// extended postpones the deadline of the current state. The service sets it with EXTEND_TIMEOUT_USEC=.
	extended time.Time
}

func (i *invocation) journal() *journal { return i.service.m.journal }

// execute runs the invocation and returns its result, when no process of the invocation is left.
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
		case <-patience: // A foreign process may hold the output open.
		}
	}
	return i.result
}

// fail sets the result, unless an earlier failure has set it.
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

// start runs the commands that bring the service up. It reports whether the service is up.
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
		return i.def.Type == "simple" && i.main != nil // A failure to execute counts only after the start.
	}
	if i.def.Type == "notify" && !i.awaitReady(begun) {
		return false
	}
	return i.control(i.def.StartPost, i.def.TimeoutStart)
}

// await waits for a command of a oneshot service. It reports whether the command succeeded.
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

// awaitReady waits for READY=1. It reports whether the service is ready.
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
					i.fail(protocol) // It ended with success, but was never ready.
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

// drain reads the messages that a process sent just before it ended. It reports whether READY=1 was among them.
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

// deadline returns a channel that receives when the timeout of a state ends. The state began at the given time.
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

// live watches the service until it ends, misses a watchdog deadline, or is asked to stop.
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
				// A failed reload is no failure of the service.
				err, i.result = errors.New("ExecReload= failed"), before
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

// receive applies a message of the service, if NotifyAccess= permits the sender.
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
	// A sender that has already ended is missing in every list.
	if !slices.Contains(pids, d.pid) && i.def.NotifyAccess != "all" {
		i.journal().say("%s: Got notification message from PID %d, but reception is not permitted", i.service.name,
			d.pid)
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

// mainResult records the end of the main process and returns the result that it implies.
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

// judge returns the result for an exit status. For a daemon, the signals that ask a daemon to end count as success.
func (i *invocation) judge(status syscall.WaitStatus, daemon bool) string {
	switch {
	case status.Exited() && status.ExitStatus() == 0, i.def.SuccessCodes.Has(status):
		return success
	case status.Exited():
		return "exit-code"
	case daemon && slices.Contains([]syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGPIPE},
		status.Signal()):
		return success
	case status.CoreDump():
		return "core-dump"
	}
	return "signal"
}

// restarts reports whether Restart= asks for a restart after the given result. systemd.service(5), table 2.
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
