#!/bin/sh
# Run the development environment under Overmind: dev-s3, and one server for each of the shards dev-1 and dev-2. Every program is rebuilt and
# restarted on change. The ports of dev-2 are ten higher. All state is in temp/; `make clean-dev` removes it.
#
#   scripts/dev-tmux.sh [PROCFILE]
set -eu
cd "$(dirname -- "$0")/.."
procfile=${1:-Procfile.dev}

overmind=$(scripts/tool.sh overmind)
# Air must be on PATH for the scripts of the Procfile and for the tmux provider, which runs the agents under it.
air=$(scripts/tool.sh air)
PATH=$(dirname -- "$air"):$PATH
export PATH

# Build once before Air builds each program. Programs that are built at the same time compile their common packages several times, which takes
# minutes while Go's build cache is empty.
programs="dev-s3 nstance-server nstance-agent"
[ "$procfile" = Procfile.dev ] || programs="$programs dev-k8s nstance-operator nstance-admin"
echo "building $programs (some minutes on the first run)"
set --
for program in $programs; do set -- "$@" "./services/cmd/$program"; done
CGO_ENABLED=0 go build "$@"

# The values of the documentation and the examples. They protect nothing.
export AWS_ACCESS_KEY_ID=dev AWS_SECRET_ACCESS_KEY=dev AWS_REGION=us-east-1
export AWS_ENDPOINT_URL=http://127.0.0.1:8989 AWS_S3_USE_PATH_STYLE=true
export NSTANCE_ENCRYPTION_KEY=thisisatest32bytekey123456789012

# Each shard starts with the example. An existing configuration stays, so that it can be edited.
for n in 1 2; do
	config=temp/dev-s3/config/dev-$n.jsonc
	if [ ! -f "$config" ]; then
		mkdir -p "$(dirname -- "$config")"
		sed -e "s/\"dev-1\"/\"dev-$n\"/g" -e "s/:899\\([0-9]\\)/:$((898 + n))\\1/g" examples/config-tmux.jsonc >"$config.new"
		mv "$config.new" "$config"
	fi
done

# clean-dev.sh stops this process.
mkdir -p temp
echo $$ >temp/overmind.pid
exec "$overmind" start --procfile "$procfile" --formation server=2 --no-port --socket .overmind.sock --timeout 15
