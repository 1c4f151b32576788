package unit

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

type loader struct {
	service *Service
	modes   map[string]uint32
	expand  func(string) (string, error)
}

type directive func(l *loader, key, value string) error

// directives maps the supported directives, by section and name, to their parsers.
var directives = map[string]directive{
	"Unit.Description":           text(func(s *Service) *string { return &s.Description }),
	"Unit.StartLimitIntervalSec": span(func(s *Service) *time.Duration { return &s.StartLimitInterval }),
	"Unit.StartLimitBurst":       number(func(s *Service) *int { return &s.StartLimitBurst }, 10),
	"Unit.StartLimitAction":      action(func(s *Service) *string { return &s.StartLimitAction }),
	"Unit.FailureAction":         action(func(s *Service) *string { return &s.FailureAction }),
	"Unit.SuccessAction":         action(func(s *Service) *string { return &s.SuccessAction }),
	"Unit.Wants":                 targets,
	"Unit.Requires":              targets,
	"Unit.Requisite":             targets,
	"Unit.BindsTo":               targets,
	"Unit.PartOf":                targets,

	"Unit.ConditionPathExists": condition, "Unit.AssertPathExists": condition,
	"Unit.ConditionPathIsDirectory": condition, "Unit.AssertPathIsDirectory": condition,
	"Unit.ConditionPathIsExecutable": condition, "Unit.ConditionFileIsExecutable": condition,
	"Unit.ConditionFileNotEmpty": condition, "Unit.AssertFileNotEmpty": condition,
	"Unit.ConditionDirectoryNotEmpty": condition, "Unit.ConditionVirtualization": condition,

	"Service.Type": choice(func(s *Service) *string {
		return &s.Type
	}, "simple", "exec", "oneshot", "notify"),
	"Service.RemainAfterExit": boolean(func(s *Service) *bool { return &s.RemainAfterExit }),
	"Service.NotifyAccess": choice(func(s *Service) *string {
		return &s.NotifyAccess
	}, "none", "main", "exec", "all"),
	"Service.ExecStartPre":             exec(func(s *Service) *[]Command { return &s.StartPre }),
	"Service.ExecStart":                exec(func(s *Service) *[]Command { return &s.Start }),
	"Service.ExecStartPost":            exec(func(s *Service) *[]Command { return &s.StartPost }),
	"Service.ExecReload":               exec(func(s *Service) *[]Command { return &s.Reload }),
	"Service.ExecStop":                 exec(func(s *Service) *[]Command { return &s.Stop }),
	"Service.ExecStopPost":             exec(func(s *Service) *[]Command { return &s.StopPost }),
	"Service.RestartSec":               span(func(s *Service) *time.Duration { return &s.RestartAfter }),
	"Service.SuccessExitStatus":        statuses(func(s *Service) *Statuses { return &s.SuccessCodes }),
	"Service.RestartPreventExitStatus": statuses(func(s *Service) *Statuses { return &s.RestartPrevent }),
	"Service.Restart": choice(func(s *Service) *string { return &s.Restart },
		"no", "always", "on-success", "on-failure", "on-abnormal", "on-watchdog", "on-abort"),
	"Service.TimeoutStartSec": timeout(func(s *Service) []*time.Duration { return []*time.Duration{&s.TimeoutStart} }),
	"Service.TimeoutStopSec":  timeout(func(s *Service) []*time.Duration { return []*time.Duration{&s.TimeoutStop} }),
	"Service.TimeoutAbortSec": timeout(func(s *Service) []*time.Duration { return []*time.Duration{&s.TimeoutAbort} }),
	"Service.TimeoutSec": timeout(func(s *Service) []*time.Duration {
		return []*time.Duration{&s.TimeoutStart, &s.TimeoutStop}
	}),
	"Service.WatchdogSec":    span(func(s *Service) *time.Duration { return &s.Watchdog }),
	"Service.WatchdogSignal": signal(func(s *Service) *syscall.Signal { return &s.WatchdogSignal }),
	"Service.KillSignal":     signal(func(s *Service) *syscall.Signal { return &s.KillSignal }),
	"Service.KillMode": choice(func(s *Service) *string {
		return &s.KillMode
	}, "control-group", "mixed", "process", "none"),

	"Service.User":                text(func(s *Service) *string { return &s.User }),
	"Service.Group":               text(func(s *Service) *string { return &s.Group }),
	"Service.SupplementaryGroups": list(func(s *Service) *[]string { return &s.SupplementaryGroups }),
	"Service.WorkingDirectory":    workingDirectory,
	"Service.UMask": func(l *loader, _, value string) error {
		return octal(value, &l.service.UMask)
	},
	"Service.Environment":      environment,
	"Service.EnvironmentFile":  environmentFile,
	"Service.UnsetEnvironment": list(func(s *Service) *[]string { return &s.UnsetEnvironment }),
	"Service.RuntimeDirectoryPreserve": choice(func(s *Service) *string {
		return &s.PreserveRuntime
	}, "no", "yes", "restart"),
	"Service.StandardInput":         choice(func(*Service) *string { return new(string) }, "null"),
	"Service.StandardOutput":        output(func(s *Service) *string { return &s.StandardOutput }),
	"Service.StandardError":         output(func(s *Service) *string { return &s.StandardError }),
	"Service.NoNewPrivileges":       boolean(func(s *Service) *bool { return &s.NoNewPrivileges }),
	"Service.CapabilityBoundingSet": bounding,
	"Service.AmbientCapabilities":   ambient,

	"Service.LimitNOFILE":  limit(unix.RLIMIT_NOFILE),
	"Service.LimitNPROC":   limit(unix.RLIMIT_NPROC),
	"Service.LimitCORE":    limit(unix.RLIMIT_CORE),
	"Service.LimitMEMLOCK": limit(unix.RLIMIT_MEMLOCK),

	"Service.RuntimeDirectory": directory, "Service.RuntimeDirectoryMode": directoryMode,
	"Service.StateDirectory": directory, "Service.StateDirectoryMode": directoryMode,
	"Service.CacheDirectory": directory, "Service.CacheDirectoryMode": directoryMode,
	"Service.LogsDirectory": directory, "Service.LogsDirectoryMode": directoryMode,
	"Service.ConfigurationDirectory": directory, "Service.ConfigurationDirectoryMode": directoryMode,

	"Install.WantedBy":   list(func(s *Service) *[]string { return &s.WantedBy }),
	"Install.RequiredBy": list(func(s *Service) *[]string { return &s.RequiredBy }),
	"Install.Also":       list(func(s *Service) *[]string { return &s.Also }),
	"Install.Alias":      list(func(s *Service) *[]string { return &s.Alias }),
}

