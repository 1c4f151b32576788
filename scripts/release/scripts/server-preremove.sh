#!/bin/sh
# An upgrade calls this script with "upgrade" (deb) or 1 (rpm). The units go on running until the new version is there.
set -e
case ${1:-} in
upgrade | 1) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
	for unit in nstance-server nstance-server-health; do
		systemctl stop "$unit"
		systemctl disable "$unit"
	done
fi
