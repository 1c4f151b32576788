// Package delivery holds tests of what installs the operator: the Helm chart, the kustomize bases, the Flux examples
// and clusterctl's components.
package delivery
