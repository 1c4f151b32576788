#!/bin/sh
# Breaks two shards of real processes in network namespaces in every way, one with an heir and one without: scripts/chaos.sh [long] [heir|alone]
# The long form takes about three quarters of an hour and has the servers' own times. For the short one, which is a part of `make test`, a server is linked
# in which a lock with an heir holds for seconds and not for a minute and a half: the times below are its lease, its renewal, and how long a follower is
# steady before it is an heir.
set -eu
cd "$(dirname -- "$0")/.."
CHAOS=short
if [ "${1:-}" = long ]; then
	CHAOS=long
	shift
fi
case ${1:-} in
'') which=TestChaos ;;
heir | alone) which="TestChaos/^$1\$" ;;
*)
	echo "usage: scripts/chaos.sh [long] [heir|alone]" >&2
	exit 2
	;;
esac
make -s build
CHAOS_BIN=$PWD/bin
if [ "$CHAOS" = short ]; then
	CHAOS_HEIR='6s 2s 1s'
	CHAOS_BIN=$PWD/bin/tests/chaos
	mkdir -p "$CHAOS_BIN"
	cp -f bin/nstance-agent bin/dev-s3 "$CHAOS_BIN/"
	CGO_ENABLED=0 go build -trimpath -tags grpcnotrace -ldflags "-s -w -X 'main.heir=$CHAOS_HEIR'" -o "$CHAOS_BIN/" ./services/cmd/nstance-server
	export CHAOS_HEIR
fi
export CHAOS CHAOS_BIN
go test ./tests/chaos -run "$which" -count=1 -timeout 90m -v
