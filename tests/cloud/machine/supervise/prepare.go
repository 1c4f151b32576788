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
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nstance-kit/nstance/tests/cloud/machine/unit"
)

// searchPath is systemd's default search path. Services have it as their $PATH, and init searches it for programs that
// a unit names without their directory.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// lookPath returns the path of a program that a unit names without its directory. If lookPath does not find the
// program, the execution of the returned path fails.
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
	uid, gid   int
	groups     []int
	name, home string
}

// dynamicID is the user and group ID of a service with DynamicUser=. systemd reserves a range of IDs for such services,
// of which this is the first.
const dynamicID = 61184

func newID() string {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // Never fails.
	return hex.EncodeToString(id)
}

func signalName(sig syscall.Signal) string { return strings.TrimPrefix(unix.SignalName(sig), "SIG") }

// prepare sets up what the process needs: account, environment, cache directory and notification socket.
func (i *invocation) prepare() (err error) {
	if i.account, err = lookUp(i.def); err != nil {
		return err
	}
	i.environment = i.service.m.environment()
	i.environment["INVOCATION_ID"] = i.id
	if i.account.name != "root" {
		i.environment["USER"], i.environment["LOGNAME"] = i.account.name, i.account.name
		i.environment["HOME"], i.environment["SHELL"] = i.account.home, "/bin/sh"
	}
	if i.def.CacheDirectory != "" {
		full := filepath.Join("/var/cache", i.def.CacheDirectory)
		err := errors.Join(os.MkdirAll(full, 0o755), os.Chmod(full, fs.FileMode(i.def.CacheMode)),
			own(full, i.account.uid, i.account.gid))
		if err != nil {
			return fmt.Errorf("CacheDirectory=: %w", err)
		}
		i.environment["CACHE_DIRECTORY"] = full
	}
	if i.def.Notify {
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
	for _, file := range i.def.EnvironmentFiles {
		text, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("load environment file: %w", err)
		}
		variables, err := unit.ReadEnvironment(string(text))
		if err != nil {
			return fmt.Errorf("load environment file %s: %w", file, err)
		}
		for _, v := range variables {
			i.environment[v.Name] = v.Value
		}
	}
	return nil
}

// lookUp returns the account of a service as systemd.exec(5) defines it.
func lookUp(def *unit.Service) (a account, err error) {
	switch {
	case def.DynamicUser:
		return account{uid: dynamicID, gid: dynamicID, name: strings.TrimSuffix(def.Name, ".service"), home: "/"}, nil
	case def.User == "":
		a = account{name: "root", home: "/root"}
	default:
		u, err := user.Lookup(def.User)
		if err != nil {
			return a, fmt.Errorf("user of the unit: %w", err)
		}
		groups, err := u.GroupIds()
		if err != nil {
			return a, fmt.Errorf("groups of %s: %w", def.User, err)
		}
		a = account{name: u.Username, home: u.HomeDir}
		for _, id := range append([]string{u.Uid, u.Gid}, groups...) {
			n, err := strconv.Atoi(id)
			if err != nil {
				return a, fmt.Errorf("account %s: %w", def.User, err)
			}
			a.groups = append(a.groups, n)
		}
		a.uid, a.gid, a.groups = a.groups[0], a.groups[1], a.groups[2:]
	}
	if def.Group != "" {
		g, err := user.LookupGroup(def.Group)
		if err != nil {
			return a, fmt.Errorf("group of the unit: %w", err)
		}
		if a.gid, err = strconv.Atoi(g.Gid); err != nil {
			return a, fmt.Errorf("group %s: %w", def.Group, err)
		}
	}
	if def.SupplementaryGroup != "" {
		g, err := user.LookupGroup(def.SupplementaryGroup)
		if err != nil {
			return a, fmt.Errorf("supplementary group of the unit: %w", err)
		}
		n, err := strconv.Atoi(g.Gid)
		if err != nil {
			return a, fmt.Errorf("group %s: %w", def.SupplementaryGroup, err)
		}
		a.groups = append(a.groups, n)
	}
	return a, nil
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
