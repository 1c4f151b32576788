package tmux

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// stat holds the fields of proc_pid_stat(5) that this package needs.
type stat struct {
	state   byte
	session int
	threads int
	ticks   uint64 // start time, in clock ticks since boot
}

// ended reports whether the process is a zombie or dead, and none of its other threads is still exiting.
func (s stat) ended() bool { return (s.state == 'Z' || s.state == 'X') && s.threads <= 1 }

func readStat(pid int) (stat, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	return parseStat(raw)
}

func parseStat(raw []byte) (s stat, err error) {
	// Field 2 is the command in parentheses. The command may hold any character, including parentheses and spaces.
	end := bytes.LastIndexByte(raw, ')')
	fields := strings.Fields(string(raw[end+1:]))
	if len(fields) < 20 {
		return s, errors.New("no process status")
	}
	s.state = fields[0][0]
	var errs [3]error
	s.session, errs[0] = strconv.Atoi(fields[6-3])
	s.threads, errs[1] = strconv.Atoi(fields[20-3])
	s.ticks, errs[2] = strconv.ParseUint(fields[22-3], 10, 64)
	return s, errors.Join(errs[:]...)
}

// startOf returns the start time of a process as "{ticks since boot}@{boot ID}".
func startOf(pid int) (string, bool) {
	s, err := readStat(pid)
	if err != nil || s.ended() {
		return "", false
	}
	boot, err := bootID()
	return fmt.Sprintf("%d@%s", s.ticks, boot), err == nil
}

func bootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(raw)), err
}

// killSession kills all remaining processes of a session. leader is the first process of the session. Some children are
// in other process groups, and so get no SIGHUP when the terminal closes.
func killSession(leader process) {
	for pid := range sessionOf(leader) {
		_ = unix.Kill(pid, unix.SIGKILL) // it may have ended in the meantime
	}
}

// members returns the processes of a session without its leader.
func members(leader process) (members []member) {
	for pid, s := range sessionOf(leader) {
		if pid != leader.PID && !s.ended() {
			members = append(members, member{pid, s.state == 'T'})
		}
	}
	return members
}

// sessionOf returns the PIDs of the processes of a session. leader is the first process of the session.
func sessionOf(leader process) iter.Seq2[int, stat] {
	return func(yield func(int, stat) bool) {
		if now, ok := identify(leader.PID); ok && now.Start != leader.Start {
			return // another process has the PID, which is impossible while the session has members
		}
		_, boot, _ := strings.Cut(leader.Start, "@")
		if now, err := bootID(); err != nil || now != boot {
			return // the machine has rebooted, so the session is another one
		}
		dirs, _ := filepath.Glob("/proc/[0-9]*")
		for _, dir := range dirs {
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err != nil {
				continue
			}
			if s, err := readStat(pid); err == nil && s.session == leader.PID && !yield(pid, s) {
				return
			}
		}
	}
}
