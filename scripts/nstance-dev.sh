#!/bin/sh
# Run nstance-dev on the cluster of this clone, after building what it needs: scripts/nstance-dev.sh up|down|demo [FLAG...]
# scripts/nstance-dev.sh demo --keep keeps the directory of the demo.
set -eu
cd "$(dirname -- "$0")/.."
# shellcheck source=scripts/progress.sh
. scripts/progress.sh

# What runs is stopped with the programs that started it.
if [ "${1:-}" = down ] && [ -x bin/nstance-dev ]; then
	exec bin/nstance-dev "$@" --root=. --terraform="$(scripts/tool.sh terraform-or-tofu)"
fi
prepare
exec bin/nstance-dev "$@" --root=. --terraform="${terraform:?}"
