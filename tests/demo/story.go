package main

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
	"github.com/nstance-kit/nstance/tests/local"
)

const (
	servers = 2
	group   = "workers"
	size    = 2
	more    = 3 // after scaling up
	// patience is how long one step may take. Nothing that is reported depends on it.
	patience = 60 * time.Second
)

// story is one run of the demo.
type story struct {
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

// play runs the chapters one after the other; the first that fails ends it.
func (s *story) play(ctx context.Context) error {
	watching, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	defer func() {
		stop()
		if s.operator != nil {
			<-watched
			s.operator.Close()
		}
	}()
	for _, c := range []struct {
		title string
		tell  func(context.Context) error
	}{
		{"An object store, and `apply` of examples/local", s.apply},
		{"Two servers are started; one leads", s.lead},
		{"The group's agents register", s.register},
		{"kill -9 of an agent: its VM is lost", s.lose},
		{"Scale up to " + strconv.Itoa(more), s.up},
		{"Scale down to " + strconv.Itoa(size), s.down},
		{"A second apply changes a file of the VMs", s.change},
		{"kill -9 of the leading server: the standby leads", s.failOver},
		{"Everything is deleted: processes, caches, agents. Only the bucket stays", s.disaster},
		{"destroy", s.destroy},
	} {
		fmt.Fprintf(s.out, "  %-75s", c.title)
		began := time.Now()
		s.timeline.chapter(c.title)
		step, cancel := context.WithTimeoutCause(ctx, patience, errors.New("it took longer than "+patience.String()))
		err := c.tell(step)
		cancel()
		if err != nil {
			fmt.Fprintln(s.out, "failed")
			if ctx.Err() != nil {
				return errors.New("interrupted")
			}
			return errors.Join(fmt.Errorf("%s: %w", c.title, err), s.standing())
		}
		fmt.Fprintf(s.out, "ok %5.1f s\n", time.Since(began).Seconds())
		if s.operator == nil && s.term > 0 {
			if s.operator, err = s.stack.Connect(ctx); err != nil {
				return err
			}
			go func() { defer close(watched); s.operator.Watch(watching) }()
		}
	}
	return nil
}

// standing are the errors that the servers reported.
func (s *story) standing() error {
	if s.operator == nil {
		return nil
	}
	_, events := s.operator.Events()
	var all []error
	for _, e := range events {
		all = append(all, fmt.Errorf("error event at %s: %s %s: %s (resolved: %t)",
			e.GetAt().AsTime().Format(time.TimeOnly), e.GetKind(), e.GetInstanceId(), e.GetMessage(), e.GetResolved()))
	}
	return errors.Join(all...)
}

func (s *story) variables() map[string]string {
	vars := s.stack.Variables()
	vars["greeting"] = s.greeting
	return vars
}

func (s *story) apply(ctx context.Context) (err error) {
	if s.store, err = s.stack.StartStore(ctx); err != nil {
		return err
	}
	s.greeting = "hello"
	if err := s.terraform.Apply(ctx, s.variables()); err != nil {
		return err
	}
	at, err := s.stack.ConfigWritten()
	if err != nil {
		return err
	}
	s.timeline.note(at, fromStore, time.Time{}, "config/%s.jsonc is written", local.Shard)
	return nil
}

func (s *story) lead(ctx context.Context) (err error) {
	started := time.Now()
	s.timeline.note(started, fromDemo, time.Time{}, "%s and %s are started", local.ServerName(1), local.ServerName(2))
	for n := 1; n <= servers; n++ {
		if s.servers[n], err = s.stack.StartServer(ctx, n); err != nil {
			return err
		}
	}
	return s.leads(ctx, started)
}

// leads waits for a new leader and notes it.
func (s *story) leads(ctx context.Context, since time.Time) error {
	line, err := s.stack.AwaitLine(ctx, servers, "became leader", s.term)
	if err != nil {
		return err
	}
	s.term = line.Term
	s.leader, err = strconv.Atoi(strings.TrimPrefix(line.Server, "server-"))
	if err != nil {
		return fmt.Errorf("leader %q: %w", line.Server, err)
	}
	s.timeline.note(line.Time, fromServer, since, "%s is elected, term %d", line.Server, line.Term)
	return nil
}

func (s *story) register(ctx context.Context) error {
	instances, err := s.operator.AwaitHealthy(ctx, size)
	if err != nil {
		return err
	}
	for _, i := range instances {
		if err := s.born(i, time.Time{}); err != nil {
			return err
		}
	}
	return nil
}

// born notes how an instance came about; since is what it answers, else its own create call.
func (s *story) born(i *nstancev1.InstanceStatus, since time.Time) error {
	id, err := ident.ParseID(i.GetInstanceId())
	if err != nil {
		return err
	}
	create, err := s.stack.Called("create_entered", id)
	if err != nil {
		return err
	}
	vm, err := s.stack.VM(id)
	if err != nil {
		return err
	}
	s.timeline.note(create.Time, fromProvider, since, "create of %s is asked for", id)
	if since.IsZero() {
		since = create.Time
	}
	s.timeline.note(i.GetRegisteredAt().AsTime(), fromServer, since, "%s registers, PID %d", id, vm.PID)
	return nil
}

func (s *story) lose(ctx context.Context) error {
	vms, err := s.stack.VMs()
	if err != nil {
		return err
	}
	victim := vms[0]
	mark := s.operator.Mark()
	killed := time.Now()
	if err := syscall.Kill(victim.PID, syscall.SIGKILL); err != nil {
		return err
	}
	s.timeline.note(killed, fromDemo, time.Time{}, "SIGKILL to PID %d, the agent of %s", victim.PID, victim.Instance)
	event, err := s.operator.Await(ctx, mark, func(e *nstancev1.InstanceEvent) bool {
		return e.GetType() == nstancev1.InstanceEvent_TYPE_LOST &&
			e.GetInstance().GetInstanceId() == victim.Instance.String()
	})
	if err != nil {
		return fmt.Errorf("the loss was not noticed: %w", err)
	}
	s.timeline.note(event.GetAt().AsTime(), fromServer, killed, "it is lost: %s", event.GetReason())
	event, err = s.operator.Await(ctx, mark, func(e *nstancev1.InstanceEvent) bool {
		return e.GetType() == nstancev1.InstanceEvent_TYPE_CREATING && e.GetReplaces() == victim.Instance.String()
	})
	if err != nil {
		return fmt.Errorf("no replacement was asked for: %w", err)
	}
	replacement := event.GetInstance().GetInstanceId()
	instances, err := s.operator.AwaitHealthy(ctx, size)
	if err != nil {
		return err
	}
	for _, i := range instances {
		if i.GetInstanceId() == replacement {
			return s.born(i, killed)
		}
	}
	return fmt.Errorf("replacement %s is not among the healthy ones", replacement)
}

// scale asks for a size and returns the instances when they are there, and when that was asked.
func (s *story) scale(ctx context.Context, to uint32) ([]*nstancev1.InstanceStatus, time.Time, error) {
	asked := time.Now()
	if err := s.operator.Scale(ctx, group, to); err != nil {
		return nil, asked, err
	}
	s.timeline.note(asked, fromDemo, time.Time{}, "size %d is asked for", to)
	instances, err := s.operator.AwaitHealthy(ctx, int(to))
	return instances, asked, err
}

func (s *story) up(ctx context.Context) error {
	before, err := s.operator.Instances(ctx)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, i := range before {
		known[i.GetInstanceId()] = true
	}
	instances, asked, err := s.scale(ctx, more)
	if err != nil {
		return err
	}
	for _, i := range instances {
		if !known[i.GetInstanceId()] {
			if err := s.born(i, asked); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *story) down(ctx context.Context) error {
	mark := s.operator.Mark()
	_, asked, err := s.scale(ctx, size)
	if err != nil {
		return err
	}
	intent, err := s.operator.Await(ctx, mark, ofType(nstancev1.InstanceEvent_TYPE_PENDING_DELETION))
	if err != nil {
		return err
	}
	s.timeline.note(intent.GetAt().AsTime(), fromServer, asked, "%s is to go: %s", intent.GetInstance().GetInstanceId(),
		intent.GetReason())
	id, err := ident.ParseID(intent.GetInstance().GetInstanceId())
	if err != nil {
		return err
	}
	gone, err := s.stack.Called("delete_done", id)
	if err != nil {
		return err
	}
	s.timeline.note(gone.Time, fromProvider, asked, "%s is deleted", id)
	return nil
}

func ofType(t nstancev1.InstanceEvent_Type) func(*nstancev1.InstanceEvent) bool {
	return func(e *nstancev1.InstanceEvent) bool { return e.GetType() == t }
}

func (s *story) change(ctx context.Context) error {
	before, err := s.stack.VMs()
	if err != nil {
		return err
	}
	mark := s.operator.Mark()
	s.greeting = "good morning"
	if err := s.terraform.Apply(ctx, s.variables()); err != nil {
		return err
	}
	written, err := s.stack.ConfigWritten()
	if err != nil {
		return err
	}
	s.timeline.note(written, fromStore, time.Time{}, "config/%s.jsonc is written: another greeting", local.Shard)
	asked := time.Now()
	result, err := s.operator.Refresh(ctx)
	if err != nil {
		return err
	}
	s.timeline.note(asked, fromDemo, time.Time{}, "the leader is told to look: %s",
		strings.TrimPrefix(result.String(), "REFRESH_RESULT_"))
	for _, vm := range before {
		event, err := s.operator.Await(ctx, mark, func(e *nstancev1.InstanceEvent) bool {
			return e.GetType() == nstancev1.InstanceEvent_TYPE_FILES_PUSHED &&
				e.GetInstance().GetInstanceId() == vm.Instance.String()
		})
		if err != nil {
			return fmt.Errorf("%s was not sent its files: %w", vm.Instance, err)
		}
		s.timeline.note(event.GetAt().AsTime(), fromServer, asked, "%s is sent its files",
			event.GetInstance().GetInstanceId())
	}
	for _, vm := range before {
		if err := s.awaitFile(ctx, vm.Instance, "app.env", s.greeting); err != nil {
			return err
		}
		now, err := s.stack.VM(vm.Instance)
		if err != nil {
			return err
		}
		if now.PID != vm.PID {
			return fmt.Errorf("%s was restarted for a change of its files", vm.Instance)
		}
	}
	return nil
}

// awaitFile waits until a received file of a VM holds a text.
func (s *story) awaitFile(ctx context.Context, id ident.ID, name, text string) error {
	path := filepath.Join(s.stack.Disk(id), "recv", name)
	for {
		raw, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(raw), text) {
			info, err := os.Stat(path)
			if err == nil {
				s.timeline.note(info.ModTime(), fromProvider, time.Time{}, "%s is on its disk", name)
			}
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s of %s does not hold %q: %w", name, id, text, context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *story) failOver(ctx context.Context) (err error) {
	before, err := s.stack.VMs()
	if err != nil {
		return err
	}
	dead := s.leader
	killed := time.Now()
	if err := s.servers[dead].Kill(); err != nil {
		return err
	}
	s.timeline.note(killed, fromDemo, time.Time{}, "SIGKILL to PID %d, %s", s.servers[dead].PID, local.ServerName(dead))
	if err := s.leads(ctx, killed); err != nil {
		return err
	}
	line, err := s.stack.AwaitLine(ctx, servers, "serving as leader", s.term-1)
	if err != nil {
		return err
	}
	s.timeline.note(line.Time, fromServer, killed, "%s has rebuilt its picture and acts", line.Server)
	instances, err := s.operator.AwaitHealthy(ctx, size)
	if err != nil {
		return err
	}
	for _, i := range instances {
		s.timeline.note(i.GetLastReportAt().AsTime(), fromServer, killed, "%s reports to it", i.GetInstanceId())
	}
	for _, vm := range before {
		now, err := s.stack.VM(vm.Instance)
		if err != nil {
			return err
		}
		if now.PID != vm.PID || !now.DeletedAt.IsZero() {
			return fmt.Errorf("%s did not survive the change of leader", vm.Instance)
		}
	}
	// As a supervisor would.
	s.servers[dead], err = s.stack.StartServer(ctx, dead)
	return err
}

func (s *story) disaster(ctx context.Context) (err error) {
	old, err := s.stack.VMs()
	if err != nil {
		return err
	}
	killed := time.Now()
	if err := s.stack.KillAll(ctx); err != nil {
		return err
	}
	for n := 1; n <= servers; n++ {
		if err := os.RemoveAll(s.stack.CacheDir(n)); err != nil {
			return err
		}
	}
	if err := s.stack.WipeDisks(); err != nil {
		return err
	}
	s.timeline.note(killed, fromDemo, time.Time{},
		"SIGKILL to every process, agents and object store included; caches and disks removed")
	started := time.Now()
	if s.store, err = s.stack.StartStore(ctx); err != nil {
		return err
	}
	for n := 1; n <= servers; n++ {
		if s.servers[n], err = s.stack.StartServer(ctx, n); err != nil {
			return err
		}
	}
	s.timeline.note(started, fromDemo, time.Time{}, "object store and servers are started again")
	if err := s.leads(ctx, started); err != nil {
		return err
	}
	instances, err := s.operator.AwaitHealthy(ctx, size)
	if err != nil {
		return err
	}
	for _, i := range instances {
		for _, vm := range old {
			if i.GetInstanceId() == vm.Instance.String() {
				return fmt.Errorf("%s cannot be alive: its process was killed", vm.Instance)
			}
		}
		if err := s.born(i, started); err != nil {
			return err
		}
	}
	return nil
}

func (s *story) destroy(ctx context.Context) error {
	vms, err := s.stack.VMs()
	if err != nil {
		return err
	}
	asked := time.Now()
	s.timeline.note(asked, fromDemo, time.Time{}, "destroy is started")
	if err := s.terraform.Destroy(ctx, s.variables(), s.operator); err != nil {
		return err
	}
	for _, vm := range vms {
		gone, err := s.stack.Called("delete_done", vm.Instance)
		if err != nil {
			return err
		}
		s.timeline.note(gone.Time, fromProvider, asked, "%s is deleted", vm.Instance)
	}
	if err := s.noVMs(ctx); err != nil {
		return err
	}
	for n := 1; n <= servers; n++ {
		if err := s.servers[n].Stop(15 * time.Second); err != nil {
			return err
		}
	}
	if err := s.store.Stop(15 * time.Second); err != nil {
		return err
	}
	left, err := s.stack.Processes(ctx)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("processes are left: %v", left)
	}
	objects, err := s.stack.Objects()
	if err != nil {
		return err
	}
	// The election lock is never deleted while there is a server that could have it.
	if want := []string{keys.Leader(local.Shard)}; !slices.Equal(objects, want) {
		return fmt.Errorf("in the bucket are %v, want %v", objects, want)
	}
	s.timeline.note(time.Now(), fromDemo, time.Time{},
		"no process, no VM, and nothing in the bucket but the election lock is left")
	return nil
}

// noVMs checks that destroy has left no VM.
func (s *story) noVMs(ctx context.Context) error {
	windows, err := s.stack.Windows(ctx)
	if err != nil {
		return err
	}
	if len(windows) > 0 {
		return fmt.Errorf("windows are left: %v", windows)
	}
	vms, err := s.stack.VMs()
	if err != nil {
		return err
	}
	if len(vms) > 0 {
		return fmt.Errorf("VMs are left: %v", vms)
	}
	return nil
}
