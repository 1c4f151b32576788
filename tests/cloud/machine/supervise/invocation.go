package supervise

import (
	"io"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/machine/unit"
)

// lastOutput limits how long init waits for the last output of a service that has ended. A process that left the
// service may keep the output open.
const lastOutput = time.Second

// invocation is one run of a service. It lasts until the last process of the service has ended.
type invocation struct {
	service *service
	def     *unit.Service
	run     *run

	id          string
	environment map[string]string
	account     account
	mailbox     *mailbox
	main        *process
	// output is closed when init has read the whole output of the main process.
	output <-chan struct{}
	result string
}

func (i *invocation) journal() *journal { return i.service.m.journal }

// execute runs the service once. It returns the result after all processes of this invocation have ended.
func (i *invocation) execute() string {
	i.result, i.id = success, newID()
	s := i.service
	s.set(activating, "start")
	if err := i.prepare(); err != nil {
		i.journal().logf("%s: %v", s.name, err)
		return resource
	}
	if i.mailbox != nil {
		defer i.mailbox.close()
	}
	if err := i.spawn(); err != nil {
		i.journal().logf("%s: %v", s.name, err)
		if i.main == nil {
			return resource
		}
	}
	if !i.def.Notify || i.awaitReady() {
		i.journal().logf("Started %s.", s.name)
		s.set(active, "running")
		i.run.decide(nil)
		i.watch()
	}
	s.set(deactivating, "stop-sigterm")
	i.kill()
	select {
	case <-i.output:
	case <-time.After(lastOutput):
	}
	return i.result
}

// spawn starts the main process, which executes the service's program. If this execution fails, spawn returns an error
// although it has set i.main. The main process then exits with the code that systemd defines for the failure.
func (i *invocation) spawn() (err error) {
	argv, err := i.def.Argv(i.environment)
	if err != nil {
		return err
	}
	sp := spec{Path: argv[0], Argv: argv, Environment: list(i.environment), Directory: "/", UMask: i.def.UMask,
		Watchdog: i.def.Watchdog > 0, UID: i.account.uid, GID: i.account.gid, Groups: i.account.groups,
		OpenFiles: i.def.OpenFiles, NoCapabilities: i.def.NoCapabilities, NoNewPrivileges: i.def.NoNewPrivileges}
	var also io.Writer
	if i.def.Console {
		console, err := os.OpenFile("/dev/console", os.O_RDWR, 0) // a named pipe, which RDWR opens without waiting
		if err != nil {
			return err
		}
		defer func() {
			if output := i.output; output != nil {
				go func() {
					<-output
					_ = console.Close()
				}()
			}
		}()
		also = console
	}
	i.main, i.output, err = i.service.m.launch(i.service.name, sp, also)
	if i.main != nil {
		i.service.setMain(i.main.pid)
	}
	return err
}

// fail sets the result of the invocation, unless an earlier failure has set it already.
func (i *invocation) fail(result string) {
	if i.result == success {
		i.result = result
	}
}

// awaitReady waits for READY=1. It reports whether the service is ready.
func (i *invocation) awaitReady() bool {
	deadline := after(i.def.TimeoutStart)
	for {
		select {
		case d := <-i.mail():
			if i.receive(d).ready {
				return true
			}
		case <-i.main.done:
			if i.main.status == 0 {
				i.fail(protocol) // It ended with success, but was never ready.
			}
			return false
		case <-i.run.stop:
			return false
		case <-deadline:
			i.journal().logf("%s: start operation timed out. Terminating.", i.service.name)
			i.fail(timedOut)
			return false
		}
	}
}

// watch returns when the service has ended, has missed a watchdog deadline, or is asked to stop.
func (i *invocation) watch() {
	fed := time.Now()
	for {
		var deadline <-chan time.Time
		if i.def.Watchdog > 0 {
			deadline = time.After(time.Until(fed.Add(i.def.Watchdog)))
		}
		select {
		case d := <-i.mail():
			m := i.receive(d)
			if m.fed {
				fed = time.Now()
			}
			if m.stopping {
				i.service.set(deactivating, "stop-sigterm")
			}
		case <-deadline:
			if i.service.m.froze(fed) { // The clock that counts stands still while a machine is frozen.
				fed = time.Now()
				continue
			}
			i.journal().logf("%s: Watchdog timed out (limit %s)!", i.service.name, i.def.Watchdog)
			i.fail(watchdog)
			return
		case <-i.main.done:
			return
		case <-i.run.stop:
			return
		}
	}
}

func (i *invocation) mail() <-chan datagram {
	if i.mailbox == nil {
		return nil
	}
	return i.mailbox.in
}

// receive returns the content of a message of the main process. Messages of other processes are only logged, as with
// NotifyAccess=main.
func (i *invocation) receive(d datagram) message {
	if d.pid != i.main.pid {
		i.journal().logf("%s: Got notification message from PID %d, but reception is not permitted", i.service.name,
			d.pid)
		return message{}
	}
	m, err := parseMessage(d.text)
	if err != nil {
		i.journal().logf("%s: notification from PID %d: %v", i.service.name, d.pid, err)
	}
	return m
}

// kill ends all processes of the invocation: first with SIGTERM, or SIGABRT after a missed watchdog deadline, and after
// the timeout with SIGKILL.
func (i *invocation) kill() {
	sig := syscall.SIGTERM
	if i.result == watchdog {
		sig = syscall.SIGABRT
	}
	for _, pid := range i.processes() {
		signalProcess(pid, sig)
		signalProcess(pid, syscall.SIGCONT)
	}
	if !i.awaitEnd(after(i.def.TimeoutStop)) {
		i.journal().logf("%s: State 'stop-%s' timed out. Killing.", i.service.name, signalName(sig))
		i.fail(timedOut)
		for _, pid := range i.processes() {
			signalProcess(pid, syscall.SIGKILL)
		}
		i.awaitEnd(nil)
	}
	<-i.main.done
	i.fail(i.mainResult())
}

// awaitEnd waits until no process of the invocation is left and receives messages meanwhile. It returns false if the
// deadline comes first.
func (i *invocation) awaitEnd(deadline <-chan time.Time) bool {
	for len(i.processes()) > 0 {
		select {
		case d := <-i.mail():
			i.receive(d)
		case <-deadline:
			return false
		case <-time.After(5 * time.Millisecond):
		}
	}
	return true
}

// processes returns the PIDs of the invocation's processes. They are in the session of the main process, or have the ID
// of the invocation in their environment.
func (i *invocation) processes() []int {
	return alive(func(pid, session int) bool {
		return session == i.main.pid || carries(pid, "INVOCATION_ID="+i.id)
	})
}

func signalProcess(pid int, sig syscall.Signal) { _ = syscall.Kill(pid, sig) } // It may have ended.

// mainResult translates the exit status of the main process into a result of the service. A process that ends by
// SIGHUP, SIGINT, SIGTERM or SIGPIPE counts as successful.
func (i *invocation) mainResult() string {
	status := i.main.status
	i.service.setMain(0)
	switch {
	case status == 0:
		return success
	case status.Exited():
		i.journal().logf("%s: Main process exited, code=exited, status=%d", i.service.name, status.ExitStatus())
		return "exit-code"
	}
	i.journal().logf("%s: Main process exited, code=killed, status=%s", i.service.name, signalName(status.Signal()))
	if slices.Contains([]syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGPIPE},
		status.Signal()) {
		return success
	}
	return "signal"
}

// after is like time.After, but returns nil for an infinite duration.
func after(d time.Duration) <-chan time.Time {
	if d == unit.Infinity {
		return nil
	}
	return time.After(d)
}
