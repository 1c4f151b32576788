#!/bin/sh
# Measures the figures of docs/evidence/performance.md. Everything is in memory and on this machine; nothing else should run beside it.
#   scripts/bench.sh [PATTERN]   only the benchmarks that match: Memory, Reports, Registration (of a server in a process of its own), PowerOff …
#   scripts/bench.sh short       some of them in a minute, as the test run does: whether they still measure, not what
# BENCH_PROFILE=DIR leaves profiles of that server there, BENCH_TRACE=DIR execution traces of losses that took more than 10 ms.
set -eu
cd "$(dirname "$0")/.."
pattern=${1:-.}
times=1s
if [ "$pattern" = short ]; then
	pattern='PowerOff/agents=1000|ColdStart|Next|Machine|Report$|RegisterAgent'
	times=10x
fi
echo "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), $(nproc) cores, $(go version | cut -d' ' -f3)"
echo "== end to end: real server, real agents in another process"
go test ./services/internal/bench -run '^$' -bench "$pattern" -benchtime 1x -timeout 60m
echo "== hot paths"
go test ./services/internal/plan ./services/internal/agentapi ./services/internal/registerapi ./services/internal/filegen \
	-run '^$' -bench "$pattern" -benchtime "$times" -benchmem -timeout 20m
