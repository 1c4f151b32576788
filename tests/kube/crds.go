package kube

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// InstallCRDs installs the CRDs in the given files, or in the *.yaml files of the given directories. It returns when
// the API server accepts their objects.
func (c *Cluster) InstallCRDs(ctx context.Context, paths ...string) error {
	crds, err := readCRDs(paths...)
	if err != nil {
		return err
	}
	return c.installCRDs(ctx, crds)
}

// readCRDs reads CRDs from files and directories. It skips other objects, such as the kustomization in a directory.
func readCRDs(paths ...string) (crds []*apiextensionsv1.CustomResourceDefinition, err error) {
	for _, path := range paths {
		files := []string{path}
		if info, err := os.Stat(path); err != nil {
			return nil, err
		} else if info.IsDir() {
			if files, err = filepath.Glob(filepath.Join(path, "*.yaml")); err != nil {
				return nil, err
			}
		}
		found := len(crds)
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			documents, err := split(raw)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			for _, document := range documents {
				crd := &apiextensionsv1.CustomResourceDefinition{}
				if err := yaml.Unmarshal(document, crd); err != nil {
					return nil, fmt.Errorf("%s: %w", file, err)
				}
				if crd.Kind == "CustomResourceDefinition" {
					crds = append(crds, crd)
				}
			}
		}
		if len(crds) == found {
			return nil, fmt.Errorf("%s holds no CustomResourceDefinition", path)
		}
	}
	return crds, nil
}

// split splits a YAML file into its documents and drops empty ones.
func split(raw []byte) (documents [][]byte, err error) {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(raw)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(document)) > 0 {
			documents = append(documents, slices.Clone(document))
		}
	}
}

func (c *Cluster) installCRDs(ctx context.Context, crds []*apiextensionsv1.CustomResourceDefinition) error {
	for _, crd := range crds {
		err := c.Client.Create(ctx, crd.DeepCopy())
		if apierrors.IsAlreadyExists(err) {
			old := &apiextensionsv1.CustomResourceDefinition{}
			if err = c.Client.Get(ctx, client.ObjectKeyFromObject(crd), old); err == nil {
				crd.ResourceVersion = old.ResourceVersion
				err = c.Client.Update(ctx, crd.DeepCopy())
			}
		}
		if err != nil {
			return fmt.Errorf("install %s: %w", crd.Name, err)
		}
	}
	for {
		pending, err := c.pendingCRDs(ctx, crds)
		if err != nil || len(pending) == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("CRDs are not served: %s: %w", strings.Join(pending, ", "), context.Cause(ctx))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// pendingCRDs returns the names of the given CRDs that cannot be used yet. A CRD can be used when it is established and
// the API server's discovery lists its kind, which happens a little later.
func (c *Cluster) pendingCRDs(ctx context.Context, crds []*apiextensionsv1.CustomResourceDefinition) (pending []string,
	err error) {
	var list apiextensionsv1.CustomResourceDefinitionList
	if err := c.Client.List(ctx, &list); err != nil {
		return nil, err
	}
	established := map[string]bool{}
	for _, crd := range list.Items {
		established[crd.Name] = slices.ContainsFunc(crd.Status.Conditions,
			func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
				return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
			})
	}
	for _, crd := range crds {
		if !established[crd.Name] || !c.discovered(crd) {
			pending = append(pending, crd.Name)
		}
	}
	return pending, nil
}

// discovered reports whether the API server's discovery lists all served versions of the CRD's kind.
func (c *Cluster) discovered(crd *apiextensionsv1.CustomResourceDefinition) bool {
	for _, version := range crd.Spec.Versions {
		kind := schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Spec.Names.Kind}
		if _, err := c.Client.RESTMapper().RESTMapping(kind, version.Name); version.Served && err != nil {
			return false
		}
	}
	return true
}

// Create creates the objects in YAML files.
func (c *Cluster) Create(ctx context.Context, files ...string) error {
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		documents, err := split(raw)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, document := range documents {
			object := &unstructured.Unstructured{}
			if err := yaml.Unmarshal(document, &object.Object); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			if err := c.Client.Create(ctx, object); err != nil {
				return fmt.Errorf("create %s %s: %w", object.GetKind(), object.GetName(), err)
			}
		}
	}
	return nil
}
