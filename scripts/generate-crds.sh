#!/bin/sh
# Generate deep copies and CRDs of services/api/v1beta1, and the role of the operator from the markers of its reconcilers.
set -eu
cd "$(dirname -- "$0")/.."

gen=$(scripts/tool.sh controller-gen)
"$gen" object paths=./services/api/v1beta1
"$gen" crd:crdVersions=v1 paths=./services/api/v1beta1 output:crd:dir=config/crd
if [ -d services/internal/operator ]; then
	"$gen" rbac:roleName=nstance-operator paths=./services/internal/operator/... output:rbac:dir=config/rbac
	# The role of an operator with --on-demand-pods=false.
	set --
	for package in services/internal/operator services/internal/operator/*/; do
		case $package in */ondemand/) ;; *) set -- "$@" "paths=./$package" ;; esac
	done
	"$gen" rbac:roleName=nstance-operator,fileName=role-without-on-demand.yaml "$@" output:rbac:dir=config/rbac
fi
