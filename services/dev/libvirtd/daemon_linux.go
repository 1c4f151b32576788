package libvirtd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
)

// Daemon is a running libvirtd with an empty storage pool "default" and the networks "a" and "b".
type Daemon struct {
	// Socket is the path of the daemon's socket, and Pool the directory of its storage pool, both on this machine.
	Socket, Pool string

	dir        string
	init       *exec.Cmd // process 1 of the namespaces
	namespaces []string  // names of the namespaces, as options of unshare and nsenter
}

// startTimeout is the time limit for the start of the namespaces and the daemon, even on a busy machine.
const startTimeout = time.Minute

// longestSocket is the maximum length of the path of a Unix socket, in bytes.
const longestSocket = 107

// Start starts a daemon. If Start returns an error, no process of the daemon runs.
func Start(ctx context.Context, o Options) (*Daemon, error) {
	for _, program := range []string{"libvirtd", "qemu-system-x86_64", "qemu-img", "virsh", "dnsmasq", "nsenter",
		"ip"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("%w: on Debian, apt-get install --no-install-recommends %s", err, packages)
		}
	}
	if os.Getuid() != 0 {
		return nil, errors.New("libvirtd in its own namespaces needs root")
	}
	d := &Daemon{dir: o.Dir, namespaces: []string{"--mount", "--pid"},
		Socket: Socket(o.Dir), Pool: poolPath(o.Dir)}
	if len(d.Socket) > longestSocket {
		return nil, fmt.Errorf("the path %s is too long for a socket: use a shorter directory", d.Socket)
	}
	if o.OwnNetwork {
		d.namespaces = append(d.namespaces, "--net")
	}
	if err := d.start(ctx, o.Detached); err != nil {
		return nil, errors.Join(err, d.Stop())
	}
	return d, nil
}

func (d *Daemon) start(ctx context.Context, detached bool) error {
	if err := os.MkdirAll(d.Pool, 0o711); err != nil { //nolint:gosec // as libvirt's own directory
		return err
	}
	log, err := os.OpenFile(filepath.Join(d.dir, "namespaces.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	args := slices.Concat(d.namespaces, []string{"--fork", "--kill-child", "--mount-proc",
		"sh", "-c", setup, "sh", d.dir})
	d.init = exec.CommandContext(context.WithoutCancel(ctx), "unshare", args...)
	d.init.Stdout, d.init.Stderr = log, log
	d.init.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if !detached {
		d.init.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	if err := d.init.Start(); err != nil {
		return err
	}
	err = await(ctx, "the namespaces of libvirtd (log: "+log.Name()+")", func() error {
		_, err := os.Stat(filepath.Join(d.dir, "ready"))
		return err
	})
	if err != nil {
		return err
	}
	for name, text := range map[string]string{"qemu.conf": qemuConf, "libvirtd.conf": libvirtdConf} {
		if err := os.WriteFile(filepath.Join(d.dir, "etc/libvirt", name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	if err := d.StartDaemon(ctx); err != nil {
		return err
	}
	return errors.Join(d.define(ctx, "pool", fmt.Sprintf(pool, "/var/lib/libvirt/images"), "default"),
		d.define(ctx, "net", fmt.Sprintf(network, "a", 1), "a"),
		d.define(ctx, "net", fmt.Sprintf(network, "b", 2), "b"))
}

// Stop kills the daemon and its VMs. The daemon's directory stays.
func (d *Daemon) Stop() error {
	if d.init == nil || d.init.Process == nil {
		return nil
	}
	_ = syscall.Kill(-d.init.Process.Pid, syscall.SIGKILL)
	_ = d.init.Wait() // it was killed
	return RemoveLinks()
}

// RemoveLinks removes the bridges of a daemon that was killed, and the interfaces of its [Machines].
func RemoveLinks() error {
	var errs []error
	for _, name := range []string{"nst-a", "nst-b", "nst-server-1", "nst-server-2"} {
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkDel(link)
		}
		if _, missing := errors.AsType[netlink.LinkNotFoundError](err); err != nil && !missing {
			errs = append(errs, fmt.Errorf("remove the interface %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func (d *Daemon) define(ctx context.Context, kind, text, name string) error {
	file := filepath.Join(d.dir, name+".xml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	for _, args := range [][]string{{kind + "-define", file}, {kind + "-start", name}, {kind + "-autostart", name}} {
		if _, err := d.Virsh(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// Virsh runs a command of virsh and returns its output.
func (d *Daemon) Virsh(ctx context.Context, args ...string) (string, error) {
	out, err := d.Enter(ctx, append([]string{"virsh", "-c", "qemu:///system"}, args...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("virsh %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// Enter returns a command that runs in the namespaces of the daemon.
func (d *Daemon) Enter(ctx context.Context, args ...string) *exec.Cmd {
	target := strconv.Itoa(d.firstProcess())
	return exec.CommandContext(ctx, "nsenter", slices.Concat([]string{"--target", target}, d.namespaces, []string{"--"},
		args)...)
}

// firstProcess returns the PID of the first process in the daemon's namespaces. The PID is that of the machine, not
// that in the namespaces.
func (d *Daemon) firstProcess() int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", d.init.Process.Pid))
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text))) // 0: nsenter fails
	return pid
}

// StartDaemon starts libvirtd. It can be called again after libvirtd was killed.
func (d *Daemon) StartDaemon(ctx context.Context) error {
	// libvirtd's usual PID file permits one daemon. If each daemon has its own PID file, several can run on one
	// machine.
	const start = `setsid libvirtd --pid-file "$1/own.pid" >>"$1/libvirtd.log" 2>&1 </dev/null &
		echo $! >"$1/libvirtd.pid"`
	if err := d.run(ctx, "start libvirtd", start, d.dir); err != nil {
		return err
	}
	return await(ctx, "libvirtd (log: "+filepath.Join(d.dir, "libvirtd.log")+")", func() error {
		_, err := d.Virsh(ctx, "version")
		return err
	})
}

// run runs a shell script with arguments in the daemon's namespaces.
func (d *Daemon) run(ctx context.Context, what, script string, args ...string) error {
	out, err := d.Enter(ctx, append([]string{"sh", "-c", script, "sh"}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", what, err, out)
	}
	return nil
}

func await(ctx context.Context, what string, ready func() error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not ready within %s: %w", what, startTimeout, err)
		case <-tick.C:
		}
	}
}
