#!/usr/bin/env bash
# Run nstance-operator of the development environment, with rebuild and restart on change.
#
# Without temp/operator/kubeconfig the script makes one for dev-k8s, with everything that the operator needs (`make dev-tmux-k8s`). With a kubeconfig of
# another cluster, such as one of `make kind`, the operator works with that cluster. In both cases the servers of `make dev-tmux` must run.
set -euo pipefail
cd "$(dirname -- "$0")/.."

kubeconfig=temp/operator/kubeconfig
config=temp/operator/config.yaml
namespace=default
objects=temp/dev-k8s
# The health endpoint listens on the loopback address only.
health=127.0.0.1:8081

# healthy ADDRESS PATH succeeds if a GET has status 200.
healthy() {
	local line=
	exec 3<>"/dev/tcp/${1%:*}/${1##*:}" || return 1
	printf 'GET %s HTTP/1.0\r\n\r\n' "$2" >&3
	read -r line <&3 || true
	exec 3<&- 3>&-
	[[ $line == *' 200 '* ]]
}

# await NAME ADDRESS PATH waits until a GET has status 200.
await() {
	local i=0
	until healthy "$2" "$3" 2>/dev/null; do
		[ $((i % 50)) -ne 0 ] || echo "waiting for $1 at $2"
		i=$((i + 1))
		sleep 0.2
	done
}

# put FILE replaces the file by standard input, atomically.
put() {
	mkdir -p "$(dirname -- "$1")"
	(umask 077 && cat >"$1.new")
	mv "$1.new" "$1"
}

# json converts standard input to a JSON string.
json() { awk 'BEGIN { ORS = "" } { gsub(/\\/, "\\\\"); gsub(/"/, "\\\""); gsub(/\t/, "\\t"); gsub(/\r/, "\\r"); print $0 "\\n" }' | sed 's/^/"/; s/$/"/'; }

mkdir -p temp/operator
await "the server of shard dev-1" 127.0.0.1:8990 /health
await "the server of shard dev-2" 127.0.0.1:9000 /health

if [ ! -f "$config" ]; then
	put "$config" <<-YAML
		cluster_id: example-cluster
		tenant: default
		shards:
		  dev-1:
		    registration_addr: "127.0.0.1:8992" # for the first registration
		    operator_addr: "127.0.0.1:8993" # for everything else
		  dev-2:
		    registration_addr: "127.0.0.1:9002"
		    operator_addr: "127.0.0.1:9003"
	YAML
fi

if [ ! -f "$kubeconfig" ]; then
	put "$kubeconfig" <<-YAML
		# Made by scripts/dev-operator.sh. Replace it to use another cluster.
		apiVersion: v1
		kind: Config
		current-context: dev-k8s
		contexts: [{name: dev-k8s, context: {cluster: dev-k8s, user: dev, namespace: $namespace}}]
		clusters: [{name: dev-k8s, cluster: {server: "http://127.0.0.1:6443"}}]
		users: [{name: dev, user: {}}]
	YAML
fi

if grep -q '^current-context: dev-k8s$' "$kubeconfig"; then
	await dev-k8s 127.0.0.1:6443 /readyz
	# dev-k8s does not support protobuf.
	export NSTANCE_K8S_JSON=true
	# The first leader makes the CA.
	until [ -s temp/dev-s3/cluster/ca.crt ]; do sleep 0.2; done
	put "$objects/configmaps/$namespace/nstance-cluster-ca.json" <<-JSON
		{"data": {"ca.crt": $(json <temp/dev-s3/cluster/ca.crt)}}
	JSON
	account=$objects/serviceaccounts/$namespace/nstance-capi-workload.json
	[ -f "$account" ] || echo '{}' | put "$account"
	# A nonce is for one registration. An operator with a certificate needs none.
	if [ ! -f "$objects/secrets/$namespace/nstance-operator-cert.json" ]; then
		CGO_ENABLED=0 go build -o temp/operator/nstance-admin ./services/cmd/nstance-admin
		until nonce=$(AWS_ACCESS_KEY_ID=dev AWS_SECRET_ACCESS_KEY=dev AWS_REGION=us-east-1 AWS_ENDPOINT_URL=http://127.0.0.1:8989 \
			AWS_S3_USE_PATH_STYLE=true NSTANCE_ENCRYPTION_KEY=thisisatest32bytekey123456789012 \
			temp/operator/nstance-admin cluster nonce --cluster-id example-cluster --storage-bucket dev --key-provider env --output -); do
			sleep 1
		done
		put "$objects/secrets/$namespace/nstance-operator-nonce.json" <<-JSON
			{"stringData": {"nonce.jwt": "$nonce"}}
		JSON
	fi
fi

air=$(scripts/tool.sh air)
export NSTANCE_NAMESPACE=${NSTANCE_NAMESPACE:-$namespace} KUBECONFIG=$kubeconfig
exec "$air" -c scripts/air/operator.toml -- --config "$config" --health-probe-bind-address "$health"
