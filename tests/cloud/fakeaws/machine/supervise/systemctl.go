package supervise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/machine/control"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/machine/unit"
)

// handle answers those who ask init.
func (m *Manager) handle(ctx context.Context, r control.Request) control.Response {
	c := &call{m: m, ctx: ctx}
	code := 0
	var err error
	switch r.Program {
	case "exec":
		return m.exec(ctx, r)
	case "systemctl":
		code, err = c.systemctl(r.Args)
	case "journalctl":
		err = c.journalctl(r.Args)
	case "poweroff", "halt", "reboot":
		err = c.goDown(r.Program, r.Args)
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

// call is one invocation of systemctl or one of its kin.
type call struct {
	m           *Manager
	ctx         context.Context // of the one who waits for the answer
	out, errors bytes.Buffer

	quiet, now, noBlock, wait, force, valueOnly, noLegend, mainOnly bool
	properties                                                      []string
	signal                                                          syscall.Signal
}

// Options that change nothing here.
var cosmetic = []string{"--no-pager", "--system", "--full", "-l", "--plain", "--no-ask-password", "--all", "-a", "--no-wall", "--no-warn"}

// parse takes the options off the arguments. systemctl(1)
func (c *call) parse(args []string) (words []string, err error) {
	c.signal = syscall.SIGTERM
	flags := map[string]*bool{"-q": &c.quiet, "--quiet": &c.quiet, "--now": &c.now, "--no-block": &c.noBlock, "--wait": &c.wait, "-f": &c.force,
		"--force": &c.force, "--value": &c.valueOnly, "--no-legend": &c.noLegend, "--legend=false": &c.noLegend}
	for n := 0; n < len(args); n++ {
		name, value, assigned := strings.Cut(args[n], "=")
		if len(args[n]) > 2 && args[n][0] == '-' && args[n][1] != '-' && strings.IndexByte("ps", args[n][1]) >= 0 {
			name, value, assigned = args[n][:2], args[n][2:], true
		}
		switch {
		case !strings.HasPrefix(args[n], "-"):
			words = append(words, args[n])
		case slices.Contains(cosmetic, args[n]):
		case flags[args[n]] != nil:
			*flags[args[n]] = true
		case slices.Contains([]string{"-p", "--property", "-s", "--signal", "--kill-who", "--kill-whom"}, name):
			if !assigned {
				if n++; n == len(args) {
					return nil, fmt.Errorf("option %s needs a value", name)
				}
				value = args[n]
			}
			switch name {
			case "-p", "--property":
				c.properties = append(c.properties, strings.Split(value, ",")...)
			case "-s", "--signal":
				if c.signal, err = unit.Signal(value); err != nil {
					return nil, err
				}
			default:
				c.mainOnly = value == "main"
			}
		default:
			return nil, fmt.Errorf("systemctl: the option %s is not supported", args[n])
		}
	}
	return words, nil
}

func (c *call) systemctl(args []string) (code int, err error) {
	words, err := c.parse(args)
	if err != nil {
		return 1, err
	}
	if len(words) == 0 {
		return 1, errors.New("systemctl: no command")
	}
	verb, units := words[0], words[1:]
	for n, name := range units {
		if filepath.Ext(name) == "" || !slices.Contains([]string{".service", ".target", ".socket", ".timer", ".mount", ".path", ".slice"}, filepath.Ext(name)) {
			units[n] = name + ".service"
		}
		if !unit.ValidUnit(units[n]) {
			return 1, fmt.Errorf("invalid unit name %q", name)
		}
	}
	whole := map[string]func() (int, error){
		"daemon-reload": c.reloadDefinitions, "daemon-reexec": c.reloadDefinitions, "is-system-running": c.systemState, "list-jobs": c.jobs,
		"poweroff": func() (int, error) { return 0, c.m.requestDown("poweroff", c.force) },
		"halt":     func() (int, error) { return 0, c.m.requestDown("poweroff", c.force) },
		"reboot":   func() (int, error) { return 0, c.m.requestDown("reboot", c.force) },
	}
	each := map[string]func(string) (int, error){
		"start": c.start, "stop": c.stop, "restart": c.restart, "try-restart": c.tryRestart, "condrestart": c.tryRestart, "reload": c.reload,
		"reload-or-restart": c.reloadOrRestart, "enable": c.enable, "disable": c.disable, "reenable": c.enable, "is-enabled": c.isEnabled,
		"is-active": c.isActive, "is-failed": c.isFailed, "status": c.status, "show": c.show, "kill": c.kill, "reset-failed": c.resetFailed, "cat": c.cat,
	}
	if f, ok := whole[verb]; ok {
		if len(units) > 0 {
			return 1, fmt.Errorf("systemctl %s takes no units", verb)
		}
		return f()
	}
	f, ok := each[verb]
	if !ok {
		return 1, fmt.Errorf("systemctl: the command %q is not supported", verb)
	}
	if len(units) == 0 {
		return 1, fmt.Errorf("systemctl %s: which unit", verb)
	}
	return c.forEach(verb, units, f)
}

// forEach does a command for all units at once. is-active and the like succeed when any of them does.
func (c *call) forEach(verb string, units []string, f func(string) (int, error)) (int, error) {
	any0 := slices.Contains([]string{"is-active", "is-enabled", "is-failed"}, verb)
	starts := slices.Contains([]string{"start", "restart"}, verb)
	codes, errs := make([]int, len(units)), make([]error, len(units))
	if !starts {
		for n, name := range units {
			codes[n], errs[n] = f(name)
		}
	} else {
		var wg sync.WaitGroup
		for n, name := range units {
			wg.Go(func() { codes[n], errs[n] = f(name) })
		}
		wg.Wait()
	}
	if any0 {
		return slices.Min(codes), errors.Join(errs...)
	}
	return slices.Max(codes), errors.Join(errs...)
}

// service refuses what is no service; targets are there as a matter of course.
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
		// The unit is read before the answer, so that its errors are told.
		if _, err := c.m.load(name); err != nil {
			return 1, err
		}
		go func() { _, _ = c.m.start(context.Background(), name) }() // it is in the journal
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
		return 1, fmt.Errorf("job for %s failed: %w; see systemctl status %s and journalctl -u %s", name, r.err, name, name)
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
			_, _ = c.m.start(context.Background(), name) // it is in the journal
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

// systemState is what the machine as a whole is. With --wait it waits for the end of the boot.
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

// jobs lists what init is about to do: JOB UNIT TYPE STATE.
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

// requestDown begins to go down; the answer does not wait for it.
func (m *Manager) requestDown(kind string, force bool) error {
	if force {
		kind += "-force"
	}
	m.goDown(kind)
	return nil
}

func (c *call) goDown(program string, args []string) error {
	words, err := c.parse(args)
	if err != nil || len(words) > 0 {
		return fmt.Errorf("%s: unknown arguments %q", program, args)
	}
	return c.m.requestDown(map[string]string{"poweroff": "poweroff", "halt": "poweroff", "reboot": "reboot"}[program], c.force)
}

// shutdown is shutdown(8), for at once.
func (c *call) shutdown(args []string) error {
	kind, when := "poweroff", ""
	for _, a := range args {
		switch {
		case a == "-h", a == "-P", a == "--poweroff", a == "-H", a == "--halt":
		case a == "-r", a == "--reboot":
			kind = "reboot"
		case a == "--no-wall":
		case strings.HasPrefix(a, "-"):
			return fmt.Errorf("shutdown: the option %s is not supported", a)
		case when == "":
			when = a
		}
	}
	if when != "now" && when != "+0" && when != "0" {
		return fmt.Errorf("shutdown: only \"now\" is supported, not %s", strconv.Quote(when))
	}
	return c.m.requestDown(kind, false)
}

// journalctl shows the end of the log: -u UNIT, -n LINES, -o cat.
func (c *call) journalctl(args []string) error {
	var units []string
	n, bare := kept, false
	for k := 0; k < len(args); k++ {
		a := args[k]
		value := func() string {
			if _, v, ok := strings.Cut(a, "="); ok {
				return v
			}
			if !strings.HasPrefix(a, "--") && len(a) > 2 {
				return a[2:]
			}
			if k++; k < len(args) {
				return args[k]
			}
			return ""
		}
		switch {
		case strings.HasPrefix(a, "-u"), strings.HasPrefix(a, "--unit"):
			name := value()
			if filepath.Ext(name) == "" {
				name += ".service"
			}
			units = append(units, name)
		case strings.HasPrefix(a, "-n"), strings.HasPrefix(a, "--lines"):
			lines, err := strconv.Atoi(value())
			if err != nil || lines < 0 {
				return errors.New("journalctl: -n wants a number")
			}
			n = lines
		case strings.HasPrefix(a, "-o"), strings.HasPrefix(a, "--output"):
			bare = value() == "cat"
		case slices.Contains([]string{"--no-pager", "-b", "-e", "-x", "-xe", "-q", "--quiet"}, a):
		default:
			return fmt.Errorf("journalctl: the argument %s is not supported", a)
		}
	}
	for _, l := range c.m.journal.search(units, n) {
		if bare {
			fmt.Fprintln(&c.out, l.text)
		} else {
			fmt.Fprintln(&c.out, l.String())
		}
	}
	return nil
}

// exec runs a command for the test, and ends it when nobody waits for it any more.
func (m *Manager) exec(ctx context.Context, r control.Request) control.Response {
	if len(r.Args) == 0 {
		return control.Response{Code: 1, Errors: []byte("no command\n")}
	}
	environment := map[string]string{"HOME": "/root", "USER": "root"}
	for _, v := range m.environment() {
		environment[v.Name] = v.Value
	}
	for _, v := range r.Environment {
		name, value, _ := strings.Cut(v, "=")
		environment[name] = value
	}
	dir := r.Directory
	if dir == "" {
		dir = "/"
	}
	input, err := memory(r.Input)
	if err != nil {
		return control.Response{Code: 1, Errors: []byte(err.Error())}
	}
	defer input.Close()
	s := spec{Path: lookPath(r.Args[0]), Argv: r.Args, Environment: list(environment), Directory: dir, UMask: 0o022}
	var out, errs bytes.Buffer
	p, wait, err := m.capture(s, input, &out, &errs)
	if p == nil {
		return control.Response{Code: 1, Errors: []byte(err.Error())}
	}
	select {
	case <-p.done:
	case <-ctx.Done():
	}
	for _, pid := range members("-", map[int]bool{p.pid: true}) { // what it left behind would hold its output open
		signalProcess(pid, syscall.SIGKILL)
	}
	<-p.done
	wait()
	if err != nil {
		fmt.Fprintln(&errs, err)
	}
	code := p.status.ExitStatus()
	if p.status.Signaled() {
		code = 128 + int(p.status.Signal())
	}
	return control.Response{Code: code, Output: out.Bytes(), Errors: errs.Bytes()}
}

// capture starts a process whose output is kept; wait returns when it is complete.
func (m *Manager) capture(s spec, stdin *os.File, stdout, stderr io.Writer) (p *process, wait func(), err error) {
	var wg sync.WaitGroup
	var ends []*os.File
	for _, to := range []io.Writer{stdout, stderr} {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, nil, err
		}
		ends = append(ends, w)
		wg.Go(func() {
			defer r.Close()
			_, _ = io.Copy(to, r) // ends with the process
		})
	}
	p, err = m.processes.start(s, stdin, ends[0], ends[1])
	for _, w := range ends {
		_ = w.Close() // the process has its own
	}
	return p, wg.Wait, err
}
