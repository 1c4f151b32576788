#!/bin/sh
# Kill random processes of a shard (kill -9) under load and check that the shard recovers:
#   scripts/kill9.sh [-rounds=10] [-seed=N] [-keep]
set -eu
# shellcheck source=scripts/system.sh
. "$(dirname -- "$0")/system.sh"
run_system '^TestKill9$' "$@"
