#!/bin/sh
# Upgrade a cluster of an earlier version part by part, under load, and go back where that is permitted:
#   scripts/upgrade.sh [-keep]
# scripts/old.sh builds the earlier version.
set -eu
# shellcheck source=scripts/system.sh
. "$(dirname -- "$0")/system.sh"

old=$(scripts/old.sh)
build_system
bin/tests/system -test.run='^TestUpgrade$' -test.v -bin="$PWD/bin" -old="$old/bin" -old-root="$old/src" \
	-terraform="${terraform:-$(scripts/tool.sh tofu)}" "$@"
