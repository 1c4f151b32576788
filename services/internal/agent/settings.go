package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/pasted"
	"github.com/nstance-kit/nstance/services/internal/agent/notice"
)

// Prefix is the beginning of the name of every environment variable that configures the agent.
const Prefix = "NSTANCE_"

// Settings are the agent's configuration from the environment. If Hostname, FQDN, IPv4 or IPv6 is not set, the agent
// detects it.
type Settings struct {
	RegistrationAddrs, AgentAddrs []string
	ID                            ident.ID
	// Batch is the batch in which the VM was created. If it is not zero, ID is not known yet.
	Batch                      ident.Batch
	Kind                       string // the prefix of the ID
	Hostname, FQDN, IPv4, IPv6 string

	IdentityDir, KeysDir, RecvDir    string
	IdentityMode, KeysMode, RecvMode fs.FileMode
	RecvExtensions                   []string

	Hook        string
	HookTimeout time.Duration

	Provider         string // empty: detected
	SpotPollInterval time.Duration
	MetricsInterface string
	HealthAddr       string // empty: no health endpoint

	PowerOffOnSIGTERM bool
	Debug             bool
}

// variable describes one environment variable. Parsing, help, and documentation all use it.
type variable struct {
	name     string // without the prefix
	required bool
	standard string // the default, parsed like a value; empty: the zero value
	help     string
	set      func(s *Settings, value string) error
}

func variables() []variable {
	return []variable{
		{"SERVER_REGISTRATION_ADDR", true, "",
			"host:port of the server's registration service; several, separated by commas, are tried in turn",
			func(s *Settings, v string) (err error) {
				s.RegistrationAddrs, err = endpoints.ParseAddrs(v)
				return err
			}},
		{"SERVER_AGENT_ADDR", true, "", "host:port of the server's agent service; several likewise",
			func(s *Settings, v string) (err error) { s.AgentAddrs, err = endpoints.ParseAddrs(v); return err }},
		{"INSTANCE_ID", true, "", "the instance's ID, a puidv7; or its batch, with a plus sign at the end",
			func(s *Settings, v string) (err error) {
				if s.Batch, err = ident.ParseBatch(v); err == nil {
					s.ID = s.Batch.First() // until the cloud tells
					return nil
				}
				s.ID, err = ident.ParseID(v)
				return err
			}},
		{"INSTANCE_KIND", false, "", "the prefix of the ID, for userdata that wants to say it; it must agree",
			func(s *Settings, v string) error { s.Kind = v; return ident.ValidatePrefix(v) }},
		{"INSTANCE_HOSTNAME", false, "", "host name; detected",
			func(s *Settings, v string) error { s.Hostname = v; return ident.ValidateHostname(v) }},
		{"INSTANCE_FQDN", false, "", "full domain name; detected; handed to the hook",
			func(s *Settings, v string) error { s.FQDN = v; return ident.ValidateHostname(v) }},
		{"INSTANCE_IPV4", false, "", "IPv4 address; detected",
			func(s *Settings, v string) (err error) { s.IPv4, err = ident.ParseIPv4(v); return err }},
		{"INSTANCE_IPV6", false, "", "IPv6 address; detected",
			func(s *Settings, v string) (err error) { s.IPv6, err = ident.ParseIPv6(v); return err }},
		{"IDENTITY_DIR", false, "/opt/nstance-agent/identity",
			"where userdata leaves ca.crt and nonce.jwt, and the agent keeps its own key and certificate",
			func(s *Settings, v string) error { s.IdentityDir = v; return checkDir(v) }},
		{"KEYS_DIR", false, "/opt/nstance-agent/keys", "where the agent keeps the keys that it makes",
			func(s *Settings, v string) error { s.KeysDir = v; return checkDir(v) }},
		{"RECV_DIR", false, "/opt/nstance-agent/recv", "where received files go",
			func(s *Settings, v string) error { s.RecvDir = v; return checkDir(v) }},
		{"IDENTITY_MODE", false, "0600", "mode of files in IDENTITY_DIR, octal; the key is never for others",
			func(s *Settings, v string) (err error) { s.IdentityMode, err = parseMode(v); return err }},
		{"KEYS_MODE", false, "0640", "mode of files in KEYS_DIR, octal; private keys are never for others",
			func(s *Settings, v string) (err error) { s.KeysMode, err = parseMode(v); return err }},
		{"RECV_MODE", false, "0640", "mode of files in RECV_DIR, octal",
			func(s *Settings, v string) (err error) { s.RecvMode, err = parseMode(v); return err }},
		{"RECV_EXTENSIONS", false, "",
			"extensions of received files that are accepted beside .crt .key .pub .json .env, such as \".yaml,.conf\"",
			func(s *Settings, v string) (err error) { s.RecvExtensions, err = parseExtensions(v); return err }},
		{"HOOK", false, "",
			"shell command that runs after received files changed; NSTANCE_CHANGED_FILES has their names",
			func(s *Settings, v string) error { s.Hook = v; return nil }},
		{"HOOK_TIMEOUT", false, "1m", "after which the hook is killed",
			func(s *Settings, v string) (err error) { s.HookTimeout, err = parseDuration(v); return err }},
		{"PROVIDER", false, "", "the machine's cloud: " + strings.Join(notice.Names(), ", ") + "; detected",
			func(s *Settings, v string) error { s.Provider = v; return oneOf(v, notice.Names()...) }},
		{"SPOT_POLL_INTERVAL", false, "2s", "how often to look for notices",
			func(s *Settings, v string) (err error) { s.SpotPollInterval, err = parseDuration(v); return err }},
		{"METRICS_INTERFACE", false, "",
			"network interface whose rates are reported, with the kernel's connection tracking",
			func(s *Settings, v string) error { s.MetricsInterface = v; return nil }},
		{"HEALTH_ADDR", false, "", "host:port to answer GET /healthz and /metrics on; off when empty",
			func(s *Settings, v string) (err error) { s.HealthAddr, err = v, checkListen(v); return err }},
		{"POWER_OFF_ON_SIGTERM", false, "false",
			"SIGTERM and SIGHUP mean that the machine powers off: for development, where this process is the machine",
			func(s *Settings, v string) (err error) { s.PowerOffOnSIGTERM, err = parseBool(v); return err }},
		{"DEBUG", false, "false", "log more, like --debug",
			func(s *Settings, v string) (err error) { s.Debug, err = parseBool(v); return err }},
	}
}

