package unit_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/tests/cloud/machine/unit"
)

// repository is the root of this repository.
const repository = "../../../.."

func load(text string) (*unit.Service, error) {
	entries, err := unit.Parse("f", text)
	if err != nil {
		return nil, err
	}
	return unit.Load("nstance.service", entries)
}

// TestOwnUnits loads every unit of the images. The boot scripts install the same units. If a unit has a new directive,
// the test fails until this package implements the directive or lists it as ignored.
func TestOwnUnits(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(repository, "images/packer/files/*.service"))
	if err != nil || len(files) != 3 {
		t.Fatalf("found %v, %v", files, err)
	}
	units := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		units[filepath.Base(file)] = string(text)
	}
	scaling, err := os.ReadFile(filepath.Join(repository, "images/packer/files/nstance-server-scaling.conf"))
	if err != nil {
		t.Fatal(err)
	}
	units["nstance-server.service"] += "\n" + string(scaling)
	for name, text := range units {
		s, err := load(text)
		daemon := name != "nstance-server-health.service"
		if err != nil || s.Notify != daemon || !s.Restart || (s.Watchdog > 0) != daemon || !s.NoCapabilities {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
}

func TestLoad(t *testing.T) {
	got, err := load(`# comment
[Unit]
Description=Any text: "quoted"
Wants=network-online.target
ConditionPathExists=/etc/a.env
StartLimitIntervalSec=1h
StartLimitBurst=4
StartLimitAction=poweroff
[Service]
Type=notify
ExecStart=/bin/x --flag $ARGS
Restart=always
RestartSec=2
TimeoutStartSec=infinity
WatchdogSec=30s
User=a
Group=b
UMask=0077
Environment=A=b C=d
Environment=E=
EnvironmentFile=/etc/a.env
CacheDirectory=c
CacheDirectoryMode=0700
LimitNOFILE=65536
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
[Install]
WantedBy=multi-user.target
`)
	want := &unit.Service{Name: "nstance.service", Conditions: []string{"/etc/a.env"}, StartLimitInterval: time.Hour,
		StartLimitBurst: 4, PowerOff: true, Notify: true, Command: []string{"/bin/x", "--flag", "$ARGS"},
		Restart: true, RestartAfter: 2 * time.Second, TimeoutStart: unit.Infinity, TimeoutStop: 90 * time.Second,
		Watchdog: 30 * time.Second, User: "a", Group: "b", UMask: 0o77,
		Environment:      []unit.Variable{{Name: "A", Value: "b"}, {Name: "C", Value: "d"}, {Name: "E"}},
		EnvironmentFiles: []string{"/etc/a.env"}, CacheDirectory: "c", CacheMode: 0o700, NoNewPrivileges: true,
		NoCapabilities: true, OpenFiles: 65536, WantedBy: []string{"multi-user.target"}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	for args, want := range map[string][]string{"": nil, " --a  b ": {"--a", "b"}} {
		argv, err := got.Argv(map[string]string{"ARGS": args})
		if diff := cmp.Diff(append([]string{"/bin/x", "--flag"}, want...), argv); err != nil || diff != "" {
			t.Errorf("%q: %v %s", args, err, diff)
		}
	}
	if argv, err := got.Argv(map[string]string{"ARGS": `"a b"`}); err == nil {
		t.Errorf("quotes in a variable are read as %q", argv)
	}
}

// TestRefusals checks that directives and values that this package does not implement are errors.
func TestRefusals(t *testing.T) {
	const start = "[Service]\nExecStart=/bin/x\n"
	if _, err := load(start); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		"", "[Service]\n", "ExecStart=/bin/x\n", "[Service\nExecStart=/bin/x\n", "[Service]\nExecStart\n",
		start + "RootDirectory=/srv\n", start + "ExecStartPre=/bin/x\n", start + "ExecStart=/bin/y\n",
		start + "StateDirectory=a\n", start + "Type=forking\n", start + "Restart=on-failure\n",
		start + "KillMode=mixed\n", start + "NotifyAccess=all\n", start + "CapabilityBoundingSet=CAP_KILL\n",
		start + "AmbientCapabilities=CAP_KILL\n", start + "NoNewPrivileges=no\n", start + "UMask=999\n",
		start + "CacheDirectory=a b\n", start + "CacheDirectory=../a\n", start + "RestartSec=x\n",
		start + "EnvironmentFile=-/etc/x\n", start + "EnvironmentFile=x\n", start + "Environment=1A=b\n",
		start + "Environment=\"A=b c\"\n", start + "[Unit]\nRequires=a.target\n", start + "[Unit]\nWants=a.service\n",
		start + "[Unit]\nConditionPathExists=!/x\n", start + "[Unit]\nStartLimitAction=reboot\n",
		start + "[Timer]\nOnBootSec=1\n", start + "User=%i\n",
		"[Service]\nExecStart=/bin/x \\\n  y\n", "[Service]\nExecStart=-/bin/x\n",
		"[Service]\nExecStart=/bin/x 'a b'\n",
		"[Service]\nExecStart=/bin/x ${A}\n", "[Service]\nExecStart=/bin/x a$A\n", "[Service]\nExecStart=x\n",
	} {
		if s, err := load(text); err == nil {
			t.Errorf("%q is read as %+v", text, s)
		}
	}
	for _, name := range []string{"", "a", ".service", "a b.service", "../x.service", "a@b.service", "a.timer"} {
		if _, err := unit.Load(name, nil); err == nil || unit.ValidName(name) {
			t.Errorf("%q is the name of a service", name)
		}
	}
}

func TestEnvironmentFile(t *testing.T) {
	got, err := unit.ReadEnvironment("# comment\n\nA=b\n  B=c d \t\nC=\"a \\\"b\\\" \\$x \\` \\\\ \\n\"\n" +
		"D=\"two\nlines\" \nE=\nF=\"it's\"")
	want := []unit.Variable{{Name: "A", Value: "b"}, {Name: "B", Value: "c d"},
		{Name: "C", Value: `a "b" $x` + " ` \\ \\n"}, {Name: "D", Value: "two\nlines"}, {Name: "E"},
		{Name: "F", Value: "it's"}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	for _, wrong := range []string{`A="b`, `A="b"c`, "A='b'", `A=b"c"`, `A=b\c`, "1A=b", "A B=c", "=b", "A"} {
		if got, err := unit.ReadEnvironment(wrong); err == nil {
			t.Errorf("%q is read as %v", wrong, got)
		}
	}
}

func TestSpan(t *testing.T) {
	for text, want := range map[string]time.Duration{"2": 2 * time.Second, "2s": 2 * time.Second,
		"300ms": 300 * time.Millisecond, "10min": 10 * time.Minute, "1h": time.Hour, "0": 0,
		"infinity": unit.Infinity} {
		if got, err := unit.Span(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, wrong := range []string{"", "x", "1x", "-1", "s", "1.5s", "1min 2s", "99999999h"} {
		if got, err := unit.Span(wrong); err == nil {
			t.Errorf("%q is %v", wrong, got)
		}
	}
}

func FuzzLoad(f *testing.F) {
	f.Add("[Service]\nExecStart=/bin/x $A\nEnvironment=A=b\nUMask=7\nRestartSec=1min\n")
	f.Add("[Unit]\nConditionPathExists=/x\n[Service]\nExecStart=/x\nCapabilityBoundingSet=\nCacheDirectory=a\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := load(text)
		if err != nil {
			return
		}
		if argv, err := s.Argv(map[string]string{"A": "x y"}); err != nil || !filepath.IsAbs(argv[0]) {
			t.Errorf("%+v runs %q, %v", s, argv, err)
		}
		if strings.Contains(s.CacheDirectory, "/") {
			t.Errorf("%s is not below /var/cache", s.CacheDirectory)
		}
	})
}

func FuzzReadEnvironment(f *testing.F) {
	f.Add("A=b\nC=\"d\n e\"\n# x\n")
	f.Fuzz(func(t *testing.T, text string) {
		variables, err := unit.ReadEnvironment(text)
		if err != nil {
			return
		}
		var b strings.Builder
		for _, v := range variables {
			b.WriteString(v.Name + "=\"" + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "`", "\\`", "$",
				`\$`).Replace(v.Value) + "\"\n")
		}
		again, err := unit.ReadEnvironment(b.String())
		if diff := cmp.Diff(variables, again); err != nil || diff != "" {
			t.Errorf("%v %s", err, diff)
		}
	})
}
