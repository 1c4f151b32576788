#!/bin/sh
# Run nstance-dev on the cluster of this clone, after building what it needs: scripts/nstance-dev.sh up|down|demo [FLAG...]
# scripts/nstance-dev.sh demo --keep keeps the directory of the demo. up --provider=libvirt starts real VMs; it needs root and Debian.
set -eu
cd "$(dirname -- "$0")/.."
# shellcheck source=scripts/progress.sh
. scripts/progress.sh

# "down" runs without a build: the present binaries stop the programs that they started.
if [ "${1:-}" = down ] && [ -x bin/trial/nstance-dev ]; then
	exec bin/trial/nstance-dev "$@" --root=.
fi
case " $* " in
*" --provider=libvirt "*)
	need go "https://go.dev/dl (Go downloads the version that go.mod names, if it is newer)"
	build_trial
	build_guest
	exec bin/trial/nstance-dev "$@" --root=.
	;;
esac
prepare
exec bin/trial/nstance-dev "$@" --root=. --terraform="${terraform:?}"
