package devtool

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/dev/libvirtd"
	"github.com/nstance-kit/nstance/services/dev/local"
)

// libvirtTimeout bounds one run of "up" with real VMs, which boot without hardware support.
const libvirtTimeout = 10 * time.Minute

// libvirtDir returns the directory of the cluster's libvirtd.
func libvirtDir(s settings) string { return filepath.Join(s.root, "temp", "libvirt") }

// bringUpLibvirt is like bringUp, but with real VMs. The programs that it starts keep running after it returns.
func bringUpLibvirt(ctx context.Context, s settings) error {
	ctx, cancel := context.WithTimeoutCause(ctx, libvirtTimeout,
		fmt.Errorf("timeout after %v; the logs are in temp/log, the consoles in temp/libvirt/var/lib/libvirt/images",
			libvirtTimeout))
	defer cancel()
	root, err := filepath.Abs(s.root)
	if err != nil {
		return err
	}
	s.root = root
	if _, err := os.Stat(filepath.Join(root, "temp", "terraform")); err == nil {
		return errors.New("a cluster with tmux is here: run \"make down\" first")
	}
	machines := &libvirtd.Machines{}
	defer machines.Close()
	stack, err := local.New(local.Options{Root: root, Bin: s.bin, Dir: filepath.Join(root, "temp"),
		Ports: local.DefaultPorts(), Network: machines})
	if err != nil {
		return err
	}
	running, err := stack.Running(ctx)
	if err != nil {
		return err
	}
	if busy := stack.Ports.Busy(ctx, 0); len(busy) > 0 && len(running) == 0 {
		return fmt.Errorf("other programs use the ports %v: stop those, then try again", busy)
	}
	if err := runStep(s.out, "Starting libvirtd", func() (string, error) {
		return startLibvirtd(ctx, s)
	}); err != nil {
		return err
	}
	startProgram := programStarter(s.out, running)
	if err := startProgram(local.Store, func() (*local.Process, error) { return stack.StartStore(ctx) }); err != nil {
		return err
	}
	if err := stack.PutConfig(ctx, func(c *config.Shard) {
		guest := libvirtd.Guest{URI: libvirtd.URI(libvirtDir(s)), Version: guestVersion,
			Leader: machines.Host(local.Leader)}
		guest.Configure(c, "worker")
	}); err != nil {
		return err
	}
	if err := startServers(ctx, stack, startProgram); err != nil {
		return err
	}
	// The first leader makes the cluster's CA. That CA signs the identity of the operator.
	if _, err := stack.AwaitLine(ctx, "serving as leader", 0); err != nil {
		return err
	}
	if err := showCluster(ctx, s.out, stack, startProgram); err != nil {
		return err
	}
	return printLibvirtAdvice(s, stack, identityDir(stack))
}

// guestVersion is the name of the VM image in the storage pool.
const guestVersion = "1"

// startLibvirtd starts the cluster's libvirtd unless libvirtd runs already. It first empties libvirtd's directory. No
// VM needs the old files, because the VMs of a killed libvirtd were killed too.
func startLibvirtd(ctx context.Context, s settings) (note string, err error) {
	dir := libvirtDir(s)
	if conn, err := new(net.Dialer).DialContext(ctx, "unix", libvirtd.Socket(dir)); err == nil {
		return "already running", conn.Close()
	}
	if err := errors.Join(os.RemoveAll(dir), libvirtd.RemoveLinks(), os.MkdirAll(dir, 0o700)); err != nil {
		return "", err
	}
	if _, err := libvirtd.Start(ctx, libvirtd.Options{Dir: dir, Detached: true}); err != nil {
		return "", err
	}
	return "", libvirtd.AddGuest(dir, filepath.Join(s.root, "bin", "guest"), guestVersion)
}

// printLibvirtAdvice writes temp/env and prints what the user can try next.
func printLibvirtAdvice(s settings, stack *local.Stack, identity string) error {
	if err := writeEnv(stack, identity); err != nil {
		return err
	}
	fmt.Fprintf(s.out, `
Look at the cluster in a browser: %s

Try, in this directory (logs are in temp/log, consoles in temp/libvirt/var/lib/libvirt/images):

  . temp/env                                      put nstance-admin on PATH and tell it about the cluster
  nstance-admin instance list                     list the instances
  virsh -c '%s' list
  nstance-admin group scale workers 3             add a VM
  make down                                       remove everything

The leader has the address %s.
`, stack.PageURL(), libvirtd.URI(libvirtDir(s)), stack.Network.Host(local.Leader))
	return nil
}
