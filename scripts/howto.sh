#!/bin/sh
# Run the commands of pages in docs/how-to against real servers and agents: scripts/howto.sh [-keep]
set -eu
# shellcheck source=scripts/system.sh
. "$(dirname -- "$0")/system.sh"
run_system '^TestHowTo$' -promtool="${promtool:-$(scripts/tool.sh promtool)}" "$@"
