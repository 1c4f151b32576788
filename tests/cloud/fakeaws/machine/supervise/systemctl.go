package supervise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/machine/control"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/machine/unit"
)

// handle answers a request of a client.
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

// call is one invocation of systemctl or a related program.
type call struct {
	m           *Manager
	ctx         context.Context // Ends when the client stops waiting.
	out, errors bytes.Buffer

	quiet, now, noBlock, wait, force, valueOnly, noLegend, mainOnly bool
	properties                                                      []string
	signal                                                          syscall.Signal
}

// cosmetic are the options that have no effect here.
var cosmetic = []string{"--no-pager", "--system", "--full", "-l", "--plain", "--no-ask-password", "--all", "-a",
	"--no-wall", "--no-warn"}

// parse separates the options of systemctl(1) from the other arguments, which it returns.
func (c *call) parse(args []string) (words []string, err error) {
	c.signal = syscall.SIGTERM
	flags := map[string]*bool{"-q": &c.quiet, "--quiet": &c.quiet, "--now": &c.now, "--no-block": &c.noBlock,
		"--wait": &c.wait, "-f": &c.force,
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
		if filepath.Ext(name) == "" || !slices.Contains([]string{".service", ".target", ".socket", ".timer", ".mount",
			".path", ".slice"}, filepath.Ext(name)) {
			units[n] = name + ".service"
		}
		if !unit.ValidUnit(units[n]) {
			return 1, fmt.Errorf("invalid unit name %q", name)
		}
	}
	whole := map[string]func() (int, error){
		"daemon-reload": c.reloadDefinitions, "daemon-reexec": c.reloadDefinitions, "is-system-running": c.systemState,
		"list-jobs": c.jobs,
		"poweroff":  func() (int, error) { return 0, c.m.requestDown("poweroff", c.force) },
		"halt":      func() (int, error) { return 0, c.m.requestDown("poweroff", c.force) },
		"reboot":    func() (int, error) { return 0, c.m.requestDown("reboot", c.force) },
	}
	each := map[string]func(string) (int, error){
		"start": c.start, "stop": c.stop, "restart": c.restart, "try-restart": c.tryRestart,
		"condrestart": c.tryRestart, "reload": c.reload,
		"reload-or-restart": c.reloadOrRestart, "enable": c.enable, "disable": c.disable, "reenable": c.enable,
		"is-enabled": c.isEnabled,
		"is-active":  c.isActive, "is-failed": c.isFailed, "status": c.status, "show": c.show, "kill": c.kill,
		"reset-failed": c.resetFailed, "cat": c.cat,
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

// forEach runs a command for all units: start and restart concurrently, other commands one after another. is-active,
// is-enabled and is-failed succeed if they succeed for any unit.
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

// requestDown begins to power off or to reboot. It does not wait for the end.
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
	return c.m.requestDown(map[string]string{"poweroff": "poweroff", "halt": "poweroff", "reboot": "reboot"}[program],
		c.force)
}

// shutdown implements shutdown(8), without delayed shutdowns.
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

// journalctl prints the end of the log. It supports -u UNIT, -n LINES and -o cat.
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
