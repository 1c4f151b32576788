package unit

import (
	"fmt"
	"path"
	"strings"
	"syscall"
	"time"
)

// Service is the content of a .service unit.
type Service struct {
	// Name is the full name, such as "nstance-agent.service". File is the path of the unit file.
	Name, File, Description string

	Conditions []Condition

	StartLimitInterval time.Duration
	StartLimitBurst    int
	// Actions on the machine: "none", "poweroff", "poweroff-force", "poweroff-immediate", "reboot" and so on.
	StartLimitAction, FailureAction, SuccessAction string

	Type            string // simple, exec, oneshot, notify
	RemainAfterExit bool
	NotifyAccess    string // none, main, exec, all; "": the type's default

	StartPre, Start, StartPost, Reload, Stop, StopPost []Command

	Restart                  string
	RestartAfter             time.Duration
	SuccessCodes             Statuses
	RestartPrevent           Statuses
	TimeoutStart             time.Duration
	TimeoutStop              time.Duration
	TimeoutAbort             time.Duration // 0: TimeoutStop
	Watchdog                 time.Duration // 0: none
	WatchdogSignal           syscall.Signal
	KillSignal               syscall.Signal
	KillMode                 string // control-group, mixed, process, none
	User, Group              string
	SupplementaryGroups      []string
	WorkingDirectory         string
	WorkingDirectoryOptional bool
	UMask                    int

	Environment      []Variable
	EnvironmentFiles []EnvironmentFile
	UnsetEnvironment []string

	Directories     []Directory
	PreserveRuntime string // no, yes, restart

	// StandardOutput and StandardError are "journal" or "null".
	StandardOutput, StandardError string

	NoNewPrivileges bool
	// Bounding is nil for all capabilities. Otherwise it has the bits of the remaining capabilities.
	Bounding *uint64
	Ambient  uint64
	// Limits maps the kernel's number of a resource limit to its soft and hard value.
	Limits map[int][2]uint64

	WantedBy, RequiredBy, Also, Alias []string
}

// Condition is a Condition…= or an Assert…= directive.
type Condition struct {
	Kind, Argument           string
	Negate, Trigger, Asserts bool
}

// EnvironmentFile is an EnvironmentFile= directive.
type EnvironmentFile struct {
	Path     string
	Optional bool
}

// Directory is one directory of a directive such as StateDirectory=.
type Directory struct {
	Kind DirectoryKind
	// Path is relative to the base of the kind.
	Path string
	Mode uint32
}

// DirectoryKind is one of [DirectoryKinds].
type DirectoryKind struct {
	Directive, Base, Variable string
	// Owned is set if the unit's user owns the directory. It is not set for directories below /etc.
	Owned bool
}

// DirectoryKinds are the directives in systemd.exec(5), "Sandboxing", that create directories.
var DirectoryKinds = []DirectoryKind{
	{"RuntimeDirectory", "/run", "RUNTIME_DIRECTORY", true},
	{"StateDirectory", "/var/lib", "STATE_DIRECTORY", true},
	{"CacheDirectory", "/var/cache", "CACHE_DIRECTORY", true},
	{"LogsDirectory", "/var/log", "LOGS_DIRECTORY", true},
	{"ConfigurationDirectory", "/etc", "CONFIGURATION_DIRECTORY", false},
}

// Statuses is a set of exit codes and signals.
type Statuses struct {
	Codes   map[int]bool
	Signals map[syscall.Signal]bool
}

// Has reports whether the set contains a wait status.
func (s Statuses) Has(status syscall.WaitStatus) bool {
	if status.Signaled() {
		return s.Signals[status.Signal()]
	}
	return s.Codes[status.ExitStatus()]
}

// Host contains the facts about the machine that specifiers refer to.
type Host struct{ Hostname, MachineID, BootID, Kernel string }

