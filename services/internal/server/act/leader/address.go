package leader

import (
	"context"
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/services/contract/reconnect"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

const (
	// AddressCheck is the time between two checks by the leader that it still has its address, if the address belongs
	// to a cloud.
	AddressCheck = time.Minute
	// addressRelease is the timeout for releasing the address when leadership ends.
	addressRelease = 5 * time.Second
)

// HoldAddress acquires the shard's fixed address for this machine. It then repeats the acquisition until ctx ends, and
// releases the address. The parameter every is the time between two acquisitions. Nothing else in the leader waits for
// HoldAddress, because planning needs no address.
func (l *Leader) HoldAddress(ctx context.Context, network infra.LeaderNetwork, machineID string, every time.Duration) {
	key := shardstate.ErrorKey{Kind: plan.AlertLeaderNetwork}
	began, held := l.Executor.Env.Now(), false
	for failures := 0; ; {
		wait := every
		err := l.Executor.Permit(ctx)
		if err == nil {
			err = network.Acquire(ctx, machineID)
		}
		switch {
		case err == nil:
			l.State.ResolveError(key)
			failures = 0
			if !held {
				held = true
				l.Executor.Log.Info("holding the leader's address", "after", l.Executor.Env.Now().Sub(began).String())
			}
		default:
			if ctx.Err() == nil {
				l.State.RaiseError(key, fmt.Sprintf("acquire the leader's address: %v", err))
			}
			failures++
			wait = reconnect.Backoff(time.Second, every, failures)
		}
		if l.Executor.Env.Sleep(ctx, wait) != nil {
			break
		}
	}
	release, cancel := context.WithTimeout(context.WithoutCancel(ctx), addressRelease)
	defer cancel()
	if err := network.Release(release, machineID); err != nil {
		l.Executor.Log.Warn("the leader's address is not released", "error", err)
	}
}
