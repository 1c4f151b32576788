package agent_test

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/agent"
)

const exampleID = "acc06bgm7733st2576nx5jht4ecjw"

func required() []string {
	return []string{
		"PATH=/bin", "NSTANCE_SERVER_REGISTRATION_ADDR=10.0.0.100:8992",
		"NSTANCE_SERVER_AGENT_ADDR=10.0.0.100:8994, server.example:9004",
		"NSTANCE_INSTANCE_ID=" + exampleID,
	}
}

// TestSettingsWithWhiteSpace reads an environment file that was edited on Windows.
func TestSettingsWithWhiteSpace(t *testing.T) {
	want, _, err := agent.ParseSettings(append(required(), "NSTANCE_DEBUG=true", "NSTANCE_HOOK=echo a\necho b"))
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := agent.ParseSettings([]string{"NSTANCE_SERVER_REGISTRATION_ADDR=\ufeff10.0.0.100:8992\r",
		"NSTANCE_SERVER_AGENT_ADDR= 10.0.0.100:8994, server.example:9004\r\n", "NSTANCE_INSTANCE_ID=" + exampleID +
			"\n",
		"NSTANCE_DEBUG=true\r", "NSTANCE_HOOK=echo a\r\necho b\r\n", "NSTANCE_RECV_EXTENSIONS=\r"})
	if d := cmp.Diff(want, got, cmp.AllowUnexported(ident.ID{}, ident.Batch{})); err != nil || d != "" {
		t.Errorf("%v\n%s", err, d)
	}
}

func TestSettingsDefaults(t *testing.T) {
	got, unknown, err := agent.ParseSettings(append(required(), "NSTANCE_RECV_DIRS=/x", "NSTANCE_DEBUG="))
	if err != nil {
		t.Fatal(err)
	}
	id, err := ident.ParseID(exampleID)
	if err != nil {
		t.Fatal(err)
	}
	want := agent.Settings{
		RegistrationAddrs: []string{"10.0.0.100:8992"}, AgentAddrs: []string{"10.0.0.100:8994", "server.example:9004"},
		ID: id, Kind: "acc",
		IdentityDir: "/opt/nstance-agent/identity", KeysDir: "/opt/nstance-agent/keys",
		RecvDir:      "/opt/nstance-agent/recv",
		IdentityMode: 0o600, KeysMode: 0o640, RecvMode: 0o640,
		HookTimeout: time.Minute, SpotPollInterval: 2 * time.Second,
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(ident.ID{}, ident.Batch{})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"NSTANCE_RECV_DIRS"}, unknown); diff != "" {
		t.Error(diff)
	}
}

func TestSettingsAllSet(t *testing.T) {
	got, _, err := agent.ParseSettings(append(required(),
		"NSTANCE_INSTANCE_KIND=acc", "NSTANCE_INSTANCE_HOSTNAME=node_1", "NSTANCE_INSTANCE_FQDN=node-1.example.com",
		"NSTANCE_INSTANCE_IPV4=10.0.0.7",
		"NSTANCE_INSTANCE_IPV6=2001:DB8::1", "NSTANCE_IDENTITY_DIR=/i", "NSTANCE_KEYS_DIR=/k", "NSTANCE_RECV_DIR=/r",
		"NSTANCE_IDENTITY_MODE=0640",
		"NSTANCE_KEYS_MODE=600", "NSTANCE_RECV_MODE=0o644", "NSTANCE_RECV_EXTENSIONS=.yaml, .conf",
		"NSTANCE_HOOK=systemctl reload x", "NSTANCE_HOOK_TIMEOUT=5s",
		"NSTANCE_PROVIDER=none", "NSTANCE_SPOT_POLL_INTERVAL=500ms", "NSTANCE_METRICS_INTERFACE=eth0",
		"NSTANCE_HEALTH_ADDR=127.0.0.1:0",
		"NSTANCE_POWER_OFF_ON_SIGTERM=true", "NSTANCE_DEBUG=1"))
	// ParseSettings must return one error, for "0o644". That is Go's syntax for an octal number.
	if err == nil || strings.Count(err.Error(), "\n") != 0 || !strings.Contains(err.Error(), "NSTANCE_RECV_MODE") {
		t.Errorf("error: %v", err)
	}
	if got.IPv6 != "2001:db8::1" || got.KeysMode != 0o600 || !got.Debug || !got.PowerOffOnSIGTERM ||
		got.HookTimeout != 5*time.Second ||
		got.RecvExtensions[1] != ".conf" || got.HealthAddr != "127.0.0.1:0" || got.MetricsInterface != "eth0" ||
		got.FQDN != "node-1.example.com" {
		t.Errorf("%+v", got)
	}
}

