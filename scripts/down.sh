#!/bin/sh
# Destroy what `make up` started, end its processes and remove temp/.
set -eu
cd "$(dirname -- "$0")/.."

mkdir -p bin/tests
go build -o bin/tests/ ./tests/up
exec bin/tests/up -root=. -terraform="$(scripts/tool.sh terraform-or-tofu)" -down "$@"
