package fakegcp

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/credentials"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

const (
	servers = "servers@" + Project + ".iam.gserviceaccount.com"
	inZone  = "/compute/v1/projects/" + Project + "/zones/us-central1-a/"
	insert  = `{"name": "NAME", "machineType": "zones/us-central1-a/machineTypes/e2-small",
		"disks": [{"boot": true, "initializeParams": {"sourceImage": "global/images/i"}}],
		"networkInterfaces": [{"subnetwork": "regions/us-central1/subnetworks/s"}]}`
)

// caller makes calls as an account.
type caller struct {
	*testing.T
	cloud *Cloud
}

func (c caller) call(as, method, path, body string) (code int, answer string) {
	c.Helper()
	r := httptest.NewRequestWithContext(c.Context(), method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+credentials.Token(as))
	w := httptest.NewRecorder()
	c.cloud.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// own makes a call as the project's owner. The call must succeed.
func (c caller) own(method, path, body string) {
	c.Helper()
	if code, answer := c.call(credentials.Account, method, path, body); code != http.StatusOK {
		c.Fatalf("%s %s: %d %s", method, path, code, answer)
	}
}

// TestAuthorize gives a service account roles with IAM conditions. Calls that do not meet the conditions are denied,
// and the ledger contains the missing permission.
func TestAuthorize(t *testing.T) {
	cloud, err := New("us-central1-a")
	if err != nil {
		t.Fatal(err)
	}
	cloud.Compute.AddImage(Project, "i", "")
	cloud.Compute.Do(func() {
		cloud.Compute.Put("projects/"+Project+"/regions/us-central1/subnetworks/s",
			map[string]any{"ipCidrRange": "10.0.0.0/24"})
	})
	c := caller{t, cloud}
	c.own(http.MethodPost, "/iam/v1/projects/"+Project+"/roles", `{"roleId": "starter", "role": {"includedPermissions": [
		"compute.instances.create", "compute.disks.create", "compute.instances.list"]}}`)
	c.own(http.MethodPost, "/iam/v1/projects/"+Project+"/roles", `{"roleId": "reader", "role": {"includedPermissions": [
		"compute.images.useReadOnly", "compute.subnetworks.use", "storage.objects.list"]}}`)
	const zone = `projects/` + Project + `/zones/us-central1-a/`
	member := `"members": ["serviceAccount:` + servers + `"]`
	c.own(http.MethodPost, "/cloudresourcemanager/v1/projects/"+Project+":setIamPolicy", `{"policy": {"version": 3,
		"bindings": [{"role": "projects/`+Project+`/roles/reader", `+member+`},
			{"role": "projects/`+Project+`/roles/starter", `+member+`, "condition": {"title": "zone", "expression":
			"resource.name.startsWith(\"`+zone+`\") && !resource.name.startsWith(\"`+zone+`instances/server-\")"}}]}}`)

	for name, want := range map[string]int{"worker-1": http.StatusOK, "server-1": http.StatusForbidden} {
		body := strings.Replace(insert, "NAME", name, 1)
		if code, answer := c.call(servers, http.MethodPost, inZone+"instances", body); code != want {
			t.Errorf("insert of %s: %d %s, want %d", name, code, answer, want)
		}
	}
	code, answer := c.call(servers, http.MethodPost, inZone+"instances", strings.Replace(strings.Replace(insert, "NAME",
		"worker-2", 1), `"disks"`, `"tags": {"items": ["a"]}, "disks"`, 1))
	if code != http.StatusForbidden || !strings.Contains(answer, "compute.instances.setTags") {
		t.Errorf("insert with tags: %d %s", code, answer)
	}
	if code, answer := c.call(servers, http.MethodGet, inZone+"disks", ""); code != http.StatusForbidden {
		t.Errorf("a method whose permissions the fake does not know: %d %s", code, answer)
	}
	if code, answer := c.call("other@"+Project+".iam.gserviceaccount.com", http.MethodGet, inZone+"instances",
		""); code != http.StatusForbidden {
		t.Errorf("an account without roles: %d %s", code, answer)
	}
	if !slices.ContainsFunc(cloud.Calls(), func(r rest.Record) bool {
		return r.Identity == servers && slices.Contains(r.Checks, rest.Check{Permission: "compute.instances.setTags",
			Resource: zone + "instances/worker-2"})
	}) {
		t.Errorf("the ledger has no denial: %+v", cloud.Calls())
	}
}

// TestAuthorizeObjects limits an account to a prefix of a bucket. To replace an object, the account also needs the
// permission to delete. A listing must stay within the prefix.
func TestAuthorizeObjects(t *testing.T) {
	cloud, err := New("us-central1-a")
	if err != nil {
		t.Fatal(err)
	}
	c := caller{t, cloud}
	c.own(http.MethodPost, "/storage/v1/b?project="+Project, `{"name": "bucket"}`)
	c.own(http.MethodPost, "/iam/v1/projects/"+Project+"/roles", `{"roleId": "writer", "role": {"includedPermissions": [
		"storage.objects.create", "storage.objects.list"]}}`)
	c.own(http.MethodPut, "/storage/v1/b/bucket/iam", `{"version": 3, "bindings": [{"role": "projects/`+Project+
		`/roles/writer", "members": ["serviceAccount:`+servers+`"], "condition": {"title": "prefix", "expression":
		"resource.name.startsWith(\"projects/_/buckets/bucket/objects/shard/a/\") || `+
		`api.getAttribute(\"storage.googleapis.com/objectListPrefix\", \"\").startsWith(\"shard/a/\")"}}]}`)
	const head = "--x\r\nContent-Type: application/json\r\n\r\n"
	put := func(name string) (int, string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost,
			"/upload/storage/v1/b/bucket/o?uploadType=multipart&name="+name, strings.NewReader(head+
				"{}\r\n--x\r\nContent-Type: text/plain\r\n\r\ntext\r\n--x--\r\n"))
		r.Header.Set("Authorization", "Bearer "+credentials.Token(servers))
		r.Header.Set("Content-Type", "multipart/related; boundary=x")
		w := httptest.NewRecorder()
		cloud.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	for _, step := range []struct {
		name string
		want int
	}{{"shard/a/one", http.StatusOK}, {"shard/a/one", http.StatusForbidden}, {"shard/b/one", http.StatusForbidden}} {
		if code, answer := put(step.name); code != step.want {
			t.Errorf("put %s: %d %s, want %d", step.name, code, answer, step.want)
		}
	}
	for prefix, want := range map[string]int{"shard/a/": http.StatusOK, "shard/": http.StatusForbidden,
		"": http.StatusForbidden} {
		path := "/storage/v1/b/bucket/o?prefix=" + prefix
		if code, answer := c.call(servers, http.MethodGet, path, ""); code != want {
			t.Errorf("list %q: %d %s, want %d", prefix, code, answer, want)
		}
	}
}
