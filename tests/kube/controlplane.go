package kube

import (
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

const (
	controlPlaneGroup = "controlplane.cluster.x-k8s.io"
	controlPlaneKind  = "StubControlPlane"
)

// StubControlPlane makes an object that represents a control plane managed elsewhere. It returns the value for a
// Cluster's spec.controlPlaneRef. If a Cluster has no control plane, Cluster API takes every Node for the last Node of
// the control plane. It then neither drains nor deletes the Node.
func (c *Cluster) StubControlPlane(ctx context.Context, namespace, name string) (
	clusterv1.ContractVersionedObjectReference, error) {
	ref := clusterv1.ContractVersionedObjectReference{APIGroup: controlPlaneGroup, Kind: controlPlaneKind, Name: name}
	if err := c.installCRDs(ctx, []*apiextensionsv1.CustomResourceDefinition{controlPlaneCRD()}); err != nil {
		return ref, err
	}
	stub := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{"version": "v1.36.3"},
		"status": map[string]any{"initialization": map[string]any{"controlPlaneInitialized": true},
			"externalManagedControlPlane": true,
			"version":                     "v1.36.3"},
	}}
	stub.SetAPIVersion(controlPlaneGroup + "/v1beta1")
	stub.SetKind(controlPlaneKind)
	stub.SetNamespace(namespace)
	stub.SetName(name)
	if err := c.Client.Create(ctx, stub); err != nil {
		return ref, fmt.Errorf("make a control plane: %w", err)
	}
	return ref, nil
}

// controlPlaneCRD has no status subresource, because no controller updates the object's status.
func controlPlaneCRD() *apiextensionsv1.CustomResourceDefinition {
	anything := true
	return &apiextensionsv1.CustomResourceDefinition{
		TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: "stubcontrolplanes." + controlPlaneGroup,
			Labels: map[string]string{"cluster.x-k8s.io/v1beta2": "v1beta1"}},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: controlPlaneGroup, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: controlPlaneKind, ListKind: controlPlaneKind +
				"List", Plural: "stubcontrolplanes",
				Singular: "stubcontrolplane"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1beta1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", XPreserveUnknownFields: &anything}}}},
		},
	}
}
