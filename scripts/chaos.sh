#!/bin/sh
# Breaks a shard of real processes in network namespaces in every way: scripts/chaos.sh [long]. The long form takes about half an hour.
set -eu
cd "$(dirname -- "$0")/.."
case ${1:-short} in
short) CHAOS=short ;;
long) CHAOS=long ;;
*)
	echo "usage: scripts/chaos.sh [long]" >&2
	exit 2
	;;
esac
export CHAOS
make -s build
go test ./tests/chaos -run TestChaos -count=1 -timeout 90m -v
