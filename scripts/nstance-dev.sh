#!/bin/sh
# Run nstance-dev on the cluster of this clone, after building what it needs: scripts/nstance-dev.sh up|down|demo [FLAG...]
# scripts/nstance-dev.sh demo --keep keeps the directory of the demo.
set -eu
cd "$(dirname -- "$0")/.."
# shellcheck source=scripts/progress.sh
. scripts/progress.sh

prepare
exec bin/nstance-dev "$@" --root=. --terraform="${terraform:?}"
