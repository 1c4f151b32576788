package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

// known returns an error unless name is a service or a target. Every target counts as active.
func (c *call) known(name string) (target bool, err error) {
	if strings.HasSuffix(name, ".target") {
		return true, nil
	}
	if !strings.HasSuffix(name, ".service") {
		return false, fmt.Errorf("%s: only services are run here", name)
	}
	_, err = find(name)
	return false, err
}

func (c *call) start(name string) (int, error) {
	if name == "poweroff.target" || name == "reboot.target" {
		return 0, c.m.requestDown(strings.TrimSuffix(name, ".target"), c.force)
	}
	if target, err := c.known(name); target || err != nil {
		if errors.Is(err, errNotFound) {
			return 5, fmt.Errorf("failed to start %s: unit %s not found", name, name)
		}
		return 0, err
	}
	if c.noBlock {
		// The unit is read before the answer, so that the client receives its errors.
		if _, err := c.m.load(name); err != nil {
			return 1, err
		}
		go func() { _, _ = c.m.start(context.Background(), name) }() // Errors are in the journal.
		return 0, nil
	}
	r, err := c.m.start(c.ctx, name)
	if err != nil {
		return 1, err
	}
	select {
	case <-r.decided:
	case <-c.ctx.Done():
		return 1, context.Cause(c.ctx)
	}
	if r.err != nil {
		return 1, fmt.Errorf("job for %s failed: %w; see systemctl status %s and journalctl -u %s", name, r.err, name,
			name)
	}
	return 0, nil
}

func (c *call) stop(name string) (int, error) {
	if target, err := c.known(name); target || err != nil {
		if errors.Is(err, errNotFound) {
			return 5, fmt.Errorf("failed to stop %s: unit %s not loaded", name, name)
		}
		return 0, err
	}
	done := c.m.stop(name)
	if c.noBlock {
		return 0, nil
	}
	select {
	case <-done:
		return 0, nil
	case <-c.ctx.Done():
		return 1, context.Cause(c.ctx)
	}
}

func (c *call) restart(name string) (int, error) {
	if c.noBlock {
		if _, err := c.known(name); err != nil {
			return 5, err
		}
		done := c.m.stop(name)
		go func() {
			<-done
			_, _ = c.m.start(context.Background(), name) // Errors are in the journal.
		}()
		return 0, nil
	}
	if code, err := c.stop(name); code != 0 || err != nil {
		return code, err
	}
	return c.start(name)
}

func (c *call) tryRestart(name string) (int, error) {
	if c.m.view(name).state == active {
		return c.restart(name)
	}
	return 0, nil
}

func (c *call) reload(name string) (int, error) {
	v := c.m.view(name)
	if v.state != active || v.run == nil {
		return 1, fmt.Errorf("%s is not active, cannot reload", name)
	}
	def, err := c.m.load(name)
	if err != nil {
		return 1, err
	}
	if len(def.Reload) == 0 {
		return 3, fmt.Errorf("job type reload is not applicable for unit %s", name)
	}
	answer := make(chan error, 1)
	select {
	case v.run.reload <- answer:
	case <-v.run.done:
		return 1, fmt.Errorf("%s ended meanwhile", name)
	case <-c.ctx.Done():
		return 1, context.Cause(c.ctx)
	}
	select {
	case err = <-answer:
	case <-c.ctx.Done():
		err = context.Cause(c.ctx)
	}
	return 0, err
}

func (c *call) reloadOrRestart(name string) (int, error) {
	if c.m.view(name).state == active {
		if def, err := c.m.load(name); err == nil && len(def.Reload) > 0 {
			return c.reload(name)
		}
	}
	return c.restart(name)
}

func (c *call) reloadDefinitions() (int, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	for _, s := range c.m.services {
		s.definition = nil
	}
	return 0, nil
}

func (c *call) kill(name string) (int, error) {
	v := c.m.view(name)
	if v.run == nil {
		return 1, fmt.Errorf("unit %s is not running", name)
	}
	pids := members(v.invocation, nil)
	if c.mainOnly {
		pids = []int{v.main}
	}
	for _, pid := range pids {
		if pid > 1 {
			signalProcess(pid, c.signal)
		}
	}
	return 0, nil
}

func (c *call) resetFailed(name string) (int, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	s := c.m.service(name)
	s.starts = nil
	if s.state == failed {
		s.state, s.sub, s.result = inactive, "dead", success
	}
	return 0, nil
}

func (c *call) cat(name string) (int, error) {
	file, err := find(name)
	if err != nil {
		return 1, err
	}
	text, err := os.ReadFile(file)
	fmt.Fprintf(&c.out, "# %s\n%s", file, text)
	return 0, err
}
