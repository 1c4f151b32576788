package devtool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/dev/local"
)

const (
	servers    = 2
	group      = "workers"
	size       = 2
	largerSize = 3 // after scaling up
	// stepTimeout is the maximum duration of one step. It has no effect on the times that the demo prints.
	stepTimeout = 60 * time.Second
)

// demo is one run of "nstance-dev demo".
type demo struct {
	stack     *local.Stack
	terraform *local.Terraform
	out       io.Writer
	timeline  timeline

	operator *local.Operator
	store    *local.Process
	servers  [servers + 1]*local.Process // counted from 1
	leader   int
	term     uint64
	greeting string
}

// play runs the steps in order. The first one that fails ends the demo.
func (d *demo) play(ctx context.Context) error {
	watching, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	defer func() {
		stop()
		if d.operator != nil {
			<-watched
			d.operator.Close()
		}
	}()
	for _, c := range []struct {
		title string
		run   func(context.Context) error
	}{
		{"An object store, and `apply` of examples/local", d.applyExample},
		{"Two servers are started; one leads", d.awaitFirstLeader},
		{"The agents of the group register", d.awaitRegistration},
		{"kill -9 of an agent: the shard loses a VM", d.killAgent},
		{"Scale up to " + strconv.Itoa(largerSize), d.scaleUp},
		{"Scale down to " + strconv.Itoa(size), d.scaleDown},
		{"A second apply changes a file on the VMs", d.changeFile},
		{"kill -9 of the leading server: the standby leads", d.killLeader},
		{"Every process is killed, caches and disks are deleted; the bucket stays", d.killEverything},
		{"destroy", d.destroyShard},
	} {
		fmt.Fprintf(d.out, "  %-75s", c.title)
		began := time.Now()
		d.timeline.begin(c.title)
		step, cancel := context.WithTimeoutCause(ctx, stepTimeout, errors.New("timeout after "+stepTimeout.String()))
		err := c.run(step)
		cancel()
		if err != nil {
			fmt.Fprintln(d.out, "failed")
			if ctx.Err() != nil {
				return errors.New("interrupted")
			}
			return errors.Join(fmt.Errorf("%s: %w", c.title, err), d.openErrors())
		}
		fmt.Fprintf(d.out, "ok %5.1f s\n", time.Since(began).Seconds())
		if d.operator == nil && d.term > 0 {
			if d.operator, err = d.stack.Connect(ctx); err != nil {
				return err
			}
			go func() { defer close(watched); d.operator.Watch(watching) }()
		}
	}
	return nil
}

// openErrors returns the error events that the servers have sent to the demo's operator.
func (d *demo) openErrors() error {
	if d.operator == nil {
		return nil
	}
	_, events := d.operator.Events()
	var all []error
	for _, e := range events {
		all = append(all, fmt.Errorf("error event at %s: %s %s: %s (resolved: %t)",
			e.GetAt().AsTime().Format(time.TimeOnly), e.GetKind(), e.GetInstanceId(), e.GetMessage(), e.GetResolved()))
	}
	return errors.Join(all...)
}

func (d *demo) variables() map[string]string {
	vars := d.stack.Variables()
	vars["greeting"] = d.greeting
	return vars
}

func (d *demo) applyExample(ctx context.Context) (err error) {
	if d.store, err = d.stack.StartStore(ctx); err != nil {
		return err
	}
	d.greeting = "hello"
	if err := d.terraform.Apply(ctx, d.variables()); err != nil {
		return err
	}
	at, err := d.stack.ConfigWritten()
	if err != nil {
		return err
	}
	d.timeline.note(at, fromStore, time.Time{}, "config/%s.jsonc is written", local.Shard)
	return nil
}

func (d *demo) awaitFirstLeader(ctx context.Context) (err error) {
	started := time.Now()
	d.timeline.note(started, fromDemo, time.Time{}, "%s and %s are started", local.ServerName(1), local.ServerName(2))
	for n := 1; n <= servers; n++ {
		if d.servers[n], err = d.stack.StartServer(ctx, n); err != nil {
			return err
		}
	}
	return d.awaitLeader(ctx, started)
}

