#!/bin/sh
# Build the container image of the operator, push it to PUSH if that is set, and print its digest.
set -eu
cd "$(dirname -- "$0")/.."

set -- -program nstance-operator -out "$PWD/bin/nstance-operator-image" "$@"
[ -z "${VERSION:-}" ] || set -- -version "$VERSION" "$@"
[ -z "${PUSH:-}" ] || set -- -push "$PUSH" "$@"
exec go -C images/container run . "$@"
