#!/bin/sh
# Print the directory of the earlier version that the tests of upgrades start from: bin/ has its programs, src/ its
# repository. The first call builds it from the history of this repository and keeps it in the cache of the tools.
set -eu
cd "$(dirname -- "$0")/.."
# shellcheck source=scripts/progress.sh
. scripts/progress.sh

# The last commit before the first release.
old=2ab8651bf48832d4c282d2ff4381f0334bc4719a
cache=${NSTANCE_TOOLS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nstance-tools}
dir=$cache/old-$old

if [ ! -d "$dir" ]; then
	git cat-file -e "$old^{commit}" 2>/dev/null || {
		echo "old.sh: the commit $old is not in this clone: git fetch --unshallow, or clone with the whole history" >&2
		exit 1
	}
	mkdir -p "$cache"
	tmp=$(mktemp -d "$cache/.build-XXXXXX")
	trap 'rm -rf "$tmp"' EXIT
	trap 'exit 1' HUP INT TERM
	mkdir "$tmp/bin" "$tmp/src"
	git archive "$old" | tar -x -C "$tmp/src"
	step "Building the earlier version" env -C "$tmp/src" CGO_ENABLED=0 GOFLAGS="-v -trimpath -buildvcs=false" \
		go build -tags grpcnotrace -o "$tmp/bin/" ./services/cmd/nstance-server ./services/cmd/nstance-agent ./services/cmd/nstance-admin \
		./services/cmd/nstance-operator ./terraform-provider-nstance >&2
	[ -d "$dir" ] || mv "$tmp" "$dir" # another call may have been faster
fi
echo "$dir"
