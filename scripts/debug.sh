#!/bin/sh
# Run every command of docs/how-to/debug.md against real servers and agents: scripts/debug.sh [-keep]
set -eu
# shellcheck source=scripts/system.sh
. "$(dirname -- "$0")/system.sh"
run_system '^TestDebugStory$' -terraform="${terraform:-$(scripts/tool.sh tofu)}" -promtool="${promtool:-$(scripts/tool.sh promtool)}" "$@"
