// Package bootscript owns the boot scripts of machines (userdata): their commands for systemd, and the quoting of
// values in them.
//
// A script writes the service's environment file, installs the program and its units if the image lacks them, and
// starts the unit. A server's script also writes the network configuration of the leader's interface. A script is for
// POSIX sh and can be run repeatedly. Without the caller's commands, a script that downloads no program has less than 4
// KiB, and any other script has less than 8 KiB.
//
// Invariant: for all values of the fields, a returned script runs only the commands of this package and the caller's
// commands.
package bootscript

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/render"
)

// MaxSize is the maximum size of a script in bytes. The smallest userdata limit of all clouds is 16 KiB. The difference
// leaves room for the CA certificate and the nonce, which the server adds when it renders an agent's script.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/user-data.html
const MaxSize = 12 << 10

// ScalingGroupVariable is the environment variable that names the scaling group of a server's machine: the name of the
// cloud, a slash, and the name of the group.
const ScalingGroupVariable = "NSTANCE_SCALING_GROUP"

// Binary is the download location of a program.
type Binary struct {
	URL    string // https or http
	SHA256 string // of the file, 64 hex digits
}

// Common holds the fields that the scripts of the server and of the agent share.
type Common struct {
	// Binaries maps architectures ("amd64" or "arm64") to downloads. A script downloads the program only if the image
	// lacks it. If Binaries is empty, the image must have the program.
	Binaries map[string]Binary
	// Environment contains the caller's variables for the unit's environment. If a server's Environment sets
	// [ScalingGroupVariable], the machine reports the server's health to that scaling group.
	Environment map[string]string
	// CommandsBefore are lines of sh that run before everything else. The script exits when one of them fails.
	CommandsBefore []string
}

// Server is the boot script of nstance-server.
type Server struct {
	Common
	Shard   string
	Storage string // one of [config.ObjectStoreNames]
	Bucket  string
	Prefix  string // or ""
	// Region is the region of the machine and its bucket. If it is "", the machine detects it.
	Region string
	// LeaderInterface is the ID of the network interface that the leader acquires, or "".
	LeaderInterface string
	// LeaderNetwork is the configuration of LeaderInterface in systemd-networkd.
	LeaderNetwork LeaderNetwork
	// ExtraArgs are added to the command line of nstance-server.
	ExtraArgs []string
}

// Agent is the boot script of nstance-agent. The script is the value of `userdata.content`, and a template for
// [render.UserdataText]. The caller's commands may contain templates. The environment must not contain any.
type Agent struct{ Common }

// FieldError is the error of one field.
type FieldError struct {
	// Field is the name of the wrong field in Terraform, such as "shard", `binaries["arm64"].url` or "extra_args[2]".
	Field string
	Err   error
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *FieldError) Unwrap() error { return e.Err }

// Script returns the script. The error joins [FieldError]s.
func (s Server) Script() (string, error) {
	var errs problems
	errs.add("shard", ident.ValidateName(s.Shard))
	if kinds := config.ObjectStoreNames(); !slices.Contains(kinds, s.Storage) {
		errs.add("storage", fmt.Errorf("%q is none of %s", s.Storage, strings.Join(kinds, ", ")))
	}
	args := []string{"--shard", s.Shard, "--storage", s.Storage, "--bucket", s.Bucket}
	errs.argument("bucket", s.Bucket)
	for _, option := range []struct {
		field, flag, value string
	}{{"prefix", "--prefix", s.Prefix}, {"leader_interface", "--leader-interface", s.LeaderInterface}} {
		if option.value != "" {
			errs.argument(option.field, option.value)
			args = append(args, option.flag, option.value)
		}
	}
	args = append(args, "--cachedir", "/var/cache/nstance-server")
	for i, arg := range s.ExtraArgs {
		errs.argument(fmt.Sprintf("extra_args[%d]", i), arg)
		args = append(args, arg)
	}
	environment := maps.Clone(s.Environment)
	if environment == nil {
		environment = map[string]string{}
	}
	if _, given := environment["NSTANCE_SERVER_ARGS"]; given {
		errs.add(`environment["NSTANCE_SERVER_ARGS"]`, errors.New("is made of the other attributes: use extra_args"))
	}
	if s.Region != "" {
		if !regionPattern.MatchString(s.Region) {
			errs.add("region", fmt.Errorf("%q is not the name of a region, such as us-west-2", s.Region))
		}
		if name := config.RegionVariable(s.Storage); name != "" {
			environment[name] = s.Region
		}
	}
	environment["NSTANCE_SERVER_ARGS"] = strings.Join(args, " ")
	units := start("nstance-server")
	if environment[ScalingGroupVariable] != "" {
		units += start(healthUnit)
	}
	errs.common(s.Common)
	s.LeaderNetwork.validate(&errs)
	if len(errs) > 0 {
		return "", errors.Join(errs...)
	}
	return sized(head(s.Common, server) + "mkdir -p -m 755 /etc/nstance\n" +
		"put /etc/nstance/server.env " + quote(environmentFile(environment)) + "\n" + s.LeaderNetwork.commands() +
		install(s.Common, server) + units)
}

