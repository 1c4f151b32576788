#!/bin/sh
# Prove Nstance in a cloud account of the user: make cloud-test CLOUD=aws|gcp REGION=…. Without flags it prints how to use it.
# docs/evidence/cloud.md is the manual. The flags of this script are those of tests/cloudtest.
set -eu
cd "$(dirname -- "$0")/.."

command -v go >/dev/null || {
	echo "cloud-test.sh: go is missing: https://go.dev/dl" >&2
	exit 1
}
[ $# -gt 0 ] || set -- -help
mkdir -p bin
go build -o bin/cloud-test ./tests/cloudtest
exec bin/cloud-test "$@"
