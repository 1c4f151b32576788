// Package tmux is the development provider. A VM is a window of a tmux session, with a separate directory. A boot
// script in the window runs the userdata and then becomes a real nstance-agent.
//
// The provider stores a VM's data in vm.json in the shared state directory. It writes vm.json before it starts
// anything, and the file outlives servers and VMs. The window's process is the machine: if the process ends or the
// window closes, the VM is lost. Several server processes may share a state directory. Every change of a VM happens
// under the directory's lock.
//
// Invariant: an instance ID starts at most one machine, regardless of the number of requests, of their callers and of
// crashes.
package tmux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/tmux"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

const (
	scheme = "tmux://"
	// bootGrace is the time for which a requested VM may have no window, because the create call is still running.
	// After that time, no call will finish the VM.
	bootGrace = 30 * time.Second
	// hangupGrace is how long a VM's processes may take to end after their window is closed. killGrace is how long they
	// may take after they are killed.
	hangupGrace = 250 * time.Millisecond
	killGrace   = 5 * time.Second
	// keepDeleted is the time for which the directory of a deleted VM remains, with its document and its console log.
	// During this time List returns the VM, and a create request with its ID fails.
	keepDeleted = time.Hour
	// The directories of the maxDeleted VMs that were deleted last stay for keepDeleted. The directories of all other
	// deleted VMs stay for keepDeletedLeast. After keepDeletedLeast, no create request with the ID of a deleted VM can
	// still be running.
	maxDeleted       = 20
	keepDeletedLeast = 5 * time.Minute
)

// Config configures a Provider.
type Config struct {
	Options contract.Options
	Logger  *slog.Logger
	Now     func() time.Time // nil means time.Now
}

// Provider implements infra.Provider, infra.MachineEvidence and infra.Sleeper.
type Provider struct {
	options contract.Options
	workDir string
	logger  *slog.Logger
	now     func() time.Time
	state   *state
	session *session
}

var (
	_ infra.Provider        = (*Provider)(nil)
	_ infra.MachineEvidence = (*Provider)(nil)
)

// New checks that tmux and the agent exist, and makes the state directory. It starts nothing.
func New(cfg Config) (*Provider, error) {
	if _, err := exec.LookPath("tmux"); err != nil {
		return nil, fmt.Errorf("tmux provider: %w", err)
	}
	if err := resolve(&cfg.Options); err != nil {
		return nil, err
	}
	workDir, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("tmux provider: %w", err)
	}
	st, err := newState(cfg.Options.Dir)
	if err != nil {
		return nil, err
	}
	p := &Provider{
		options: cfg.Options, workDir: workDir, logger: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)), now: cfg.Now,
		state:   st,
		session: &session{name: cfg.Options.Session, socket: cfg.Options.Socket, env: environment()},
	}
	if p.now == nil {
		p.now = time.Now
	}
	return p, nil
}

func providerID(id ident.ID) string { return scheme + id.String() }

func parseProviderID(s string) (ident.ID, error) {
	text, ok := strings.CutPrefix(s, scheme)
	if !ok {
		return ident.ID{}, fmt.Errorf("provider ID %q does not start with %s", s, scheme)
	}
	return ident.ParseID(text)
}

// Create implements infra.Provider. The VM is running when Create returns.
func (p *Provider) Create(ctx context.Context, req infra.CreateRequest) (infra.VM, error) {
	entered := p.now()
	what := "create " + req.Tags.Instance.String()
	if req.Tags.Instance.IsZero() {
		return infra.VM{}, infra.Errorf(infra.Invalid, "create", "no instance ID")
	}
	digest, err := req.Digest()
	if err != nil {
		return infra.VM{}, infra.Wrap(infra.Invalid, what, err)
	}
	event := Event{
		Time: entered, Op: "create_entered", Instance: req.Tags.Instance,
		Shard: req.Tags.Shard, Tenant: req.Tags.Tenant, Group: req.Tags.Group,
	}
	p.note(event)
	vm, pid, err := p.create(ctx, req, digest, entered)
	event.Time, event.Op, event.PID = p.now(), "create_done", pid
	if err != nil {
		event.Op, event.Error = "create_failed", err.Error()
		p.note(event)
		class := infra.Indeterminate
		if e, ok := errors.AsType[*refusal](err); ok {
			class = e.class
		}
		return infra.VM{}, infra.Wrap(class, what, err)
	}
	p.note(event)
	return vm, nil
}

// refusal is an error after which no VM exists. After any other error a VM may exist, and the caller must repeat the
// call to find out.
type refusal struct {
	class infra.Class
	error
}

