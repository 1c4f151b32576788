// Package definitions imports the types of other projects whose objects Nstance delivers. The imports fix the versions
// in go.mod, and no program contains them. scripts/k8s-check.sh generates CRDs from these types with controller-gen and
// checks the delivered objects against them.
package definitions

import (
	_ "github.com/fluxcd/helm-controller/api/v2"                                  // HelmRelease
	_ "github.com/fluxcd/kustomize-controller/api/v1"                             // Kustomization
	_ "github.com/fluxcd/source-controller/api/v1"                                // OCIRepository, GitRepository
	_ "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1" // ServiceMonitor, PrometheusRule
)
