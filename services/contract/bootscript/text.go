package bootscript

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// machines maps architectures to the names that `uname -m` prints for them, as a pattern of sh.
var machines = map[string]string{"amd64": "x86_64 | amd64", "arm64": "aarch64 | arm64"}

// program is a program that a script installs and starts.
type program struct{ name, unit string }

// These units are for machines without an installed unit. Images have their own units, which are hardened.
var (
	server = program{"nstance-server", `[Unit]
Description=Nstance server
Wants=network-online.target
After=network-online.target
[Service]
EnvironmentFile=/etc/nstance/server.env
ExecStart=/usr/local/bin/nstance-server $NSTANCE_SERVER_ARGS
DynamicUser=yes
CacheDirectory=nstance-server
Restart=always
RestartSec=2
[Install]
WantedBy=multi-user.target
`}
	agent = program{"nstance-agent", `[Unit]
Description=Nstance agent
Wants=network-online.target
After=network-online.target
[Service]
EnvironmentFile=/etc/nstance/agent.env
ExecStart=/usr/local/bin/nstance-agent
Restart=always
RestartSec=2
[Install]
WantedBy=multi-user.target
`}
)

// health starts the unit that reports the server's health to a scaling group, on images that have it.
const health = `if [ -e /etc/systemd/system/nstance-server-health.service ]; then
  systemctl enable nstance-server-health
  systemctl start --no-block nstance-server-health
fi
`

// head returns the part of the script before the files.
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

// tail returns the part of the script after the files.
func tail(c Common, p program) string {
	start := "systemctl enable " + p.name +
		"\n# Without waiting: the unit may itself wait for cloud-init to end.\nsystemctl start --no-block " + p.name +
		"\n"
	if len(c.Binaries) == 0 {
		return start
	}
	var b strings.Builder
	fmt.Fprintf(&b, "bin=/usr/local/bin/%s unit=/etc/systemd/system/%s.service\n", p.name, p.name)
	b.WriteString("if ! [ -x $bin ]; then\n  case $(uname -m) in\n")
	for _, arch := range slices.Sorted(maps.Keys(c.Binaries)) {
		fmt.Fprintf(&b, "  %s) url=%s sum=%s ;;\n", machines[arch], quote(c.Binaries[arch].URL),
			c.Binaries[arch].SHA256)
	}
	fmt.Fprintf(&b, "  *) echo \"no %s for $(uname -m)\" >&2 && exit 1 ;;\n  esac\n", p.name)
	b.WriteString(
		`  if command -v curl >/dev/null; then curl -fsSL --retry 5 -o $bin.new "$url"; else wget -q -O $bin.new "$url"; fi
  echo "$sum  $bin.new" | sha256sum -c - >/dev/null
  chmod 755 $bin.new
  mv -f $bin.new $bin
fi
`)
	fmt.Fprintf(&b,
		"if ! [ -e $unit ] && ! [ -e /usr/lib/systemd/system/%s.service ]; then\n  put $unit %s\n  chmod 644 "+
			"$unit\n  systemctl daemon-reload\nfi\n",
		p.name, quote(p.unit))
	return b.String() + start
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