// Load interprets the entries of a service's file and its drop-ins, in this order. name is the full name, including the
// instance of a template.
func Load(name string, host Host, entries []Entry) (*Service, error) {
	if !ValidUnit(name) || !strings.HasSuffix(name, ".service") {
		return nil, fmt.Errorf("%q is no name of a service", name)
	}
	s := &Service{Name: name, StartLimitInterval: 10 * time.Second, StartLimitBurst: 5, StartLimitAction: "none",
		FailureAction: "none",
		SuccessAction: "none", Type: "simple", Restart: "no", RestartAfter: 100 * time.Millisecond, TimeoutStart: -1,
		TimeoutStop:    90 * time.Second,
		WatchdogSignal: syscall.SIGABRT, KillSignal: syscall.SIGTERM, KillMode: "control-group", WorkingDirectory: "/",
		UMask:           0o022,
		PreserveRuntime: "no", StandardOutput: "journal", StandardError: "inherit", Limits: map[int][2]uint64{}}
	modes := map[string]uint32{}
	l := loader{service: s, modes: modes, expand: specifiers(name, host)}
	for _, e := range entries {
		if strings.HasPrefix(e.Section, "X-") || strings.HasPrefix(e.Key, "X-") {
			continue
		}
		set, known := directives[e.Section+"."+e.Key]
		switch {
		case known:
			if err := set(&l, e.Key, e.Value); err != nil {
				return nil, fmt.Errorf("%s: %s=: %w", e.Where, e.Key, err)
			}
		case ignored[e.Section][e.Key]:
		default:
			return nil, fmt.Errorf("%s: [%s] %s= is not supported", e.Where, e.Section, e.Key)
		}
	}
	for i, d := range s.Directories {
		if mode, ok := modes[d.Kind.Directive]; ok {
			s.Directories[i].Mode = mode
		}
	}
	return s, s.check()
}

func (s *Service) check() error {
	switch {
	case s.Type == "oneshot" && s.Restart != "no" && (s.Restart == "always" || s.Restart == "on-success"):
		return fmt.Errorf("%s: Restart=%s is not for Type=oneshot", s.Name, s.Restart)
	case s.Type != "oneshot" && len(s.Start) != 1:
		return fmt.Errorf("%s: Type=%s needs one ExecStart=, not %d", s.Name, s.Type, len(s.Start))
	case s.Type == "oneshot" && len(s.Start) == 0 && len(s.Stop) == 0:
		return fmt.Errorf("%s: neither ExecStart= nor ExecStop=", s.Name)
	}
	if s.TimeoutStart < 0 {
		s.TimeoutStart = 90 * time.Second
		if s.Type == "oneshot" {
			s.TimeoutStart = Infinity
		}
	}
	if s.TimeoutAbort == 0 {
		s.TimeoutAbort = s.TimeoutStop
	}
	if s.NotifyAccess == "" {
		s.NotifyAccess = "none"
		if s.Type == "notify" || s.Watchdog > 0 {
			s.NotifyAccess = "main"
		}
	}
	if s.StandardError == "inherit" {
		s.StandardError = s.StandardOutput
	}
	return nil
}

// ValidUnit reports whether a text is a valid full name of a unit. systemd.unit(5).
func ValidUnit(name string) bool {
	prefix, _, _ := strings.Cut(name, "@")
	stem := strings.TrimSuffix(prefix, path.Ext(prefix))
	if len(name) > 255 || stem == "" || path.Ext(name) == "" || path.Ext(name) == "." || strings.Count(name, "@") > 1 {
		return false
	}
	for _, c := range name {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune(`:-_.\@`, c) {
			return false
		}
	}
	return true
}

// specifiers returns a function that replaces specifiers such as %n. The values are those of the system manager, which
// runs as root. systemd.unit(5), "Specifiers".
func specifiers(name string, host Host) func(string) (string, error) {
	stem := strings.TrimSuffix(name, path.Ext(name))
	prefix, instance, _ := strings.Cut(stem, "@")
	known := map[byte]string{'%': "%", 'n': name, 'N': stem, 'p': prefix, 'i': instance, 'H': host.Hostname,
		'm': host.MachineID, 'b': host.BootID,
		'v': host.Kernel, 't': "/run", 'S': "/var/lib", 'C': "/var/cache", 'L': "/var/log", 'E': "/etc", 'T': "/tmp",
		'V': "/var/tmp",
		'u': "root", 'U': "0", 'g': "root", 'G': "0", 'h': "/root", 's': "/bin/sh"}
	return func(text string) (string, error) {
		var b strings.Builder
		for {
			before, after, found := strings.Cut(text, "%")
			b.WriteString(before)
			if !found {
				return b.String(), nil
			}
			if after == "" {
				return "", fmt.Errorf("%q ends in %%", text)
			}
			value, ok := known[after[0]]
			if !ok {
				return "", fmt.Errorf("the specifier %%%c is not supported", after[0])
			}
			b.WriteString(value)
			text = after[1:]
		}
	}
}
