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
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/images/packer"
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

// LeaderNetwork is the systemd-networkd configuration of the leader's interface, which moves from leader to leader. The
// zero value means that the image configures the interface.
//
// Without this configuration, replies from the interface's addresses leave by the machine's primary interface. A
// network that checks source addresses drops those replies, because the primary interface does not have these
// addresses.
type LeaderNetwork struct {
	MAC string
	// IPv4 and IPv6 are the addresses of the interface, or "".
	IPv4, IPv6 string
	// Gateway is the router of the interface's subnet. It is required with IPv4. The IPv6 router advertises itself.
	Gateway string
}

// networkFile is the path of the leader interface's configuration. systemd-networkd sorts files by name and uses the
// first one that matches an interface. The names of other tools' files begin with higher numbers: 10 for netplan, and
// 07 or more for the others.
const networkFile = "/etc/systemd/network/05-nstance-leader.network"

// leaderTable is the routing table for the packets that are sent from the leader's addresses.
const leaderTable = 1000

// validate adds the errors of l to errs. Each error names a field of the Terraform argument leader_network.
func (l LeaderNetwork) validate(errs *problems) {
	if l == (LeaderNetwork{}) {
		return
	}
	if mac, err := net.ParseMAC(l.MAC); err != nil || len(mac) != 6 || mac.String() != l.MAC {
		errs.add("leader_network.mac_address", fmt.Errorf("%q is not a MAC address, such as 02:00:00:ab:cd:ef", l.MAC))
	}
	address := func(field, text string, is func(netip.Addr) bool, family string) {
		if addr, err := netip.ParseAddr(text); text != "" && (err != nil || !is(addr) || addr.Zone() != "") {
			errs.add("leader_network."+field, fmt.Errorf("%q is not an %s address", text, family))
		}
	}
	address("ipv4", l.IPv4, netip.Addr.Is4, "IPv4")
	address("ipv4_gateway", l.Gateway, netip.Addr.Is4, "IPv4")
	address("ipv6", l.IPv6, netip.Addr.Is6, "IPv6")
	switch {
	case l.IPv4 == "" && l.IPv6 == "":
		errs.add("leader_network", errors.New("has neither ipv4 nor ipv6"))
	case (l.IPv4 == "") != (l.Gateway == ""):
		errs.add("leader_network.ipv4_gateway", errors.New("belongs to ipv4: set both or neither"))
	}
}

// commands returns the part of the script that writes the configuration. The file is readable by all users, because
// systemd-networkd does not run as root. The configuration also applies to an interface that is attached later.
//
// All replies go to the subnet's router. It forwards replies to VMs of the same subnet too.
// https://www.freedesktop.org/software/systemd/man/252/systemd.network.html
func (l LeaderNetwork) commands() string {
	if l == (LeaderNetwork{}) {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "[Match]\nMACAddress=%s\n[Link]\nRequiredForOnline=no\n", l.MAC)
	if l.IPv6 == "" {
		b.WriteString("[Network]\nIPv6AcceptRA=no\n")
	} else {
		fmt.Fprintf(&b, "[Network]\nIPv6AcceptRA=yes\n[IPv6AcceptRA]\nDHCPv6Client=no\nRouteTable=%d\n"+
			"[Address]\nAddress=%s/128\nDuplicateAddressDetection=none\n[RoutingPolicyRule]\nFrom=%s/128\nTable=%d\n",
			leaderTable, l.IPv6, l.IPv6, leaderTable)
	}
	if l.IPv4 != "" {
		fmt.Fprintf(&b, "[Address]\nAddress=%s/32\n[Route]\nGateway=%s\nGatewayOnLink=yes\nTable=%d\n"+
			"[RoutingPolicyRule]\nFrom=%s/32\nTable=%d\n", l.IPv4, l.Gateway, leaderTable, l.IPv4, leaderTable)
	}
	return "# Replies from the leader's addresses leave by the leader's interface.\n" +
		"mkdir -p -m 755 /etc/systemd/network\nput " + networkFile + " " + quote(b.String()) + "\n" +
		"chmod 644 " + networkFile + "\n" +
		"networkctl reload || echo 'systemd-networkd does not run: the image must route the leader interface' >&2\n"
}

// machines maps architectures to the names that `uname -m` prints for them, as patterns for a case statement of sh.
var machines = map[string]string{"amd64": "x86_64 | amd64", "arm64": "aarch64 | arm64"}

