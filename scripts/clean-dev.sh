#!/bin/sh
# Stop the development environment (Overmind and its programs, the tmux session of the agents) and remove temp/.
set -eu
cd "$(dirname -- "$0")/.."

if [ -S .overmind.sock ]; then
	"$(scripts/tool.sh overmind)" quit 2>/dev/null || true
	# Overmind removes its socket when its last process has ended. It kills processes after 15 s.
	i=0
	while [ -S .overmind.sock ] && [ "$i" -lt 100 ]; do
		sleep 0.2
		i=$((i + 1))
	done
	rm -f .overmind.sock
fi
# A build that Air started does not end with Air, and would write to temp/ again.
for pid in $(pgrep -f 'go build -o temp/air/'); do
	dir=$(readlink "/proc/$pid/cwd" 2>/dev/null || lsof -a -p "$pid" -d cwd -Fn 2>/dev/null | sed -n 's/^n//p')
	[ "$dir" != "$PWD" ] || kill "$pid" 2>/dev/null || true
done
# Air ends before the program that it runs. Wait, so that the ports are free for the next start.
i=0
while pgrep -f "$PWD/temp/air/" >/dev/null 2>&1 && [ "$i" -lt 100 ]; do
	sleep 0.2
	i=$((i + 1))
done
if command -v tmux >/dev/null; then
	tmux kill-session -t =nstance-dev-agents 2>/dev/null || true
fi
rm -rf temp
