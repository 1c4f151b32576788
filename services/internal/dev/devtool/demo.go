package devtool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
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
	spares   int
	jobs     jobs
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
		{"A second apply changes a file on the VMs, and asks for a spare", d.changeFile},
		{"kill -9 of an agent: the spare takes its place", d.killWithSpare},
		{"Jobs wait: the leader scales up to " + strconv.Itoa(largerSize), d.scaleByJobs},
		{"kill -9 of the leading server: the standby leads", d.killLeader},
		{"No job waits: the next leader scales down to " + strconv.Itoa(size), d.finishJobs},
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
	if d.spares > 0 {
		vars["spares"] = fmt.Sprintf("{count = %d}", d.spares)
	}
	if url := d.jobs.url(); url != "" {
		vars["scaling"] = fmt.Sprintf(`{min = %d, max = %d, down = {stabilization = "1s"}, `+
			`metrics = [{url = {url = %q, json = "/waiting", target = %d}}]}`, size, largerSize, url, jobsPerInstance)
	}
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

// scale changes the size of the group and waits until it has that many healthy instances. It also returns the time of
// the request.
func (d *demo) scale(ctx context.Context, to uint32) ([]*nstancev1.InstanceStatus, time.Time, error) {
	asked := time.Now()
	if err := d.operator.Scale(ctx, group, to); err != nil {
		return nil, asked, err
	}
	d.timeline.note(asked, fromDemo, time.Time{}, "size %d is requested", to)
	instances, err := d.operator.AwaitHealthy(ctx, int(to))
	return instances, asked, err
}