// program is a program that a script installs and starts.
type program struct {
	name string
	// units maps the names of the program's units to their texts.
	units map[string]string
	// prepare holds the commands that run after a download of the program and before its units are installed.
	prepare string
}

var (
	server = program{"nstance-server", map[string]string{"nstance-server": packer.ServerUnit,
		healthUnit: packer.ServerHealthUnit},
		"getent passwd nstance-server >/dev/null || useradd --system --user-group --no-create-home " +
			"--home-dir /nonexistent --shell /usr/sbin/nologin nstance-server\n"}
	agent = program{"nstance-agent", map[string]string{"nstance-agent": packer.AgentUnit}, ""}
)

// healthUnit is the unit that reports the server's health to the machine's scaling group.
const healthUnit = "nstance-server-health"

// start returns the commands that start a unit now and at each boot.
func start(unit string) string {
	return "systemctl enable " + unit +
		"\n# Without waiting: the unit may itself wait for cloud-init to end.\nsystemctl start --no-block " + unit +
		"\n"
}

// head returns the beginning of the script, before the commands that write files.
func head(c Common, p program) string {
	var b strings.Builder
	b.WriteString("#!/bin/sh\n# Boot script of " + p.name + ", made by Terraform.\nset -eu\n")
	for _, line := range c.CommandsBefore {
		b.WriteString(line + "\n")
	}
	b.WriteString(
		"umask 077\n# put FILE CONTENT: the whole file or none of it.\nput() { printf %s \"$2\" >\"$1.new\" && mv " +
			"-f \"$1.new\" \"$1\"; }\n")
	return b.String()
}

// install returns the part of the script that downloads the program, if the image lacks it, and installs its units.
// Without curl, the script downloads with Python, which all images with cloud-init have.
func install(c Common, p program) string {
	if len(c.Binaries) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "bin=/usr/local/bin/%s\nif ! [ -x $bin ]; then\n  case $(uname -m) in\n", p.name)
	for _, arch := range slices.Sorted(maps.Keys(c.Binaries)) {
		fmt.Fprintf(&b, "  %s) url=%s sum=%s ;;\n", machines[arch], quote(c.Binaries[arch].URL),
			c.Binaries[arch].SHA256)
	}
	fmt.Fprintf(&b, "  *) echo \"no %s for $(uname -m)\" >&2 && exit 1 ;;\n  esac\n", p.name)
	b.WriteString(`  fetch() {
    if command -v curl >/dev/null; then
      curl -fsSL --connect-timeout 10 -o $bin.new "$url"
    else
      python3 -c 'import sys, urllib.request as r; r.urlretrieve(*sys.argv[1:])' "$url" $bin.new
    fi
  }
  for pause in 1 2 4 8 0; do ! fetch || break; sleep $pause; done
  echo "$sum  $bin.new" | sha256sum -c -
  chmod 755 $bin.new
  mv -f $bin.new $bin
fi
# unit NAME TEXT: a unit that the image lacks.
unit() {
  [ -e /usr/lib/systemd/system/$1.service ] || [ -e /etc/systemd/system/$1.service ] ||
    { put /etc/systemd/system/$1.service "$2" && chmod 644 /etc/systemd/system/$1.service; }
}
`)
	b.WriteString(p.prepare)
	for _, name := range slices.Sorted(maps.Keys(p.units)) {
		fmt.Fprintf(&b, "unit %s %s\n", name, quote(directives(p.units[name])))
	}
	b.WriteString("systemctl daemon-reload\n")
	return b.String()
}

// directives returns a unit without its comments and empty lines.
func directives(unit string) string {
	var b strings.Builder
	for line := range strings.Lines(unit) {
		if line != "\n" && !strings.HasPrefix(line, "#") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// environmentFile writes a file for systemd's EnvironmentFile=. systemd parses a value in double quotes in the same way
// as sh. https://www.freedesktop.org/software/systemd/man/latest/systemd.exec.html#EnvironmentFile=
func environmentFile(environment map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(environment)) {
		fmt.Fprintf(&b, "%s=\"%s\"\n", name, escapes.Replace(environment[name]))
	}
	return b.String()
}

var escapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "`", "\\`", `$`, `\$`)

// quote quotes s as one word for sh.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