// Script returns the template. The error joins [FieldError]s.
func (a Agent) Script() (string, error) {
	var errs problems
	errs.common(a.Common)
	for _, name := range slices.Sorted(maps.Keys(a.Environment)) {
		if strings.Contains(a.Environment[name], "{{") {
			errs.add(fmt.Sprintf("environment[%q]", name), errors.New("cannot hold a template"))
		}
		if slices.Contains(agentVariables, name) {
			errs.add(fmt.Sprintf("environment[%q]", name), errors.New("is the server's to say"))
		}
	}
	if len(errs) > 0 {
		return "", errors.Join(errs...)
	}
	script := head(a.Common, agent) + `mkdir -p -m 755 /etc/nstance
mkdir -p -m 755 /opt/nstance-agent
mkdir -p /opt/nstance-agent/identity
put /opt/nstance-agent/identity/ca.crt {{ quote .Cluster.CACert }}
# The nonce is good for one registration: a machine that has its certificate needs none.
[ -e /opt/nstance-agent/identity/identity.crt ] &&
  [ "$(cat /opt/nstance-agent/identity/instance 2>/dev/null)" = {{ quote .Instance.ID }} ] ||
  put /opt/nstance-agent/identity/nonce.jwt {{ quote .Nonce }}
chown -R "$(stat -c %u:%g /opt/nstance-agent)" /opt/nstance-agent/identity
put /etc/nstance/agent.env 'NSTANCE_INSTANCE_ID='{{ quote .Instance.ID }}'
NSTANCE_INSTANCE_KIND='{{ quote .Instance.Kind }}'
NSTANCE_SERVER_REGISTRATION_ADDR='{{ quote .Server.RegistrationAddr }}'
NSTANCE_SERVER_AGENT_ADDR='{{ quote .Server.AgentAddr }}'
'` + strings.TrimPrefix(quote(environmentFile(a.Environment)), "''") + "\n" + install(a.Common, agent) +
		start("nstance-agent")
	if _, err := render.CompileUserdata("commands_before", script); err != nil {
		return "", &FieldError{"commands_before", err} // only these commands can be wrong
	}
	return sized(script)
}

var agentVariables = []string{"NSTANCE_INSTANCE_ID", "NSTANCE_INSTANCE_KIND", "NSTANCE_SERVER_REGISTRATION_ADDR",
	"NSTANCE_SERVER_AGENT_ADDR"}

func sized(script string) (string, error) {
	if len(script) > MaxSize {
		return "",
			&FieldError{"commands_before",
				fmt.Errorf("the script has %d bytes, at most %d are allowed: put what is longer into the image",
					len(script), MaxSize)}
	}
	return script, nil
}

// Patterns of the values in a script. argumentPattern matches one argument of a command line, which systemd splits at
// white space. It excludes every character that systemd or sh would interpret.
var (
	argumentPattern = regexp.MustCompile(`^[A-Za-z0-9_.,:/=@%+~-]+$`)
	regionPattern   = regexp.MustCompile(`^[a-z0-9-]{1,40}$`)
	variablePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	urlPattern      = regexp.MustCompile(`^https?://[A-Za-z0-9.:\[\]-]+/[A-Za-z0-9_.,:/=@%+~?&;!*()-]+$`)
	sha256Pattern   = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

type problems []error

func (ps *problems) add(field string, err error) {
	if err != nil {
		*ps = append(*ps, &FieldError{field, err})
	}
}

func (ps *problems) argument(field, value string) {
	switch {
	case value == "":
		ps.add(field, errors.New("is empty"))
	case !argumentPattern.MatchString(value):
		ps.add(field, fmt.Errorf("%q cannot be an argument: it may have letters, digits and _.,:/=@%%+~-", value))
	}
}

func (ps *problems) common(c Common) {
	for _, arch := range slices.Sorted(maps.Keys(c.Binaries)) {
		at := fmt.Sprintf("binaries[%q]", arch)
		if machines[arch] == "" {
			ps.add(at, fmt.Errorf("%q is neither amd64 nor arm64", arch))
		}
		if !urlPattern.MatchString(c.Binaries[arch].URL) {
			ps.add(at+".url", fmt.Errorf("%q is not the URL of a file, such as https://example.com/nstance-agent",
				c.Binaries[arch].URL))
		}
		if !sha256Pattern.MatchString(c.Binaries[arch].SHA256) {
			ps.add(at+".sha256", fmt.Errorf("%q is not a SHA-256: 64 lower-case hex digits", c.Binaries[arch].SHA256))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Environment)) {
		at := fmt.Sprintf("environment[%q]", name)
		if !variablePattern.MatchString(name) {
			ps.add(at, fmt.Errorf("%q is not the name of a variable", name))
		}
		if strings.ContainsFunc(c.Environment[name], control) {
			ps.add(at, errors.New("has a line break or another control character"))
		}
	}
	for i, line := range c.CommandsBefore {
		if strings.ContainsRune(line, 0) {
			ps.add(fmt.Sprintf("commands_before[%d]", i), errors.New("has a NUL character"))
		}
	}
}

func control(r rune) bool { return r < ' ' || r == 0x7f || r == '\ufffd' }
