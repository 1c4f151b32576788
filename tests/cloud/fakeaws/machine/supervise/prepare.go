package supervise

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/machine/unit"
)

// searchPath is systemd's default search path. It applies to programs without a directory and is the $PATH of services.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// lookPath returns the path of a program that is named without its directory. A program that is not found fails when it
// is executed.
func lookPath(name string) string {
	if strings.HasPrefix(name, "/") {
		return name
	}
	for dir := range strings.SplitSeq(searchPath, ":") {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return "/usr/bin/" + name
}

// account is the user and the groups of a service's processes.
type account struct {
	uid, gid          int
	groups            []int
	name, home, shell string
}

func newID() string {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // Never fails.
	return hex.EncodeToString(id)
}

func signalName(sig syscall.Signal) string { return strings.TrimPrefix(unix.SignalName(sig), "SIG") }

// prepare sets up what the processes need: account, environment, directories and notification socket.
func (i *invocation) prepare() (err error) {
	if i.account, err = lookUp(i.def); err != nil {
		return err
	}
	i.environment = map[string]string{}
	for _, v := range i.service.m.environment() {
		i.environment[v.Name] = v.Value
	}
	i.environment["INVOCATION_ID"] = i.id
	if i.def.User != "" {
		i.environment["USER"], i.environment["LOGNAME"] = i.account.name, i.account.name
		i.environment["HOME"], i.environment["SHELL"] = i.account.home, i.account.shell
	}
	if err := i.directories(); err != nil {
		return err
	}
	if i.def.NotifyAccess != "none" {
		if i.mailbox, err = openMailbox("/run/systemd/notify/" + i.service.name); err != nil {
			return fmt.Errorf("open notification socket: %w", err)
		}
		i.environment["NOTIFY_SOCKET"] = i.mailbox.path
	}
	if i.def.Watchdog > 0 {
		i.environment["WATCHDOG_USEC"] = strconv.FormatInt(i.def.Watchdog.Microseconds(), 10)
	}
	for _, v := range i.def.Environment {
		i.environment[v.Name] = v.Value
	}
	for _, f := range i.def.EnvironmentFiles {
		text, err := os.ReadFile(f.Path)
		if errors.Is(err, fs.ErrNotExist) && f.Optional {
			continue
		}
		if err != nil {
			return fmt.Errorf("load environment file: %w", err)
		}
		variables, err := unit.ReadEnvironment(string(text))
		if err != nil {
			return fmt.Errorf("load environment file %s: %w", f.Path, err)
		}
		for _, v := range variables {
			i.environment[v.Name] = v.Value
		}
	}
	for _, name := range i.def.UnsetEnvironment {
		name, value, exact := strings.Cut(name, "=")
		if !exact || i.environment[name] == value {
			delete(i.environment, name)
		}
	}
	return nil
}

// lookUp returns the account of a service as systemd.exec(5) defines it: the user's own groups and the supplementary
// groups.
func lookUp(def *unit.Service) (a account, err error) {
	a = account{name: "root", home: "/root", shell: "/bin/sh"}
	if def.User != "" {
		u, err := user.Lookup(def.User)
		if _, convErr := strconv.Atoi(def.User); convErr == nil {
			u, err = user.LookupId(def.User)
		}
		if err != nil {
			return a, fmt.Errorf("user of the unit: %w", err)
		}
		if a.uid, a.gid, err = numbers(u.Uid, u.Gid); err != nil {
			return a, err
		}
		a.name, a.home, a.shell = u.Username, u.HomeDir, "/bin/sh"
		own, err := u.GroupIds()
		if err != nil {
			return a, fmt.Errorf("groups of %s: %w", def.User, err)
		}
		for _, text := range own {
			gid, _, err := numbers(text, "0")
			if err != nil {
				return a, err
			}
			a.groups = append(a.groups, gid)
		}
	}
	group := func(name string) (int, error) {
		g, err := user.LookupGroup(name)
		if _, convErr := strconv.Atoi(name); convErr == nil {
			g, err = user.LookupGroupId(name)
		}
		if err != nil {
			return 0, fmt.Errorf("group of the unit: %w", err)
		}
		gid, _, err := numbers(g.Gid, "0")
		return gid, err
	}
	if def.Group != "" {
		if a.gid, err = group(def.Group); err != nil {
			return a, err
		}
	}
	for _, name := range def.SupplementaryGroups {
		gid, err := group(name)
		if err != nil {
			return a, err
		}
		if !slices.Contains(a.groups, gid) {
			a.groups = append(a.groups, gid)
		}
	}
	return a, nil
}

func numbers(first, second string) (a, b int, err error) {
	if a, err = strconv.Atoi(first); err == nil {
		b, err = strconv.Atoi(second)
	}
	return a, b, err
}

// directories creates the directories of StateDirectory= and similar directives. It also sets the environment variables
// that name them.
func (i *invocation) directories() error {
	for _, d := range i.def.Directories {
		full := filepath.Join(d.Kind.Base, d.Path)
		if err := os.MkdirAll(full, 0o755); err != nil {
			return fmt.Errorf("%s=: %w", d.Kind.Directive, err)
		}
		if err := os.Chmod(full, fs.FileMode(d.Mode)); err != nil {
			return fmt.Errorf("%s=: %w", d.Kind.Directive, err)
		}
		if d.Kind.Owned {
			if err := own(full, i.account.uid, i.account.gid); err != nil {
				return fmt.Errorf("%s=: %w", d.Kind.Directive, err)
			}
		}
		if old := i.environment[d.Kind.Variable]; old != "" {
			full = old + ":" + full
		}
		i.environment[d.Kind.Variable] = full
	}
	return nil
}

// own changes the owner of a directory and its contents, unless the directory already has that owner.
func own(dir string, uid, gid int) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if s := info.Sys().(*syscall.Stat_t); int(s.Uid) == uid && int(s.Gid) == gid {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, uid, gid)
	})
}

// met evaluates the conditions of a unit. asserted reports that an Assert…= is not met, which is a failure.
func (m *Manager) met(def *unit.Service) (ok, asserted bool) {
	triggers, triggered := 0, false
	for _, c := range def.Conditions {
		holds := holds(c) != c.Negate
		if c.Trigger {
			triggers++
			triggered = triggered || holds
			continue
		}
		if !holds {
			word := map[bool]string{true: "Assertion", false: "Condition"}[c.Asserts]
			m.journal.say("%s was skipped because of an unmet condition check (%s%s=%s).", def.Name, word, c.Kind,
				c.Argument)
			return false, c.Asserts
		}
	}
	if triggers > 0 && !triggered {
		m.journal.say("%s was skipped because no trigger condition checks were met.", def.Name)
		return false, false
	}
	return true, false
}

func holds(c unit.Condition) bool {
	if c.Kind == "Virtualization" { // As on a Nitro instance.
		return slices.Contains([]string{"amazon", "vm", "yes", "1", "true"}, c.Argument)
	}
	info, err := os.Stat(c.Argument)
	if err != nil {
		return false
	}
	switch c.Kind {
	case "PathIsDirectory":
		return info.IsDir()
	case "PathIsExecutable", "FileIsExecutable":
		return info.Mode().IsRegular() && info.Mode()&0o111 != 0
	case "FileNotEmpty":
		return info.Mode().IsRegular() && info.Size() > 0
	case "DirectoryNotEmpty":
		entries, err := os.ReadDir(c.Argument)
		return err == nil && len(entries) > 0
	}
	return true
}
