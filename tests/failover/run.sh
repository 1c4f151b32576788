#!/bin/sh
# How long a shard has no leader after kill -9, SIGSTOP and SIGTERM, with an heir:
#   tests/failover/run.sh [-rounds=30] [-how=kill,pause,stop] [-idle=10m] [-most=1.5s] [-slow=2s -logs=DIR]
# without (-promise=0), with thousands of instances of a fake EC2 (-records=5000), the leader's machine terminated with it (-terminated).
set -eu
cd "$(dirname -- "$0")/../.."
# shellcheck source=scripts/progress.sh
. scripts/progress.sh

step "Building Nstance" env GOFLAGS="-v ${GOFLAGS:-}" make -s build
mkdir -p bin/tests
step "Building the trial" go build -o bin/tests/ ./tests/failover
exec bin/tests/failover -root=. "$@"
