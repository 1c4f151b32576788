#!/bin/sh
# Run the whole story of a shard by itself, in a directory, on ports and under a tmux server of its own, and print a timeline. See tests/demo.
set -eu
cd "$(dirname -- "$0")/.."
# shellcheck source=scripts/progress.sh
. scripts/progress.sh

prepare
step "Building the demo" go build -o bin/tests/ ./tests/demo
exec bin/tests/demo -root=. -terraform="${terraform:?}" "$@"
