package devtool

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/dev/local"
)

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
	instances, err := d.operator.AwaitHealthy(ctx, size)
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