func (p *Provider) create(ctx context.Context, req infra.CreateRequest, digest string, entered time.Time) (infra.VM,
	int, error) {
	unlock, err := p.state.lock(ctx)
	if err != nil {
		return infra.VM{}, 0, err
	}
	defer unlock()
	d, known, err := p.state.read(req.Tags.Instance)
	var panes []pane // empty for a new VM
	switch {
	case err != nil:
		return infra.VM{}, 0, err
	case !known:
		if err := p.checkRoom(); err != nil {
			return infra.VM{}, 0, err
		}
		d = newDocument(req, digest, entered, p.now())
		// First write the files that the VM runs, then the document, and then open the window. A crash in between
		// leaves either nothing or a VM that a repeated call finishes. Without a repeated call, the VM's state becomes
		// Failed.
		if err := p.prepare(d, req); err != nil {
			return infra.VM{}, 0, err
		}
		if err := p.state.write(d); err != nil {
			return infra.VM{}, 0, err
		}
	case d.Request != digest:
		return infra.VM{}, 0, &refusal{infra.Conflict, errors.New("made before with other parameters")}
	case !d.DeletedAt.IsZero():
		return infra.VM{}, 0, &refusal{infra.Conflict, errors.New("the VM of this request was deleted")}
	default:
		if panes, err = p.session.panes(ctx); err != nil {
			return infra.VM{}, 0, err
		}
	}
	if d.PID == 0 {
		if panes, err = p.start(ctx, &d, panes); err != nil {
			return infra.VM{}, 0, err
		}
	}
	vm := p.describe(d, panes)
	if vm.State == infra.Running {
		if err := p.writeNode(d); err != nil {
			p.logger.Warn("fake node not written", "instance", d.Instance, "error", err)
		}
	}
	return vm, d.PID, nil
}

// checkRoom fails with a refusal if the directory already has as many running VMs as the option max_vms permits. The
// caller holds the lock.
func (p *Provider) checkRoom() error {
	if p.options.MaxVMs == 0 {
		return nil
	}
	docs, err := p.state.all()
	if err != nil {
		return err
	}
	running := 0
	for _, d := range docs {
		if d.DeletedAt.IsZero() && (d.PID == 0 || d.process().alive()) {
			running++
		}
	}
	if running >= p.options.MaxVMs {
		return &refusal{infra.Capacity, fmt.Errorf("%d VMs run, and there is room for %d (max_vms)", running,
			p.options.MaxVMs)}
	}
	return nil
}

// start opens the VM's window if no process of the VM has started yet, and returns panes with the pane of the new
// window added. If the document is older than bootGrace, start opens no window. The caller holds the lock.
func (p *Provider) start(ctx context.Context, d *document, panes []pane) ([]pane, error) {
	machine, started := p.started(*d, panes)
	if !started {
		if p.now().Sub(d.AcceptedAt) > bootGrace {
			return panes, nil // the VM was already reported as failed, and remains failed
		}
		dir, window := p.state.vmDir(d.Instance), windowPrefix+d.Instance.String()
		argv := append([]string{"env", "-i", "TERM=screen-256color"}, p.session.env...)
		argv = append(argv, "sh", filepath.Join(dir, "boot.sh"))
		pid, err := p.session.open(ctx, window, filepath.Join(dir, consoleLog), argv)
		if err != nil {
			return nil, err
		}
		machine = ended(pid)
		if now, ok := identify(pid); ok {
			machine = now
		}
		panes = append(panes, pane{name: window, pid: pid})
	}
	d.PID, d.Start, d.StartedAt = machine.PID, machine.Start, p.now().UTC().Round(0)
	return panes, p.state.write(*d)
}

// ended returns a process that never counts as alive, for a machine that has ended. pid is 0 if the PID is not known.
func ended(pid int) process { return process{max(pid, 1), "ended"} }

// started finds the process of a VM whose document has no PID. That happens if the caller that opened the window died
// before it wrote the PID to the document.
func (p *Provider) started(d document, panes []pane) (process, bool) {
	for _, pane := range panes {
		if pane.name == windowPrefix+d.Instance.String() {
			if now, ok := identify(pane.pid); ok && !pane.dead {
				return now, true
			}
			return ended(pane.pid), true
		}
	}
	if d.booted {
		return ended(0), true
	}
	return process{}, false
}

