package supervise

import (
	"maps"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/machine/unit"
)

// control runs commands beside the main process, one after the other. It reports whether all succeeded.
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

// spawn starts a main process. It reports whether the process executes the configured program.
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

// run1 starts one process of the service. main selects the environment of a main process, which includes the watchdog
// variables.
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
	sp := spec{Path: lookPath(c.Path), Argv: c.Argv(environment), Environment: list(environment), PIDVariables: pids,
		Directory:         i.def.WorkingDirectory,
		DirectoryOptional: i.def.WorkingDirectoryOptional, UMask: i.def.UMask, Limits: i.def.Limits}
	if !c.Privileged {
		sp.UID, sp.GID, sp.Groups = i.account.uid, i.account.gid, i.account.groups
		sp.Bounding, sp.Ambient, sp.NoNewPrivileges = i.def.Bounding, i.def.Ambient&i.service.m.capabilities,
			i.def.NoNewPrivileges
	}
	if sp.Directory == "~" {
		sp.Directory = i.account.home
	}
	p, read, err := i.service.m.launch(i.service.name, sp, i.def.StandardOutput == "null",
		i.def.StandardError == "null", nil)
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
