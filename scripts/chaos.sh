#!/bin/sh
# Break two shards of real processes in network namespaces, one with an heir and one without:
#   scripts/chaos.sh [long] [heir|alone]
# "long" runs every fault at full length, with the servers of a release. It takes about three quarters of an hour.
# The short form links a server in which the lock with an heir has a lease of 6 s, is renewed every 2 s, and a follower
# becomes the heir after 1 s.
set -eu
form=short
if [ "${1:-}" = long ]; then
	form=long
	shift
fi
case ${1:-} in
'') test='^TestChaos$' ;;
heir | alone) test="^TestChaos\$/^$1\$" ;;
*)
	echo "usage: scripts/chaos.sh [long] [heir|alone]" >&2
	exit 2
	;;
esac
cd "$(dirname -- "$0")/.."
# shellcheck source=scripts/system.sh
. scripts/system.sh
if [ "$form" = long ]; then
	run_system "$test" -chaos=long
fi
bin=$PWD/bin/tests/chaos
mkdir -p "$bin"
step "Building servers with short times" go build -tags grpcnotrace -ldflags "-X 'main.heir=6s 2s 1s'" -o "$bin/" \
	./services/cmd/nstance-server ./services/cmd/nstance-agent ./services/cmd/dev-s3
run_system "$test" -chaos=short -heir-lease=6s