func (d *demo) scaleUp(ctx context.Context) error {
	before, err := d.operator.Instances(ctx)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, i := range before {
		known[i.GetInstanceId()] = true
	}
	instances, asked, err := d.scale(ctx, largerSize)
	if err != nil {
		return err
	}
	for _, i := range instances {
		if !known[i.GetInstanceId()] {
			if err := d.noteInstance(i, asked); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *demo) scaleDown(ctx context.Context) error {
	mark := d.operator.Mark()
	_, asked, err := d.scale(ctx, size)
	if err != nil {
		return err
	}
	intent, err := d.operator.Await(ctx, mark, ofType(nstancev1.InstanceEvent_TYPE_PENDING_DELETION))
	if err != nil {
		return err
	}
	d.timeline.note(intent.GetAt().AsTime(), fromServer, asked, "%s is marked for deletion: %s",
		intent.GetInstance().GetInstanceId(),
		intent.GetReason())
	id, err := ident.ParseID(intent.GetInstance().GetInstanceId())
	if err != nil {
		return err
	}
	deleted, err := d.stack.Called("delete_done", id)
	if err != nil {
		return err
	}
	d.timeline.note(deleted.Time, fromProvider, asked, "%s is deleted", id)
	return nil
}

func ofType(t nstancev1.InstanceEvent_Type) func(*nstancev1.InstanceEvent) bool {
	return func(e *nstancev1.InstanceEvent) bool { return e.GetType() == t }
}

func (d *demo) changeFile(ctx context.Context) error {
	before, err := d.stack.VMs()
	if err != nil {
		return err
	}
	mark := d.operator.Mark()
	d.greeting, d.spares = "good morning", 1
	if err := d.terraform.Apply(ctx, d.variables()); err != nil {
		return err
	}
	written, err := d.stack.ConfigWritten()
	if err != nil {
		return err
	}
	d.timeline.note(written, fromStore, time.Time{}, "config/%s.jsonc is written with another greeting", local.Shard)
	asked := time.Now()
	result, err := d.operator.Refresh(ctx)
	if err != nil {
		return err
	}
	d.timeline.note(asked, fromDemo, time.Time{}, "RefreshConfig is called: %s",
		strings.TrimPrefix(result.String(), "REFRESH_RESULT_"))
	for _, vm := range before {
		event, err := d.operator.Await(ctx, mark, func(e *nstancev1.InstanceEvent) bool {
			return e.GetType() == nstancev1.InstanceEvent_TYPE_FILES_PUSHED &&
				e.GetInstance().GetInstanceId() == vm.Instance.String()
		})
		if err != nil {
			return fmt.Errorf("%s did not get its files: %w", vm.Instance, err)
		}
		d.timeline.note(event.GetAt().AsTime(), fromServer, asked, "%s gets its files",
			event.GetInstance().GetInstanceId())
	}
	for _, vm := range before {
		if err := d.awaitFile(ctx, vm.Instance, "app.env", d.greeting, time.Time{}); err != nil {
			return err
		}
		now, err := d.stack.VM(vm.Instance)
		if err != nil {
			return err
		}
		if now.PID != vm.PID {
			return fmt.Errorf("%s was restarted because its files changed", vm.Instance)
		}
	}
	return nil
}

// awaitFile waits until a received file of a VM contains the text. It shows the file's time relative to since.
func (d *demo) awaitFile(ctx context.Context, id ident.ID, name, text string, since time.Time) error {
	path := filepath.Join(d.stack.Disk(id), "recv", name)
	for {
		raw, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(raw), text) {
			info, err := os.Stat(path)
			if err == nil {
				d.timeline.note(info.ModTime(), fromProvider, since, "the file %s says %s", name, text)
			}
			return err
		}
		if err := local.Pause(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("%s of %s does not contain %q: %w", name, id, text, err)
		}
	}
}

func (d *demo) killAgent(ctx context.Context) error {
	vms, err := d.stack.VMs()
	if err != nil {
		return err
	}
	victim := vms[0]
	mark := d.operator.Mark()
	killed := time.Now()
	if err := syscall.Kill(victim.PID, syscall.SIGKILL); err != nil {
		return err
	}
	d.timeline.note(killed, fromDemo, time.Time{}, "SIGKILL to PID %d, the agent of %s", victim.PID, victim.Instance)
	event, err := d.operator.Await(ctx, mark, func(e *nstancev1.InstanceEvent) bool {
		return e.GetType() == nstancev1.InstanceEvent_TYPE_LOST &&
			e.GetInstance().GetInstanceId() == victim.Instance.String()
	})
	if err != nil {
		return fmt.Errorf("no server noticed the loss: %w", err)
	}
	d.timeline.note(event.GetAt().AsTime(), fromServer, killed, "the VM is lost: %s", event.GetReason())
	event, err = d.operator.Await(ctx, mark, func(e *nstancev1.InstanceEvent) bool {
		return e.GetType() == nstancev1.InstanceEvent_TYPE_CREATING && e.GetReplaces() == victim.Instance.String()
	})
	if err != nil {
		return fmt.Errorf("no server asked for a replacement: %w", err)
	}
	replacement := event.GetInstance().GetInstanceId()
	instances, err := d.operator.AwaitHealthy(ctx, size)
	if err != nil {
		return err
	}
	for _, i := range instances {
		if i.GetInstanceId() == replacement {
			return d.noteInstance(i, killed)
		}
	}
	return fmt.Errorf("replacement %s is not healthy", replacement)
}

// killWithSpare kills an agent while there is a spare, and waits until the spare is a healthy member and the group has
// another spare.
func (d *demo) killWithSpare(ctx context.Context) error {
	instances, err := d.operator.AwaitHealthy(ctx, size+1)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(instances, (*nstancev1.InstanceStatus).GetSpare)
	if i < 0 {
		return errors.New("no instance is a spare")
	}
	spare := instances[i].GetInstanceId()
	victim := slices.Delete(instances, i, i+1)[0].GetInstanceId()
	vms := map[string]*local.VM{}
	all, err := d.stack.VMs()
	if err != nil {
		return err
	}
	for _, vm := range all {
		vms[vm.Instance.String()] = &vm
	}
	mark := d.operator.Mark()
	killed := time.Now()
	if err := syscall.Kill(vms[victim].PID, syscall.SIGKILL); err != nil {
		return err
	}
	d.timeline.note(killed, fromDemo, time.Time{}, "SIGKILL to PID %d, the agent of %s", vms[victim].PID, victim)
	event, err := d.operator.Await(ctx, mark, func(e *nstancev1.InstanceEvent) bool {
		return e.GetType() == nstancev1.InstanceEvent_TYPE_PROMOTED && e.GetInstance().GetInstanceId() == spare
	})
	if err != nil {
		return fmt.Errorf("the spare %s has not become a member: %w", spare, err)
	}
	d.timeline.note(event.GetAt().AsTime(), fromServer, killed, "the spare %s is a member", spare)
	if err := d.awaitFile(ctx, vms[spare].Instance, "role", "member", killed); err != nil {
		return err
	}
	event, err = d.operator.Await(ctx, mark, func(e *nstancev1.InstanceEvent) bool {
		return e.GetType() == nstancev1.InstanceEvent_TYPE_HEALTHY && e.GetInstance().GetInstanceId() == spare
	})
	if err != nil {
		return fmt.Errorf("the new member %s is not healthy: %w", spare, err)
	}
	d.timeline.note(event.GetAt().AsTime(), fromServer, killed, "the new member is healthy")
	d.spares = 0 // the next apply
	return nil
}

func (d *demo) killLeader(ctx context.Context) (err error) {
	before, err := d.stack.VMs()
	if err != nil {
		return err
	}
	dead := d.leader
	killed := time.Now()
	if err := d.servers[dead].Kill(); err != nil {
		return err
	}
	d.timeline.note(killed, fromDemo, time.Time{}, "SIGKILL to PID %d, %s", d.servers[dead].PID, local.ServerName(dead))
	if err := d.awaitLeader(ctx, killed); err != nil {
		return err
	}
	line, err := d.stack.AwaitLine(ctx, "serving as leader", d.term-1)
	if err != nil {
		return err
	}
	d.timeline.note(line.Time, fromServer, killed, "%s has rebuilt the state of the shard and acts", line.Server)
	instances, err := d.operator.AwaitHealthy(ctx, largerSize)
	if err != nil {
		return err
	}
	for _, i := range instances {
		d.timeline.note(i.GetLastReportAt().AsTime(), fromServer, killed, "%s reports to the new leader",
			i.GetInstanceId())
	}
	for _, vm := range before {
		now, err := d.stack.VM(vm.Instance)
		if err != nil {
			return err
		}
		if now.PID != vm.PID || !now.DeletedAt.IsZero() {
			return fmt.Errorf("%s did not survive the failover", vm.Instance)
		}
	}
	// Restart the killed server, as a supervisor such as systemd would do.
	d.servers[dead], err = d.stack.StartServer(ctx, dead)
	return err
}

func (d *demo) killEverything(ctx context.Context) (err error) {
	old, err := d.stack.VMs()
	if err != nil {
		return err
	}
	killed := time.Now()
	if err := d.stack.KillAll(ctx); err != nil {
		return err
	}
	for n := 1; n <= servers; n++ {
		if err := os.RemoveAll(d.stack.CacheDir(n)); err != nil {
			return err
		}
	}
	if err := d.stack.WipeDisks(); err != nil {
		return err
	}
	d.timeline.note(killed, fromDemo, time.Time{},
		"SIGKILL to every process; caches and disks are removed")
	started := time.Now()
	if d.store, err = d.stack.StartStore(ctx); err != nil {
		return err
	}
	for n := 1; n <= servers; n++ {
		if d.servers[n], err = d.stack.StartServer(ctx, n); err != nil {
			return err
		}
	}
	d.timeline.note(started, fromDemo, time.Time{}, "object store and servers are started again")
	if err := d.awaitLeader(ctx, started); err != nil {
		return err
	}
	instances, err := d.operator.AwaitHealthy(ctx, size)
	if err != nil {
		return err
	}
	for _, i := range instances {
		for _, vm := range old {
			if i.GetInstanceId() == vm.Instance.String() {
				return fmt.Errorf("%s is listed although its process was killed", vm.Instance)
			}
		}
		if err := d.noteInstance(i, started); err != nil {
			return err
		}
	}
	return nil
}