// ParseSettings reads an environment of NAME=value strings. A value that is empty or white space counts as
// unset. The error joins all
// problems. unknown lists the variables whose names start with [Prefix] but that the agent does not know. They are
// probably misspelt.
func ParseSettings(environ []string) (s Settings, unknown []string, err error) {
	values := map[string]string{}
	for _, entry := range environ {
		if name, value, _ := strings.Cut(entry, "="); strings.HasPrefix(name, Prefix) {
			values[name] = pasted.Clean(value)
		}
	}
	var problems []error
	for _, v := range variables() {
		name := Prefix + v.name
		value := values[name]
		delete(values, name)
		switch {
		case value == "" && v.required:
			problems = append(problems, fmt.Errorf("%s is required: %s", name, v.help))
			continue
		case value == "":
			value = v.standard
		}
		if value == "" {
			continue
		}
		if err := v.set(&s, value); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", name, err))
		}
	}
	if kind := s.ID.Prefix(); s.Kind == "" {
		s.Kind = kind
	} else if kind != "" && s.Kind != kind {
		problems = append(problems, fmt.Errorf("%sINSTANCE_KIND is %q, but %sINSTANCE_ID begins with %q", Prefix,
			s.Kind, Prefix, kind))
	}
	if s.IdentityDir == s.KeysDir || s.IdentityDir == s.RecvDir || s.KeysDir == s.RecvDir {
		problems = append(problems, fmt.Errorf("%sIDENTITY_DIR, %sKEYS_DIR and %sRECV_DIR must be three directories",
			Prefix, Prefix, Prefix))
	}
	for name := range values {
		unknown = append(unknown, name)
	}
	slices.Sort(unknown)
	return s, unknown, errors.Join(problems...)
}

// WriteHelp describes every variable.
func WriteHelp(w io.Writer) error {
	tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, v := range variables() {
		standard := v.standard
		switch {
		case v.required:
			standard = "required"
		case standard == "":
			standard = "-"
		}
		fmt.Fprintf(tab, "  %s%s\t%s\t%s\n", Prefix, v.name, standard, v.help)
	}
	return tab.Flush()
}

func checkListen(value string) error {
	_, port, err := net.SplitHostPort(value)
	if err != nil {
		return fmt.Errorf("%q is not host:port", value)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q: the port is a number from 0 to 65535", value)
	}
	return nil
}

func checkDir(value string) error {
	if !strings.HasPrefix(value, "/") {
		return fmt.Errorf("%q is not an absolute path", value)
	}
	return nil
}

// parseMode reads an octal file mode that lets the owner read and write.
func parseMode(value string) (fs.FileMode, error) {
	mode, err := strconv.ParseUint(value, 8, 32)
	if err != nil || mode > 0o777 {
		return 0, fmt.Errorf("%q is not an octal mode from 0600 to 0777", value)
	}
	if mode&0o600 != 0o600 {
		return 0, fmt.Errorf("%q: the agent itself has to read and write", value)
	}
	return fs.FileMode(mode), nil
}

func parseExtensions(value string) ([]string, error) {
	extensions := strings.Split(value, ",")
	for i, extension := range extensions {
		extension = strings.TrimSpace(extension)
		extensions[i] = extension
		if len(extension) < 2 || extension[0] != '.' || strings.ContainsAny(extension[1:], "./\\ \t") {
			return nil, fmt.Errorf("%q is not an extension like \".yaml\"", extension)
		}
	}
	return extensions, nil
}

func parseDuration(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%q is not a positive duration like \"2s\"", value)
	}
	return d, nil
}

func parseBool(value string) (bool, error) {
	b, err := strconv.ParseBool(value)
	if err != nil {
		return false, fmt.Errorf("%q is neither true nor false", value)
	}
	return b, nil
}

func oneOf(value string, allowed ...string) error {
	if !slices.Contains(allowed, value) {
		return fmt.Errorf("%q is none of %s", value, strings.Join(allowed, ", "))
	}
	return nil
}
