package supervise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nstance-kit/nstance/tests/cloud/machine/control"
)

// handle answers a request of a client.
func (m *Manager) handle(ctx context.Context, r control.Request) control.Response {
	c := &call{m: m, ctx: ctx}
	code := 0
	err := m.answers(r.Program)
	if err != nil {
		return control.Response{Code: 1, Errors: fmt.Appendln(nil, err)}
	}
	switch r.Program {
	case control.Sleep:
		err = m.fallAsleep(ctx, slices.Equal(r.Args, []string{control.Freeze}))
	case control.Wake:
		err = m.wakeUp()
	case "exec":
		return m.exec(ctx, r.Args)
	case "systemctl":
		code, err = c.systemctl(r.Args)
	case "journalctl":
		err = c.journalctl(r.Args)
	case "networkctl":
		err = c.networkctl(r.Args)
	case control.LinkAdded, control.LinkRemoved:
		err = m.link(r)
	case "poweroff", "reboot":
		c.force = slices.Contains(r.Args, "--force")
		err = c.goDown(r.Program)
	case "shutdown":
		err = c.shutdown(r.Args)
	default:
		err = fmt.Errorf("%s is no program of this machine", r.Program)
	}
	if err != nil {
		fmt.Fprintln(&c.errors, err)
		code = max(code, 1)
	}
	return control.Response{Code: code, Output: c.out.Bytes(), Errors: c.errors.Bytes()}
}

// call is one invocation of systemctl or a related program.
type call struct {
	m           *Manager
	ctx         context.Context // Ends when the client stops waiting.
	out, errors bytes.Buffer

	noBlock, wait, force, valueOnly, noLegend bool
	properties                                []string
	signal                                    syscall.Signal
}

// cosmetic are the options that this systemctl accepts and ignores.
var cosmetic = []string{"--no-pager", "--full", "--plain", "--no-ask-password"}

// parse parses the options of systemctl(1). It returns the other arguments.
func (c *call) parse(args []string) (words []string, err error) {
	c.signal = syscall.SIGTERM
	flags := map[string]*bool{"--no-block": &c.noBlock, "--wait": &c.wait, "--force": &c.force,
		"--value": &c.valueOnly, "--no-legend": &c.noLegend}
	for n := 0; n < len(args); n++ {
		switch a := args[n]; {
		case !strings.HasPrefix(a, "-"):
			words = append(words, a)
		case slices.Contains(cosmetic, a):
		case flags[a] != nil:
			*flags[a] = true
		case a == "-p" && n+1 < len(args):
			n++
			c.properties = strings.Split(args[n], ",")
		case a == "-s" && n+1 < len(args):
			n++
			if c.signal = unix.SignalNum("SIG" + args[n]); c.signal == 0 {
				return nil, fmt.Errorf("%q is no signal", args[n])
			}
		default:
			return nil, fmt.Errorf("systemctl: the option %s is not supported", a)
		}
	}
	return words, nil
}

func (c *call) systemctl(args []string) (code int, err error) {
	words, err := c.parse(args)
	if err != nil {
		return 1, err
	}
	machine := map[string]func() (int, error){
		"daemon-reload": c.reloadDefinitions, "is-system-running": c.systemState, "list-jobs": c.jobs,
		"poweroff": func() (int, error) { return 0, c.goDown("poweroff") },
		"reboot":   func() (int, error) { return 0, c.goDown("reboot") },
	}
	service := map[string]func(string) (int, error){"enable": c.enable, "disable": c.disable,
		"start": c.start, "stop": c.stop, "restart": c.restart, "try-restart": c.tryRestart,
		"is-active": c.isActive, "show": c.show, "kill": c.kill}
	switch {
	case len(words) == 1 && machine[words[0]] != nil:
		return machine[words[0]]()
	case len(words) != 2 || service[words[0]] == nil:
		return 1, fmt.Errorf("systemctl %s is not supported", strings.Join(args, " "))
	}
	name := words[1]
	if filepath.Ext(name) == "" {
		name += ".service"
	}
	if _, err := find(name); err != nil {
		return 5, fmt.Errorf("systemctl %s: %w", words[0], err)
	}
	return service[words[0]](name)
}

// goDown begins to power off or to reboot. It does not wait until the machine is down.
func (c *call) goDown(kind string) error {
	if c.force {
		kind += "-force"
	}
	c.m.goDown(kind)
	return nil
}

// shutdown implements shutdown(8) for an immediate shutdown.
func (c *call) shutdown(args []string) error {
	switch strings.Join(args, " ") {
	case "now", "-h now", "-P now":
		return c.goDown("poweroff")
	case "-r now":
		return c.goDown("reboot")
	}
	return fmt.Errorf("shutdown %s is not supported", strings.Join(args, " "))
}

