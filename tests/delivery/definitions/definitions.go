// Package definitions pins the types of other projects whose objects we deliver. Nothing of it is linked:
// scripts/k8s-check.sh generates their definitions with controller-gen, and what we deliver is checked against those.
package definitions

import (
	_ "github.com/fluxcd/helm-controller/api/v2"                                  // HelmRelease
	_ "github.com/fluxcd/kustomize-controller/api/v1"                             // Kustomization
	_ "github.com/fluxcd/source-controller/api/v1"                                // OCIRepository, GitRepository
	_ "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1" // ServiceMonitor, PrometheusRule
)
