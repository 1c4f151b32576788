package system

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/dev/local"
)

// pages returns the pages in the order in which their commands run.
func (h *howTo) pages() []guide {
	pages := h.pagesOfEveryDay()
	pages = append(pages, h.pagesAboutRollouts()...)
	pages = append(pages, h.pagesAboutServers()...)
	return append(pages, h.pagesAboutDisasters()...)
}

func (h *howTo) pagesOfEveryDay() []guide {
	return []guide{
		{file: "operators.md", steps: []step{
			{},
			{},
			{after: func(context.Context, string) error { return h.written("nonce.jwt") }},
			{texts: []string{"alice", "admin"}, after: func(_ context.Context, output string) error {
				id := regexp.MustCompile(`(?m)^.*\bopr\w+\b.*alice.*$`).FindString(output)
				h.call("OPERATOR", regexp.MustCompile(`\bopr\w+`).FindString(id))
				return nil
			}},
			{after: func(ctx context.Context, _ string) error {
				output, err := h.shell(ctx, "nstance-admin cluster operator list --storage-bucket my-bucket", "")
				if err == nil && strings.Contains(output, "alice") {
					err = errors.New("alice is still there")
				}
				return err
			}},
		}},
		{file: "add-or-remove-a-group.md", steps: []step{
			{texts: []string{"2 healthy"}},
			{texts: []string{"3 healthy"}},
			{texts: []string{"group web is changed"}},
			{after: h.nowHealthy(2)},
		}},
		{file: "find-out-what-happened.md", steps: []step{
			{before: h.healthy(2), texts: []string{"SHARD", "server-1", "server-2"}},
			{texts: []string{"leads in term", "alice"}},
			{until: group},
			{},
			{texts: []string{"term 1 ends"}, after: func(ctx context.Context, _ string) error {
				if _, err := h.stack.AwaitLine(ctx, "serving as leader", 1); err != nil {
					return err
				}
				return h.awaitHistory(ctx)
			}},
			{texts: []string{"INSTANCE", "instance registered", "Planned again:"}},
		}},
		{file: "change-size-or-type.md", steps: []step{
			{texts: []string{"5 healthy"}},
			{after: h.nowHealthy(2)},
			{texts: []string{"its settings stay; size 2, 2 there"}},
			{after: h.nowHealthy(1)},
		}},
		{file: "migrate-from-an-auto-scaling-group.md", steps: []step{
			{texts: []string{"3 healthy"}, after: h.withoutOverride},
			{before: h.scaleAsBefore, texts: []string{"cpu is at", "with a target of 50 %"}, after: h.endScaling},
		}},
		{file: "change-configuration.md", steps: []step{
			{before: h.write(func(c *config.Shard) { c.Defaults.Vars["environment"] = "staging" }),
				texts: []string{`"environment": "staging"`, "Files are pushed"}},
			{},
			{texts: []string{"applied"}},
			{texts: []string{"config"}},
		}},
		{file: "production-checklist.md", steps: []step{
			{texts: []string{"server-1", "server-2", "0 problems", "objects of cluster " + local.Cluster}},
			{after: func(ctx context.Context, _ string) error {
				_, err := h.stack.AwaitLine(ctx, "serving as leader", 2)
				return err
			}},
		}},
	}
}

