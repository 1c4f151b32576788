#!/bin/sh
# kill -9 of any process of a shard, object store included, at random moments under load: tests/kill9/run.sh [-rounds=10] [-seed=N] [-keep]
set -eu
cd "$(dirname -- "$0")/../.."
make -s build
mkdir -p bin/tests
go build -o bin/tests/ ./tests/kill9
exec bin/tests/kill9 -root=. "$@"
