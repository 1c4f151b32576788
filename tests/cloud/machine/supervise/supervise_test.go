package supervise

import (
	"strings"
	"testing"
)

func TestParseMessage(t *testing.T) {
	for text, want := range map[string]message{"READY=1": {ready: true}, "WATCHDOG=1\n": {fed: true},
		"STOPPING=1": {stopping: true}, "READY=1\nWATCHDOG=1\n": {ready: true, fed: true}} {
		if got, err := parseMessage(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, wrong := range []string{"READY", "READY=2", "MAINPID=2", "STATUS=x", "READY=1\n\n"} {
		if got, err := parseMessage(wrong); err == nil {
			t.Errorf("%q is read as %+v", wrong, got)
		}
	}
}

func FuzzScript(f *testing.F) {
	f.Add([]byte("#!/bin/sh\n"))
	f.Add([]byte("\x1f\x8b\x08"))
	f.Fuzz(func(t *testing.T, userdata []byte) {
		if script, err := Script(userdata); err == nil && len(script) > 0 && !strings.HasPrefix(string(script), "#!") {
			t.Errorf("%q is a script", script)
		}
	})
}
