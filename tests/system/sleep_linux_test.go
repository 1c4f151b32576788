package system

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/dev/local"
)

// suspendedSpares returns the settings of a group with the given number of spares that sleep.
func suspendedSpares(count int) *config.Spares {
	return &config.Spares{Count: count, State: config.SparesSuspended}
}

// awaitSpare waits until the group has exactly the given number of healthy members, and one spare that sleeps. It
// returns the members and the spare.
func awaitSpare(ctx context.Context, operator *local.Operator, members int) (live []*nstancev1.InstanceStatus,
	spare *nstancev1.InstanceStatus, err error) {
	for {
		instances, err := operator.Instances(ctx)
		if err != nil {
			return nil, nil, err
		}
		var last string
		live, spare = nil, nil
		others := 0
		for _, i := range instances {
			last += fmt.Sprintf("\n  %s spare=%t state=%s provider=%s health=%s %s", i.GetInstanceId(), i.GetSpare(),
				i.GetState(), i.GetProviderState(), i.GetHealth(), i.GetHealthMessage())
			switch {
			case i.GetState() == "deleted":
			case i.GetSpare() && i.GetProviderState() == "stopped" && spare == nil:
				spare = i
			case !i.GetSpare() && local.Healthy(i):
				live = append(live, i)
			default:
				others++
			}
		}
		if spare != nil && len(live) == members && others == 0 {
			return live, spare, nil
		}
		if ended := local.Pause(ctx, 50*time.Millisecond); ended != nil {
			return nil, nil, fmt.Errorf("%w: want %d healthy members and a spare that sleeps:%s", ended, members, last)
		}
	}
}

// awaitPromoted waits until a spare is a healthy member, and returns when it became a member and when it was healthy.
func awaitPromoted(ctx context.Context, operator *local.Operator, spare string) (member, healthy time.Time, err error) {
	for {
		instances, err := operator.Instances(ctx)
		if err != nil {
			return member, healthy, err
		}
		at := slices.IndexFunc(instances, func(i *nstancev1.InstanceStatus) bool { return i.GetInstanceId() == spare })
		if at < 0 {
			return member, healthy, errors.New("the spare is gone")
		}
		if i := instances[at]; !i.GetSpare() && local.Healthy(i) {
			return i.GetPromotedAt().AsTime(), time.Now(), nil
		}
		if ended := local.Pause(ctx, 10*time.Millisecond); ended != nil {
			return member, healthy, fmt.Errorf("%w: the spare is not a healthy member: %v", ended, instances[at])
		}
	}
}

// longSleep is how long a spare sleeps before it is needed. Its connections have ended by then.
const longSleep = 30 * time.Second

// wakeSpare lets a spare fall asleep. Then it kills the QEMU of a member, several times. Each time, the spare wakes and
// takes the place of that member, and another spare falls asleep.
func (s *libvirtShard) wakeSpare(ctx context.Context) error {
	began := time.Now()
	s.spares = 1
	if err := s.configure(ctx, "v1", libvirtSize); err != nil {
		return err
	}
	if _, err := s.operator.Refresh(ctx); err != nil {
		return err
	}
	members, spare, err := awaitSpare(ctx, s.operator, libvirtSize)
	if err != nil {
		return errors.Join(err, errors.New(s.consoles()))
	}
	s.report("%d spare boots and falls asleep", 1, began)
	for range *killsFlag {
		if err := local.Pause(ctx, longSleep); err != nil {
			return err
		}
		victim := members[0].GetInstanceId()
		began := time.Now()
		event := s.daemon.KillVMUntilEvent(s.t, victim)
		member, healthy, err := awaitPromoted(ctx, s.operator, spare.GetInstanceId())
		if err != nil {
			return errors.Join(err, errors.New(s.consoles()))
		}
		fmt.Printf("libvirt: after kill -9 of the QEMU of %s: %.1f ms: libvirt's event, %.1f ms: a sleeping spare is "+
			"a member, %.1f ms: it is healthy\n", victim, milliseconds(event.Sub(began)),
			milliseconds(member.Sub(began)), milliseconds(healthy.Sub(began)))
		console, err := os.ReadFile(filepath.Join(s.daemon.Pool, spare.GetInstanceId()+"-console.log"))
		if err != nil {
			return err
		}
		if !bytes.Contains(console, []byte("The clock was set")) {
			return fmt.Errorf("the agent has not set the clock of its VM: %s", console)
		}
		if members, spare, err = awaitSpare(ctx, s.operator, libvirtSize); err != nil {
			return errors.Join(err, errors.New(s.consoles()))
		}
	}
	s.spares = 0 // the next step configures the group
	return nil
}