// journalctl prints the log of a service. It supports -u UNIT, -o cat and -n LINES.
func (c *call) journalctl(args []string) error {
	var name string
	bare, most := false, math.MaxInt
	for n := 0; n < len(args); n++ {
		switch a := args[n]; {
		case a == "-u" && n+1 < len(args):
			n++
			name = strings.TrimSuffix(args[n], ".service") + ".service"
		case a == "-o" && n+1 < len(args) && args[n+1] == "cat":
			n++
			bare = true
		case a == "-n" && n+1 < len(args):
			n++
			var err error
			if most, err = strconv.Atoi(args[n]); err != nil {
				return fmt.Errorf("journalctl -n: %w", err)
			}
		case a == "--no-pager":
		default:
			return fmt.Errorf("journalctl %s is not supported", strings.Join(args, " "))
		}
	}
	found := c.m.journal.search(name)
	for _, l := range found[max(0, len(found)-most):] {
		if bare {
			fmt.Fprintln(&c.out, l.text)
		} else {
			fmt.Fprintln(&c.out, l.String())
		}
	}
	return nil
}

func (c *call) start(name string) (int, error) {
	if c.noBlock {
		// init answers before the service has started. It reads the unit before it answers, so that the client learns
		// of errors in the unit.
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
		return 1, fmt.Errorf("job for %s failed: %w; see journalctl -u %s", name, r.err, name)
	}
	return 0, nil
}

func (c *call) stop(name string) (int, error) {
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
		done := c.m.stop(name)
		go func() {
			<-done
			_, _ = c.m.start(context.Background(), name) // Errors are in the journal.
		}()
		return 0, nil
	}
	if code, err := c.stop(name); err != nil {
		return code, err
	}
	return c.start(name)
}

// tryRestart restarts a unit only if it runs.
func (c *call) tryRestart(name string) (int, error) {
	if c.m.view(name).state == inactive {
		return 0, nil
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
	main := c.m.view(name).main
	if main == 0 {
		return 1, fmt.Errorf("unit %s is not running", name)
	}
	for _, pid := range alive(func(_, session int) bool { return session == main }) {
		signalProcess(pid, c.signal)
	}
	return 0, nil
}

// configDir is the directory of the symbolic links that `systemctl enable` creates.
const configDir = "/etc/systemd/system"

func (c *call) enable(name string) (int, error) {
	def, err := c.m.load(name)
	if err != nil {
		return 1, fmt.Errorf("failed to enable unit: %w", err)
	}
	for _, target := range def.WantedBy {
		link := filepath.Join(configDir, target+".wants", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.RemoveAll(link),
			os.Symlink(def.File, link)); err != nil {
			return 1, err
		}
		fmt.Fprintf(&c.errors, "Created symlink %s → %s.\n", link, def.File)
	}
	return c.reloadDefinitions()
}

func (c *call) disable(name string) (int, error) {
	links, err := filepath.Glob(filepath.Join(configDir, "*.wants", name))
	if err != nil {
		return 1, err
	}
	for _, link := range links {
		if err := os.Remove(link); err != nil {
			return 1, err
		}
	}
	return c.reloadDefinitions()
}

func (c *call) isActive(name string) (int, error) {
	state := c.m.view(name).state
	fmt.Fprintln(&c.out, state)
	if state != active {
		return 3, nil
	}
	return 0, nil
}

// show prints properties of a unit, in a fixed order.
func (c *call) show(name string) (int, error) {
	v := c.m.view(name)
	for _, p := range [][2]string{{"ActiveState", v.state}, {"SubState", v.sub}, {"Result", v.result},
		{"MainPID", strconv.Itoa(v.main)}, {"NRestarts", strconv.Itoa(v.restarts)}} {
		switch {
		case c.properties != nil && !slices.Contains(c.properties, p[0]):
		case c.valueOnly:
			fmt.Fprintln(&c.out, p[1])
		default:
			fmt.Fprintf(&c.out, "%s=%s\n", p[0], p[1])
		}
	}
	return 0, nil
}

// view is a copy of the state of a unit.
type view struct {
	state, sub, result string
	main, restarts     int
}

func (m *Manager) view(name string) view {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.services[name]
	if s == nil {
		return view{state: inactive, sub: "dead", result: success}
	}
	return view{s.state, s.sub, s.result, s.main, s.restarts}
}

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
	n := 0
	row := func(name, kind, state string) {
		n++
		fmt.Fprintf(&c.out, "%d %s %s %s\n", n, name, kind, state)
	}
	if !c.noLegend {
		return 1, errors.New("systemctl list-jobs without --no-legend is not supported")
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
	return 0, nil
}
