package supervise

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/machine/control"
)

// sleepAction is the action of goDown that ends all processes but init, which then waits until the machine wakes.
const sleepAction = "poweroff-asleep"

// sleep is the state of a machine that sleeps. The manager's mutex guards all fields but wake.
type sleep struct {
	off    bool
	frozen bool
	thawed time.Time     // when the machine was last frozen and woke
	down   chan struct{} // closed when all processes have ended
	wake   chan struct{}
}

// answers returns an error if the machine sleeps and can do nothing for the client.
func (m *Manager) answers(program string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	linked := program == control.LinkAdded || program == control.LinkRemoved
	if program != control.Wake && (m.sleep.frozen || m.sleep.off && !linked) {
		return errors.New("the machine sleeps")
	}
	return nil
}

// fallAsleep shuts the machine down or freezes it.
func (m *Manager) fallAsleep(ctx context.Context, freeze bool) error {
	if freeze {
		m.mu.Lock()
		m.sleep.frozen = true
		m.mu.Unlock()
		m.processes.freeze()
		return nil
	}
	down := make(chan struct{})
	m.mu.Lock()
	m.sleep.down = down
	m.mu.Unlock()
	m.goDown(sleepAction)
	select {
	case <-down:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// rest waits, in a machine whose processes have ended, until the machine wakes.
func (m *Manager) rest() {
	m.mu.Lock()
	m.sleep.off = true
	close(m.sleep.down)
	m.mu.Unlock()
	<-m.sleep.wake
}

// wakeUp lets frozen processes run on, or lets a machine that was shut down boot.
func (m *Manager) wakeUp() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.sleep.frozen:
		m.processes.thaw()
		m.sleep.frozen, m.sleep.thawed = false, time.Now()
	case m.sleep.off:
		m.sleep.off = false
		m.sleep.wake <- struct{}{}
	default:
		return errors.New("the machine does not sleep")
	}
	return nil
}

// froze reports whether the machine has been frozen since a time.
func (m *Manager) froze(since time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sleep.frozen || m.sleep.thawed.After(since)
}

// freeze stops all processes. Until thaw, no process can start or be reaped.
func (t *processes) freeze() {
	t.mu.Lock()
	_ = syscall.Kill(-1, syscall.SIGSTOP) // There may be no process.
}

func (t *processes) thaw() {
	_ = syscall.Kill(-1, syscall.SIGCONT) // There may be no process.
	t.mu.Unlock()
}
