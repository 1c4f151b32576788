#!/bin/sh
# Measures the figures of docs/performance.md. Everything is in memory and on this machine; nothing else should run beside it.
#   scripts/bench.sh [PATTERN]   only the benchmarks that match: Memory, Reports, Registration (of a server in a process of its own), PowerOff …
# BENCH_PROFILE=DIR leaves profiles of that server there.
set -eu
cd "$(dirname "$0")/.."
pattern=${1:-.}
echo "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), $(nproc) cores, $(go version | cut -d' ' -f3)"
echo "== end to end: real server, real agents in another process"
go test ./services/internal/bench -run '^$' -bench "$pattern" -benchtime 1x -timeout 60m
echo "== hot paths"
go test ./services/internal/plan ./services/internal/agentapi ./services/internal/registerapi ./services/internal/filegen \
	-run '^$' -bench "$pattern" -benchmem -timeout 20m
