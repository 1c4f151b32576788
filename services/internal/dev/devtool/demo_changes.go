package devtool

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/dev/local"
)

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
	d.greeting = "good morning"
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
		if err := d.awaitFile(ctx, vm.Instance, "app.env", d.greeting); err != nil {
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

// awaitFile waits until a received file of a VM contains the text.
func (d *demo) awaitFile(ctx context.Context, id ident.ID, name, text string) error {
	path := filepath.Join(d.stack.Disk(id), "recv", name)
	for {
		raw, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(raw), text) {
			info, err := os.Stat(path)
			if err == nil {
				d.timeline.note(info.ModTime(), fromProvider, time.Time{}, "%s is on its disk", name)
			}
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s of %s does not contain %q: %w", name, id, text, context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}