// ignored lists directives without effect here. They order units or sandbox a service: a service that works with them
// also works without them.
var ignored = map[string]map[string]bool{
	"Unit": set(
		"Documentation After Before Conflicts DefaultDependencies IgnoreOnIsolate RefuseManualStart " +
			"RefuseManualStop StopWhenUnneeded"),
	"Service": set(
		`ProtectSystem ProtectHome ProtectKernelTunables ProtectKernelModules ProtectKernelLogs ProtectControlGroups
		ProtectClock ProtectHostname ProtectProc ProcSubset PrivateTmp PrivateDevices PrivateIPC PrivateMounts
		PrivateUsers ReadWritePaths ReadOnlyPaths InaccessiblePaths ExecPaths NoExecPaths TemporaryFileSystem
		BindPaths BindReadOnlyPaths DevicePolicy DeviceAllow MountFlags RestrictAddressFamilies RestrictNamespaces
		RestrictRealtime RestrictSUIDSGID RestrictFileSystems LockPersonality MemoryDenyWriteExecute RemoveIPC
		SystemCallArchitectures SystemCallFilter SystemCallErrorNumber SystemCallLog SecureBits KeyringMode
		Personality IPAddressAllow IPAddressDeny IPAccounting SocketBindAllow SocketBindDeny RestrictNetworkInterfaces
		Nice OOMScoreAdjust OOMPolicy IOSchedulingClass IOSchedulingPriority CPUSchedulingPolicy CPUSchedulingPriority
		Slice Delegate CPUWeight CPUQuota CPUAccounting MemoryMin MemoryLow MemoryHigh MemoryMax MemorySwapMax
		MemoryAccounting TasksMax TasksAccounting IOWeight IOAccounting SyslogIdentifier SyslogFacility SyslogLevel
		SyslogLevelPrefix LogLevelMax LogRateLimitIntervalSec LogRateLimitBurst TimeoutStartFailureMode
		TimeoutStopFailureMode CoredumpFilter`),
	"Install": {},
}

func set(names string) map[string]bool {
	m := map[string]bool{}
	for _, name := range strings.Fields(names) {
		m[name] = true
	}
	return m
}