// awaitHistory waits until the new leader has read the former leader's journal. The new leader then knows when INSTANCE
// registered.
func (h *howTo) awaitHistory(ctx context.Context) error {
	for {
		output, err := h.shell(ctx, "nstance-admin events --instance INSTANCE --shard SHARD", "")
		if err != nil || strings.Contains(output, "instance registered") {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the leader has not read the journal: %w", context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// withoutOverride removes the override of the group's size, and waits until the group has its configured size.
func (h *howTo) withoutOverride(ctx context.Context, _ string) error {
	if _, err := h.shell(ctx, "nstance-admin group reset GROUP --yes", ""); err != nil {
		return err
	}
	return h.healthy(2)(ctx)
}

// nowHealthy is like healthy, but the returned function has the type of step.after.
func (h *howTo) nowHealthy(size int) func(context.Context, string) error {
	return func(ctx context.Context, _ string) error { return h.healthy(size)(ctx) }
}

// written checks that a file has content.
func (h *howTo) written(name string) error {
	info, err := os.Stat(h.file(name))
	if err == nil && info.Size() == 0 {
		return fmt.Errorf("%s is empty", name)
	}
	return err
}

// setGroup changes the group of the default tenant.
func setGroup(c *config.Shard, name string, change func(*config.GroupSpec)) {
	spec := c.Groups[local.Tenant][name]
	change(&spec)
	c.Groups[local.Tenant][name] = spec
}

func (h *howTo) pagesAboutRollouts() []guide {
	return []guide{
		{file: "health-checks.md", steps: []step{
			{before: h.addChecks, texts: []string{"healthy", "well"}, after: h.removeGroup("web")},
		}},
		{file: "roll-out.md", steps: []step{
			{before: h.pushRollout, texts: []string{"paused"}},
			{after: func(ctx context.Context, _ string) error {
				_, err := h.shell(ctx, "nstance-admin group wait GROUP", "")
				return err
			}},
		}},
		{file: "roll-a-new-image.md", steps: []step{
			{},
			{texts: []string{"2 healthy"}},
		}},
		{file: "scale-by-a-number.md", steps: []step{
			{before: h.scale, texts: []string{"memory is at", "the group has at most 3", "size 3 instead of 2"}},
			{texts: []string{"size 3 → 3"}, after: h.endScaling},
		}},
		{file: "spares.md", steps: []step{
			{before: h.addSpare, texts: []string{"1, running", "2 actual, 2 healthy", "spare"}},
			{before: h.chooseMember},
			{before: h.healthy(3), texts: []string{"instance promoted"}, after: h.endSpares},
		}},
		{file: "schedules.md", check: h.checkSchedules},
		{file: "vm-does-not-register.md", steps: []step{
			{before: h.failToRegister, texts: []string{"unregistered", "its VM ended before its agent registered"}},
			{before: func(ctx context.Context) error { // those that failed are gone
				output, err := h.shell(ctx, "nstance-admin instance list --group "+group, "")
				h.call("INSTANCE", regexp.MustCompile(`\bwrk\w{20,}`).FindString(output))
				return err
			}, texts: []string{"nstance: starting the agent"}},
			{before: func(context.Context) error {
				h.call("GROUP", group)
				return nil
			}, after: func(ctx context.Context, output string) error {
				h.call("INSTANCE", regexp.MustCompile(`\bwrk\w{20,}`).FindString(output))
				if err := h.removeGroup("deaf")(ctx, ""); err != nil {
					return err
				}
				_, err := h.shell(ctx, "nstance-admin instance drain INSTANCE --yes", "")
				return err
			}},
		}},
	}
}

// addChecks adds a group with the health checks that the page describes. The group must become healthy.
func (h *howTo) addChecks(ctx context.Context) error {
	health := strings.TrimPrefix(h.stack.URL(1, ""), "http://127.0.0.1:")
	var page config.Shard
	if err := snippet("health-checks.md", &page, "8080", health, "/healthz", "/health", "/var/lib/web",
		h.dir); err != nil {
		return err
	}
	if err := h.push(func(c *config.Shard) {
		web := c.Templates["worker"]
		web.HealthChecks = page.Templates["web"].HealthChecks
		c.Templates["web"] = web
		one := 1
		c.Groups[local.Tenant]["web"] = config.GroupSpec{Template: "web", Size: &one}
	})(ctx); err != nil {
		return err
	}
	_, err := h.shell(ctx, "nstance-admin group wait web", "")
	return err
}

// removeGroup returns a function that removes a group and the template of the same name. The instances of the other
// groups must become healthy.
func (h *howTo) removeGroup(name string) func(context.Context, string) error {
	return func(ctx context.Context, _ string) error {
		return h.push(func(c *config.Shard) {
			delete(c.Groups[local.Tenant], name)
			delete(c.Templates, name)
		})(ctx)
	}
}

// pushRollout applies the page's rollout settings to the group, but shortens the wait after the canary.
func (h *howTo) pushRollout(ctx context.Context) error {
	var spec config.GroupSpec
	if err := snippet("roll-out.md", &spec, `"10m"`, `"1s"`); err != nil {
		return err
	}
	return h.push(func(c *config.Shard) {
		setGroup(c, group, func(g *config.GroupSpec) { g.Rollout, g.MaxSurge = spec.Rollout, spec.MaxSurge })
	})(ctx)
}

// scale gives the group the page's scaling, with a target that makes it grow to its largest size.
func (h *howTo) scale(ctx context.Context) error {
	var spec config.GroupSpec
	if err := snippet("scale-by-a-number.md", &spec, `"cpu": {"target": "60%"}`, `"memory": {"target": "1%"}`,
		`"max": 40`, `"max": 3`); err != nil {
		return err
	}
	if err := h.push(func(c *config.Shard) {
		setGroup(c, group, func(g *config.GroupSpec) { g.Scaling = spec.Scaling })
	})(ctx); err != nil {
		return err
	}
	return h.healthy(3)(ctx)
}

// scaleAsBefore gives the group the scaling and the schedules of the page about migrations, with smaller sizes, and
// waits until the leader has looked at the number.
func (h *howTo) scaleAsBefore(ctx context.Context) error {
	var spec config.GroupSpec
	if err := snippet("migrate-from-an-auto-scaling-group.md", &spec, `"max": 20`, `"max": 3`, `"size": 6`,
		`"size": 3`); err != nil {
		return err
	}
	if err := h.push(func(c *config.Shard) {
		setGroup(c, group, func(g *config.GroupSpec) { g.Scaling, g.Schedules = spec.Scaling, spec.Schedules })
	})(ctx); err != nil {
		return err
	}
	_, err := h.shell(ctx, "until nstance-admin explain group GROUP | grep -q 'cpu is at'; do sleep 1; done", "")
	return err
}

// addSpare gives the group the page's spares, but only one.
func (h *howTo) addSpare(ctx context.Context) error {
	var spec config.GroupSpec
	if err := snippet("spares.md", &spec, `"count": 2`, `"count": 1`); err != nil {
		return err
	}
	if err := h.push(func(c *config.Shard) {
		setGroup(c, group, func(g *config.GroupSpec) { g.Spares = spec.Spares })
	})(ctx); err != nil {
		return err
	}
	return h.healthy(3)(ctx)
}

// chooseMember makes INSTANCE stand for a member of the group.
func (h *howTo) chooseMember(ctx context.Context) error {
	found, err := h.operator.AwaitHealthy(ctx, 3)
	for _, i := range found {
		if !i.GetSpare() {
			h.call("INSTANCE", i.GetInstanceId())
		}
	}
	return err
}

func (h *howTo) endSpares(ctx context.Context, _ string) error {
	if err := h.healthy(3)(ctx); err != nil {
		return err
	}
	if err := h.push(func(c *config.Shard) {
		setGroup(c, group, func(g *config.GroupSpec) { g.Spares = nil })
	})(ctx); err != nil {
		return err
	}
	return h.healthy(2)(ctx)
}

func (h *howTo) endScaling(ctx context.Context, _ string) error {
	if err := h.push(func(c *config.Shard) {
		setGroup(c, group, func(g *config.GroupSpec) { g.Scaling, g.Schedules = nil, nil })
	})(ctx); err != nil {
		return err
	}
	if _, err := h.shell(ctx, "nstance-admin group reset GROUP --yes", ""); err != nil {
		return err
	}
	return h.healthy(2)(ctx)
}

// checkSchedules gives the group the page's schedules, with smaller sizes. While the group has schedules, an operator
// must not be able to change its size.
func (h *howTo) checkSchedules(ctx context.Context, _ string) error {
	var spec config.GroupSpec
	if err := snippet("schedules.md", &spec, `"size": 20`, `"size": 3`); err != nil {
		return err
	}
	if err := h.push(func(c *config.Shard) {
		setGroup(c, group, func(g *config.GroupSpec) { g.Schedules = spec.Schedules })
	})(ctx); err != nil {
		return err
	}
	output, err := h.shell(ctx, "if nstance-admin group scale GROUP 4; then exit 1; fi", "")
	if err != nil {
		return err
	}
	if !strings.Contains(output, "schedules") {
		return errors.New("the refusal does not name the schedules")
	}
	return h.push(func(c *config.Shard) {
		setGroup(c, group, func(g *config.GroupSpec) { g.Schedules = nil })
	})(ctx)
}

// failToRegister adds a group whose boot script fails, and waits until the leader has deleted one of its instances.
func (h *howTo) failToRegister(ctx context.Context) error {
	if err := h.push(func(c *config.Shard) {
		deaf := c.Templates["worker"]
		deaf.Userdata = &config.Userdata{Content: "#!/bin/sh\nexit 1\n"}
		c.Templates["deaf"] = deaf
		one := 1
		c.Groups[local.Tenant]["deaf"] = config.GroupSpec{Template: "deaf", Size: &one}
	})(ctx); err != nil {
		return err
	}
	h.call("GROUP", "deaf")
	for {
		var journal answers
		if err := h.ask(ctx, &journal, "events --since 1h --group GROUP --cause unregistered"); err != nil {
			return err
		}
		for _, e := range journal.Shards[0].Events {
			if e.ID != "" {
				h.call("INSTANCE", e.ID)
				return nil
			}
		}
		if err := local.Pause(ctx, pollInterval); err != nil {
			return err
		}
	}
}
