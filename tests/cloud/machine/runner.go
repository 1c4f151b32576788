// Package machine owns the machines of the fake clouds. A machine is a set of processes in its own namespaces. It has
// these parts:
//   - a file system: the host's root with an image's tree over it;
//   - a network interface in its VPC;
//   - the cloud's metadata service at its usual address;
//   - an init that runs the unmodified boot script and the image's real units.
//
// Invariant: a machine changes nothing outside its namespaces. Nothing of a machine is left after it is stopped, after
// the runner is closed, or after the runner's process is killed. For this reason networks use unnamed namespaces, and
// the first process of a machine ends with the thread that started it.
//
// The package needs root, iproute2, and a kernel with namespaces, overlayfs, veth, bridges and BPF
// classifiers.
package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/nstance-kit/nstance/tests/cloud/machine/boot"
	"github.com/nstance-kit/nstance/tests/cloud/machine/contract"
	"github.com/nstance-kit/nstance/tests/cloud/machine/control"
)

// guestPackage is the program that runs inside the machines.
const guestPackage = "github.com/nstance-kit/nstance/tests/cloud/machine/cmd/guest"

// programs are the names under which the guest program is installed in the machines.
var programs = []string{"systemctl", "journalctl", "networkctl", "poweroff", "reboot", "shutdown"}

// Config configures a [Runner].
type Config struct {
	// Dir is the directory for logs, built images and, while the runner exists, its working files. If Dir is empty, New
	// creates a temporary directory, and Close removes it.
	Dir string
	// Images maps image IDs of the cloud to directories. A machine sees the directory of its image mounted over the
	// host's root. The directory contains units, programs and users. The key "" applies to all other images. A
	// directory must not change while machines use it.
	Images map[string]string
	// API answers requests to http://169.254.170.1 inside the machines. If it is nil, nothing listens at that address.
	API http.Handler
	// Environment is added to the environment of the services and the boot script of every machine. It acts like the
	// default environment that an image sets for its service manager.
	Environment map[string]string
	// Guest is the path of the program cmd/guest, built without cgo. If the path is empty, New builds the program.
	Guest string
	Log   *slog.Logger
}

// Runner starts machines. Its methods may be called concurrently.
type Runner struct {
	Config
	starter *starter
	remove  []string // Paths that Close removes.

	mu        sync.Mutex
	closed    bool
	instances map[string]*Instance
	all       []*Instance
	vpcs      map[string]*vpc
	builds    int
}

var _ contract.Machines = (*Runner)(nil)

// New returns a runner. If the host lacks something that machines need, such as the program ip, the error names it.
func New(c Config) (*Runner, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("machines are made of namespaces and mounts, which only root can make: run this as root")
	}
	for _, program := range []string{"ip", "tc", "cp"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("machines need %s (packages iproute2 and coreutils): %w", program, err)
		}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Images = maps.Clone(c.Images)
	r := &Runner{Config: c, instances: map[string]*Instance{}, vpcs: map[string]*vpc{}}
	if err := r.prepare(); err != nil {
		return nil, errors.Join(err, r.clean())
	}
	var err error
	if r.starter, err = newStarter(); err != nil {
		return nil, errors.Join(err, r.clean())
	}
	return r, nil
}

// prepare creates the directories and the guest program.
func (r *Runner) prepare() error {
	if r.Dir == "" {
		dir, err := os.MkdirTemp("", "machines-")
		if err != nil {
			return err
		}
		r.Dir, r.remove = dir, append(r.remove, dir)
	}
	dir, err := filepath.Abs(r.Dir)
	if err != nil {
		return err
	}
	r.Dir = dir
	for _, name := range []string{"logs", "images", "run"} {
		if err := os.MkdirAll(filepath.Join(r.Dir, name), 0o700); err != nil {
			return err
		}
	}
	r.remove = append(r.remove, filepath.Join(r.Dir, "run"))
	if r.Guest != "" {
		r.Guest, err = filepath.Abs(r.Guest)
		return err
	}
	r.Guest = filepath.Join(r.Dir, "run", "guest")
	return BuildGuest(context.Background(), r.Guest)
}

// BuildGuest builds the program for [Config.Guest] at the given path. The working directory must be inside this Go
// module.
func BuildGuest(ctx context.Context, path string) error {
	build := exec.CommandContext(ctx, "go", "build", "-o", path, guestPackage)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the machines' init: %w\n%s", err, out)
	}
	return nil
}

func (r *Runner) clean() error {
	var errs []error
	for _, path := range r.remove {
		errs = append(errs, os.RemoveAll(path))
	}
	return errors.Join(errs...)
}

// AddImage adds an entry to Config.Images. It may be called while the runner is in use.
func (r *Runner) AddImage(id, tree string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Images == nil {
		r.Images = map[string]string{}
	}
	r.Images[id] = tree
}

// Close stops all machines and removes everything that the runner created, except logs and images in a directory set by
// Config.Dir.
func (r *Runner) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	all := r.all
	r.mu.Unlock()
	var wg sync.WaitGroup
	for _, i := range all {
		wg.Go(i.Stop)
	}
	wg.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, v := range r.vpcs {
		errs = append(errs, v.ns.close())
	}
	r.starter.close()
	return errors.Join(append(errs, r.clean())...)
}

