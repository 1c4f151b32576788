#!/bin/sh
# kill -9 of any process of a shard, object store included, at random moments under load: tests/kill9/run.sh [-rounds=10] [-seed=N] [-keep]
set -eu
cd "$(dirname -- "$0")/../.."
# shellcheck source=scripts/progress.sh
. scripts/progress.sh

step "Building Nstance" env GOFLAGS="-v ${GOFLAGS:-}" make -s build
mkdir -p bin/tests
step "Building the trial" go build -o bin/tests/ ./tests/kill9
exec bin/tests/kill9 -root=. "$@"
