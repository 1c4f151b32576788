#!/bin/sh
# Build everything that a release publishes into dist/. docs/contributing/releases.md lists the files and the keys.
#
#   VERSION      such as v0.2.0
#   PLATFORMS    such as linux/amd64,darwin/arm64 (default: all)
#   STRICT       if set, warnings are errors
#   PUSH         if set, images and chart are pushed
set -eu
cd "$(dirname -- "$0")/.."

set -- -version "${VERSION:?is not set, for example VERSION=v0.2.0}" -out "$PWD/dist" "$@"
[ -z "${PLATFORMS:-}" ] || set -- -platforms "$PLATFORMS" "$@"
[ -z "${STRICT:-}" ] || set -- -strict "$@"
[ -z "${PUSH:-}" ] || set -- -push "$@"
exec go -C scripts/release run . "$@"
