#!/usr/bin/env bash
# Run one server of the development environment, with rebuild and restart on change. Overmind sets PS: server#1 serves shard dev-1.
set -euo pipefail

n=${PS##*#}
dir=temp/air/server-$n
cache=temp/cache
[ "$n" = 1 ] || cache=temp/cache-$n

# On the first run dev-s3 is still being built. A server that finds no object store would retry with growing pauses.
until (exec 3<>/dev/tcp/127.0.0.1/8989) 2>/dev/null; do sleep 0.2; done

exec air -c scripts/air/server.toml --tmp_dir "$dir" \
	--build.cmd "CGO_ENABLED=0 go build -o $dir/nstance-server ./services/cmd/nstance-server" \
	--build.entrypoint "$dir/nstance-server" \
	-- --id "server-$n" --shard "dev-$n" --storage s3 --bucket dev --cachedir "$cache" \
	--health-addr "0.0.0.0:$((8980 + n * 10))"
