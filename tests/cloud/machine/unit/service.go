package unit

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Service is the content of a .service unit.
type Service struct {
	// Name is the full name, such as "nstance-agent.service". File is the path of the unit file.
	Name, File string

	// Conditions are the paths that must exist before a start.
	Conditions         []string
	StartLimitInterval time.Duration
	StartLimitBurst    int
	// PowerOff is set for StartLimitAction=poweroff: if the service starts too often, the machine powers off.
	PowerOff bool

	// Notify is set for Type=notify. Otherwise the type is simple.
	Notify bool
	// Command is the program and its arguments. A word $NAME stands for the words in the variable.
	Command []string
	// Restart is set for Restart=always. Otherwise the service is not restarted.
	Restart                                           bool
	RestartAfter, TimeoutStart, TimeoutStop, Watchdog time.Duration

	// User and Group are empty for root. With DynamicUser the service runs as a user without an account.
	User, Group string
	DynamicUser bool
	UMask       int

	Environment      []Variable
	EnvironmentFiles []string

	// SupplementaryGroup is one more group of the service's processes, or empty.
	SupplementaryGroup string
	// Console is set if the output goes to the console as well as to the journal.
	Console bool

	// CacheDirectory is the name of a directory below /var/cache that the user owns, or empty.
	CacheDirectory string
	CacheMode      uint32

	NoNewPrivileges bool
	// NoCapabilities is set for a CapabilityBoundingSet= that is empty or has only CAP_SYS_TIME.
	NoCapabilities bool
	// OpenFiles is LimitNOFILE=. 0 means that the limit is inherited.
	OpenFiles uint64

	WantedBy []string
}

// directives maps the supported directives, by section and name, to their parsers.
var directives = map[string]func(s *Service, value string) error{
	"Unit.Wants":                 targets,
	"Unit.ConditionPathExists":   paths(func(s *Service) *[]string { return &s.Conditions }),
	"Unit.StartLimitIntervalSec": span(func(s *Service) *time.Duration { return &s.StartLimitInterval }),
	"Unit.StartLimitBurst": func(s *Service, value string) (err error) {
		s.StartLimitBurst, err = strconv.Atoi(value)
		return err
	},
	"Unit.StartLimitAction": choice("poweroff", func(s *Service) { s.PowerOff = true }),

	"Service.Type":            choice("notify", func(s *Service) { s.Notify = true }),
	"Service.NotifyAccess":    choice("main", func(*Service) {}), // The default of Type=notify.
	"Service.ExecStart":       command,
	"Service.Restart":         choice("always", func(s *Service) { s.Restart = true }),
	"Service.RestartSec":      span(func(s *Service) *time.Duration { return &s.RestartAfter }),
	"Service.TimeoutStartSec": span(func(s *Service) *time.Duration { return &s.TimeoutStart }),
	"Service.TimeoutStopSec":  span(func(s *Service) *time.Duration { return &s.TimeoutStop }),
	"Service.WatchdogSec":     span(func(s *Service) *time.Duration { return &s.Watchdog }),

	"Service.User":  word(func(s *Service) *string { return &s.User }),
	"Service.Group": word(func(s *Service) *string { return &s.Group }),
	"Service.SupplementaryGroups": func(s *Service, value string) error {
		if strings.ContainsAny(value, " /:") || value == "" {
			return fmt.Errorf("%q is not one group", value)
		}
		s.SupplementaryGroup = value
		return nil
	},
	"Service.StandardOutput": choice("journal+console", func(s *Service) { s.Console = true }),

	"Service.DynamicUser": choice("yes", func(s *Service) { s.DynamicUser = true }),
	"Service.UMask": func(s *Service, value string) (err error) {
		s.UMask, err = mode(value)
		return err
	},
	"Service.Environment":     environment,
	"Service.EnvironmentFile": paths(func(s *Service) *[]string { return &s.EnvironmentFiles }),
	"Service.CacheDirectory":  word(func(s *Service) *string { return &s.CacheDirectory }),
	"Service.CacheDirectoryMode": func(s *Service, value string) error {
		n, err := mode(value)
		s.CacheMode = uint32(n)
		return err
	},
	"Service.LimitNOFILE": func(s *Service, value string) (err error) {
		s.OpenFiles, err = strconv.ParseUint(value, 10, 31)
		return err
	},
	"Service.NoNewPrivileges":       choice("yes", func(s *Service) { s.NoNewPrivileges = true }),
	"Service.CapabilityBoundingSet": capabilities,
	"Service.AmbientCapabilities":   choice("", func(*Service) {}), // The default.

	"Install.WantedBy": func(s *Service, value string) error {
		s.WantedBy = strings.Fields(value)
		return targets(s, value)
	},
}

// ignored lists the directives that this package ignores. Description and Documentation only describe the unit. The
// units in After are up before any service starts. The directives of Service restrict what a service may do. A service
// also works without these restrictions.
var ignored = strings.Fields(`
	Unit.Description Unit.Documentation Unit.After

	Service.LockPersonality Service.MemoryDenyWriteExecute Service.PrivateDevices Service.PrivateMounts
	Service.PrivateTmp
	Service.ProtectClock Service.ProtectControlGroups Service.ProtectHome Service.ProtectHostname
	Service.ProtectKernelLogs Service.ProtectKernelModules Service.ProtectKernelTunables Service.ProtectProc
	Service.ProtectSystem Service.ReadWritePaths Service.RemoveIPC Service.RestrictAddressFamilies
	Service.RestrictNamespaces Service.RestrictRealtime Service.RestrictSUIDSGID Service.SystemCallArchitectures
	Service.SystemCallFilter`)

