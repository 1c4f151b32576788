#!/bin/sh
# Test the developers' workflow: run `make dev-tmux` and `make dev-tmux-k8s`, wait until the VMs of both shards are healthy,
# scale a group, and check that `make clean-dev` leaves no process, no tmux session and no file. It uses temp/ and the ports of `make up`.
set -eu
cd "$(dirname -- "$0")/.."

fail() {
	echo "dev-check.sh: $*" >&2
	[ ! -f "$log" ] || tail -n 60 "$log" >&2
	exit 1
}
log=
work=$(mktemp -d)
# shellcheck disable=SC2329 # called by trap
finish() {
	[ -z "$log" ] || make -s clean-dev >/dev/null 2>&1 || true
	rm -rf "$work"
}
trap finish EXIT
trap 'exit 1' HUP INT
# scripts/test.sh limits the time of this test. The list shows what hangs.
trap 'ps -e -o pid,ppid,stat,etime,args >&2; exit 1' TERM
[ ! -e temp ] || fail "temp/ exists: a cluster may be running (make down, make clean-dev)"

export AWS_ACCESS_KEY_ID=dev AWS_SECRET_ACCESS_KEY=dev AWS_REGION=us-east-1
export AWS_ENDPOINT_URL=http://127.0.0.1:8989 AWS_S3_USE_PATH_STYLE=true
export NSTANCE_ENCRYPTION_KEY=thisisatest32bytekey123456789012
export NSTANCE_ADMIN_SERVERS=dev-1=127.0.0.1:8993,dev-2=127.0.0.1:9003
go build -tags grpcnotrace -o "$work/nstance-admin" ./services/cmd/nstance-admin

# await SECONDS WHAT COMMAND... repeats the command until it succeeds.
await() {
	seconds=$1 what=$2
	shift 2
	until "$@" >"$work/out" 2>&1; do
		seconds=$((seconds - 1))
		[ "$seconds" -gt 0 ] || {
			cat "$work/out" >&2
			fail "timeout while waiting until $what"
		}
		sleep 1
	done
	echo "  $what"
}

# healthy COUNT succeeds if the two shards have that many healthy instances and no others.
healthy() {
	"$work/nstance-admin" instance list --all-shards --request-timeout 5s -o json >"$work/instances"
	cat "$work/instances"
	[ "$(jq '[.shards[].instances[]? | select(.state != "deleted")] | length' "$work/instances")" -eq "$1" ] &&
		[ "$(jq '[.shards[].instances[]? | select(.health == "healthy")] | length' "$work/instances")" -eq "$1" ]
}

register() {
	"$work/nstance-admin" cluster register-operator --cluster-id example-cluster --storage-bucket dev --output-dir "$work/$target"
}

# check TARGET [COMMAND...] starts the environment, scales a group, runs the command, and removes the environment.
check() {
	target=$1
	shift
	echo "-- make $target"
	log=$work/$target.log
	make "$target" >"$log" 2>&1 &
	pid=$!
	export NSTANCE_ADMIN_IDENTITY_DIR="$work/$target"
	await 600 "an operator is registered" register
	await 600 "both shards have two healthy instances" healthy 4
	"$work/nstance-admin" group scale workers 3 --shard dev-1 >/dev/null
	await 120 "dev-1 has three healthy instances" healthy 5
	[ $# -eq 0 ] || await 600 "$*" "$@"
	make -s clean-dev
	echo "  make clean-dev has ended"
	wait "$pid" || true
	[ ! -e temp ] || fail "make clean-dev left temp/"
	! pgrep -f "$PWD/temp/" >"$work/out" || fail "make clean-dev left processes: $(cat "$work/out")"
	! tmux has-session -t =nstance-dev-agents 2>/dev/null || fail "make clean-dev left the tmux session of the agents"
	log=
	echo "  make clean-dev left nothing"
}

# nodes_exist succeeds if dev-k8s has a Node for each VM, and the operator is registered.
nodes_exist() {
	[ "$(find temp/dev-k8s/nodes -name '*.json' | wc -l)" -ge 5 ] &&
		[ -f temp/dev-k8s/secrets/default/nstance-operator-cert.json ]
}

check dev-tmux
check dev-tmux-k8s nodes_exist
