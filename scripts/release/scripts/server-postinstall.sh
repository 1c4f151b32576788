#!/bin/sh
# The units are not enabled: they need settings in /etc/nstance/server.env. Those that run are restarted.
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	for unit in nstance-server nstance-server-health; do
		systemctl try-restart "$unit"
	done
fi
