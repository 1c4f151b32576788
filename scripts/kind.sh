#!/usr/bin/env bash
# Create a kind cluster for an nstance-operator that runs on this machine (`make dev-operator`).
#
#   scripts/kind.sh up      create the cluster, install Cluster API and the CRDs of Nstance, and give the operator its CA and nonce
#   scripts/kind.sh down    delete the cluster
#
# CAPI_VERSION and CERT_MANAGER_VERSION select other releases.
set -euo pipefail
cd "$(dirname -- "$0")/.."

name=nstance-dev
kubeconfig=temp/operator/kubeconfig
bucket=temp/dev-s3

need() {
	command -v "$1" >/dev/null && return
	echo "kind.sh: $1 is needed: $2" >&2
	exit 1
}
need kind https://kind.sigs.k8s.io
need kubectl https://kubernetes.io/docs/tasks/tools
need curl "it fetches the release of Cluster API"

case ${1:-} in
up) ;;
down)
	kind delete cluster --name "$name"
	rm -f "$kubeconfig" temp/operator/config.yaml
	exit
	;;
*)
	echo "usage: scripts/kind.sh up|down" >&2
	exit 2
	;;
esac

if [ ! -f "$bucket/cluster/ca.crt" ]; then
	echo "kind.sh: $bucket/cluster/ca.crt does not exist: start the servers first, with 'make dev-tmux' in another terminal" >&2
	exit 1
fi
if [ -f "$kubeconfig" ] && grep -q '^current-context: dev-k8s$' "$kubeconfig"; then
	echo "kind.sh: $kubeconfig is for dev-k8s: stop 'make dev-tmux-k8s', run 'make clean-dev' and start again with 'make dev-tmux'" >&2
	exit 1
fi

step() { printf '\n==> %s\n' "$*"; }

step "The cluster $name"
mkdir -p temp/operator
cat >temp/kind-config.yaml <<-YAML
	kind: Cluster
	apiVersion: kind.x-k8s.io/v1alpha4
	nodes:
	  - role: control-plane
YAML
kind get clusters | grep -qx "$name" || kind create cluster --name "$name" --config temp/kind-config.yaml
(umask 077 && kind get kubeconfig --name "$name" >"$kubeconfig")
export KUBECONFIG=$kubeconfig
kubectl cluster-info

step "cert-manager, which makes the certificates for the webhooks of Cluster API"
release=latest/download
[ -z "${CERT_MANAGER_VERSION:-}" ] || release=download/$CERT_MANAGER_VERSION
kubectl apply -f "https://github.com/cert-manager/cert-manager/releases/$release/cert-manager.yaml"
kubectl wait --for=condition=Available deployment --all -n cert-manager --timeout=300s

# The version with which the operator is built and tested.
version=${CAPI_VERSION:-$(sed -n 's|.*sigs.k8s.io/cluster-api/api \(v[0-9.]*\).*|\1|p' go.mod)}
step "Cluster API $version"
curl -sSfL "https://github.com/kubernetes-sigs/cluster-api/releases/download/$version/core-components.yaml" |
	sed -E 's/\$\{[A-Za-z_][A-Za-z0-9_]*:=([^}]*)\}/\1/g' |
	kubectl apply --server-side -f -
kubectl wait --for=condition=Available deployment --all -n capi-system --timeout=300s

step "The CRDs of Nstance"
kubectl apply -k config/crd/
kubectl wait --for=condition=Established --timeout=60s crd -l cluster.x-k8s.io/v1beta2=v1beta1

step "The CA certificate and a nonce"
# After `make clean-dev` the Nstance cluster has a new CA, and the certificate of the operator is not valid any more.
known=$(kubectl get configmap nstance-cluster-ca --ignore-not-found -o 'jsonpath={.data.ca\.crt}')
if [ -n "$known" ] && [ "$known" != "$(cat "$bucket/cluster/ca.crt")" ]; then
	kubectl delete secret --ignore-not-found nstance-operator-cert nstance-operator-key nstance-operator-nonce
fi
kubectl create configmap nstance-cluster-ca --from-file=ca.crt="$bucket/cluster/ca.crt" --dry-run=client -o yaml | kubectl apply -f -
if kubectl get secret nstance-operator-cert >/dev/null 2>&1; then
	echo "the operator is registered and needs no nonce"
else
	make --no-print-directory nstance-admin
	nonce=$(AWS_ACCESS_KEY_ID=dev AWS_SECRET_ACCESS_KEY=dev AWS_REGION=us-east-1 AWS_ENDPOINT_URL=http://127.0.0.1:8989 \
		AWS_S3_USE_PATH_STYLE=true NSTANCE_ENCRYPTION_KEY=thisisatest32bytekey123456789012 \
		./bin/nstance-admin cluster nonce --cluster-id example-cluster --storage-bucket dev --key-provider env --output -)
	# Other users can see arguments, so the nonce goes through a pipe.
	printf %s "$nonce" | kubectl create secret generic nstance-operator-nonce --from-file=nonce.jwt=/dev/stdin --dry-run=client -o yaml | kubectl apply -f -
fi

printf '\nThe cluster is ready. Run the operator with: make dev-operator\n'
