#!/bin/sh
# Run the benchmarks of docs/evidence. They run in memory on this machine. Run nothing else at the same time.
#   scripts/bench.sh [PATTERN]   only matching benchmarks, such as Memory, Reports, Registration (of a server in its own process) or PowerOff
#   scripts/bench.sh short       some of them, in a minute, to check that they work; the figures mean nothing
# BENCH_PROFILE=DIR writes profiles of the server, BENCH_TRACE=DIR execution traces of losses that took more than 10 ms.
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
go test ./services/internal/proof/bench -run '^$' -bench "$pattern" -benchtime 1x -timeout 60m
echo "== hot paths"
go test ./services/internal/server/plan ./services/internal/server/serve/agentapi ./services/internal/server/serve/registerapi ./services/internal/server/filegen \
	-run '^$' -bench "$pattern" -benchtime "$times" -benchmem -timeout 20m
