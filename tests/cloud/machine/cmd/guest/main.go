// Command guest is PID 1 of a machine. It is also installed as systemctl, journalctl, networkctl, poweroff, reboot and
// shutdown. Under these names it sends requests to PID 1.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nstance-kit/nstance/tests/cloud/machine/boot"
	"github.com/nstance-kit/nstance/tests/cloud/machine/control"
	"github.com/nstance-kit/nstance/tests/cloud/machine/rootfs"
	"github.com/nstance-kit/nstance/tests/cloud/machine/supervise"
)

func main() {
	name := filepath.Base(os.Args[0])
	if len(os.Args) > 1 && (name == "guest" || strings.HasPrefix(os.Args[0], "(")) {
		switch os.Args[1] {
		case "become":
			supervise.Become()
		case "enter":
			end(1, enter())
		case "init":
			code, err := start()
			end(code, err)
		}
	}
	end(ask(name, os.Args[1:]))
}

func end(code int, err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// bound makes the kernel kill this process when the runner's thread that started the process ends. It also makes this
// process exit when the runner process has ended.
func bound() error {
	runtime.LockOSThread() // Main's goroutine stays on this thread: the death signal is set per thread.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	lifeline := os.NewFile(boot.Lifeline, "lifeline")
	go func() {
		_, _ = io.Copy(io.Discard, lifeline) // Returns when the runner process has ended.
		os.Exit(1)
	}()
	return nil
}

func config() (c boot.Config, err error) {
	f := os.NewFile(boot.Spec, "config")
	text, err := io.ReadAll(io.NewSectionReader(f, 0, 64<<20))
	if err != nil {
		return c, fmt.Errorf("read configuration: %w", err)
	}
	return c, json.Unmarshal(text, &c)
}

// enter sets up the machine inside its new namespaces. Then it executes init in a new process image that has only the
// machine's capabilities.
func enter() error {
	if err := bound(); err != nil {
		return err
	}
	c, err := config()
	if err != nil {
		return err
	}
	syscall.Umask(0)
	if err := rootfs.Enter(c.Tree); err != nil {
		return err
	}
	syscall.Umask(0o022)
	if err := unix.Sethostname([]byte(c.Hostname)); err != nil {
		return err
	}
	if err := rootfs.Confine(); err != nil {
		return err
	}
	return syscall.Exec(control.Guest, []string{"guest", "init"}, nil)
}

// start runs init as PID 1 and returns the machine's exit code.
func start() (int, error) {
	if err := bound(); err != nil {
		return 1, err
	}
	for _, fd := range []int{boot.Spec, boot.Ready, boot.Lifeline} {
		unix.CloseOnExec(fd) // The processes that init starts must not inherit these files.
	}
	c, err := config()
	if err != nil {
		return 1, err
	}
	return supervise.Run(supervise.Options{InstanceID: c.InstanceID, Userdata: c.Userdata, Build: c.Build,
		Links: c.Links, Environment: c.Environment, Log: os.Stdout, Ready: os.NewFile(boot.Ready, "ready"),
		Hostname: c.Hostname})
}

// ask sends a command line of systemctl or a related program to init, and prints init's answer.
func ask(program string, args []string) (int, error) {
	socket := control.Socket
	if program == "journalctl" {
		socket = control.JournalSocket
	}
	conn, err := (&net.Dialer{}).DialContext(context.Background(), "unix", socket)
	if errors.Is(err, os.ErrPermission) {
		return 1, fmt.Errorf("%s: access denied", program)
	}
	if err != nil {
		return 1, fmt.Errorf("%s: cannot reach init: %w", program, err)
	}
	answer, err := control.Send(context.Background(), conn, control.Request{Program: program, Args: args})
	if err != nil {
		return 1, err
	}
	if _, err := os.Stdout.Write(answer.Output); err != nil {
		return 1, err
	}
	if _, err := os.Stderr.Write(answer.Errors); err != nil {
		return 1, err
	}
	return answer.Code, nil
}
