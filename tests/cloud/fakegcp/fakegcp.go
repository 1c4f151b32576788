// Package fakegcp is a fake of Google Cloud with one project, for Google's SDK and Terraform provider. It combines
// the fakes of the services in one server.
//
// Invariant: a call without a valid token is refused, and every call is in the ledger. A service account other than
// [credentials.Account], the project's owner, may make only the calls that its roles permit.
package fakegcp

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/compute"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/credentials"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/federation"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/iam"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/kms"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/secretmanager"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/storage"
)

// The project that owns all resources.
const (
	Project = "my-project"
	Number  = "123456789012"
)

// Cloud is the fake cloud.
type Cloud struct {
	Compute *compute.Compute
	Storage *storage.Storage
	Secrets *secretmanager.SecretManager
	IAM     *iam.IAM
	KMS     *kms.KMS
	// AWS is the AWS that the Security Token Service asks about AWS credentials. Nil: there is none.
	AWS http.Handler

	services map[string]*rest.Server // by the first part of the path
}

// New makes a cloud with the given zones, such as us-central1-a, and without other resources.
func New(zones ...string) (*Cloud, error) {
	c := &Cloud{Compute: compute.New(), Storage: storage.New(), Secrets: secretmanager.New(),
		IAM: iam.New(Project, Number), KMS: kms.New(), services: map[string]*rest.Server{}}
	c.useKeys()
	for _, zone := range zones {
		c.Compute.AddZone(Project, zone)
	}
	for _, s := range []struct {
		name, api string
		handlers  map[string]rest.Handler
	}{
		{"compute", "compute", c.Compute.Handlers()}, {"storage", "storage", c.Storage.Handlers()},
		{"secretmanager", "secretmanager", c.Secrets.Handlers()}, {"iam", "iam", c.IAM.Handlers()},
		{"cloudresourcemanager", "cloudresourcemanager", c.IAM.ProjectHandlers()},
		{"cloudbilling", "cloudbilling", c.IAM.BillingHandlers()}, {"kms", "cloudkms", c.KMS.Handlers()},
		{"iamcredentials", "iamcredentials", federation.Handlers()},
	} {
		server, err := rest.New(s.api, "v1", s.handlers, credentials.Identify)
		if err != nil {
			return nil, fmt.Errorf("make %s: %w", s.name, err)
		}
		server.Authorize = c.authorize
		c.services[s.name] = server
	}
	return c, nil
}

// useKeys lets Compute Engine and Cloud Storage encrypt with keys of Cloud KMS. Each of the two services uses keys with
// its own service account.
// https://cloud.google.com/storage/docs/encryption/customer-managed-keys
func (c *Cloud) useKeys() {
	c.Storage.Agent = "service-" + Number + "@gs-project-accounts.iam.gserviceaccount.com"
	c.Storage.UseKey = func(name string) error {
		err := c.KMS.Use(name, "serviceAccount:"+c.Storage.Agent)
		if refusal, ok := errors.AsType[*rest.Error](err); ok && refusal.Reason == kms.PermissionDenied {
			return &rest.Error{Code: http.StatusForbidden, Reason: "forbidden", Message: "Permission denied on Cloud " +
				"KMS key. Please ensure that your Cloud Storage service account has been authorized to use this key."}
		}
		return err
	}
	c.Compute.UseKey = func(name string) error {
		return c.KMS.Use(name, "serviceAccount:service-"+Number+"@compute-system.iam.gserviceaccount.com")
	}
}

// Environment returns environment variables that make Google's Terraform provider, and the SDK clients of this
// repository, use the fake services at a URL. The Terraform provider needs https.
func Environment(url string) map[string]string {
	return map[string]string{
		"GOOGLE_COMPUTE_CUSTOM_ENDPOINT":          url + "/compute/v1/",
		"GOOGLE_OAUTH2_CUSTOM_ENDPOINT":           url + "/oauth2/v1/",
		"GOOGLE_STORAGE_CUSTOM_ENDPOINT":          url + "/storage/v1/",
		"GOOGLE_SECRET_MANAGER_CUSTOM_ENDPOINT":   url + "/secretmanager/v1/",
		"GOOGLE_IAM_CUSTOM_ENDPOINT":              url + "/iam/v1/",
		"GOOGLE_RESOURCE_MANAGER_CUSTOM_ENDPOINT": url + "/cloudresourcemanager/v1/",
		"GOOGLE_CLOUD_BILLING_CUSTOM_ENDPOINT":    url + "/cloudbilling/v1/",
		"GOOGLE_KMS_CUSTOM_ENDPOINT":              url + "/kms/v1/",
		"GOOGLE_IAM_BETA_CUSTOM_ENDPOINT":         url + "/iam/v1/",
		"GOOGLE_IAM_CREDENTIALS_CUSTOM_ENDPOINT":  url + "/iamcredentials/v1/",
		"GOOGLE_STS_CUSTOM_ENDPOINT":              url + "/sts/v1/",
		"GOOGLE_CLOUD_PROJECT":                    Project,
		"GOOGLE_PROJECT":                          Project,
	}
}

// ServeHTTP implements http.Handler. The first part of a path selects the service, and is cut off. The services compute
// and storage get the whole path, because the paths of their APIs begin with their names.
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch name {
	case "oauth2":
		credentials.IdentityKeys(w, r)
		return
	case "sts":
		federation.Tokens{IAM: c.IAM, AWS: c.AWS}.ServeHTTP(w, r)
		return
	case "upload":
		name = "storage"
	case "compute", "storage":
	default:
		r.URL.Path = strings.TrimPrefix(r.URL.Path, "/"+name)
		r.URL.RawPath = strings.TrimPrefix(r.URL.RawPath, "/"+name)
	}
	service := c.services[name]
	if service == nil {
		http.NotFound(w, r)
		return
	}
	service.ServeHTTP(w, r)
}

// Service returns the server of a service, such as "compute", so that tests can inject faults.
func (c *Cloud) Service(name string) *rest.Server { return c.services[name] }

// Calls returns the ledger of all services.
func (c *Cloud) Calls() (all []rest.Record) {
	for _, service := range c.services {
		all = append(all, service.Calls()...)
	}
	return all
}

// Inventory returns all resources that a user has made, sorted.
func (c *Cloud) Inventory() []string {
	found := slices.Concat(c.IAM.Inventory(), c.Storage.Inventory(), c.Compute.Inventory(), c.KMS.Inventory())
	slices.Sort(found)
	return found
}
