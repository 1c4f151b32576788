package supervise

import (
	"slices"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/machine/unit"
)

// kill ends all processes of the invocation: first with sig and, after the timeout, with SIGKILL.
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

func signalProcess(pid int, sig syscall.Signal) { _ = syscall.Kill(pid, sig) } // It may have ended.

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

// awaitEmpty waits until no target process is left and receives messages of the service meanwhile. It returns false if
// the timeout ends first. If killRest is set, the remaining processes are killed as soon as the main process has ended.
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
