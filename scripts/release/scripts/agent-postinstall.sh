#!/bin/sh
# The unit is not enabled: it needs settings in /etc/nstance/agent.env. If it runs, it is restarted.
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart nstance-agent
fi
