package fakegcp

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"golang.org/x/oauth2"
	"google.golang.org/api/option"

	"github.com/nstance-kit/nstance/services/store/googlecloud"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/gcs"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/credentials"
)

// TestKeyOfABucket encrypts a bucket with a key of Cloud KMS. The storage service may use the key only if a binding
// permits it and the key is enabled.
func TestKeyOfABucket(t *testing.T) {
	const key = "projects/" + Project + "/locations/us/keyRings/r/cryptoKeys/state"
	cloud, err := New("us-central1-a")
	if err != nil {
		t.Fatal(err)
	}
	cloud.KMS.Add(key)
	c := caller{t, cloud}
	const create = `{"name": "sealed", "encryption": {"defaultKmsKeyName": "` + key + `"}}`
	if code, answer := c.call(credentials.Account, http.MethodPost, "/storage/v1/b?project="+Project,
		create); code != http.StatusForbidden || !strings.Contains(answer, "Permission denied on Cloud KMS key") {
		t.Fatalf("a bucket with a key that the service may not use: %d %s", code, answer)
	}
	code, answer := c.call(credentials.Account, http.MethodGet, "/storage/v1/projects/"+Project+"/serviceAccount", "")
	if code != http.StatusOK || !strings.Contains(answer, cloud.Storage.Agent) {
		t.Errorf("the service's agent: %d %s", code, answer)
	}
	c.own(http.MethodPost, "/kms/v1/"+key+":setIamPolicy", `{"policy": {"bindings": [{"role":
		"roles/cloudkms.cryptoKeyEncrypterDecrypter", "members": ["serviceAccount:`+cloud.Storage.Agent+`"]}]}}`)
	c.own(http.MethodPost, "/storage/v1/b?project="+Project, create)

	server := httptest.NewServer(cloud)
	defer server.Close()
	store, err := gcs.New(t.Context(), "sealed", option.WithEndpoint(server.URL+"/storage/v1/"),
		option.WithHTTPClient(&http.Client{Transport: &oauth2.Transport{
			Base:   googlecloud.Record(http.DefaultTransport),
			Source: oauth2.StaticTokenSource(&oauth2.Token{AccessToken: credentials.Token(credentials.Account)})}}))
	if err != nil {
		t.Fatal(err)
	}
	_, err = store.Put(t.Context(), "a", []byte("text"), objstore.Always())
	if o, readErr := store.Get(t.Context(), "a"); err != nil || readErr != nil || string(o.Body) != "text" {
		t.Errorf("an object is %q, %v", o.Body, errors.Join(err, readErr))
	}
	cloud.KMS.SetDisabled(key, true)
	_, putErr := store.Put(t.Context(), "b", nil, objstore.Always())
	_, getErr := store.Get(t.Context(), "a")
	for what, err := range map[string]error{"put": putErr, "get": getErr} {
		if err == nil || !strings.Contains(err.Error(), key) || errors.Is(err, objstore.ErrNotFound) {
			t.Errorf("%s with a disabled key: %v", what, err)
		}
	}
	cloud.KMS.SetDisabled(key, false)
	if _, err := store.Get(t.Context(), "a"); err != nil {
		t.Error(err)
	}
}
