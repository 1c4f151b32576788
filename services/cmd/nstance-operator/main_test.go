package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const file = "cluster_id: c\nshards:\n  a: {registration_addr: '127.0.0.1:1', operator_addr: '127.0.0.1:2'}\n"

func TestRun(t *testing.T) {
	dir := t.TempDir()
	good, broken := filepath.Join(dir, "good.yaml"), filepath.Join(dir, "broken.yaml")
	for path, text := range map[string]string{good: file, broken: file + "x: y\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("KUBECONFIG", filepath.Join(dir, "none"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for _, test := range []struct {
		args           []string
		namespace      string
		code           int
		stdout, stderr string // parts
	}{
		{[]string{"--version"}, "", 0, "nstance-operator dev\n", ""},
		{[]string{"--help"}, "", 0, "NSTANCE_CAPI_ENDPOINT", ""},
		{[]string{"--what"}, "ns", 2, "", "unknown flag: --what"},
		{[]string{"start"}, "ns", 2, "", "takes no arguments"},
		{[]string{"--config", good}, "A B", 2, "", "invalid environment"},
		{[]string{"--config", filepath.Join(dir, "missing.yaml")}, "ns", 2, "", "read configuration: open"},
		{[]string{"--config", broken}, "ns", 2, "", "field x not found"},
		{[]string{"--config", good, "--kubeconfig", filepath.Join(dir, "none")}, "ns", 1, "",
			"no client configuration for the API server"},
		{[]string{"uninstall", "--help"}, "", 0, "--skip-shards", ""},
		{[]string{"uninstall", "now"}, "ns", 2, "", "takes no arguments"},
		{[]string{"uninstall", "--config", broken}, "ns", 2, "", "field x not found"},
		{[]string{"uninstall", "--config", good, "--kubeconfig", filepath.Join(dir, "none")}, "ns", 1, "", "none"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(test.args, func(name string) string {
			return map[string]string{"NSTANCE_NAMESPACE": test.namespace}[name]
		}, &stdout, &stderr)
		if code != test.code || !strings.Contains(stdout.String(), test.stdout) ||
			!strings.Contains(stderr.String(), test.stderr) {
			t.Errorf("%v: %d\n%s\n%s", test.args, code, &stdout, &stderr)
		}
	}
}
