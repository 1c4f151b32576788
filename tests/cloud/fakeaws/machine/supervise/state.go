package supervise

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// systemState prints the state of the whole machine. With --wait it first waits for the end of the boot.
func (c *call) systemState() (int, error) {
	for {
		state := c.m.systemState()
		if !c.wait || state != "starting" {
			fmt.Fprintln(&c.out, state)
			if state != "running" {
				return 1, nil
			}
			return 0, nil
		}
		select {
		case <-c.ctx.Done():
			return 1, context.Cause(c.ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (m *Manager) systemState() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state != "running" {
		return m.state
	}
	for _, s := range m.services {
		if s.state == failed {
			return "degraded"
		}
	}
	if m.degraded {
		return "degraded"
	}
	return m.state
}

// jobs lists the pending operations of init, with the columns JOB UNIT TYPE STATE.
func (c *call) jobs() (int, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	var rows []string
	row := func(name, kind, state string) {
		rows = append(rows, fmt.Sprintf("%d %s %s %s", len(rows)+1, name, kind, state))
	}
	if c.m.target != "" {
		row(c.m.target, "start", "waiting")
	}
	for _, name := range slices.Sorted(maps.Keys(c.m.services)) {
		switch s := c.m.services[name]; {
		case s.run != nil && s.run.stopping():
			row(name, "stop", "running")
		case s.state == activating:
			row(name, "start", "running")
		}
	}
	if c.noLegend || len(rows) == 0 {
		if !c.noLegend {
			rows = []string{"No jobs running."}
		}
	} else {
		rows = append(append([]string{"JOB UNIT TYPE STATE"}, rows...), "", fmt.Sprintf("%d jobs listed.", len(rows)))
	}
	for _, r := range rows {
		fmt.Fprintln(&c.out, r)
	}
	return 0, nil
}

func (c *call) isActive(name string) (int, error) {
	state := c.m.view(name).state
	if strings.HasSuffix(name, ".target") {
		state = active
	}
	c.say(state)
	if state != active && state != reloading {
		return 3, nil
	}
	return 0, nil
}

func (c *call) isFailed(name string) (int, error) {
	state := c.m.view(name).state
	c.say(state)
	if state != failed {
		return 1, nil
	}
	return 0, nil
}

func (c *call) say(text string) {
	if !c.quiet {
		fmt.Fprintln(&c.out, text)
	}
}