func TestSettingsReportEveryError(t *testing.T) {
	bad := map[string]string{
		"SERVER_REGISTRATION_ADDR": "10.0.0.1", "SERVER_AGENT_ADDR": "a:1,:8994", "INSTANCE_ID": "acc",
		"INSTANCE_KIND": "worker", "INSTANCE_HOSTNAME": "a b",
		"INSTANCE_FQDN": "a..b", "INSTANCE_IPV4": "::1", "INSTANCE_IPV6": "10.0.0.1", "IDENTITY_DIR": "relative",
		"KEYS_DIR": "./k", "RECV_DIR": "r",
		"IDENTITY_MODE": "0400", "KEYS_MODE": "888", "RECV_MODE": "07777", "RECV_EXTENSIONS": "yaml",
		"HOOK_TIMEOUT": "0s", "PROVIDER": "azure",
		"SPOT_POLL_INTERVAL": "2", "HEALTH_ADDR": "8080", "POWER_OFF_ON_SIGTERM": "perhaps", "DEBUG": "yes",
	}
	var environ []string
	for name, value := range bad {
		environ = append(environ, agent.Prefix+name+"="+value)
	}
	_, unknown, err := agent.ParseSettings(environ)
	if err == nil || len(unknown) != 0 {
		t.Fatalf("%v, %v", err, unknown)
	}
	for name := range bad {
		if !strings.Contains(err.Error(), agent.Prefix+name+": ") {
			t.Errorf("no error about %s", name)
		}
	}
	_, _, err = agent.ParseSettings(nil)
	for _, name := range []string{"SERVER_REGISTRATION_ADDR", "SERVER_AGENT_ADDR", "INSTANCE_ID"} {
		if err == nil || !strings.Contains(err.Error(), agent.Prefix+name+" is required") {
			t.Errorf("%s is not missed: %v", name, err)
		}
	}
	_, _, err = agent.ParseSettings(append(required(), "NSTANCE_INSTANCE_KIND=knc", "NSTANCE_KEYS_DIR=/same",
		"NSTANCE_RECV_DIR=/same"))
	if err == nil || !strings.Contains(err.Error(), "INSTANCE_KIND is \"knc\"") ||
		!strings.Contains(err.Error(), "three directories") {
		t.Errorf("error: %v", err)
	}
}

// TestHelpIsDocumented checks that the documentation contains the table of --help.
func TestHelpIsDocumented(t *testing.T) {
	var help bytes.Buffer
	if err := agent.WriteHelp(&help); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../../docs/reference/agent.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(page, help.Bytes()) {
		t.Errorf("docs/reference/agent.md does not have this table:\n%s", help.String())
	}
}

func FuzzParseSettings(f *testing.F) {
	f.Add("SERVER_AGENT_ADDR", "a:1,b:2")
	f.Add("INSTANCE_IPV6", "fe80::1%eth0")
	f.Add("INSTANCE_IPV6", "::ffff:10.0.0.1")
	f.Add("IDENTITY_MODE", "0600")
	f.Add("RECV_EXTENSIONS", ".a,.b")
	f.Add("HOOK_TIMEOUT", "-1s")
	f.Add("HEALTH_ADDR", "[::1]:80")
	f.Add("INSTANCE_HOSTNAME", "é.example")
	f.Fuzz(func(t *testing.T, name, value string) {
		s, unknown, err := agent.ParseSettings(append(required(), agent.Prefix+name+"="+value))
		if err != nil {
			return
		}
		if len(unknown) > 1 || len(s.AgentAddrs) == 0 || s.ID.IsZero() || s.IdentityMode&0o600 != 0o600 ||
			s.IdentityMode > 0o777 ||
			s.HookTimeout <= 0 || s.IdentityDir[0] != '/' || strings.ContainsAny(s.Hostname+s.IPv4+s.IPv6, " %\n\x00") {
			t.Errorf("%s=%q gave %+v, %v", name, value, s, unknown)
		}
	})
}

func TestSettingsOfBatch(t *testing.T) {
	id, err := ident.ParseID(exampleID)
	if err != nil {
		t.Fatal(err)
	}
	batch := id.Batch()
	got, _, err := agent.ParseSettings(append(required(), "NSTANCE_INSTANCE_ID="+batch.String(),
		"NSTANCE_INSTANCE_KIND=acc"))
	if err != nil || got.Batch != batch || got.Kind != "acc" {
		t.Errorf("%+v, %v", got, err)
	}
}