// describe derives a VM from its document and from the panes. The panes must have been read after the document.
func (p *Provider) describe(d document, panes []pane) infra.VM {
	vm := infra.VM{
		ProviderID: providerID(d.Instance),
		Tags:       d.tags(),
		IPv4:       loopback, Hostname: d.Hostname, LaunchedAt: d.LaunchedAt,
	}
	machine, started := d.process(), d.PID != 0
	if !started {
		machine, started = p.started(d, panes)
	}
	windowed := false
	for _, pane := range panes {
		windowed = windowed || pane.pid == machine.PID
	}
	alive := machine.alive()
	switch {
	case !d.DeletedAt.IsZero() && alive:
		vm.State = infra.Deleting
	case !d.DeletedAt.IsZero():
		vm.State = infra.Deleted
	case !d.AsleepAt.IsZero() && !alive:
		vm.State, vm.Warning = infra.Failed, "it ended while it slept"
	case !d.AsleepAt.IsZero() && windowed && suspended(members(machine)):
		vm.State = infra.Stopped
	case alive && windowed && d.AsleepAt.IsZero():
		vm.State = infra.Running
	case alive:
		vm.State = infra.Stopping // the window was closed, or the VM falls asleep
	case started:
		vm.State = infra.Stopped
	case p.now().Sub(d.AcceptedAt) <= bootGrace:
		vm.State = infra.Pending
	default:
		vm.State, vm.Warning = infra.Failed, "its tmux window was never opened"
	}
	return vm
}

// Get implements infra.Provider.
func (p *Provider) Get(ctx context.Context, providerID string) (infra.VM, error) {
	what := "get " + providerID
	id, err := parseProviderID(providerID)
	if err != nil {
		return infra.VM{}, infra.Wrap(infra.Invalid, what, err)
	}
	return p.get(ctx, what, id, nil)
}

// ReadConsole implements infra.VMConsoles with the console log of the VM.
func (p *Provider) ReadConsole(_ context.Context, vm infra.VM) ([]byte, error) {
	what := "read the console of " + vm.ProviderID
	id, err := parseProviderID(vm.ProviderID)
	if err != nil {
		return nil, infra.Wrap(infra.Invalid, what, err)
	}
	file, err := os.Open(filepath.Join(p.state.vmDir(id), consoleLog))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, infra.Wrap(infra.NotFound, what, err)
	}
	if err != nil {
		return nil, infra.Wrap(infra.Indeterminate, what, err)
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > infra.MaxConsole {
		_, _ = file.Seek(info.Size()-infra.MaxConsole-1, io.SeekStart) // one more byte shows that the output is longer
	}
	out, err := io.ReadAll(io.LimitReader(file, 2*infra.MaxConsole))
	return out, infra.Wrap(infra.Indeterminate, what, err)
}

// FindByInstance implements infra.Provider.
func (p *Provider) FindByInstance(ctx context.Context, owner infra.Owner, id ident.ID) (infra.VM, error) {
	return p.get(ctx, "find "+id.String(), id, &owner)
}

func (p *Provider) get(ctx context.Context, what string, id ident.ID, owner *infra.Owner) (infra.VM, error) {
	d, ok, err := p.state.read(id)
	if err != nil {
		return infra.VM{}, infra.Wrap(infra.Indeterminate, what, err)
	}
	if !ok || owner != nil && d.owner() != *owner {
		return infra.VM{}, infra.Errorf(infra.NotFound, what, "no such VM")
	}
	panes, err := p.session.panes(ctx)
	if err != nil {
		return infra.VM{}, infra.Wrap(infra.Indeterminate, what, err)
	}
	return p.describe(d, panes), nil
}

// List implements infra.Provider with one tmux call. The list is sorted by instance ID.
func (p *Provider) List(ctx context.Context, owner infra.Owner) ([]infra.VM, error) {
	docs, err := p.state.all()
	if err != nil {
		return nil, infra.Wrap(infra.Indeterminate, "list", err)
	}
	panes, err := p.session.panes(ctx) // after the documents, because a window is opened before its PID is stored
	if err != nil {
		return nil, infra.Wrap(infra.Indeterminate, "list", err)
	}
	vms := make([]infra.VM, 0, len(docs))
	var deleted []document
	for _, d := range docs {
		vm := p.describe(d, panes)
		if vm.State == infra.Deleted {
			deleted = append(deleted, d)
		}
		if d.owner() == owner {
			vms = append(vms, vm)
		}
	}
	for _, d := range expired(deleted, p.now()) {
		if err := os.RemoveAll(p.state.vmDir(d.Instance)); err != nil {
			p.logger.Warn("directory of a deleted VM not removed", "instance", d.Instance, "error", err)
		}
		vms = slices.DeleteFunc(vms, func(vm infra.VM) bool { return vm.Tags.Instance == d.Instance })
	}
	return vms, nil
}