func text(field func(*Service) *string) directive {
	return func(l *loader, _, value string) (err error) {
		*field(l.service), err = l.expand(value)
		return err
	}
}

func choice(field func(*Service) *string, allowed ...string) directive {
	return func(l *loader, _, value string) error {
		if !slices.Contains(allowed, value) {
			return fmt.Errorf("%q is not one of %s", value, strings.Join(allowed, ", "))
		}
		*field(l.service) = value
		return nil
	}
}

func action(field func(*Service) *string) directive {
	return choice(field, "none", "poweroff", "poweroff-force", "poweroff-immediate", "reboot", "reboot-force",
		"reboot-immediate")
}

func output(field func(*Service) *string) directive {
	return func(l *loader, _, value string) error {
		names := map[string]string{"journal": "journal", "journal+console": "journal", "syslog": "journal",
			"kmsg": "journal", "tty": "journal",
			"inherit": "inherit", "null": "null"}
		name, ok := names[value]
		if !ok {
			return fmt.Errorf("%q is not supported", value)
		}
		if *field(l.service) = name; l.service.StandardOutput == "inherit" {
			l.service.StandardOutput = "null" // It inherits standard input, /dev/null.
		}
		return nil
	}
}

func boolean(field func(*Service) *bool) directive {
	return func(l *loader, _, value string) error {
		switch strings.ToLower(value) {
		case "1", "yes", "y", "true", "t", "on":
			*field(l.service) = true
		case "0", "no", "n", "false", "f", "off":
			*field(l.service) = false
		default:
			return fmt.Errorf("%q is neither yes nor no", value)
		}
		return nil
	}
}

func number(field func(*Service) *int, base int) directive {
	return func(l *loader, _, value string) error {
		n, err := strconv.ParseUint(value, base, 31)
		*field(l.service) = int(n)
		return err
	}
}

func octal(value string, into *int) error {
	n, err := strconv.ParseUint(value, 8, 31)
	if err != nil || n > 0o7777 {
		return fmt.Errorf("%q is no file mode", value)
	}
	*into = int(n)
	return nil
}

func span(field func(*Service) *time.Duration) directive {
	return func(l *loader, _, value string) (err error) {
		*field(l.service), err = Span(value)
		return err
	}
}

// timeout parses a time span. 0 means no timeout.
func timeout(fields func(*Service) []*time.Duration) directive {
	return func(l *loader, _, value string) error {
		d, err := Span(value)
		if err != nil {
			return err
		}
		if d == 0 {
			d = Infinity
		}
		for _, field := range fields(l.service) {
			*field = d
		}
		return nil
	}
}

func list(field func(*Service) *[]string) directive {
	return func(l *loader, _, value string) error {
		if value == "" {
			*field(l.service) = nil
			return nil
		}
		words, err := Words(value)
		if err != nil {
			return err
		}
		for _, w := range words {
			if w, err = l.expand(w); err != nil {
				return err
			}
			*field(l.service) = append(*field(l.service), w)
		}
		return nil
	}
}

// targets parses dependencies. Only targets are allowed, because the machine has reached them before it runs services.
// Other units would have to be started.
func targets(l *loader, _, value string) error {
	for _, name := range strings.Fields(value) {
		if !strings.HasSuffix(name, ".target") {
			return fmt.Errorf("a dependency on %s is not supported", name)
		}
	}
	return nil
}

func condition(l *loader, key, value string) error {
	kind, asserts := strings.CutPrefix(key, "Assert")
	kind = strings.TrimPrefix(kind, "Condition")
	if value == "" {
		l.service.Conditions = nil
		return nil
	}
	value, err := l.expand(value)
	if err != nil {
		return err
	}
	c := Condition{Kind: kind, Asserts: asserts}
	if value, c.Trigger = strings.CutPrefix(value, "|"); c.Trigger && asserts {
		return errors.New("| is not supported here")
	}
	value, c.Negate = strings.CutPrefix(value, "!")
	c.Argument = value
	if kind != "Virtualization" && !path.IsAbs(value) {
		return fmt.Errorf("%q is no absolute path", value)
	}
	l.service.Conditions = append(l.service.Conditions, c)
	return nil
}

func exec(field func(*Service) *[]Command) directive {
	return func(l *loader, _, value string) error {
		if value == "" {
			*field(l.service) = nil
			return nil
		}
		list, err := commands(value, l.expand)
		*field(l.service) = append(*field(l.service), list...)
		return err
	}
}

