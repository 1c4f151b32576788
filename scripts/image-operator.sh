#!/bin/sh
# Make the operator's container image, and push it when PUSH names where to. Prints its digest.
set -eu
cd "$(dirname -- "$0")/.."

set -- -program nstance-operator -out "$PWD/bin/nstance-operator-image" "$@"
[ -z "${VERSION:-}" ] || set -- -version "$VERSION" "$@"
[ -z "${PUSH:-}" ] || set -- -push "$PUSH" "$@"
exec go -C images/container run . "$@"
