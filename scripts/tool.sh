#!/bin/sh
# Print the path of a pinned tool. The first call builds it.
#
#   scripts/tool.sh NAME               a module under tests/tools, or one of the binaries of such a module
#   scripts/tool.sh tofu               tofu on PATH, else a built one
#   scripts/tool.sh axe-core           axe.min.js of axe-core, which npm fetches
#   scripts/tool.sh minisearch         the script of MiniSearch, which npm fetches
#   scripts/tool.sh terraform-or-tofu  tofu on PATH, else terraform on PATH, else a built tofu
#
# The cache is in $NSTANCE_TOOLS_CACHE (default ~/.cache/nstance-tools), outside the clone. Its key is a hash of the tool's
# files, go.mod and go.sum, so several versions can stay in it. Standard output has the path only.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
tools=$root/tests/tools
name=${1:-}

if [ $# -ne 1 ] || [ -z "$name" ]; then
	echo "usage: scripts/tool.sh NAME, one of: axe-core minisearch terraform-or-tofu protoc-gen-go protoc-gen-go-grpc kube-apiserver kube-controller-manager kube-scheduler kubectl controller-gen capi-core prometheus $(cd "$tools" && echo ./*/ | sed 's|[./]||g')" >&2
	exit 2
fi

sha256() {
	if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi
}

cache=${NSTANCE_TOOLS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nstance-tools}

# fetch_npm PACKAGE VERSION SHA256 FILE fetches one file of a pinned npm package into the cache and prints its path.
fetch_npm() {
	dir=$cache/$1-$2
	script=$dir/$(basename "$4")
	if [ ! -f "$script" ]; then
		mkdir -p "$cache"
		tmp=$(mktemp -d "$cache/.fetch-XXXXXX")
		trap 'rm -rf "$tmp"' EXIT
		trap 'exit 1' HUP INT TERM
		(cd "$tmp" && npm pack --silent "$1@$2" >&2)
		if [ "$(sha256 <"$tmp/$1-$2.tgz" | cut -c1-64)" != "$3" ]; then
			echo "tool.sh: $1 $2 is not the pinned one: its SHA-256 is not $3" >&2
			exit 1
		fi
		tar -xzf "$tmp/$1-$2.tgz" -C "$tmp" "package/$4"
		mkdir -p "$dir"
		mv "$tmp/package/$4" "$dir/"
	fi
	echo "$script"
}

ldflags='-s -w'
module=$name
case $name in
axe-core)
	fetch_npm axe-core 4.14.1 e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745 axe.min.js
	exit 0
	;;
minisearch)
	fetch_npm minisearch 7.2.0 cb3b8126a3ea65d6b387787294f0792b0ea4a40b70f8f37688066a5638e0218a dist/umd/index.js
	exit 0
	;;
terraform-or-tofu)
	command -v tofu || command -v terraform || exec "$0" tofu
	exit 0
	;;
tofu)
	if command -v tofu; then
		exit 0
	fi
	# Without this flag tofu warns that it is a development version.
	ldflags="$ldflags -X github.com/opentofu/opentofu/version.dev=no"
	;;
protoc-gen-go*)
	module=protoc
	;;
kube-apiserver | kube-controller-manager | kube-scheduler | kubectl)
	module=kubernetes
	# Without these flags the version is v0.0.0-master, which Cluster API refuses.
	version=$(sed -n 's|.*k8s.io/kubernetes \(v[0-9.]*\).*|\1|p' "$tools/kubernetes/go.mod")
	minor=${version#v1.}
	for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
		ldflags="$ldflags -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}"
	done
	;;
controller-gen)
	module=controller-tools
	;;
capi-core)
	module=cluster-api
	;;
prometheus)
	module=promtool
	;;
esac

if [ ! -f "$tools/$module/go.mod" ]; then
	echo "tool.sh: no tool called $name: there is no $tools/$module/go.mod" >&2
	exit 2
fi

key=$(find "$tools/$module" -type f | LC_ALL=C sort | xargs cat | sha256 | cut -c1-16)
dir=$cache/$module-$key
bin=$dir/$name

if [ ! -x "$bin" ]; then
	mkdir -p "$cache"
	# With flock two callers do not build the same module twice. Without it the second result replaces the first.
	if command -v flock >/dev/null; then
		exec 9>"$cache/$module.lock"
		flock 9
	fi
fi
if [ ! -x "$bin" ]; then
	echo "tool.sh: building $module (once; kept in $cache)" >&2
	start=$(date +%s)
	tmp=$(mktemp -d "$cache/.build-XXXXXX")
	trap 'rm -rf "$tmp"' EXIT
	trap 'exit 1' HUP INT TERM
	unset GOOS GOARCH
	(cd "$tools/$module" && GOWORK=off GOFLAGS='-mod=readonly -buildvcs=false' CGO_ENABLED=0 \
		go build -trimpath -ldflags "$ldflags" -o "$tmp/" tool >&2)
	# go build names these programs after their directories.
	case $module in
	etcd) mv "$tmp/server" "$tmp/etcd" ;;
	cluster-api) mv "$tmp/core" "$tmp/capi-core" ;;
	esac
	if [ ! -x "$tmp/$name" ]; then
		echo "tool.sh: module $module does not build $name" >&2
		exit 1
	fi
	mkdir -p "$dir"
	mv "$tmp"/* "$dir"/
	echo "tool.sh: built $module in $(($(date +%s) - start)) s" >&2
fi
echo "$bin"
