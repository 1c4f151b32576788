#!/bin/sh
# Print a software bill of materials in CycloneDX 1.6 (https://cyclonedx.org/docs/1.6/json/): the program with the commit of its source, its Go modules, and
# the Debian packages of this machine.
#
#   NSTANCE_ROLE       server or agent
#   NSTANCE_VERSION    version of the program
#   NSTANCE_COMMIT     commit of its source
#   NSTANCE_BASE       name of the source image
#   NSTANCE_MODULES    file with the output of `go version -m` for the program
set -eu

tab=$(printf '\t')
# shellcheck source=/dev/null
distribution=$(. /etc/os-release && echo "$ID-$VERSION_ID")

# modules and packages print "NAME TAB VERSION TAB PURL", one a line. In a purl + and : are encoded; ~ and . are not.
modules() {
	awk -F "$tab" '
		function encoded(text) { gsub(/\+/, "%2B", text); return text }
		function flush() { if (name != "") printf "%s\t%s\tpkg:golang/%s@%s\n", name, version, name, encoded(version); name = "" }
		NR == 1 && match($0, / go[0-9][0-9a-z.]*/) { name = "std"; version = substr($0, RSTART + 3, RLENGTH - 3); flush() }
		$2 == "dep" { flush(); name = $3; version = $4 }
		$2 == "=>" { name = $3; version = $4 }
		END { flush() }
	' "$NSTANCE_MODULES"
}
packages() {
	installed=$(dpkg-query -W -f '${db:Status-Abbrev}\t${Package}\t${Version}\t${Architecture}\t${source:Package}\n')
	printf '%s\n' "$installed" | awk -F "$tab" -v distribution="$distribution" '
		function encoded(text) { gsub(/\+/, "%2B", text); gsub(/:/, "%3A", text); return text }
		$1 ~ /^ii/ {
			printf "%s\t%s\tpkg:deb/debian/%s@%s?arch=%s&distro=%s&upstream=%s\n", $2, $3, encoded($2), encoded($3), $4, distribution, encoded($5)
		}'
}

modules=$(modules)
packages=$(packages)
cat <<EOF
{
  "bomFormat": "CycloneDX",
  "specVersion": "1.6",
  "serialNumber": "urn:uuid:$(cat /proc/sys/kernel/random/uuid)",
  "version": 1,
  "metadata": {
    "timestamp": "$(date -u +%Y-%m-%dT%H:%M:%SZ)",
    "component": {
      "type": "application",
      "name": "nstance-$NSTANCE_ROLE",
      "version": "$NSTANCE_VERSION",
      "properties": [
        {"name": "nstance:commit", "value": "$NSTANCE_COMMIT"},
        {"name": "nstance:base", "value": "$NSTANCE_BASE"}
      ]
    }
  },
  "components": [
$(printf '%s\n' "$modules" "$packages" | awk -F "$tab" '
	{ printf "%s    {\"type\": \"library\", \"name\": \"%s\", \"version\": \"%s\", \"purl\": \"%s\", \"bom-ref\": \"%s\"}", separator, $1, $2, $3, $3; separator = ",\n" }')
  ]
}
EOF
