package gcp

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"golang.org/x/oauth2"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/store/googlecloud"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/compute"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/credentials"
)

// everyPermission is the args of a VM that need every permission which Google checks for the fields that args may have.
const everyPermission = `{
	"disks": [
		{"initializeParams": {"sourceImage": "global/images/agent",
			"resourcePolicies": ["regions/us-central1/resourcePolicies/daily"],
			"storagePool": "zones/us-central1-a/storagePools/pool"}},
		{"initializeParams": {"sourceSnapshot": "global/snapshots/data"}},
		{"source": "zones/us-central1-a/disks/shared", "mode": "READ_ONLY"}
	],
	"labels": {"team": "web"},
	"networkInterfaces": [{"accessConfigs": [{}], "ipv6AccessConfigs": [{"type": "DIRECT_IPV6"}]}],
	"resourcePolicies": ["regions/us-central1/resourcePolicies/compact"],
	"serviceAccounts": [{"email": "agent@my-project.iam.gserviceaccount.com"}],
	"tags": {"items": ["web"]}
}`

// TestCallsListThePermissionsOfArgs makes a VM with everyPermission, as a server whose role has exactly the permissions
// that Calls lists for instances.insert, and those to wait. Without any one of them, Google must refuse the VM.
func TestCallsListThePermissionsOfArgs(t *testing.T) {
	single := func(p *Provider, req infra.CreateRequest) error {
		_, err := p.Create(t.Context(), req)
		return err
	}
	batch := func(p *Provider, req infra.CreateRequest) error {
		of := req.Tags.Instance.Batch()
		req.Tags.Instance = ident.ID{}
		_, err := p.CreateBatch(t.Context(), infra.BatchRequest{Batch: of, Count: 2, VM: req})
		return err
	}
	for method, create := range map[string]func(*Provider, infra.CreateRequest) error{
		"compute.instances.insert": single, "compute.instances.bulkInsert": batch} {
		i := slices.IndexFunc(Calls, func(c Call) bool { return c.Method == method })
		all := Calls[i].Permissions
		if err := createAs(t, all, create); err != nil {
			t.Fatal(err)
		}
		for i, without := range all {
			t.Run(method+" without "+without, func(t *testing.T) {
				wantClass(t, "create", createAs(t, slices.Delete(slices.Clone(all), i, i+1), create), infra.Denied,
					without)
			})
		}
	}
}

// createAs calls create with a request for a VM with everyPermission in a new project, as a service account with the
// given permissions and those to wait and to read.
func createAs(t *testing.T, permissions []string, create func(*Provider, infra.CreateRequest) error) error {
	t.Helper()
	const server = "server@" + fakegcp.Project + ".iam.gserviceaccount.com"
	fake, err := fakegcp.New(zone)
	if err != nil {
		t.Fatal(err)
	}
	fake.Compute.AddImage(fakegcp.Project, "agent", "")
	fake.Compute.Do(func() {
		at := "projects/" + fakegcp.Project + "/"
		fake.Compute.Put(at+"regions/us-central1/subnetworks/subnet-a", compute.JSON(`{"ipCidrRange": "10.0.0.0/20"}`))
		for _, path := range []string{"global/snapshots/data", "zones/us-central1-a/disks/shared",
			"zones/us-central1-a/storagePools/pool", "regions/us-central1/resourcePolicies/daily",
			"regions/us-central1/resourcePolicies/compact"} {
			fake.Compute.Put(at+path, map[string]any{})
		}
	})
	web := httptest.NewServer(fake)
	t.Cleanup(web.Close)
	own := func(path, body string) {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+credentials.Token(credentials.Account))
		w := httptest.NewRecorder()
		fake.ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			t.Fatalf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	list, err := json.Marshal(append(permissions, "compute.zoneOperations.get", "compute.instances.get",
		"compute.instances.list"))
	if err != nil {
		t.Fatal(err)
	}
	own("/iam/v1/projects/"+fakegcp.Project+"/roles", fmt.Sprintf(
		`{"roleId": "server", "role": {"includedPermissions": %s}}`, list))
	own("/cloudresourcemanager/v1/projects/"+fakegcp.Project+":setIamPolicy", fmt.Sprintf(
		`{"policy": {"version": 3, "bindings": [{"role": "projects/%s/roles/server",
			"members": ["serviceAccount:%s"]}]}}`, fakegcp.Project, server))

	c := &testCloud{t: t, fake: fake.Compute}
	if c.url, err = url.Parse(web.URL); err != nil {
		t.Fatal(err)
	}
	p := c.open(func(cfg *Config) {
		cfg.Project = fakegcp.Project
		cfg.Access = googlecloud.Access{Client: &http.Client{Transport: &oauth2.Transport{Base: googlecloud.Record(c),
			Source: oauth2.StaticTokenSource(&oauth2.Token{AccessToken: credentials.Token(server)})}}}
	})
	req := c.request()
	req.Args = compute.JSON(everyPermission)
	return create(p, req)
}
