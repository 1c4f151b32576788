package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// capiNamespace is the namespace in Cluster API's kustomization.
const capiNamespace = "capi-system"

// capiDir returns a directory with the configuration of Cluster API's core manager. The directory is in the Go module
// from which the manager's program is built. So its CRDs and webhooks have the program's version.
func capiDir(ctx context.Context, parts ...string) (string, error) {
	module, err := ModuleDir(ctx, "cluster-api", "sigs.k8s.io/cluster-api")
	return filepath.Join(append([]string{module, "core", "config"}, parts...)...), err
}

// installCore installs the CRDs of Cluster API's core. They have the labels that the core's kustomization adds. The
// core manager does not run, so objects of old API versions are not converted. The tests write no such objects.
func (c *Cluster) installCore(ctx context.Context) error {
	crds, err := coreCRDs(ctx)
	if err != nil {
		return err
	}
	return c.installCRDs(ctx, crds)
}

func coreCRDs(ctx context.Context) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	dir, err := capiDir(ctx, "crd", "bases")
	if err != nil {
		return nil, err
	}
	crds, err := readCRDs(dir)
	for _, crd := range crds {
		metav1.SetMetaDataLabel(&crd.ObjectMeta, "cluster.x-k8s.io/provider", "cluster-api")
	}
	return crds, err
}

// startCAPI starts the core manager and then registers its webhooks with the API server.
func (c *Cluster) startCAPI(ctx context.Context) error {
	dir := filepath.Join(c.Dir, "capi-webhook")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	serving, err := c.pki.server("capi-webhook")
	if err != nil {
		return err
	}
	if _, _, err := serving.write(dir, "tls"); err != nil {
		return err
	}
	if err := c.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: capiNamespace}}); err != nil {
		return err
	}
	ports, err := freePorts(ctx, 2)
	if err != nil {
		return err
	}
	p, err := c.run(ctx, "capi-core", "--kubeconfig="+c.Kubeconfig, "--diagnostics-address=0", "--health-addr="+
		address(ports[1]),
		"--webhook-port="+strconv.Itoa(ports[0]), "--webhook-cert-dir="+dir,
		"--skip-crd-migration-phases=StorageVersionMigration,CleanupManagedFields", "--sync-period=1m", "--v=2")
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: c.Network.dial}}
	if err := p.until(ctx, func() error {
		status, err := get(ctx, client, "http://"+address(ports[1])+"/readyz")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("/readyz answers %d", status)
		}
		return err
	}); err != nil {
		return err
	}
	return errors.Join(c.installWebhooks(ctx, ports[0]), c.convert(ctx, ports[0]))
}

// installWebhooks registers the core's webhooks at a port of this machine.
func (c *Cluster) installWebhooks(ctx context.Context, port int) error {
	path, err := capiDir(ctx, "webhook", "manifests.yaml")
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	documents, err := split(raw)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, document := range documents {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(document, &kind); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		switch kind.Kind {
		case "MutatingWebhookConfiguration":
			hooks := &admissionv1.MutatingWebhookConfiguration{}
			if err := yaml.Unmarshal(document, hooks); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			hooks.Name = "capi-" + hooks.Name
			for i := range hooks.Webhooks {
				c.local(&hooks.Webhooks[i].ClientConfig, port)
			}
			err = c.Client.Create(ctx, hooks)
		case "ValidatingWebhookConfiguration":
			hooks := &admissionv1.ValidatingWebhookConfiguration{}
			if err := yaml.Unmarshal(document, hooks); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			hooks.Name = "capi-" + hooks.Name
			for i := range hooks.Webhooks {
				c.local(&hooks.Webhooks[i].ClientConfig, port)
			}
			err = c.Client.Create(ctx, hooks)
		default:
			err = fmt.Errorf("%s: unexpected %q", path, kind.Kind)
		}
		if err != nil {
			return fmt.Errorf("install webhooks: %w", err)
		}
	}
	return nil
}

// local makes the API server call a webhook at a port of this machine instead of through a service.
func (c *Cluster) local(config *admissionv1.WebhookClientConfig, port int) {
	url := "https://" + address(port)
	if config.Service != nil && config.Service.Path != nil {
		url += *config.Service.Path
	}
	config.Service, config.URL, config.CABundle = nil, &url, c.pki.pem
}

// convert configures the CRDs so that the API server asks the core manager to convert objects between API versions.
func (c *Cluster) convert(ctx context.Context, port int) error {
	crds, err := coreCRDs(ctx)
	if err != nil {
		return err
	}
	url := "https://" + address(port) + "/convert"
	for _, crd := range crds {
		crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter,
			Webhook: &apiextensionsv1.WebhookConversion{
				ConversionReviewVersions: []string{"v1"}, ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: &url,
					CABundle: c.pki.pem}}}
	}
	return c.installCRDs(ctx, crds)
}
