#!/bin/sh
# Run a shard of two real VMs on a real libvirtd, and then on a fake cluster of Proxmox VE, in namespaces:
# scripts/libvirt.sh [-keep] [-kills=N]. It needs root and Debian.
#
#   scripts/libvirt.sh -test.run=TestDebian -debian=DIRECTORY [-vms=N] [-memory=MIB]
#
# boots VMs with the image that images/local/debian.sh wrote to DIRECTORY, side by side, and prints how long they take. With
# -test.run=TestServerVM it makes a VM for a server instead.
set -eu
cd "$(dirname -- "$0")/.."
# shellcheck source=scripts/system.sh
. scripts/system.sh
build_system
build_guest
# The test runs in a new network namespace.
exec unshare --net -- sh -c 'ip link set lo up && exec "$@"' sh \
	bin/tests/system -test.run='^Test(Libvirt|Proxmox)$' -test.v -bin="$PWD/bin" -guest="$PWD/bin/guest" "$@"
