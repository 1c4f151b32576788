#!/bin/sh
# How long a shard has no leader after kill -9 and after SIGTERM, with an heir: tests/failover/run.sh [-rounds=30] [-idle=10m] [-most=1.5s]
set -eu
cd "$(dirname -- "$0")/../.."
# shellcheck source=scripts/progress.sh
. scripts/progress.sh

step "Building Nstance" env GOFLAGS="-v ${GOFLAGS:-}" make -s build
mkdir -p bin/tests
step "Building the trial" go build -o bin/tests/ ./tests/failover
exec bin/tests/failover -root=. "$@"
