package settings_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/nstance-kit/nstance/services/internal/operator/settings"
)

// example is the example of the user documentation.
const example = `cluster_id: example-cluster
tenant: default
shards:
  us-west-2a:
    registration_addr: "10.0.0.1:8992"
    operator_addr: "10.0.0.1:8993"
  us-east-1a:
    registration_addr: "10.0.1.1:8992"
    operator_addr: "10.0.1.1:8993"
`

func TestParse(t *testing.T) {
	want := settings.Config{Cluster: "example-cluster", Tenant: "default", Shards: map[string]settings.Endpoints{
		"us-west-2a": {Registration: "10.0.0.1:8992", Operator: "10.0.0.1:8993"},
		"us-east-1a": {Registration: "10.0.1.1:8992", Operator: "10.0.1.1:8993"},
	}}
	for name, text := range map[string]string{
		"the example": example, "with a mark at its begin": "---\n" + example,
		"without a tenant":     strings.Replace(example, "tenant: default\n", "", 1),
		"with an unset tenant": strings.Replace(example, "tenant: default\n", "tenant:\n", 1),
	} {
		got, err := settings.Parse([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	if d := cmp.Diff([]string{"us-east-1a", "us-west-2a"}, want.IDs()); d != "" {
		t.Error(d)
	}
}

func TestParseRefuses(t *testing.T) {
	replaced := func(old, with string) string { return strings.Replace(example, old, with, 1) }
	for name, test := range map[string]struct{ text, want string }{
		"nothing":          {"", "the file is empty"},
		"comments only":    {"# nothing\n", "the file is empty"},
		"no YAML":          {"a: [", "line 1"},
		"two documents":    {example + "---\na: b\n", "more than one YAML document"},
		"unknown field":    {example + "region: x\n", "line 10: field region not found"},
		"unknown address":  {replaced("operator_addr", "operator_address"), "field operator_address not found"},
		"repeated field":   {example + "tenant: other\n", "already defined"},
		"repeated shard":   {example + "  us-east-1a: {}\n", "already defined"},
		"no cluster":       {replaced("cluster_id: example-cluster\n", ""), "cluster_id: name is empty"},
		"bad cluster":      {replaced("example-cluster", "Example"), "cluster_id: name"},
		"bad tenant":       {replaced("tenant: default", "tenant: a--b"), "tenant: name"},
		"empty tenant":     {replaced("tenant: default", `tenant: ""`), "tenant: name is empty"},
		"no shards":        {"cluster_id: a\n", "shards: want at least one shard"},
		"shards as a list": {"cluster_id: a\nshards: [a]\n", "line 2"},
		"bad shard":        {replaced("us-west-2a", "US"), "shards: name"},
		"empty shard": {"cluster_id: a\nshards:\n  b:\n",
			"shards.b.registration_addr: is missing, want host:port"},
		"no address": {replaced(`    operator_addr: "10.0.0.1:8993"`+"\n", ""),
			"shards.us-west-2a.operator_addr: is missing"},
		"no port":       {replaced("10.0.0.1:8993", "10.0.0.1"), `"10.0.0.1" is not host:port`},
		"no host":       {replaced("10.0.0.1:8993", ":8993"), "is not host:port"},
		"a URL":         {replaced("10.0.0.1:8993", "https://10.0.0.1:8993"), "is not host:port"},
		"port zero":     {replaced("10.0.0.1:8993", "10.0.0.1:0"), "the port is not a number"},
		"a port's name": {replaced("10.0.0.1:8993", "10.0.0.1:grpc"), "the port is not a number"},
		"too long":      {strings.Repeat("#\n", 1<<20), "more than"},
	} {
		if got, err := settings.Parse([]byte(test.text)); err == nil || !strings.Contains(err.Error(), test.want) ||
			got.Shards != nil {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	_, err := settings.Parse([]byte("shards:\n  b: {}\n"))
	if err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("not all problems are named: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte("cluster_id: a\nshards: {b: &x {registration_addr: 'h:1', operator_addr: 'h:2'}, c: *x}\n"))
	f.Add([]byte("? !!binary ====\n: - -"))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := settings.Parse(text)
		if err != nil {
			return
		}
		if got.Cluster == "" || got.Tenant == "" || len(got.Shards) == 0 {
			t.Errorf("accepted %+v", got)
		}
		for id, at := range got.Shards {
			if id == "" || at.Operator == "" || at.Registration == "" {
				t.Errorf("accepted shard %q %+v", id, at)
			}
		}
	})
}

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	if _, err := settings.Load(path); err == nil || !strings.Contains(err.Error(), "read configuration: ") {
		t.Errorf("a missing file: %v", err)
	}
	write(t, path, example+"x: 1\n")
	if _, err := settings.Load(path); err == nil || !strings.Contains(err.Error(), path+": ") {
		t.Errorf("a broken file: %v", err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	// The rename replaces the file atomically, as the kubelet does with a mounted ConfigMap.
	err := os.WriteFile(path+".new", []byte(text), 0o600)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestWatch(t *testing.T) { synctest.Test(t, watch) }

func watch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	first, err := settings.Parse([]byte(example))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	var used []string
	var wrong []bool
	var log bytes.Buffer
	go func() {
		defer close(done)
		settings.Watch(ctx, path, first, slog.New(slog.NewTextHandler(&log, nil)), func(c settings.Config) {
			used = append(used, strings.Join(c.IDs(), ","))
		}, func(err error) { wrong = append(wrong, err != nil) })
	}()
	observe := func(text string) {
		t.Helper()
		if text == "" {
			_ = os.Remove(path) // there may be none
		} else {
			write(t, path, text)
		}
		<-time.After(settings.Interval)
		synctest.Wait()
	}
	observe("")
	observe(example)
	third := "  new:\n    registration_addr: h:1\n    operator_addr: h:2\n"
	observe(example + third)
	observe(example + third + "broken")
	observe(strings.Replace(example, "example-cluster", "other", 1))
	observe(strings.Replace(example, "tenant: default", "tenant: other", 1))
	observe(example + third)
	observe("cluster_id: example-cluster\nshards:\n" + third)
	observe(example)
	cancel()
	<-done
	if d := cmp.Diff([]string{"new,us-east-1a,us-west-2a", "new", "us-east-1a,us-west-2a"}, used); d != "" {
		t.Error(d)
	}
	if !wrong[0] || wrong[2] || !wrong[3] || wrong[len(wrong)-1] {
		t.Errorf("reported as wrong: %v", wrong)
	}
	if n := strings.Count(log.String(), "is invalid"); n != 4 {
		t.Errorf("%d refusals in the log:\n%s", n, log.String())
	}
	for _, part := range []string{"no such file", `cannot change from \"example-cluster\" to \"other\"`, "tenant: cannot change"} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("the log lacks %q:\n%s", part, log.String())
		}
	}
}

func TestParseEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "namespace")
	write(t, file, "pods-own\n")
	parse := func(namespaceFile string, pairs ...string) (settings.Environment, error) {
		return settings.ParseEnvironment(func(name string) string {
			for n := 0; n < len(pairs); n += 2 {
				if pairs[n] == name {
					return pairs[n+1]
				}
			}
			return ""
		}, namespaceFile)
	}
	got, err := parse(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(settings.Environment{Namespace: "pods-own", CAConfigMap: "nstance-cluster-ca",
		CertSecret: "nstance-operator-cert", KeySecret: "nstance-operator-key",
		NonceSecret: "nstance-operator-nonce", ServiceAccount: "nstance-capi-workload"}, got); d != "" {
		t.Error(d)
	}
	got, err = parse("", "NSTANCE_NAMESPACE", "ns", "NSTANCE_CA_CONFIGMAP", "ca", "NSTANCE_CERT_SECRET", "cert",
		"NSTANCE_KEY_SECRET", "key", "NSTANCE_NONCE_SECRET", "nonce",
		"NSTANCE_CAPI_ENDPOINT", "https://api.example.com", "NSTANCE_CAPI_SERVICEACCOUNT", "sa", "NSTANCE_K8S_JSON",
		"true")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(settings.Environment{Namespace: "ns", CAConfigMap: "ca", CertSecret: "cert", KeySecret: "key",
		NonceSecret: "nonce",
		Endpoint:    clusterv1.APIEndpoint{Host: "api.example.com", Port: 443}, ServiceAccount: "sa", JSON: true},
		got); d != "" {
		t.Error(d)
	}
	// Values from files, ConfigMaps and Secrets may end in white space.
	if spaced, err := parse("", "NSTANCE_NAMESPACE", "ns\r\n", "NSTANCE_CA_CONFIGMAP", " ca\n", "NSTANCE_CERT_SECRET",
		"cert\n", "NSTANCE_KEY_SECRET", "\ufeffkey", "NSTANCE_NONCE_SECRET", "nonce\t", "NSTANCE_CAPI_ENDPOINT",
		"https://api.example.com\n", "NSTANCE_CAPI_SERVICEACCOUNT", "sa ", "NSTANCE_K8S_JSON",
		"true\n"); err != nil || spaced != got {
		t.Errorf("with white space: %+v, %v", spaced, err)
	}
	for want, pairs := range map[string][]string{
		"NSTANCE_NAMESPACE: must be set outside a cluster":     {},
		"NSTANCE_NAMESPACE: \"A\"":                             {"NSTANCE_NAMESPACE", "A"},
		"NSTANCE_CERT_SECRET: \"a b\"":                         {"NSTANCE_CERT_SECRET", "a b"},
		"want three different Secrets":                         {"NSTANCE_CERT_SECRET", "x", "NSTANCE_KEY_SECRET", "x"},
		"NSTANCE_K8S_JSON: \"maybe\" is neither true":          {"NSTANCE_K8S_JSON", "maybe"},
		"NSTANCE_CAPI_ENDPOINT: \"api\" is not host:port":      {"NSTANCE_CAPI_ENDPOINT", "api"},
		"NSTANCE_CAPI_ENDPOINT: \"http://api\": want https://": {"NSTANCE_CAPI_ENDPOINT", "http://api"},
	} {
		if _, err := parse(filepath.Join(t.TempDir(), "none"), pairs...); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", pairs, err, want)
		}
	}
}

func TestParseEndpoint(t *testing.T) {
	for text, want := range map[string]clusterv1.APIEndpoint{
		"api:6443": {Host: "api", Port: 6443}, "https://api:6443": {Host: "api", Port: 6443},
		"https://10.0.0.1/":  {Host: "10.0.0.1", Port: 443},
		"[2001:db8::1]:6443": {Host: "2001:db8::1", Port: 6443}, "https://[2001:db8::1]": {Host: "2001:db8::1",
			Port: 443},
	} {
		if got, err := settings.ParseEndpoint(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "api", "api:0", "api:70000", "https://", "https://u@api", "https://api/path",
		"https://api?x", "ftp://api", "https://api:x", "a b:1"} {
		if got, err := settings.ParseEndpoint(text); err == nil {
			t.Errorf("%q: accepted as %v", text, got)
		}
	}
}

func FuzzParseEndpoint(f *testing.F) {
	f.Add("https://[::1]:6443")
	f.Fuzz(func(t *testing.T, text string) {
		if got, err := settings.ParseEndpoint(text); err == nil && (got.Host == "" || got.Port < 1 ||
			got.Port > 65535) {
			t.Errorf("%q: accepted as %+v", text, got)
		}
	})
}

func TestWriteHelp(t *testing.T) {
	var out strings.Builder
	if err := settings.WriteHelp(&out); err != nil || strings.Count(out.String(), "NSTANCE_") < 8 {
		t.Errorf("%v\n%s", err, out.String())
	}
}
