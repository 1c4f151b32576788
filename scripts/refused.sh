#!/bin/sh
# Configure a shard in ways that its servers cannot run, and check that the shard keeps working: scripts/refused.sh [-keep]
set -eu
# shellcheck source=scripts/system.sh
. "$(dirname -- "$0")/system.sh"
run_system '^TestRefusedConfiguration$' -terraform="${terraform:-$(scripts/tool.sh tofu)}" "$@"
