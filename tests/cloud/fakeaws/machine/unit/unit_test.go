package unit_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/machine/unit"
)

func TestParse(t *testing.T) {
	text := "# comment\n[Unit]\nDescription = a  b \n; comment\n\n[Service]\r\nExecStart=/bin/x \\\n  # a comment " +
		"between\n  y \\\n  z\nUser=\n"
	got, err := unit.Parse("f", text)
	if err != nil {
		t.Fatal(err)
	}
	want := []unit.Entry{
		{"Unit", "Description", "a  b", "f:3"}, {"Service", "ExecStart", "/bin/x    y    z", "f:7"},
		{"Service", "User", "", "f:11"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, wrong := range []string{"A=b\n", "[Unit]\nA\n", "[Unit\nA=b", "[]\n", "[Unit]\n=b\n", "[Unit]\nA B=c\n",
		"[Unit]\nA=b\\\n", "[Unit]\nA=\x00\n", "\xff"} {
		if got, err := unit.Parse("f", wrong); err == nil {
			t.Errorf("%q is read as %v", wrong, got)
		}
	}
}

func TestWords(t *testing.T) {
	for text, want := range map[string][]string{
		"":                            nil,
		"  a\tb\n c ":                 {"a", "b", "c"},
		`"a b" 'c "d' "e 'f"`:         {"a b", `c "d`, "e 'f"},
		`"" ''`:                       {"", ""},
		`a\sb \x41\102 "\u00e4\n"`:    {"a b", "AB", "ä\n"},
		`\\ \" "\"" '\''`:             {`\`, `"`, `"`, "'"},
		`"VAR1=word1 word2" VAR2="x"`: nil, // A quote inside a word.
		`"a`:                          nil,
		`"a"b`:                        nil,
		`\q`:                          nil,
		`\x4`:                         nil,
		`\x00`:                        nil,
		`\ud800`:                      nil,
		`\777`:                        nil,
		`a\`:                          nil,
	} {
		got, err := unit.Words(text)
		if wrong := want == nil && text != ""; wrong != (err != nil) {
			t.Errorf("%q: %q, %v", text, got, err)
		} else if diff := cmp.Diff(want, got); diff != "" && !wrong {
			t.Errorf("%q: %s", text, diff)
		}
	}
}

// load parses a service that has an ExecStart= and the given lines in [Service].
func load(t *testing.T, lines string) (*unit.Service, error) {
	t.Helper()
	entries, err := unit.Parse("f", "[Service]\n"+lines+"\n")
	if err != nil {
		return nil, err
	}
	return unit.Load("a@b-c.service", unit.Host{Hostname: "host", MachineID: "0123"}, entries)
}

// TestCommandLines checks the examples in systemd.service(5), "Command lines", except those with quotes inside words.
func TestCommandLines(t *testing.T) {
	environment := map[string]string{"ONE": "one", "TWO": "two two", "QUOTED": "'two two' too", "EMPTY": "",
		"ESCAPED": `a\ b "c d"e`}
	for line, want := range map[string][][]string{
		"/bin/echo $ONE $TWO ${TWO}":               {{"/bin/echo", "one", "two", "two", "two two"}},
		"/bin/echo ${ONE} ${QUOTED} ${EMPTY}":      {{"/bin/echo", "one", "'two two' too", ""}},
		"/bin/echo $ONE $QUOTED $EMPTY $NONE":      {{"/bin/echo", "one", "two two", "too"}},
		"/bin/echo $ESCAPED":                       {{"/bin/echo", "a b", "c de"}},
		"/bin/echo one ; /bin/echo \"two two\"":    {{"/bin/echo", "one"}, {"/bin/echo", "two two"}},
		`/bin/echo / >/dev/null & \; ls ";"`:       {{"/bin/echo", "/", ">/dev/null", "&", ";", "ls", ";"}},
		"/bin/echo a${ONE}b$ONE $$ $$ONE x$ ${ONE": {{"/bin/echo", "aoneb$ONE", "$", "$ONE", "x$", "${ONE"}},
		`/bin/echo "$TWO" "a $ONE" %n %i %p %H %m %%`: {{"/bin/echo", "two", "two", "a $ONE", "a@b-c.service", "b-c",
			"a", "host", "0123", "%"}},
		":/bin/echo $ONE ${ONE}": {{"/bin/echo", "$ONE", "${ONE}"}},
		"@/bin/echo name a":      {{"name", "a"}},
		"-+/bin/echo":            {{"/bin/echo"}},
		"/bin/echo $ONE/x":       nil,
		"$ONE":                   nil,
		"bin/echo":               nil,
		"; /bin/echo":            nil,
		"/bin/echo ; ; x":        nil,
		"@/bin/echo":             nil,
		"/bin/echo %q":           nil,
		"/bin/echo %":            nil,
		`/bin/echo a\;b`:         nil,
	} {
		s, err := load(t, "Type=oneshot\nExecStart="+line)
		if want == nil || err != nil {
			if (want == nil) != (err != nil) {
				t.Errorf("%s: %v", line, err)
			}
			continue
		}
		var got [][]string
		for _, c := range s.Start {
			got = append(got, c.Argv(environment))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", line, diff)
		}
	}
	s, err := load(t, "ExecStart=-+/bin/echo")
	if err != nil || !s.Start[0].IgnoreFailure || !s.Start[0].Privileged {
		t.Errorf("prefixes are lost: %+v, %v", s, err)
	}
}

func TestEnvironmentFile(t *testing.T) {
	text := strings.Join([]string{
		"# comment \\", "continued=no", "; comment", "no assignment", "", "A=b", "  B = c d\t", `C="a \"b\" \$x \n"`,
		`D='a \n "b"'`, `E=a\ b\`, `c`,
		`F="a"'b' `, "G=", `H=a"b"`, `I="two`, `lines"`, `J=x\\y`, "K=a=b", `L="a\`, `b"`,
		"M=ends without a newline \\ ",
	}, "\n")
	want := []unit.Variable{
		{"A", "b"}, {"B", "c d"}, {"C", `a "b" $x \n`}, {"D", `a \n "b"`}, {"E", "a bc"}, {"F", "ab"}, {"G", ""},
		{"H", `a"b"`}, {"I", "two\nlines"},
		{"J", `x\y`}, {"K", "a=b"}, {"L", "ab"}, {"M", "ends without a newline  "},
	}
	got, err := unit.ReadEnvironment(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, wrong := range []string{`A="b`, "A='b\nC=d\n", "1A=b", "A B=c", "=b", "A=\x00", "A=\xff"} {
		if got, err := unit.ReadEnvironment(wrong); err == nil {
			t.Errorf("%q is read as %v", wrong, got)
		}
	}
}

func TestSpan(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"2": 2 * time.Second, "2s": 2 * time.Second, "5min 20s": 320 * time.Second, "1h30m": 90 * time.Minute,
		"500ms": 500 * time.Millisecond,
		"1.5 s": 1500 * time.Millisecond, "2 weeks": 14 * 24 * time.Hour, "0": 0, "infinity": unit.Infinity,
	} {
		if got, err := unit.Span(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, wrong := range []string{"", "x", "1x", "-1", "1s x", "1..2", "99999 weeks", "s", "1,5s"} {
		if got, err := unit.Span(wrong); err == nil {
			t.Errorf("%q is %v", wrong, got)
		}
	}
}

func TestLoad(t *testing.T) {
	bits, none := uint64(1<<10), uint64(0)
	const start = "ExecStart=/bin/true\n"
	for lines, check := range map[string]func(s *unit.Service) (got, want any){
		"Environment=A=b \"C=d e\"\nEnvironment=F=%i": func(s *unit.Service) (any, any) {
			return s.Environment, []unit.Variable{{"A", "b"}, {"C", "d e"}, {"F", "b-c"}}
		},
		"Environment=A=b\nEnvironment=": func(s *unit.Service) (any, any) { return len(s.Environment), 0 },
		"EnvironmentFile=-/etc/%i\nEnvironmentFile=/etc/y": func(s *unit.Service) (any, any) {
			return s.EnvironmentFiles, []unit.EnvironmentFile{{"/etc/b-c", true}, {"/etc/y", false}}
		},
		"TimeoutSec=5": func(s *unit.Service) (any, any) {
			return []time.Duration{s.TimeoutStart, s.TimeoutStop, s.TimeoutAbort}, []time.Duration{5e9, 5e9, 5e9}
		},
		"TimeoutStartSec=0": func(s *unit.Service) (any, any) { return s.TimeoutStart, unit.Infinity },
		"UMask=0077":        func(s *unit.Service) (any, any) { return s.UMask, 0o77 },
		"KillSignal=SIGINT": func(s *unit.Service) (any, any) { return s.KillSignal, syscall.SIGINT },
		"WatchdogSec=3":     func(s *unit.Service) (any, any) { return s.NotifyAccess, "main" },
		"StateDirectoryMode=0700\nStateDirectory=a b/c": func(s *unit.Service) (any, any) {
			k := unit.DirectoryKinds[1]
			return s.Directories, []unit.Directory{{k, "a", 0o700}, {k, "b/c", 0o700}}
		},
		"CapabilityBoundingSet=":                     func(s *unit.Service) (any, any) { return *s.Bounding, none },
		"CapabilityBoundingSet=CAP_NET_BIND_SERVICE": func(s *unit.Service) (any, any) { return *s.Bounding, bits },
		"CapabilityBoundingSet=~CAP_NET_BIND_SERVICE": func(s *unit.Service) (any, any) {
			return *s.Bounding, unit.AllCapabilities &^ bits
		},
		"AmbientCapabilities=cap_net_bind_service": func(s *unit.Service) (any, any) { return s.Ambient, bits },
		"LimitNOFILE=1K:2048": func(s *unit.Service) (any, any) {
			return s.Limits[7], [2]uint64{1024, 2048}
		},
		"StandardOutput=null": func(s *unit.Service) (any, any) { return s.StandardError, "null" },
		"SuccessExitStatus=3 SIGUSR1": func(s *unit.Service) (any, any) {
			return s.SuccessCodes.Has(3 << 8), true
		},
		"ProtectSystem=strict\nX-Ours=1": func(s *unit.Service) (any, any) { return s.Type, "simple" },
		"[Unit]\nConditionPathExists=!/x": func(s *unit.Service) (any, any) {
			return s.Conditions[0], unit.Condition{Kind: "PathExists", Argument: "/x", Negate: true}
		},
		"[Unit]\nStartLimitIntervalSec=1min\nAfter=x": func(s *unit.Service) (any, any) {
			return s.StartLimitInterval, time.Minute
		},
		"[Install]\nWantedBy=a.target b.target": func(s *unit.Service) (any, any) {
			return s.WantedBy, []string{"a.target", "b.target"}
		},
	} {
		s, err := load(t, start+lines)
		if err != nil {
			t.Errorf("%s: %v", lines, err)
			continue
		}
		got, want := check(s)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", lines, diff)
		}
	}
	for _, wrong := range []string{
		"", "Type=forking\n" + start, start + start, start + "RootDirectory=/x", start + "Restart=maybe", start +
			"UMask=999", start + "KillSignal=SIGX",
		start + "StateDirectory=/abs", start + "StateDirectory=../x", start + "EnvironmentFile=relative", start +
			"WorkingDirectory=relative",
		start + "CapabilityBoundingSet=CAP_ALL", start + "LimitNOFILE=2:1", start + "RemainAfterExit=maybe",
		"Type=oneshot\nRestart=always\n" + start,
		start + "StandardOutput=file:/x", start + "[Unit]\nRequires=other.service", start +
			"[Unit]\nConditionPathExists=x", start + "[Timer]\nOnBoot=1",
		start + "Environment=1A=b", start + "RestartSec=x", start + "StateDirectory=a:b",
	} {
		if s, err := load(t, wrong); err == nil {
			t.Errorf("%q is read as %+v", wrong, s)
		}
	}
	for _, name := range []string{"", "a", ".service", "a b.service", "../x.service", "a@b@c.service", "a.timer",
		"@x.service"} {
		if _, err := unit.Load(name, unit.Host{}, nil); err == nil {
			t.Errorf("%q is the name of a service", name)
		}
	}
}

// TestImageUnits checks that the unit files of the images can be loaded.
func TestImageUnits(t *testing.T) {
	files, err := filepath.Glob("../../../../../images/packer/files/*.service")
	if err != nil || len(files) < 2 {
		t.Fatalf("found %v, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		entries, err := unit.Parse(file, string(text))
		if err != nil {
			t.Fatal(err)
		}
		if s, err := unit.Load(filepath.Base(file), unit.Host{}, entries); err != nil || s.Type != "notify" ||
			s.Watchdog == 0 {
			t.Errorf("%s: %+v, %v", file, s, err)
		}
	}
}

func FuzzLoad(f *testing.F) {
	for _, text := range []string{"[Service]\nExecStart=/bin/x \\\n $A ${B} ; y\n",
		"[Unit]\nConditionPathExists=|!/x\n", "[Service]\nEnvironment=\"A=\\x41\"\nUMask=7\n",
		"[Service]\nLimitNOFILE=1:2\nStateDirectory=a b\nRestartSec=1min 2s\nCapabilityBoundingSet=~CAP_KILL\n"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		entries, err := unit.Parse("f", text)
		if err != nil {
			return
		}
		for _, e := range entries {
			if e.Section == "" || e.Key == "" || strings.Contains(e.Value, "\n") {
				t.Errorf("%+v", e)
			}
		}
		s, err := unit.Load("a@b.service", unit.Host{}, entries)
		if err != nil {
			return
		}
		for _, c := range s.Start {
			if argv := c.Argv(map[string]string{"A": "x y"}); len(argv) == 0 || c.Path == "" {
				t.Errorf("%+v runs %q", c, argv)
			}
		}
		for _, d := range s.Directories {
			if full := filepath.Join(d.Kind.Base, d.Path); !strings.HasPrefix(full, d.Kind.Base+"/") {
				t.Errorf("%s is not below %s", full, d.Kind.Base)
			}
		}
	})
}

func FuzzReadEnvironment(f *testing.F) {
	f.Add("A=b\nC=\"d\\\n e\"'f'\n# x\\\ny\n")
	f.Fuzz(func(t *testing.T, text string) {
		variables, err := unit.ReadEnvironment(text)
		if err != nil {
			return
		}
		// The variables can be written with quotes and parsed again.
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