// awaitLeader waits until a server becomes leader in a later term than d.term. It adds the election to the timeline.
func (d *demo) awaitLeader(ctx context.Context, since time.Time) error {
	line, err := d.stack.AwaitLine(ctx, "became leader", d.term)
	if err != nil {
		return err
	}
	d.term = line.Term
	d.leader, err = strconv.Atoi(strings.TrimPrefix(line.Server, "server-"))
	if err != nil {
		return fmt.Errorf("leader %q: %w", line.Server, err)
	}
	d.timeline.note(line.Time, fromServer, since, "%s is elected, term %d", line.Server, line.Term)
	return nil
}

func (d *demo) awaitRegistration(ctx context.Context) error {
	instances, err := d.operator.AwaitHealthy(ctx, size)
	if err != nil {
		return err
	}
	for _, i := range instances {
		if err := d.noteInstance(i, time.Time{}); err != nil {
			return err
		}
	}
	return nil
}

// noteInstance adds the creation and the registration of an instance to the timeline. If since is not zero, both times
// are shown relative to since. If since is zero, the registration is shown relative to the create call.
func (d *demo) noteInstance(i *nstancev1.InstanceStatus, since time.Time) error {
	id, err := ident.ParseID(i.GetInstanceId())
	if err != nil {
		return err
	}
	create, err := d.stack.Called("create_entered", id)
	if err != nil {
		return err
	}
	vm, err := d.stack.VM(id)
	if err != nil {
		return err
	}
	d.timeline.note(create.Time, fromProvider, since, "a server asks for %s", id)
	if since.IsZero() {
		since = create.Time
	}
	d.timeline.note(i.GetRegisteredAt().AsTime(), fromServer, since, "%s registers, PID %d", id, vm.PID)
	return nil
}

func (d *demo) destroyShard(ctx context.Context) error {
	vms, err := d.stack.VMs()
	if err != nil {
		return err
	}
	asked := time.Now()
	d.timeline.note(asked, fromDemo, time.Time{}, "destroy is started")
	if err := d.terraform.Destroy(ctx, d.variables(), d.operator); err != nil {
		return err
	}
	for _, vm := range vms {
		deleted, err := d.stack.Called("delete_done", vm.Instance)
		if err != nil {
			return err
		}
		d.timeline.note(deleted.Time, fromProvider, asked, "%s is deleted", vm.Instance)
	}
	if err := d.checkNoVMs(ctx); err != nil {
		return err
	}
	for n := 1; n <= servers; n++ {
		if err := d.servers[n].Stop(15 * time.Second); err != nil {
			return err
		}
	}
	if err := d.store.Stop(15 * time.Second); err != nil {
		return err
	}
	left, err := d.stack.Processes(ctx)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("processes are still running: %v", left)
	}
	objects, err := d.stack.Objects()
	if err != nil {
		return err
	}
	// Ignore the journal and the shard's home, because servers that stop after the destroy command still write to them.
	// Only the election lock must remain. No server deletes it, because another server may hold it.
	objects = slices.DeleteFunc(objects, func(key string) bool {
		return strings.HasPrefix(key, keys.JournalPrefix(local.Shard)) || key == keys.Home(local.Shard)
	})
	if want := []string{keys.Leader(local.Shard)}; !slices.Equal(objects, want) {
		return fmt.Errorf("the bucket contains %v, want %v", objects, want)
	}
	d.timeline.note(time.Now(), fromDemo, time.Time{},
		"no process and no VM is left; the bucket contains only the election lock and the journal")
	return nil
}

// checkNoVMs verifies that destroy has left no VM.
func (d *demo) checkNoVMs(ctx context.Context) error {
	windows, err := d.stack.Windows(ctx)
	if err != nil {
		return err
	}
	if len(windows) > 0 {
		return fmt.Errorf("tmux windows are left: %v", windows)
	}
	vms, err := d.stack.VMs()
	if err != nil {
		return err
	}
	if len(vms) > 0 {
		return fmt.Errorf("VMs are left: %v", vms)
	}
	return nil
}
