// Package delivery tests the installation methods of the operator: the Helm chart, the kustomize bases, the Flux
// examples and clusterctl's components.
package delivery
