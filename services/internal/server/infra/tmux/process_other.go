//go:build unix && !linux

package tmux

import (
	"slices"
	"strconv"

	gops "github.com/shirou/gopsutil/v4/process"
	"golang.org/x/sys/unix"
)

// startOf returns the start time of a process in milliseconds since 1970.
func startOf(pid int) (string, bool) {
	p, err := gops.NewProcess(int32(pid))
	if err != nil {
		return "", false
	}
	if status, err := p.Status(); err == nil && slices.Contains(status, gops.Zombie) {
		return "", false
	}
	ms, err := p.CreateTime()
	if err != nil {
		return "", false
	}
	return strconv.FormatInt(ms, 10), true
}

// killSession kills a process group. leader is the first process of the group.
func killSession(leader process) {
	if leader.alive() {
		_ = unix.Kill(-leader.PID, unix.SIGKILL) // it may have ended in the meantime
	}
}

// members returns the processes of a session without its leader.
func members(leader process) (members []member) {
	if !leader.alive() {
		return nil
	}
	pids, err := gops.Pids()
	if err != nil {
		return nil
	}
	for _, pid := range pids {
		if session, err := unix.Getsid(int(pid)); err != nil || session != leader.PID || int(pid) == leader.PID {
			continue
		}
		status, err := (&gops.Process{Pid: pid}).Status()
		if err == nil && !slices.Contains(status, gops.Zombie) {
			members = append(members, member{int(pid), slices.Contains(status, gops.Stop)})
		}
	}
	return members
}
