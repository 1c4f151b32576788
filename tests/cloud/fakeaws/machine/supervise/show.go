package supervise

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/machine/unit"
)

// view is a copy of the state of a unit.
type view struct {
	state, sub, result, status, invocation string
	main, restarts                         int
	mainStatus                             syscall.WaitStatus
	run                                    *run
}

func (m *Manager) view(name string) view {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.services[name]
	if s == nil {
		return view{state: inactive, sub: "dead", result: success}
	}
	return view{s.state, s.sub, s.result, s.status, s.invocation, s.main, s.restarts, s.mainStatus, s.run}
}

// show prints properties of a unit. Like systemctl for unknown properties, it prints nothing for properties that this
// package does not implement.
func (c *call) show(name string) (int, error) {
	v := c.m.view(name)
	load, file, description := "loaded", "", ""
	def, err := c.m.load(name)
	if err != nil {
		load = "bad-setting"
		if _, missing := find(name); missing != nil {
			load = "not-found"
		}
	} else {
		file, description = def.File, def.Description
	}
	code := "0"
	if v.mainStatus.Exited() {
		code = "1" // CLD_EXITED
	} else if v.mainStatus.Signaled() {
		code = "2" // CLD_KILLED
	}
	status := v.mainStatus.ExitStatus()
	if v.mainStatus.Signaled() {
		status = int(v.mainStatus.Signal())
	}
	enabled, _ := c.enabled(name)
	properties := [][2]string{
		{"Id", name}, {"Names", name}, {"Description", description}, {"LoadState", load}, {"ActiveState", v.state},
		{"SubState", v.sub},
		{"FragmentPath", file}, {"UnitFileState", enabled}, {"Result", v.result}, {"MainPID", strconv.Itoa(v.main)},
		{"NRestarts", strconv.Itoa(v.restarts)}, {"ExecMainCode", code}, {"ExecMainStatus", strconv.Itoa(status)},
		{"StatusText", v.status},
		{"InvocationID", v.invocation},
	}
	wanted := func(key string) bool { return len(c.properties) == 0 || slices.Contains(c.properties, key) }
	for _, p := range properties {
		switch {
		case !wanted(p[0]):
		case c.valueOnly:
			fmt.Fprintln(&c.out, p[1])
		default:
			fmt.Fprintf(&c.out, "%s=%s\n", p[0], p[1])
		}
	}
	return 0, nil
}

// status prints the state of a unit and its last log lines, in a form for people.
func (c *call) status(name string) (int, error) {
	file, err := find(name)
	if err != nil {
		return 4, fmt.Errorf("unit %s could not be found: %w", name, err)
	}
	v := c.m.view(name)
	enabled, _ := c.enabled(name)
	fmt.Fprintf(&c.out, "%s\n     Loaded: loaded (%s; %s)\n     Active: %s (%s)", name, file, enabled, v.state, v.sub)
	if v.result != success {
		fmt.Fprintf(&c.out, " (Result: %s)", v.result)
	}
	fmt.Fprintln(&c.out)
	if v.main > 0 {
		fmt.Fprintf(&c.out, "   Main PID: %d\n", v.main)
	}
	if v.status != "" {
		fmt.Fprintf(&c.out, "     Status: %q\n", v.status)
	}
	for _, l := range c.m.journal.search([]string{name}, 10) {
		fmt.Fprintln(&c.out, l.String())
	}
	if v.state != active && v.state != reloading && v.state != activating {
		return 3, nil
	}
	return 0, nil
}

const configDir = "/etc/systemd/system"

// links maps the links that enabling a unit creates to their targets.
func links(def *unit.Service) map[string]string {
	made := map[string]string{}
	for suffix, targets := range map[string][]string{".wants": def.WantedBy, ".requires": def.RequiredBy} {
		for _, target := range targets {
			made[filepath.Join(configDir, target+suffix, def.Name)] = def.File
		}
	}
	for _, alias := range def.Alias {
		made[filepath.Join(configDir, alias)] = def.File
	}
	return made
}

func (c *call) enable(name string) (int, error) {
	def, err := c.m.load(name)
	if err != nil {
		return 1, fmt.Errorf("failed to enable unit: %w", err)
	}
	made := links(def)
	if len(made) == 0 {
		fmt.Fprintf(&c.errors,
			"The unit files have no installation config (WantedBy=, RequiredBy=, Also=, Alias= settings).\n")
	}
	for link, file := range made {
		if old, err := os.Readlink(link); err == nil && old == file {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			return 1, err
		}
		if err := os.RemoveAll(link); err != nil {
			return 1, err
		}
		if err := os.Symlink(file, link); err != nil {
			return 1, err
		}
		fmt.Fprintf(&c.errors, "Created symlink %s → %s.\n", link, file)
	}
	for _, also := range def.Also {
		if code, err := c.enable(also); err != nil {
			return code, err
		}
	}
	if _, err := c.reloadDefinitions(); err != nil || !c.now {
		return 0, err
	}
	return c.start(name)
}

func (c *call) disable(name string) (int, error) {
	if _, err := c.known(name); err != nil {
		return 1, fmt.Errorf("failed to disable unit: %w", err)
	}
	found, err := filepath.Glob(filepath.Join(configDir, "*", name))
	if err != nil {
		return 1, err
	}
	for _, link := range found {
		if !strings.HasSuffix(filepath.Dir(link), ".wants") && !strings.HasSuffix(filepath.Dir(link), ".requires") {
			continue
		}
		if err := os.Remove(link); err != nil {
			return 1, err
		}
		fmt.Fprintf(&c.errors, "Removed %q.\n", link)
	}
	if _, err := c.reloadDefinitions(); err != nil || !c.now {
		return 0, err
	}
	return c.stop(name)
}

// enabled returns whether a unit starts with the machine, in systemctl's words.
func (c *call) enabled(name string) (state string, err error) {
	def, err := c.m.load(name)
	if err != nil {
		return "", err
	}
	made := links(def)
	for link := range made {
		if _, err := os.Lstat(link); err == nil {
			return "enabled", nil
		}
	}
	if len(made) == 0 {
		return "static", nil
	}
	return "disabled", nil
}

func (c *call) isEnabled(name string) (int, error) {
	state, err := c.enabled(name)
	if err != nil {
		return 1, fmt.Errorf("failed to get unit file state for %s: %w", name, err)
	}
	c.say(state)
	if state == "disabled" {
		return 1, nil
	}
	return 0, nil
}
