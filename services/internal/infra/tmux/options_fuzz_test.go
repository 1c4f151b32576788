package tmux

import (
	"strings"
	"testing"
)

func FuzzParseProviderID(f *testing.F) {
	f.Add(scheme + "wrk06gx5zsg2nrrqcrz0000000000")
	f.Add(scheme)
	f.Add("aws:///us-east-1a/i-0123456789abcdef0")
	f.Fuzz(func(t *testing.T, text string) {
		if id, err := parseProviderID(text); err == nil && providerID(id) != text {
			t.Errorf("%q is read as %s", text, providerID(id))
		}
	})
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
		o, err := ParseOptions(raw)
		if err == nil && (!sessionName.MatchString(o.Session) || o.Dir == "" ||
			strings.ContainsAny(o.Command+o.Agent+o.Socket+o.Dir+o.NodesDir, "\x00\n")) {
			t.Errorf("%q gave %+v", text, o)
		}
	})
}
