#!/bin/sh
# Stop the development environment (Overmind and its programs, the tmux session of the agents) and remove temp/.
set -eu
cd "$(dirname -- "$0")/.."

if [ -S .overmind.sock ]; then
	pid=$(cat temp/overmind.pid)
	# Overmind's tmux server has a socket of its own. Its name is in the arguments of the client, a child of Overmind.
	socket=$(ps -o args= -p "$(pgrep -P "$pid" tmux | head -n 1)" 2>/dev/null | sed -n 's/.* -L \([^ ]*\) .*/\1/p') || true
	"$(scripts/tool.sh overmind)" quit 2>/dev/null || true
	# Overmind kills its programs after 15 s, and ends when the last of them has ended.
	i=0
	while kill -0 "$pid" 2>/dev/null && [ "$i" -lt 150 ]; do
		sleep 0.2
		i=$((i + 1))
	done
	if kill -0 "$pid" 2>/dev/null; then
		echo "clean-dev.sh: Overmind (process $pid) did not end within 30 s, and is killed with its tmux server" >&2
		ps -e -o pid,ppid,stat,etime,args >&2
		kill -KILL "$pid" 2>/dev/null || true
		[ -z "$socket" ] || pkill -KILL -f -- "-L $socket" || true
	fi
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
