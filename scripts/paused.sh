#!/bin/sh
# Pause the leader (SIGSTOP) of a cluster as `make up` starts it, and check that the standby takes over: scripts/paused.sh [-keep]
set -eu
# shellcheck source=scripts/system.sh
. "$(dirname -- "$0")/system.sh"
run_system '^TestPausedLeader$' -terraform="${terraform:-$(scripts/tool.sh tofu)}" "$@"
