package supervise

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseMessage(t *testing.T) {
	status := "at work"
	for text, want := range map[string]message{
		"READY=1\nSTATUS=at work": {ready: true, status: &status}, "WATCHDOG=1\n": {fed: true},
		"WATCHDOG=trigger":       {trigger: true},
		"MAINPID=12\nSTOPPING=1": {mainPID: 12, stopping: true}, "WATCHDOG_USEC=1000000": {watchdog: time.Second},
		"EXTEND_TIMEOUT_USEC=5": {extend: 5 * time.Microsecond}, "RELOADING=1\nMONOTONIC_USEC=1": {reloading: true},
		"X_OURS=1": {unknown: []string{"X_OURS=1"}},
	} {
		got, err := parseMessage(text)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(message{})); err != nil || diff != "" {
			t.Errorf("%q: %v %s", text, err, diff)
		}
	}
	for _, wrong := range []string{"", "READY", "READY=2", "MAINPID=1", "MAINPID=x", "WATCHDOG_USEC=0",
		"EXTEND_TIMEOUT_USEC=-1"} {
		if got, err := parseMessage(wrong); err == nil {
			t.Errorf("%q is read as %+v", wrong, got)
		}
	}
}

func FuzzParseMessage(f *testing.F) {
	f.Add("READY=1\nSTATUS=x\nMAINPID=2\n")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := parseMessage(text)
		if err == nil && (m.mainPID < 0 || m.mainPID == 1 || m.watchdog < 0 || m.extend < 0) {
			t.Errorf("%q is read as %+v", text, m)
		}
	})
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