// Start implements [contract.Machines]. An error that occurs after Start has returned ends the machine and is written
// to the machine's log.
func (r *Runner) Start(spec contract.Spec) (contract.Machine, error) {
	i, err := r.start(spec)
	if err != nil {
		return nil, err
	}
	return i, nil
}

func (r *Runner) start(spec contract.Spec) (*Instance, error) {
	if spec.ID == "" || spec.ID != filepath.Base(spec.ID) {
		return nil, fmt.Errorf("start machine: %q is no ID", spec.ID)
	}
	if len(spec.Primary.Addresses) == 0 || spec.Primary.VPC == "" {
		return nil, fmt.Errorf("start machine %s: its network interface has no address or no VPC", spec.ID)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errors.New("start machine: the runner was closed")
	}
	if old := r.instances[spec.ID]; old != nil && !old.Ended() {
		return nil, fmt.Errorf("start machine %s: it runs", spec.ID)
	}
	tree, ok := r.Images[spec.Image]
	if !ok {
		if tree, ok = r.Images[""]; !ok {
			return nil, fmt.Errorf("start machine %s: there is no tree for the image %q", spec.ID, spec.Image)
		}
	}
	if info, err := os.Stat(tree); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("start machine %s: the tree of the image %q is no directory: %s", spec.ID, spec.Image,
			tree)
	}
	i := &Instance{runner: r, spec: spec, tree: tree, booted: make(chan struct{}), dead: make(chan struct{}),
		ports: map[string]*port{}}
	r.instances[spec.ID] = i
	r.all = append(slices.DeleteFunc(r.all, (*Instance).Ended), i)
	i.mu.Lock() // Held until the machine is up: Plug and Stop wait for it.
	go i.boot()
	return i, nil
}

// Machine returns the machine with the given ID, whether it runs or has ended.
func (r *Runner) Machine(id string) (*Instance, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, ok := r.instances[id]
	return i, ok
}

func (r *Runner) logPath(id string) string { return filepath.Join(r.Dir, "logs", id+".log") }

// identity returns the files that identify a machine.
func (i *Instance) identity(hostname, machineID string) map[string]string {
	var hosts strings.Builder
	hosts.WriteString("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n")
	for _, a := range i.spec.Primary.Addresses {
		fmt.Fprintf(&hosts, "%s %s\n", a.Addr(), hostname)
	}
	for _, name := range slices.Sorted(maps.Keys(i.spec.Hosts)) {
		fmt.Fprintf(&hosts, "%s %s\n", i.spec.Hosts[name], name)
	}
	files := baseFiles(hostname, machineID)
	files["etc/hosts"] = hosts.String()
	return files
}

func baseFiles(hostname, machineID string) map[string]string {
	return map[string]string{
		"etc/hostname": hostname + "\n", "etc/machine-id": machineID + "\n",
		// This is the address of the network's resolver. Nothing listens there, so that lookups fail immediately.
		"etc/resolv.conf": "nameserver 169.254.169.253\noptions attempts:1 timeout:1\n",
	}
}

// launch starts the first process of a machine. The channel "ready" is closed when the machine's init listens. The
// machine ends when "release" is called or when the runner's process ends.
func (r *Runner) launch(c boot.Config, ns *netns, log *os.File) (cmd *exec.Cmd, ready <-chan struct{}, release func(),
	err error) {
	c.Tree.Guest, c.Tree.GuestPath, c.Tree.Programs = r.Guest, control.Guest, programs
	if c.Tree.Mount, err = os.MkdirTemp(filepath.Join(r.Dir, "run"), "root-"); err != nil {
		return nil, nil, nil, err
	}
	var files []*os.File
	defer func() {
		for _, f := range files {
			_ = f.Close() // The machine holds its own copy.
		}
	}()
	spec, err := specFile(c)
	if err != nil {
		return nil, nil, nil, err
	}
	files = append(files, spec)
	up, upWrite, err := os.Pipe()
	if err != nil {
		return nil, nil, nil, err
	}
	files = append(files, upWrite)
	lifeRead, life, err := os.Pipe()
	if err != nil {
		return nil, nil, nil, errors.Join(err, up.Close())
	}
	files = append(files, lifeRead)
	cmd = command(r.Guest, files, log)
	if err := r.starter.start(cmd, ns); err != nil {
		return nil, nil, nil, errors.Join(fmt.Errorf("start the first process: %w", err), up.Close(), life.Close(),
			os.Remove(c.Tree.Mount))
	}
	listening := make(chan struct{})
	go func() {
		defer close(listening)
		defer up.Close()
		_, _ = up.Read(make([]byte, 1)) // Returns when init listens, or never will.
	}()
	return cmd, listening, func() {
		_ = life.Close() // Ends the machine if it still runs.
		if err := os.Remove(c.Tree.Mount); err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.Log.Warn("A directory of a machine stays", "error", err)
		}
	}, nil
}
