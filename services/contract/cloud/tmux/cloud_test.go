package tmux

import (
	"maps"
	"strings"
	"testing"
)

func TestParseOptions(t *testing.T) {
	got, problems := ParseOptions(nil)
	want := Options{Dir: "temp/agents", Session: "nstance-dev-agents"}
	if len(problems) > 0 || got != want {
		t.Errorf("defaults %+v, %v", got, problems)
	}
	got, problems = ParseOptions(map[string]string{"dir": "d", "session": "s", "socket": "k", "command": "c",
		"nodes_dir": "n", "max_vms": "3"})
	want = Options{Dir: "d", Session: "s", Socket: "k", Command: "c", NodesDir: "n", MaxVMs: 3}
	if len(problems) > 0 || got != want {
		t.Errorf("options %+v, %v", got, problems)
	}
	_, problems = ParseOptions(map[string]string{"dir": "", "session": "a:b", "agent": "x", "command": "y\nz",
		"sockets": "", "max_vms": "-1"})
	wanted := []string{"command: holds a line break or a NUL", "sockets: provider tmux has no such option",
		`max_vms: "-1" is not a number of VMs`, "dir: is empty", `session: "a:b" is not a session name`}
	if len(problems) != len(wanted) {
		t.Fatalf("problems %+v, want %q", problems, wanted)
	}
	for i, p := range problems {
		if line := p.Path[0].(string) + ": " + p.Message; !strings.HasPrefix(line, wanted[i]) {
			t.Errorf("problem %q, want %q", line, wanted[i])
		}
	}
	if _, problems := ParseOptions(map[string]string{"agent": "x", "command": "y"}); len(problems) != 1 {
		t.Errorf("agent and command together: %+v", problems)
	}
}

func TestParseArgs(t *testing.T) {
	env, problems := ParseArgs(map[string]any{"env": map[string]any{"A": "b"}, "ImageId": "ami-1"})
	if len(problems) > 0 || !maps.Equal(env, map[string]string{"A": "b"}) {
		t.Errorf("variables %v, %v", env, problems)
	}
	for _, args := range []map[string]any{
		{"env": "A=b"}, {"env": map[string]any{"A": 1.0}}, {"env": map[string]any{"A B": "c"}},
		{"env": map[string]any{"A": "\x00"}},
	} {
		if env, problems := ParseArgs(args); len(problems) != 1 {
			t.Errorf("%v gives %v and %+v, want one problem", args, env, problems)
		}
	}
}

func FuzzParseOptions(f *testing.F) {
	f.Add("dir=temp/agents\nsession=nstance-dev-agents\nagent=bin/nstance-agent")
	f.Add("session=a;kill-server\ncommand=x\nagent=y")
	f.Fuzz(func(t *testing.T, text string) {
		raw := map[string]string{}
		for line := range strings.Lines(text) {
			name, value, _ := strings.Cut(line, "=")
			raw[name] = value
		}
		o, problems := ParseOptions(raw)
		if len(problems) == 0 && (!sessionName.MatchString(o.Session) || o.Dir == "" ||
			strings.ContainsAny(o.Command+o.Agent+o.Socket+o.Dir+o.NodesDir, "\x00\n")) {
			t.Errorf("%q gave %+v", text, o)
		}
	})
}
