package settings_test

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nstance-kit/nstance/services/internal/operator/settings"
)

// FuzzParseEnvironment checks that accepted values are valid names and addresses, and that parsing them again gives the
// same result. An error must contain the name of the variable.
func FuzzParseEnvironment(f *testing.F) {
	f.Add("ns", "", "", "https://api:6443", "true", "")
	f.Add("", "cert", "cert", "api", "maybe", "pods-own\n")
	f.Add("A", "a b", "\x00", "[::1]:443", "1", "a\nb")
	f.Add("", strings.Repeat("a", 254), "nstance-operator-nonce", "https://[fe80::1%25eth0]", "TRUE", "\xff")
	file := filepath.Join(f.TempDir(), "namespace")
	f.Fuzz(func(t *testing.T, namespace, cert, key, endpoint, plain, mounted string) {
		if err := os.WriteFile(file, []byte(mounted), 0o600); err != nil {
			t.Fatal(err)
		}
		variables := map[string]string{"NSTANCE_NAMESPACE": namespace, "NSTANCE_CERT_SECRET": cert,
			"NSTANCE_KEY_SECRET": key, "NSTANCE_CAPI_ENDPOINT": endpoint, "NSTANCE_K8S_JSON": plain}
		env, err := settings.ParseEnvironment(func(name string) string { return variables[name] }, file)
		if err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				if !strings.Contains(line, "NSTANCE_") && !strings.Contains(line, "mounted") {
					t.Errorf("%q: %q names no variable", variables, line)
				}
			}
			return
		}
		for _, name := range []string{env.CertSecret, env.KeySecret, env.NonceSecret, env.CAConfigMap,
			env.ServiceAccount} {
			if len(validation.IsDNS1123Subdomain(name)) > 0 {
				t.Errorf("%q: %q is no object's name", variables, name)
			}
		}
		if env.CertSecret == env.KeySecret || env.CertSecret == env.NonceSecret {
			t.Errorf("%q: one Secret for two things", variables)
		}
		if len(validation.IsDNS1123Label(env.Namespace)) > 0 {
			t.Errorf("%q: namespace %q", variables, env.Namespace)
		}
		if !env.Endpoint.IsZero() {
			endpoint = net.JoinHostPort(env.Endpoint.Host, strconv.Itoa(int(env.Endpoint.Port)))
		}
		variables = map[string]string{"NSTANCE_NAMESPACE": env.Namespace, "NSTANCE_CERT_SECRET": env.CertSecret,
			"NSTANCE_KEY_SECRET": env.KeySecret, "NSTANCE_CAPI_ENDPOINT": endpoint,
			"NSTANCE_K8S_JSON": strconv.FormatBool(env.JSON)}
		if again, err := settings.ParseEnvironment(func(name string) string {
			return variables[name]
		}, ""); err != nil || again != env {
			t.Errorf("%+v is read again as %+v, %v", env, again, err)
		}
	})
}
