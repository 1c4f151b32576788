package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	for _, test := range []struct {
		args           []string
		code           int
		stdout, stderr string // parts
	}{
		{[]string{"--version"}, 0, "dev\n", ""},
		{[]string{"--help"}, 0, "", "NSTANCE_SERVER_AGENT_ADDR"},
		{[]string{"--config", "x"}, 2, "", "flag provided but not defined"},
		{[]string{"start"}, 2, "", "no arguments"},
		{nil, 2, "", "NSTANCE_INSTANCE_ID is required"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(test.args, nil, &stdout, &stderr)
		if code != test.code || !strings.Contains(stdout.String(), test.stdout) ||
			!strings.Contains(stderr.String(), test.stderr) {
			t.Errorf("%v: %d\n%s\n%s", test.args, code, &stdout, &stderr)
		}
	}
}
