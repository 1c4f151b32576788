#!/bin/sh
# Rotate the CA of a cluster while a client calls it, agents run, and the rotation is interrupted (about 20 minutes): scripts/rotate-ca.sh [-keep]
set -eu
# shellcheck source=scripts/system.sh
. "$(dirname -- "$0")/system.sh"
run_system '^TestRotateCA$' "$@" -test.timeout=50m
