#!/bin/sh
# Check what installs the operator, without a cluster: the Helm chart, the kustomize bases, the examples for Flux and Argo CD, the components for clusterctl and the
# container image. tests/delivery installs the same on a real API server.
#
#   scripts/k8s-check.sh          all checks
#   scripts/k8s-check.sh CHECK... some of them: chart kustomize flux argocd clusterctl metrics image
set -eu
cd "$(dirname -- "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
helm=$(scripts/tool.sh helm)
kubeconform=$(scripts/tool.sh kubeconform)
# The helm of scripts/tool.sh does not know a Kubernetes version, so it needs --kube-version.
kube=$(sed -n 's|.*k8s.io/kubernetes \(v[0-9.]*\).*|\1|p' tests/tools/kubernetes/go.mod)
chart=services/operator/chart
PATH=$(dirname -- "$(scripts/tool.sh kubectl)"):$PATH # for its kustomize, and for tests/delivery
export PATH

fail() {
	echo "k8s-check.sh: $*" >&2
	exit 1
}

# schemas makes the schemas of all kinds of objects: of Kubernetes, Cluster API, Flux, Argo CD and Prometheus from their modules, and of Nstance.
schemas() {
	[ ! -d "$work/schemas" ] || return 0
	kubernetes=$(module kubernetes k8s.io/kubernetes)
	capi=$(module cluster-api sigs.k8s.io/cluster-api)
	argocd=$(module argo-cd github.com/argoproj/argo-cd/v3)
	mkdir "$work/crds"
	generate=$(scripts/tool.sh controller-gen)
	(cd tests/delivery/definitions && GOWORK=off GOFLAGS=-mod=readonly "$generate" crd:crdVersions=v1,allowDangerousTypes=true \
		paths=github.com/fluxcd/helm-controller/api/v2 paths=github.com/fluxcd/kustomize-controller/api/v1 paths=github.com/fluxcd/source-controller/api/v1 \
		paths=github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1 output:crd:dir="$work/crds")
	kubectl kustomize config/crd >"$work/crds/nstance.yaml"
	go run ./tests/delivery/schemas -out "$work/schemas" -openapi "$kubernetes/api/openapi-spec/v3" "$work"/crds/*.yaml "$capi"/core/config/crd/bases/*.yaml \
		"$argocd/manifests/crds/application-crd.yaml"
}

# module TOOL PATH prints the directory of a module that a tool is built from. It downloads the module first if necessary.
module() {
	go -C "tests/tools/$1" mod download "$2"
	go -C "tests/tools/$1" list -m -f '{{.Dir}}' "$2"
}

# conform FILE NAME [KIND] checks that every object in FILE fits its schema. The error calls the file NAME. Objects of KIND are not checked, nor is
# CoreProvider: it belongs to the Cluster API operator, and its schema is not at hand.
conform() {
	schemas
	"$kubeconform" -strict -skip "operator.cluster.x-k8s.io/v1alpha2/CoreProvider${3:+,$3}" \
		-schema-location "$work/schemas/{{.Group}}/{{.ResourceKind}}_{{.ResourceAPIVersion}}.json" "$1" || fail "$2 is not valid"
}

# template NAME FLAG... renders the chart into $work/NAME.yaml.
template() {
	name=$1
	shift
	"$helm" template nstance-operator "$chart" --kube-version "$kube" --namespace nstance-system "$@" >"$work/$name.yaml"
}

check_chart() {
	for values in "$chart"/ci/*.yaml; do
		"$helm" lint --strict --quiet --kube-version "$kube" "$chart" -f "$values"
		name=$(basename "$values" .yaml)
		template "$name" -f "$values"
		conform "$work/$name.yaml" "the chart with $values"
	done
	# The chart must refuse bad values.
	refused=0
	while read -r set names; do
		case $set in '' | '#'*) continue ;; esac
		if template refused -f "$chart/ci/minimal.yaml" --set "$set" 2>"$work/error"; then
			fail "the chart accepts $set"
		fi
		grep -E -q -- "$names" "$work/error" || {
			cat "$work/error" >&2
			fail "the error of the chart for $set does not name $names"
		}
		refused=$((refused + 1))
	done <"$chart/ci/refused.txt"
	[ "$refused" -gt 10 ] || fail "only $refused bad values were tried"
	"$helm" package "$chart" --destination "$work" >/dev/null
	tar -tzf "$work"/nstance-operator-*.tgz | grep -q 'nstance-operator/files/crds.yaml' || fail "the packed chart has no CRDs"
	if tar -tzf "$work"/nstance-operator-*.tgz | grep -q '/ci/'; then fail "the packed chart has the values of the checks"; fi
	echo "chart: $refused bad values are refused"
}

check_kustomize() {
	for dir in base default example clusterctl; do
		kubectl kustomize "services/operator/kustomize/$dir" >"$work/$dir.yaml"
		conform "$work/$dir.yaml" "kustomize/$dir"
	done
	for component in services/operator/kustomize/components/*; do
		case $component in */without-on-demand) continue ;; esac # it excludes another component; tests/delivery builds it
		grep -q "components/$(basename "$component")" services/operator/kustomize/example/kustomization.yaml || fail "no example uses $component"
	done
	conform examples/kubernetes-node/nstance-server.yaml examples/kubernetes-node
	echo "kustomize: base, default, example with every component"
}

