package account_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-kit/nstance/services/store/googlecloud"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/credentials"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
	"github.com/nstance-kit/nstance/tests/cloudtest/account"
)

// direct is a transport that calls a fake cloud in this process, as the project's owner.
type direct struct{ cloud http.Handler }

// RoundTrip implements http.RoundTripper.
func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+credentials.Token(credentials.Account))
	r.RequestURI = r.URL.RequestURI()
	if r.Body == nil {
		r.Body = http.NoBody
	}
	answer := httptest.NewRecorder()
	d.cloud.ServeHTTP(answer, r)
	return answer.Result(), nil
}

// newGCP returns a fake of Google Cloud, and its account.
func newGCP(t *testing.T) (*fakegcp.Cloud, *account.GCP) {
	t.Helper()
	cloud, err := fakegcp.New("us-central1-a")
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range fakegcp.Environment("http://cloud.example") {
		t.Setenv(name, value)
	}
	a, err := account.NewGCP(t.Context(), googlecloud.Access{Client: &http.Client{Transport: direct{cloud}},
		Project: fakegcp.Project}, fakegcp.Project, "us-central1")
	if err != nil {
		t.Fatal(err)
	}
	return cloud, a
}

// call makes a call as the project's owner.
func call(t *testing.T, cloud *fakegcp.Cloud, path, body string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	answer, err := direct{cloud}.RoundTrip(r)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v, %v", path, answer, err)
	}
}

// TestFederation checks that a pool of workload identities is found by its cluster's name, and deleted.
func TestFederation(t *testing.T) {
	cloud, a := newGCP(t)
	const pools = "/iam/v1/projects/" + fakegcp.Project + "/locations/global/workloadIdentityPools" +
		"?workloadIdentityPoolId="
	for _, id := range []string{"nstance-ct-mine", "nstance-ct-mine2"} {
		call(t, cloud, pools+id, `{}`)
	}
	found, err := a.Inventory(t.Context(), "ct-mine")
	if err != nil || len(found) != 1 || found[0].String() != "workload identity pool ct-mine" {
		t.Errorf("the inventory is %v, %v", found, err)
	}
	if err := account.Sweep(t.Context(), a, "ct-mine", func([]account.Resource) {}); err != nil {
		t.Error(err)
	}
	if left := cloud.Inventory(); len(left) != 1 || !strings.HasSuffix(left[0], "/nstance-ct-mine2") {
		t.Errorf("after the clean-up there is %v", left)
	}
}

// TestThrottledByGoogle checks that calls that Google Cloud throttles are repeated, in the forms of its services, but
// not calls that it refuses for another reason.
func TestThrottledByGoogle(t *testing.T) {
	cloud, a := newGCP(t)
	compute := cloud.Service("compute")
	const images = "compute.images.list"
	for _, throttled := range []rest.Error{
		{Code: 403, Reason: "rateLimitExceeded", Message: "Rate Limit Exceeded"},
		{Code: 403, Reason: "userRateLimitExceeded", Message: "User Rate Limit Exceeded"},
		{Code: 429, Reason: "rateLimitExceeded", Status: "RESOURCE_EXHAUSTED", Message: "Quota exceeded"},
	} {
		synctest.Test(t, func(t *testing.T) {
			for range 5 {
				compute.Refuse(images, &throttled)
			}
			began := time.Now()
			if _, err := a.Inventory(t.Context(), "ct-mine"); err != nil || time.Since(began) < 10*time.Second {
				t.Errorf("%v: after %s: %v", throttled, time.Since(began), err)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		for range 11 {
			compute.Refuse(images, &rest.Error{Code: 429, Reason: "rateLimitExceeded", Message: "Slow down"})
		}
		if err := account.Sweep(t.Context(), a, "ct-mine", func([]account.Resource) {}); err != nil {
			t.Errorf("a clean-up, throttled for minutes: %v", err)
		}
	})
	calls := compute.Count(images)
	compute.Refuse(images, &rest.Error{Code: 403, Reason: "quotaExceeded", Message: "Quota 'IMAGES' exceeded."})
	_, err := a.Inventory(t.Context(), "ct-mine")
	if err == nil || !strings.Contains(err.Error(), "Quota 'IMAGES' exceeded.") || compute.Count(images) != calls+1 {
		t.Errorf("a quota: %v, %d calls", err, compute.Count(images)-calls)
	}
	if !slices.Contains(a.Kinds(), "image") {
		t.Error("the inventory lacks images")
	}
}
