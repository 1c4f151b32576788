package supervise

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// processes starts all children of init and reaps all that end. This includes orphaned processes that the kernel has
// reparented to init. It is safe for concurrent use.
type processes struct {
	mu   sync.Mutex
	ours map[int]*process
}

// process is a child process. A goroutine waits for its exit status.
type process struct {
	pid int
	// done is closed after status is set.
	done   chan struct{}
	status syscall.WaitStatus
}

// These exit codes of a process that could not execute its program are those of systemd.exec(5), "Process Exit Codes".
const (
	exitChdir  = 200
	exitExec   = 203
	exitLimits = 205
	exitUser   = 217
	exitCaps   = 218
)

// spec describes the process to create. It is passed to [Become].
type spec struct {
	Path              string
	Argv, Environment []string
	// If Watchdog is true, the environment contains WATCHDOG_PID with the process's own PID.
	Watchdog  bool
	Directory string
	UMask     int
	UID, GID  int
	Groups    []int
	// OpenFiles is the limit of open files. 0 means that it is inherited.
	OpenFiles                       uint64
	NoCapabilities, NoNewPrivileges bool
}

// becomeError is the error of a process that could not execute its program. The process exits with Code.
type becomeError struct {
	Code int
	Text string
}

func (e *becomeError) Error() string { return e.Text }

func newProcesses() *processes { return &processes{ours: map[int]*process{}} }

// reap reaps processes that have ended. It never returns.
func (t *processes) reap() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	for {
		for t.reapOne() {
		}
		<-ended
	}
}

func (t *processes) reapOne() bool {
	t.mu.Lock() // A started process is in ours before its end is processed.
	defer t.mu.Unlock()
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
	if errors.Is(err, syscall.EINTR) {
		return true
	}
	if err != nil || pid <= 0 {
		return false
	}
	if p := t.ours[pid]; p != nil {
		p.status = status
		delete(t.ours, pid)
		close(p.done)
	}
	return true
}

// start runs a process in its own session. If the error is a *becomeError, the process is returned too. That process
// exits by itself.
func (t *processes) start(s spec, stdin, stdout, stderr *os.File) (*process, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Path, err)
	}
	in, err := memory(text)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Path, err)
	}
	defer in.Close()
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Path, err)
	}
	defer reader.Close()
	t.mu.Lock()
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"(" + s.Argv[0] + ")", "become"}, &syscall.ProcAttr{
		Dir: "/", Files: []uintptr{stdin.Fd(), stdout.Fd(), stderr.Fd(), in.Fd(), writer.Fd()},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	p := &process{pid: pid, done: make(chan struct{})}
	if err == nil {
		t.ours[pid] = p
	}
	t.mu.Unlock()
	_ = writer.Close() // Only the process's own copy must stay open.
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Path, err)
	}
	answer, err := io.ReadAll(reader)
	if err != nil || len(answer) == 0 {
		return p, err
	}
	var failed becomeError
	if err := json.Unmarshal(answer, &failed); err != nil {
		return p, fmt.Errorf("start %s: %w", s.Path, err)
	}
	return p, &failed
}

// memory returns an unnamed file with the given contents, positioned at its start.
func memory(data []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("spec", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "spec")
	if _, err := f.WriteAt(data, 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Become replaces the program of this process by the one that the file with descriptor 3 describes. It never returns.
func Become() {
	runtime.LockOSThread() // The settings below apply per thread, and this thread executes the program.
	// The kernel closes descriptors 3 and 4 when it executes the new program. If that fails, descriptor 4 is still
	// needed.
	unix.CloseOnExec(3)
	unix.CloseOnExec(4)
	err := become(os.NewFile(3, "spec"))
	failed := &becomeError{Code: 1, Text: err.Error()}
	errors.As(err, &failed)
	_ = json.NewEncoder(os.NewFile(4, "answer")).Encode(failed) // The exit code reports the failure as well.
	os.Exit(failed.Code)
}

func become(in io.Reader) error {
	var s spec
	if err := json.NewDecoder(in).Decode(&s); err != nil {
		return err
	}
	fail := func(code int, format string, args ...any) error {
		return &becomeError{code, s.Path + ": " + fmt.Sprintf(format, args...)}
	}
	if s.OpenFiles > 0 {
		if err := limitFiles(s.OpenFiles); err != nil {
			return fail(exitLimits, "limits: %v", err)
		}
	}
	syscall.Umask(s.UMask)
	for bit := range uintptr(64) {
		if !s.NoCapabilities {
			break
		}
		// EINVAL means that the kernel has no capability with this number.
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, bit, 0, 0, 0); err != nil && !errors.Is(err, syscall.EINVAL) {
			return fail(exitCaps, "drop capability %d: %v", bit, err)
		}
	}
	if err := setUser(s); err != nil {
		return fail(exitUser, "%v", err)
	}
	if s.NoNewPrivileges {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fail(exitCaps, "no new privileges: %v", err)
		}
	}
	if err := os.Chdir(s.Directory); err != nil {
		return fail(exitChdir, "%v", err)
	}
	environment := slices.Clone(s.Environment)
	if s.Watchdog {
		environment = append(environment, "WATCHDOG_PID="+strconv.Itoa(os.Getpid()))
	}
	return fail(exitExec, "%v", syscall.Exec(s.Path, s.Argv, environment))
}

// limitFiles sets the limit of open files. If the host does not let root set this limit, limitFiles sets the nearest
// permitted one, like systemd.
func limitFiles(n uint64) error {
	err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: n})
	if !errors.Is(err, syscall.EPERM) {
		return err
	}
	var now syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &now); err != nil {
		return err
	}
	n = min(n, now.Max)
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: n})
}

// setUser changes the user and the groups of this thread.
func setUser(s spec) error {
	if err := syscall.Setgroups(s.Groups); err != nil {
		return fmt.Errorf("set groups %v: %w", s.Groups, err)
	}
	if err := syscall.Setresgid(s.GID, s.GID, s.GID); err != nil {
		return fmt.Errorf("set group %d: %w", s.GID, err)
	}
	if s.UID == 0 {
		return nil
	}
	// This raw system call affects this thread only. The other threads end when this thread executes the program.
	if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, uintptr(s.UID), uintptr(s.UID),
		uintptr(s.UID)); errno != 0 {
		return fmt.Errorf("set user %d: %w", s.UID, errno)
	}
	return nil
}

// alive returns the PIDs of the processes for which the function "belongs" returns true, except init and zombies.
func alive(belongs func(pid, session int) bool) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil // Every machine has /proc.
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == 1 {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // It has ended.
		}
		// The format is: PID (name) state ppid pgrp session …
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) < 4 || fields[0] == "Z" || fields[0] == "X" {
			continue
		}
		if session, err := strconv.Atoi(fields[3]); err == nil && belongs(pid, session) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// carries reports whether a process has the given variable and value in its environment.
func carries(pid int, assignment string) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false // It has ended.
	}
	return slices.Contains(strings.Split(string(text), "\x00"), assignment)
}
