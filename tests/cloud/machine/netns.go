package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nstance-kit/nstance/tests/cloud/machine/boot"
)

// netns is a network namespace without a name. It exists as long as its file is open, or a process or socket is in it.
type netns struct{ file *os.File }

// thread runs f on a new operating system thread, which ends when f returns. The namespaces that f enters apply only to
// this thread.
func thread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // Never unlocked: the thread ends with the goroutine.
		result <- f()
	}()
	return <-result
}

func newNetns() (ns *netns, err error) {
	err = thread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		ns = &netns{f}
		return err
	})
	return ns, err
}

func (n *netns) close() error { return n.file.Close() }

// do runs f inside the namespace.
func (n *netns) do(f func() error) error {
	return thread(func() error {
		if err := n.enter(); err != nil {
			return err
		}
		return f()
	})
}

// enter moves the current thread into the namespace. The goroutine must be locked to its thread.
func (n *netns) enter() error {
	if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	return nil
}

// path returns a path at which programs on this host can open the namespace.
func (n *netns) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.file.Fd()) }

// ip runs commands of ip(8) inside the namespace, until the first one fails. IPv6 commands must begin with -6, because
// ip does not detect the address family of commands that it reads. The IPv6 commands run after all others.
func (n *netns) ip(lines ...string) error {
	var four, six []string
	for _, l := range lines {
		if rest, ok := strings.CutPrefix(l, "-6 "); ok {
			six = append(six, rest)
		} else {
			four = append(four, l)
		}
	}
	return n.do(func() error {
		if err := batch(four, "-batch", "-"); err != nil {
			return err
		}
		return batch(six, "-6", "-batch", "-")
	})
}

// tc runs a command of tc(8) inside the namespace.
func (n *netns) tc(arguments ...string) error {
	return n.do(func() error {
		out, err := exec.Command("tc", arguments...).CombinedOutput() //nolint:noctx // it does not wait for anything
		if err != nil {
			return fmt.Errorf("tc %s: %w: %s", strings.Join(arguments, " "), err, strings.TrimSpace(string(out)))
		}
		return nil
	})
}

// show returns the output of ip(8), run inside the namespace.
func (n *netns) show(arguments ...string) (text string, err error) {
	err = n.do(func() error {
		out, err := exec.Command("ip", arguments...).Output() //nolint:noctx // it does not wait for anything
		text = string(out)
		return err
	})
	return text, err
}

func batch(lines []string, arguments ...string) error {
	if len(lines) == 0 {
		return nil
	}
	cmd := exec.Command("ip", arguments...) //nolint:noctx // it does not wait for anything
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip: %w: %s\n%s", err, strings.TrimSpace(string(out)), strings.Join(lines, "\n"))
	}
	return nil
}

// set writes kernel settings below /proc/sys/net. It skips IPv6 settings if the kernel has no IPv6.
func (n *netns) set(settings map[string]string) error {
	return n.do(func() error {
		for name, value := range settings {
			err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0o644)
			if err != nil && (!errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(name, "ipv6/")) {
				return fmt.Errorf("kernel setting: %w", err)
			}
		}
		return nil
	})
}

// starter is the thread that starts the first processes of the machines. It must outlive them, because the kernel kills
// a machine's first process when the thread ends.
type starter struct {
	jobs chan func()
	done chan struct{}
	once sync.Once
}

func newStarter() (*starter, error) {
	s := &starter{jobs: make(chan func()), done: make(chan struct{})}
	home := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // Never unlocked: the thread ends with the goroutine.
		defer close(s.done)
		f, err := os.Open("/proc/thread-self/ns/net")
		home <- err
		if err != nil {
			return
		}
		defer f.Close()
		own := &netns{f}
		for job := range s.jobs {
			job()
			if err := own.enter(); err != nil {
				panic(err) // Otherwise the thread would stay in the machine's namespace.
			}
		}
	}()
	return s, <-home
}

func (s *starter) start(cmd *exec.Cmd, ns *netns) error {
	result := make(chan error, 1)
	s.jobs <- func() {
		if err := ns.enter(); err != nil {
			result <- err
			return
		}
		result <- cmd.Start()
	}
	return <-result
}

func (s *starter) close() {
	s.once.Do(func() { close(s.jobs) })
	<-s.done
}

// command returns the command that starts the first process of a machine, in new namespaces. The process inherits the
// given files. The first of them has the file descriptor [boot.Spec].
func command(guest string, files []*os.File, log *os.File) *exec.Cmd {
	return &exec.Cmd{Path: guest, Args: []string{"guest", "enter"}, Env: []string{}, Dir: "/", Stdout: log, Stderr: log,
		ExtraFiles: files,
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
			Pdeathsig:  syscall.SIGKILL, Setsid: true,
		}}
}

// specFile returns an unnamed file that contains the machine's configuration.
func specFile(c boot.Config) (*os.File, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("machine", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "machine")
	if _, err := f.WriteAt(text, 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
