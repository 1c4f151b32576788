#!/bin/sh
# Make a Debian machine an image of nstance-server or nstance-agent. This is the only provisioning script, for all
# platforms. Packer runs it as root, in a directory with the binary and the units.
#
#   NSTANCE_ROLE       server or agent
#   NSTANCE_PLATFORM   aws, gcp, qemu or none; none installs no packages and removes nothing, for trees that no
#                      machine boots from
#   NSTANCE_BINARY     path of the binary (default: nstance-$NSTANCE_ROLE beside this script)
#   NSTANCE_FILES      directory of the units (default: files beside this script)
#   NSTANCE_MODULES    file with the output of `go version -m` for the binary; may be unset if NSTANCE_PLATFORM is none
#   NSTANCE_SSM_AGENT  on aws: version and SHA-256 of the agent of AWS Systems Manager to install, with a space between
#                      them; empty: none
#   NSTANCE_VERSION, NSTANCE_COMMIT, NSTANCE_BASE    see files/sbom.sh
#
# The script installs the binary in /usr/local/bin, the unit, a user without a shell, and directories. The unit is not
# enabled: the boot script enables it after writing the settings. The image contains no keys and no identity of the
# machine that it was made on. /usr/share/nstance/sbom.cdx.json lists what is in it.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
role=${NSTANCE_ROLE:?is not set: server or agent}
platform=${NSTANCE_PLATFORM:?is not set: aws, gcp, qemu or none}
files=${NSTANCE_FILES:-$here/files}
binary=${NSTANCE_BINARY:-$here/nstance-$role}

case $role in
server | agent) ;;
*)
	echo "provision.sh: NSTANCE_ROLE is \"$role\", not server or agent" >&2
	exit 2
	;;
esac
case $platform in
aws | gcp | qemu) packages="ca-certificates" ;;
none) packages= ;;
*)
	echo "provision.sh: NSTANCE_PLATFORM is \"$platform\", not aws, gcp, qemu or none" >&2
	exit 2
	;;
esac
for file in "$binary" "$files/nstance-$role.service"; do
	[ -f "$file" ] || {
		echo "provision.sh: there is no $file" >&2
		exit 2
	}
done

install_packages() {
	[ -n "$packages" ] || return 0
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -q
	# shellcheck disable=SC2086 # a list
	apt-get install -q -y --no-install-recommends $packages
}

install_ssm_agent() {
	[ "$platform" = aws ] && [ -n "${NSTANCE_SSM_AGENT:-}" ] || return 0
	# shellcheck disable=SC2086 # two words
	sh "$files/ssm-agent.sh" $NSTANCE_SSM_AGENT
}

install_role() {
	install -d -m 0755 /usr/local/bin /etc/systemd/system
	install -m 0755 "$binary" "/usr/local/bin/nstance-$role"
	install -m 0644 "$files/nstance-$role.service" "/etc/systemd/system/nstance-$role.service"
	install -d -m 0700 /etc/nstance
	if [ "$role" = agent ]; then
		install -m 0644 "$files/nstance-member.target" /etc/systemd/system/nstance-member.target
		install -d -m 0755 /opt/nstance-agent
		install -d -m 0700 /opt/nstance-agent/identity
		return
	fi
	getent passwd nstance-server >/dev/null ||
		useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin nstance-server
	case $platform in
	aws | none) install -m 0644 "$files/nstance-server-health.service" /etc/systemd/system/nstance-server-health.service ;;
	gcp) install -D -m 0644 "$files/nstance-server-scaling.conf" /etc/systemd/system/nstance-server.service.d/10-scaling.conf ;;
	esac
}

write_sbom() {
	install -d -m 0755 /usr/share/nstance
	sh "$files/sbom.sh" >/usr/share/nstance/sbom.cdx.json
}

# Remove everything that each VM must generate for itself.
forget() {
	if command -v cloud-init >/dev/null; then
		cloud-init clean --logs --seed
	fi
	apt-get clean
	rm -rf /var/lib/apt/lists/* /tmp/* /var/tmp/*
	rm -f /etc/ssh/ssh_host_* /root/.ssh/authorized_keys /home/*/.ssh/authorized_keys
	rm -f /root/.bash_history /home/*/.bash_history /var/lib/dbus/machine-id /var/lib/systemd/random-seed
	: >/etc/machine-id
	find /var/log -type f -exec truncate -s 0 {} +
	sync
}

install_packages
install_ssm_agent
install_role
"/usr/local/bin/nstance-$role" --version
if [ "$platform" != none ] || [ -n "${NSTANCE_MODULES:-}" ]; then
	write_sbom
fi
[ "$platform" = none ] || forget
