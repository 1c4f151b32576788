package bootscript

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/images/packer"
)

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