check_flux() {
	for dir in examples/flux/clusters/* examples/flux/infrastructure/*/* examples/flux/operator/* examples/flux/pools/*; do
		kubectl kustomize "$dir" >"$work/flux.yaml" || fail "$dir cannot be built"
		conform "$work/flux.yaml" "$dir"
	done
	# Every directory that a Flux Kustomization names must exist.
	for cluster in examples/flux/clusters/*; do
		kubectl kustomize "$cluster" | sed -n 's|^  path: \./||p' >"$work/paths"
		[ -s "$work/paths" ] || fail "$cluster names no directory"
		while read -r path; do
			[ -d "examples/flux/$path" ] || [ "$path" = config/crd ] || fail "$cluster names ./$path, which does not exist"
		done <"$work/paths"
	done
	echo "flux: every directory builds, and every object fits its schema"
}

check_argocd() {
	for environment in base staging production; do
		kubectl kustomize "examples/argocd/$environment" >"$work/argocd.yaml" || fail "examples/argocd/$environment cannot be built"
		conform "$work/argocd.yaml" "examples/argocd/$environment"
		# The directories of the pools are those of the example for Flux.
		path=$(sed -n 's|^    path: ||p' "$work/argocd.yaml")
		[ -d "examples/flux/$path" ] || fail "examples/argocd/$environment names $path, which does not exist"
	done
	echo "argocd: every directory builds, and every object fits its schema"
}

# check_clusterctl runs clusterctl with a directory as its repository.
check_clusterctl() {
	clusterctl=$(scripts/tool.sh clusterctl)
	version=v$(sed -n 's/^version: //p' "$chart/Chart.yaml")
	repository=$work/repository/infrastructure-nstance/$version
	mkdir -p "$repository"
	cp services/operator/clusterctl/*.yaml "$repository/"
	cat >"$work/clusterctl.yaml" <<-YAML
		providers:
		  - name: nstance
		    type: InfrastructureProvider
		    url: $repository/infrastructure-components.yaml
	YAML
	export CLUSTERCTL_DISABLE_VERSIONCHECK=true XDG_CONFIG_HOME="$work/config"
	generate() {
		"$clusterctl" generate provider --infrastructure "nstance:$version" --config "$work/clusterctl.yaml" "$@"
	}
	(
		export NSTANCE_CLUSTER_ID=example NSTANCE_SHARDS='{"a": {"registration_addr": "10.0.0.1:8992", "operator_addr": "10.0.0.1:8993"}}'
		generate
	) >"$work/components.yaml"
	conform services/operator/clusterctl/infrastructure-components.yaml "infrastructure-components.yaml"
	# clusterctl adds an empty status to CRDs.
	conform "$work/components.yaml" "the output of clusterctl" CustomResourceDefinition
	if grep -n '[$]{' "$work/components.yaml"; then fail "clusterctl did not replace all variables"; fi
	grep -q 'cluster_id: "example"' "$work/components.yaml" || fail "the components from clusterctl have no configuration"
	if generate >/dev/null 2>"$work/error"; then fail "clusterctl does not require any variable"; fi
	grep -q NSTANCE_CLUSTER_ID "$work/error" || fail "clusterctl does not require NSTANCE_CLUSTER_ID: $(cat "$work/error")"
	variables=$(generate --describe | sed -n 's/^  - \(NSTANCE_.*\)/\1/p' | tr '\n' ' ')
	[ "$variables" = "NSTANCE_CAPI_ENDPOINT NSTANCE_CLUSTER_ID NSTANCE_SHARDS NSTANCE_TENANT " ] || fail "clusterctl lists the variables $variables"
	# clusterctl refuses releases of a series that metadata.yaml does not list.
	series=$(echo "${version#v}" | sed 's/^\([0-9]*\)\.\([0-9]*\)\..*/major: \1 minor: \2/')
	tr -s ' \n' ' ' <services/operator/clusterctl/metadata.yaml | grep -q "$series contract: v1beta2" || fail "metadata.yaml does not list $series"
	echo "clusterctl: components and metadata of $version"
}

check_metrics() {
	go test -short ./tests/delivery
}

check_image() {
	go -C images/container test -timeout 30m ./...
}

[ $# -gt 0 ] || set -- chart kustomize flux argocd clusterctl metrics image
for check; do
	"check_$check"
done
