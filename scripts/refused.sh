#!/bin/sh
# Bring configurations that the servers cannot run to a shard, and check that it goes on: scripts/refused.sh [-keep]
set -eu
# shellcheck source=scripts/system.sh
. "$(dirname -- "$0")/system.sh"
run_system '^TestRefusedConfiguration$' -terraform="${terraform:-$(scripts/tool.sh tofu)}" "$@"
