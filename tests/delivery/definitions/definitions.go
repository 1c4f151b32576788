// Package definitions imports Go types of other projects, because Nstance delivers objects of these types. The imports
// fix the projects' versions in go.mod. No program contains the types. scripts/k8s-check.sh generates CRDs from the
// types with controller-gen and checks the delivered objects against the CRDs.
package definitions

import (
	_ "github.com/fluxcd/helm-controller/api/v2"                                  // HelmRelease
	_ "github.com/fluxcd/kustomize-controller/api/v1"                             // Kustomization
	_ "github.com/fluxcd/source-controller/api/v1"                                // OCIRepository, GitRepository
	_ "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1" // ServiceMonitor, PrometheusRule
)
