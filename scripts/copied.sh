#!/bin/sh
# Start a server with a copy of the bucket, and check that it does not lead before cluster restore: scripts/copied.sh [-keep]
set -eu
# shellcheck source=scripts/system.sh
. "$(dirname -- "$0")/system.sh"
run_system '^TestCopiedBucket$' "$@"