// Load interprets the entries of a service's file, followed by those of its drop-ins. "name" is the full name of the
// service.
func Load(name string, entries []Entry) (*Service, error) {
	if !ValidName(name) {
		return nil, fmt.Errorf("%q is no name of a service", name)
	}
	s := &Service{Name: name, StartLimitInterval: 10 * time.Second, StartLimitBurst: 5,
		RestartAfter: 100 * time.Millisecond, TimeoutStart: 90 * time.Second, TimeoutStop: 90 * time.Second,
		UMask: 0o022, CacheMode: 0o755}
	for _, e := range entries {
		set, known := directives[e.Section+"."+e.Key]
		switch {
		case known:
			if err := set(s, e.Value); err != nil {
				return nil, fmt.Errorf("%s: %s=: %w", e.Where, e.Key, err)
			}
		case !slices.Contains(ignored, e.Section+"."+e.Key):
			return nil, fmt.Errorf("%s: [%s] %s= is not supported", e.Where, e.Section, e.Key)
		}
	}
	if len(s.Command) == 0 {
		return nil, fmt.Errorf("%s: there is no ExecStart=", name)
	}
	return s, nil
}

// ValidName reports whether a text is a valid full name of a service. Templates are not supported.
func ValidName(name string) bool {
	stem, ok := strings.CutSuffix(name, ".service")
	return ok && stem != "" && !strings.ContainsFunc(stem, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_'
	})
}

// choice returns a parser that accepts only one value. Other values that systemd knows are not supported.
// capabilities parses CapabilityBoundingSet=. A machine does not give its services CAP_SYS_TIME, because its clock is
// that of the computer that runs the test.
func capabilities(s *Service, value string) error {
	s.NoCapabilities = true
	if value != "" && value != "CAP_SYS_TIME" {
		return fmt.Errorf("%q is not supported, only %q and %q", value, "", "CAP_SYS_TIME")
	}
	return nil
}

func choice(only string, set func(*Service)) func(*Service, string) error {
	return func(s *Service, value string) error {
		if value != only {
			return fmt.Errorf("%q is not supported, only %q", value, only)
		}
		set(s)
		return nil
	}
}

func span(field func(*Service) *time.Duration) func(*Service, string) error {
	return func(s *Service, value string) (err error) {
		*field(s), err = Span(value)
		return err
	}
}

func word(field func(*Service) *string) func(*Service, string) error {
	return func(s *Service, value string) error {
		list, err := words(value)
		if err == nil && (len(list) != 1 || strings.ContainsAny(value, "/:.")) {
			err = fmt.Errorf("%q is not one name", value)
		}
		*field(s) = value
		return err
	}
}

func paths(field func(*Service) *[]string) func(*Service, string) error {
	return func(s *Service, value string) error {
		list, err := words(value)
		if err == nil && (len(list) != 1 || !path.IsAbs(value)) {
			err = fmt.Errorf("%q is no absolute path", value)
		}
		*field(s) = append(*field(s), value)
		return err
	}
}

// targets accepts a dependency on a target and refuses any other. A machine reaches its targets before it starts
// services, so dependencies on targets need no action.
func targets(_ *Service, value string) error {
	list, err := words(value)
	for _, name := range list {
		if !strings.HasSuffix(name, ".target") {
			return fmt.Errorf("a dependency on %s is not supported", name)
		}
	}
	return err
}

func mode(value string) (int, error) {
	n, err := strconv.ParseUint(value, 8, 31)
	if err != nil || n > 0o777 {
		return 0, fmt.Errorf("%q is no file mode", value)
	}
	return int(n), nil
}

func environment(s *Service, value string) error {
	list, err := words(value)
	for _, w := range list {
		name, value, ok := strings.Cut(w, "=")
		if !ok || !validName(name) {
			return fmt.Errorf("%q is no assignment to a variable", w)
		}
		s.Environment = append(s.Environment, Variable{name, value})
	}
	return err
}

func command(s *Service, value string) (err error) {
	if s.Command != nil {
		return errors.New("a second command is not supported")
	}
	if s.Command, err = words(value); err != nil {
		return err
	}
	if len(s.Command) == 0 || !path.IsAbs(s.Command[0]) {
		return fmt.Errorf("%q does not begin with an absolute path", value)
	}
	for _, w := range s.Command {
		if name, ok := strings.CutPrefix(w, "$"); strings.Contains(w, "$") && (!ok || !validName(name)) {
			return fmt.Errorf("%q: a variable is supported only as a whole word $NAME", w)
		}
	}
	return nil
}

// Argv returns the arguments of the command with all variables replaced.
func (s *Service) Argv(environment map[string]string) (argv []string, err error) {
	for _, w := range s.Command {
		name, ok := strings.CutPrefix(w, "$")
		if !ok {
			argv = append(argv, w)
			continue
		}
		list, err := words(environment[name])
		if err != nil {
			return nil, fmt.Errorf("$%s: %w", name, err)
		}
		argv = append(argv, list...)
	}
	return argv, nil
}