// expired returns the deleted VMs whose directories are due for removal.
func expired(deleted []document, now time.Time) []document {
	slices.SortFunc(deleted, func(a, b document) int { return b.DeletedAt.Compare(a.DeletedAt) }) // latest first
	var out []document
	for i, d := range deleted {
		keep := keepDeleted
		if i >= maxDeleted {
			keep = keepDeletedLeast
		}
		if now.Sub(d.DeletedAt) > keep {
			out = append(out, d)
		}
	}
	return out
}

// Delete implements infra.Provider. It closes the VM's window and kills all processes that survive the close.
func (p *Provider) Delete(ctx context.Context, vm infra.VM) error {
	providerID, what := vm.ProviderID, "delete "+vm.ProviderID
	id, err := parseProviderID(providerID)
	if err != nil {
		return infra.Wrap(infra.Invalid, what, err)
	}
	event := Event{Time: p.now(), Op: "delete_entered", Instance: id}
	d, known, err := p.markDeleted(ctx, id, vm.Tags)
	if infra.ClassOf(err) == infra.Invalid {
		return err
	}
	if err != nil {
		return infra.Wrap(infra.Indeterminate, what, err)
	}
	if !known {
		return nil
	}
	event.Shard, event.Tenant, event.Group, event.PID = d.Shard, d.Tenant, d.Group, d.PID
	p.note(event)
	if err := p.end(ctx, d); err != nil {
		return infra.Wrap(infra.Indeterminate, what, err)
	}
	if err := errors.Join(p.removeNode(id), p.state.clear(id)); err != nil {
		return infra.Wrap(infra.Indeterminate, what, err)
	}
	event.Time, event.Op = p.now(), "delete_done"
	p.note(event)
	return nil
}

// markDeleted makes the deletion durable, if the VM has the owner and the instance of want. From then on no call starts
// the VM.
func (p *Provider) markDeleted(ctx context.Context, id ident.ID, want infra.Tags) (d document, known bool, err error) {
	unlock, err := p.state.lock(ctx)
	if err != nil {
		return d, false, err
	}
	defer unlock()
	d, known, err = p.state.read(id)
	if !known {
		return d, false, err
	}
	err = infra.CheckOwned("delete "+providerID(id), d.tags(), want)
	if err != nil || !d.DeletedAt.IsZero() {
		return d, known, err
	}
	if d.PID == 0 {
		panes, err := p.session.panes(ctx)
		if err != nil {
			return d, true, err
		}
		if machine, ok := p.started(d, panes); ok {
			d.PID, d.Start = machine.PID, machine.Start
		}
	}
	d.DeletedAt = p.now().UTC().Round(0)
	return d, true, p.state.write(d)
}

// end ends a VM's processes. It returns when the processes are gone, or with an error if they cannot be killed.
func (p *Provider) end(ctx context.Context, d document) error {
	panes, err := p.session.panes(ctx)
	if err != nil {
		return err
	}
	machine := d.process()
	for _, pane := range panes {
		// Compare the PID too, because someone may have renamed the VM's window. By now, the PID may belong to another
		// window's process, so check that the VM's process is still alive.
		if pane.name == windowPrefix+d.Instance.String() || pane.pid == machine.PID && machine.alive() {
			if err := p.session.close(ctx, pane.window); err != nil {
				return err
			}
		}
	}
	machine.awaitExit(ctx, hangupGrace)
	killSession(machine)
	if !machine.awaitExit(ctx, killGrace) {
		return errors.Join(errors.New("its process does not exit"), ctx.Err())
	}
	return nil
}

// note writes to the journal. A failed write is only logged.
func (p *Provider) note(e Event) {
	e.Time = e.Time.UTC()
	if err := p.state.note(e); err != nil {
		p.logger.Warn("journal not written", "instance", e.Instance, "error", err)
	}
}

// resolve makes paths absolute and locates the agent.
func resolve(o *contract.Options) error {
	for _, path := range []*string{&o.Dir, &o.NodesDir, &o.Socket} {
		if *path == "" || path == &o.Socket && !strings.Contains(o.Socket, "/") {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("tmux provider: %w", err)
		}
		*path = abs
	}
	if o.Command != "" {
		return nil
	}
	candidates := []string{o.Agent}
	if o.Agent == "" {
		candidates = []string{filepath.Join("bin", "nstance-agent"), "nstance-agent"}
		if self, err := os.Executable(); err == nil {
			candidates = slices.Insert(candidates, 0, filepath.Join(filepath.Dir(self), "nstance-agent"))
		}
	}
	for _, path := range candidates {
		found, err := exec.LookPath(path)
		if err != nil {
			continue
		}
		if found, err = filepath.Abs(found); err == nil {
			o.Agent = found
			return nil
		}
	}
	return fmt.Errorf("tmux provider: no nstance-agent at %s: build it, or set the option \"agent\"",
		strings.Join(candidates, ", "))
}
