package operator_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/nstance-kit/nstance/services/internal/operator"
)

func TestParseOptions(t *testing.T) {
	o, err := operator.ParseOptions(nil, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	got := []any{o.ConfigFile, o.HealthAddr, o.MetricsAddr, o.LeaderElect, o.Version}
	if d := cmp.Diff([]any{"/etc/nstance/operator/config.yaml", ":8081", "0", false, false}, got); d != "" {
		t.Errorf("the defaults are not those of the user's page: %s", d)
	}
	o, err = operator.ParseOptions([]string{"--config=c.yaml", "--health-probe-bind-address=127.0.0.1:1",
		"--metrics-bind-address=:8080", "--leader-elect",
		"--zap-log-level=debug", "--zap-encoder=console", "--kubeconfig="}, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	got = []any{o.ConfigFile, o.HealthAddr, o.MetricsAddr, o.LeaderElect}
	if d := cmp.Diff([]any{"c.yaml", "127.0.0.1:1", ":8080", true}, got); d != "" {
		t.Error(d)
	}
	if o, err := operator.ParseOptions([]string{"--health-probe-bind-address="}, os.Stderr); err != nil ||
		o.HealthAddr != "0" {
		t.Errorf("%q, %v", o.HealthAddr, err)
	}
	for want, args := range map[string][]string{
		"unknown flag":           {"--x"},
		"takes no arguments":     {"start"},
		"--config is empty":      {"--config="},
		"is not an address such": {"--metrics-bind-address=8080"},
		"zap-log-level":          {"--zap-log-level=loud"},
	} {
		if _, err := operator.ParseOptions(args, new(strings.Builder)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
	var told, help strings.Builder
	if _, err := operator.ParseOptions([]string{"--disable-webhooks"}, &told); err != nil ||
		!strings.Contains(told.String(), "remove it: nstance-operator has no webhooks") {
		t.Errorf("with the ignored flag: %q, %v", told.String(), err)
	}
	if _, err := operator.ParseOptions([]string{"--help"}, &help); !errors.Is(err, pflag.ErrHelp) {
		t.Error(err)
	}
	if strings.Contains(help.String(), "webhooks") {
		t.Errorf("the help lists the ignored flag:\n%s", help.String())
	}
	for _, part := range []string{"--leader-elect", "NSTANCE_NONCE_SECRET", "Exit status", "--zap-encoder"} {
		if !strings.Contains(help.String(), part) {
			t.Errorf("the help does not tell of %s:\n%s", part, help.String())
		}
	}
}
