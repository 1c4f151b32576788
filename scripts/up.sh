#!/bin/sh
# Start a cluster on this machine in temp/, or bring one that runs up to date, and show it. See tests/up.
set -eu
cd "$(dirname -- "$0")/.."
# shellcheck source=scripts/progress.sh
. scripts/progress.sh

prepare
step "Building make up" go build -o bin/tests/ ./tests/up
exec bin/tests/up -root=. -terraform="${terraform:?}" "$@"
