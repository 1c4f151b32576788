package operator_test

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/nstance-kit/nstance/services/internal/operator"
)

// FuzzParseOptions parses a command line with one argument per line. Either the result has valid listen addresses, or
// the error mentions a flag or an argument.
func FuzzParseOptions(f *testing.F) {
	for _, args := range []string{
		"--config=c.yaml\n--health-probe-bind-address=127.0.0.1:1\n--metrics-bind-address=:8080\n--leader-elect",
		"--zap-log-level=debug\n--zap-encoder=console\n--kubeconfig=",
		"--health-probe-bind-address=", "--metrics-bind-address=0", "--metrics-bind-address=8080",
		"--metrics-bind-address=[::1]:65536", "--metrics-bind-address=\x00:1", "--zap-log-level=loud",
		"--config=", "--help", "--version", "start", "--", "--leader-elect=perhaps",
		"--zap-devel\n--zap-stacktrace-level=panic\n--zap-time-encoding=x",
	} {
		f.Add(args)
	}
	f.Fuzz(func(t *testing.T, text string) {
		args := strings.Split(text, "\n")
		var help strings.Builder
		o, err := operator.ParseOptions(args, &help)
		switch {
		case errors.Is(err, pflag.ErrHelp):
			if help.Len() == 0 {
				t.Errorf("%q: no help", args)
			}
			return
		case err != nil:
			if !strings.Contains(err.Error(), "-") && !strings.Contains(err.Error(), "argument") {
				t.Errorf("%q is refused with %q, which names no flag", args, err)
			}
			return
		}
		if o.ConfigFile == "" {
			t.Errorf("%q: no configuration file", args)
		}
		for _, addr := range []string{o.HealthAddr, o.MetricsAddr} {
			_, port, err := net.SplitHostPort(addr)
			if n, perr := strconv.Atoi(port); addr != "0" && (err != nil || perr != nil || n < 0 || n > 65535) {
				t.Errorf("%q: address %q", args, addr)
			}
		}
		again, err := operator.ParseOptions([]string{"--config=" + o.ConfigFile, "--health-probe-bind-address=" +
			o.HealthAddr, "--metrics-bind-address=" + o.MetricsAddr}, &help)
		if err != nil || again.ConfigFile != o.ConfigFile || again.HealthAddr != o.HealthAddr ||
			again.MetricsAddr != o.MetricsAddr {
			t.Errorf("%q gave %+v, which gives %+v, %v", args, o, again, err)
		}
	})
}
