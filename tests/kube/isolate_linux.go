package kube

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Isolate runs this test program a second time, in a separate network namespace that has only the loopback interface.
// It returns the exit code of the second run and done = true. In the second run, Isolate returns immediately with done
// = false. Call Isolate first in TestMain.
//
// Before the second run starts, Isolate calls the function prepare, which can use the machine's network to build tools.
// When the second run ends, Isolate kills every process that the run left behind, daemons included.
//
// Without root, Isolate needs user namespaces. If it cannot create the namespaces, it returns an error.
func Isolate(prepare func() error) (code int, done bool, err error) {
	if Isolated() {
		return 0, false, loopbackUp()
	}
	if err := prepare(); err != nil {
		return 1, true, err
	}
	// A subreaper becomes the parent of daemons that the program leaves behind.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 1, true, fmt.Errorf("become a subreaper: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return 1, true, err
	}
	cmd := exec.Command(self, os.Args[1:]...) //nolint:noctx // it takes its time-out from its flags
	cmd.Env = append(os.Environ(), isolated+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if uid := os.Getuid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	defer signal.Stop(signals)
	started := make(chan error)
	launcher() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return 1, true, fmt.Errorf("start a network namespace: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = cmd.Process.Signal(s) // The process may have ended.
			continue
		case err = <-ended:
		}
		break
	}
	killChildren()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return 1, true, err
	}
	if code := cmd.ProcessState.ExitCode(); code >= 0 {
		return code, true, nil
	}
	return 1, true, fmt.Errorf("the isolated tests: %s", cmd.ProcessState)
}

// killChildren kills this process's children until none are left. If a child is killed, its own children become
// children of this process, and are killed too. killChildren gives up after 10 s.
func killChildren() {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return
		}
		for _, task := range tasks {
			raw, err := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
			if err != nil {
				continue // the thread has ended
			}
			for pid := range strings.FieldsSeq(string(raw)) {
				if pid, err := strconv.Atoi(pid); err == nil {
					_ = syscall.Kill(pid, syscall.SIGKILL) // The process may have ended.
				}
			}
		}
		if _, err := syscall.Wait4(-1, nil, 0, nil); errors.Is(err, syscall.ECHILD) {
			return
		}
	}
}

// loopbackUp enables the loopback interface, which is down in a new namespace. See netdevice(7).
func loopbackUp() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket) }()
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("switch the loopback interface on: %w", err)
	}
	return nil
}
