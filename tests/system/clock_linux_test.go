package system

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// launchVariable is an environment variable with the path of a program. If it is set, this test program is a launcher,
// and executes the program at that path.
const launchVariable = "NSTANCE_SYSTEM_LAUNCH"

// wallClock is the time of day of one machine. It is ahead of the clock of this machine by a time that can be changed.
//
// Programs usually read the time of day through the vDSO, without a system call. In a program started by
// [wallClock.start], the auxiliary vector (getauxval(3)) has no vDSO, so the program makes the system call. A seccomp
// filter makes this process answer the call (seccomp_unotify(2)). Only CLOCK_REALTIME is changed.
type wallClock struct{ ahead atomic.Int64 }

// step changes the clock, so that it is ahead of the clock of this machine by the given time.
func (c *wallClock) step(ahead time.Duration) { c.ahead.Store(int64(ahead)) }

func init() { //nolint:gochecknoinits // init runs on the main thread (runtime.LockOSThread)
	if os.Getenv(launchVariable) != "" {
		runtime.LockOSThread() // the main thread is traced and keeps the filter
	}
}

// launch installs the seccomp filter, sends the filter's descriptor for notifications to the parent process, and
// executes the program.
func launch() error {
	path := os.Getenv(launchVariable)
	if err := os.Unsetenv(launchVariable); err != nil {
		return err
	}
	// With this filter, the kernel reports calls of clock_gettime(CLOCK_REALTIME, …) to the parent process, which
	// answers them. In struct seccomp_data (seccomp(2)), the number of the call is at offset 0. On a little-endian
	// machine, the low half of the call's first argument is at offset 16.
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_CLOCK_GETTIME, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 16},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.CLOCK_REALTIME, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER,
		uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return fmt.Errorf("set a filter of system calls: %w", errno)
	}
	if err := unix.Sendmsg(3, []byte{0}, unix.UnixRights(int(fd)), nil, 0); err != nil {
		return fmt.Errorf("send the listening end of the filter: %w", err)
	}
	unix.CloseOnExec(3)
	return unix.Exec(path, os.Args, os.Environ())
}

// start starts a program that reads this clock. The calling goroutine must be locked to its thread: the thread traces
// the program until its first instruction.
func (c *wallClock) start(cmd *exec.Cmd) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pair[0])
	childEnd := os.NewFile(uintptr(pair[1]), "launcher")
	defer childEnd.Close()
	cmd.Env = append(cmd.Env, launchVariable+"="+cmd.Path)
	cmd.Path, cmd.ExtraFiles = self, []*os.File{childEnd}
	cmd.SysProcAttr.Ptrace = true
	if err := cmd.Start(); err != nil {
		return err
	}
	pid := cmd.Process.Pid
	if err := hideVDSO(pid); err != nil {
		_ = cmd.Process.Kill()
		return fmt.Errorf("start %s with its own clock: %w", cmd.Args[0], err)
	}
	control := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(pair[0], make([]byte, 1), control, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return err
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) != 1 {
		return errors.Join(err, errors.New("the launcher sent nothing"))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return err
	}
	go c.answer(fds[0])
	return nil
}

// hideVDSO traces the launcher until the launcher executes the program. hideVDSO then removes the program's vDSO,
// before the program's first instruction.
func hideVDSO(pid int) error {
	for starts := 0; ; {
		var status unix.WaitStatus
		if _, err := unix.Wait4(pid, &status, unix.WALL, nil); err != nil {
			return err
		}
		if !status.Stopped() {
			return errors.New("the launcher has ended")
		}
		signal := status.StopSignal()
		if signal == unix.SIGTRAP {
			signal = 0
			if starts++; starts == 2 {
				if err := clearVDSO(pid); err != nil {
					return err
				}
				return unix.PtraceDetach(pid)
			}
		}
		if err := unix.PtraceCont(pid, int(signal)); err != nil {
			return err
		}
	}
}

// clearVDSO removes the vDSO from the auxiliary vector of a process that is about to run its first instruction. The
// vector is on the stack, after the arguments and the environment.
func clearVDSO(pid int) error {
	const sysinfoEHDR, ignore = 33, 1 // AT_SYSINFO_EHDR, AT_IGNORE: elf.h
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return err
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(after)
	var at int64
	// startstack is field 28 of proc_pid_stat(5), counted from 1. The slice "fields" begins with field 3.
	if _, err := fmt.Sscan(fields[28-3], &at); err != nil {
		return err
	}
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer memory.Close()
	raw := make([]byte, 8)
	read := func() uint64 {
		if _, readErr := memory.ReadAt(raw, at); readErr != nil {
			err = readErr
		}
		at += 8
		return binary.NativeEndian.Uint64(raw)
	}
	read() // number of arguments
	for lists := 0; lists < 2 && err == nil; {
		if read() == 0 {
			lists++
		}
	}
	for err == nil {
		switch key := read(); key {
		case 0:
			return errors.New("the program has no vDSO")
		case sysinfoEHDR:
			_, err := memory.WriteAt(binary.NativeEndian.AppendUint64(nil, ignore), at-8)
			return err
		}
		read()
	}
	return err
}

// notification and response are struct seccomp_notif and seccomp_notif_resp (seccomp_unotify(2)).
type (
	notification struct {
		id         uint64
		pid, flags uint32
		nr         int32
		arch       uint32
		ip         uint64
		args       [6]uint64
	}
	response struct {
		id    uint64
		val   int64
		error int32
		flags uint32
	}
)

// answer answers the calls of clock_gettime(2) that the filter reports for one program, until the program ends.
func (c *wallClock) answer(fd int) {
	defer unix.Close(fd)
	for {
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); errors.Is(err, syscall.EINTR) {
			continue
		} else if err != nil || ready[0].Revents&unix.POLLIN == 0 {
			return // the program has ended
		}
		var q notification
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_RECV,
			uintptr(unsafe.Pointer(&q))); errno != 0 {
			continue // the program was killed or interrupted; after an interrupt it calls again
		}
		now := unix.NsecToTimespec(time.Now().UnixNano() + c.ahead.Load())
		written := unix.Iovec{Base: (*byte)(unsafe.Pointer(&now))}
		written.SetLen(int(unsafe.Sizeof(now)))
		r := response{id: q.id}
		if _, err := unix.ProcessVMWritev(int(q.pid), []unix.Iovec{written},
			[]unix.RemoteIovec{{Base: uintptr(q.args[1]), Len: int(unsafe.Sizeof(now))}}, 0); err != nil {
			r.error = -int32(unix.EFAULT)
		}
		// The call fails if the program was killed.
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r)))
	}
}
