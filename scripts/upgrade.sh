#!/bin/sh
# Upgrade a cluster of an earlier version part by part, under load, and go back where that is permitted:
#   scripts/upgrade.sh [-keep]
# The earlier version is built from the history of this repository, once: the binaries stay in the cache of the tools.
set -eu
# shellcheck source=scripts/system.sh
. "$(dirname -- "$0")/system.sh"

# The last commit before the first release.
old=2ab8651bf48832d4c282d2ff4381f0334bc4719a
cache=${NSTANCE_TOOLS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nstance-tools}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

git cat-file -e "$old^{commit}" 2>/dev/null || {
	echo "upgrade.sh: the commit $old is not in this clone: git fetch --unshallow, or clone with the whole history" >&2
	exit 1
}
mkdir "$work/old"
git archive "$old" | tar -x -C "$work/old"
bin=$cache/nstance-$old
if [ ! -d "$bin" ]; then
	tmp=$(mktemp -d "$cache/.build-XXXXXX")
	step "Building the earlier version" env -C "$work/old" CGO_ENABLED=0 GOFLAGS="-v -trimpath -buildvcs=false" \
		go build -tags grpcnotrace -o "$tmp/" ./services/cmd/nstance-server ./services/cmd/nstance-agent ./services/cmd/nstance-admin \
		./services/cmd/nstance-operator ./terraform-provider-nstance
	mv "$tmp" "$bin"
fi
build_system
bin/tests/system -test.run='^TestUpgrade$' -test.v -bin="$PWD/bin" -old="$bin" -old-root="$work/old" \
	-terraform="${terraform:-$(scripts/tool.sh tofu)}" "$@"
