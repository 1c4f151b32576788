// Package delivery tests the installation methods of the operator: the Helm chart, the kustomize bases, the examples
// for Flux and Argo CD, and clusterctl's components. It also applies the example of a server on a Kubernetes node.
package delivery
