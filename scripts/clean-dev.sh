#!/bin/sh
# Remove the development environment: Overmind and what it runs, the agents' tmux session, temp/.
set -eu
cd "$(dirname -- "$0")/.."

if [ -S .overmind.sock ]; then
	"$(scripts/tool.sh overmind)" quit 2>/dev/null || true
	# Overmind removes its socket when the last process has ended, or is killed after 15 s.
	i=0
	while [ -S .overmind.sock ] && [ "$i" -lt 100 ]; do
		sleep 0.2
		i=$((i + 1))
	done
	rm -f .overmind.sock
fi
# Air ends before the server that it runs. A new one would find the ports taken.
i=0
while pgrep -f "$PWD/temp/air/" >/dev/null 2>&1 && [ "$i" -lt 100 ]; do
	sleep 0.2
	i=$((i + 1))
done
if command -v tmux >/dev/null; then
	tmux kill-session -t =nstance-dev-agents 2>/dev/null || true
fi
rm -rf temp
