#!/bin/sh
# Build a release for this platform two times, compare the builds, and install it as a stranger would, with nothing but
# the release: signatures, packages, provider and modules from a registry, the chart. It needs root, for the machine
# that the packages are installed on.
set -eu
cd "$(dirname -- "$0")/.."

go -C scripts/release vet ./...
go -C scripts/release test ./...
go test ./tests/release -count=1 -timeout 20m -v -args -run-release -terraform="$(command -v terraform)"
