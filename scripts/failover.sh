#!/bin/sh
# Measure how long a shard has no leader after kill -9, SIGSTOP and SIGTERM of the leader:
#   scripts/failover.sh [-rounds=30] [-how=kill,pause,stop] [-most=1.5s] [-idle=10m] [-slow=2s -logs=DIR] [-keep]
#   scripts/failover.sh -promise=0                  without an heir
#   scripts/failover.sh -records=5000 [-terminated] [-attach=3s] with instances of a fake EC2; -terminated ends the leader's machine too
set -eu
# shellcheck source=scripts/system.sh
. "$(dirname -- "$0")/system.sh"
run_system '^TestFailover$' "$@"