func environment(l *loader, _, value string) error {
	if value == "" {
		l.service.Environment = nil
		return nil
	}
	variables, err := Assignments(value, l.expand)
	l.service.Environment = append(l.service.Environment, variables...)
	return err
}

func environmentFile(l *loader, _, value string) error {
	if value == "" {
		l.service.EnvironmentFiles = nil
		return nil
	}
	file, optional := strings.CutPrefix(value, "-")
	file, err := l.expand(file)
	if err == nil && !path.IsAbs(file) {
		err = fmt.Errorf("%q is no absolute path", file)
	}
	l.service.EnvironmentFiles = append(l.service.EnvironmentFiles, EnvironmentFile{file, optional})
	return err
}

func workingDirectory(l *loader, _, value string) error {
	dir, optional := strings.CutPrefix(value, "-")
	dir, err := l.expand(dir)
	switch {
	case err != nil:
		return err
	case dir == "":
		dir = "/"
	case dir != "~" && !path.IsAbs(dir):
		return fmt.Errorf("%q is no absolute path", dir)
	}
	l.service.WorkingDirectory, l.service.WorkingDirectoryOptional = dir, optional
	return nil
}

func directory(l *loader, key, value string) error {
	kind := DirectoryKinds[slices.IndexFunc(DirectoryKinds, func(k DirectoryKind) bool { return k.Directive == key })]
	if value == "" {
		l.service.Directories = slices.DeleteFunc(l.service.Directories, func(d Directory) bool {
			return d.Kind == kind
		})
		return nil
	}
	words, err := Words(value)
	if err != nil {
		return err
	}
	for _, w := range words {
		if w, err = l.expand(w); err != nil {
			return err
		}
		if w == "" || path.IsAbs(w) || path.Clean(w) != w || w == "." || w == ".." || strings.HasPrefix(w, "../") ||
			strings.Contains(w, ":") {
			return fmt.Errorf("%q is no path below %s", w, kind.Base)
		}
		l.service.Directories = append(l.service.Directories, Directory{Kind: kind, Path: w, Mode: 0o755})
	}
	return nil
}

func directoryMode(l *loader, key, value string) error {
	var mode int
	err := octal(value, &mode)
	l.modes[strings.TrimSuffix(key, "Mode")] = uint32(mode)
	return err
}

func signal(field func(*Service) *syscall.Signal) directive {
	return func(l *loader, _, value string) (err error) {
		*field(l.service), err = Signal(value)
		return err
	}
}

// Signal parses "SIGTERM", "TERM" or a number.
func Signal(value string) (syscall.Signal, error) {
	if n, err := strconv.ParseUint(value, 10, 8); err == nil && n > 0 && n <= 64 {
		return syscall.Signal(n), nil
	}
	if s := unix.SignalNum("SIG" + strings.TrimPrefix(value, "SIG")); s != 0 {
		return s, nil
	}
	return 0, fmt.Errorf("%q is no signal", value)
}

func statuses(field func(*Service) *Statuses) directive {
	return func(l *loader, _, value string) error {
		s := field(l.service)
		if value == "" || s.Codes == nil {
			*s = Statuses{Codes: map[int]bool{}, Signals: map[syscall.Signal]bool{}}
		}
		for _, w := range strings.Fields(value) {
			if n, err := strconv.ParseUint(w, 10, 8); err == nil {
				s.Codes[int(n)] = true
				continue
			}
			sig, err := Signal(w)
			if err != nil {
				return err
			}
			s.Signals[sig] = true
		}
		return nil
	}
}

func limit(resource int) directive {
	return func(l *loader, _, value string) error {
		soft, hard, both := strings.Cut(value, ":")
		if !both {
			hard = soft
		}
		var limits [2]uint64
		for i, text := range []string{soft, hard} {
			if text == "infinity" {
				limits[i] = unix.RLIM_INFINITY
				continue
			}
			factor := uint64(1)
			if n := strings.Index("KMGT", text[max(len(text)-1, 0):]); n >= 0 && text != "" {
				factor, text = 1<<(10*(n+1)), text[:len(text)-1]
			}
			n, err := strconv.ParseUint(text, 10, 40)
			if err != nil {
				return fmt.Errorf("%q is no limit", value)
			}
			limits[i] = n * factor
		}
		if limits[0] > limits[1] {
			return fmt.Errorf("%q: the soft limit is above the hard one", value)
		}
		l.service.Limits[resource] = limits
		return nil
	}
}
