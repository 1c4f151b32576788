package guest

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/compute"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/credentials"
)

const email = "servers@my-project.iam.gserviceaccount.com"

func testInstance() compute.Instance {
	return compute.Instance{ID: 42, Name: "a", Zone: "us-central1-a",
		Path: "projects/my-project/zones/us-central1-a/instances/a", Body: compute.JSON(`{
			"serviceAccounts": [{"email": "` + email + `"}],
			"metadata": {"items": [{"key": "startup-script", "value": "#!/bin/sh"}]},
			"networkInterfaces": [{"networkIP": "10.0.0.2", "aliasIpRanges": [{"ipCidrRange": "10.9.0.5/32"}]}]}`)}
}

// ask asks the metadata server for a path below computeMetadata/v1.
func ask(ctx context.Context, m *metadata, path string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, root+path, nil)
	r.Header.Set(flavor, "Google")
	w := httptest.NewRecorder()
	m.ServeHTTP(w, r)
	return w
}

// TestMetadata reads values, directories, tokens of the service account and identity tokens. A request without the
// header Metadata-Flavor is refused.
func TestMetadata(t *testing.T) {
	m := newMetadata("7", func(email string) string { return "1" }, testInstance())
	for path, want := range map[string]string{
		"instance/id": "42", "instance/zone": "projects/7/zones/us-central1-a", "project/project-id": "my-project",
		"instance/maintenance-event":    "NONE",
		"instance/upcoming-maintenance": "NONE", "instance/scheduling/on-host-maintenance": "MIGRATE",
		"instance/preempted": "FALSE", "instance/attributes/startup-script": "#!/bin/sh",
		"instance/service-accounts/": "default/\n" + email + "/", "instance/network-interfaces/0/ip": "10.0.0.2",
		"instance/network-interfaces/0/ip-aliases/0": "10.9.0.5/32",
	} {
		if got := ask(t.Context(), m, path); got.Body.String() != want || got.Header().Get(flavor) != "Google" {
			t.Errorf("%s: %d %q, want %q", path, got.Code, got.Body, want)
		}
	}
	if got := ask(t.Context(), m, "instance/nothing"); got.Code != http.StatusNotFound {
		t.Errorf("an unknown path: %d", got.Code)
	}
	w := httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, root+"instance/id", nil))
	if w.Code != http.StatusForbidden {
		t.Errorf("a request without %s: %d, want 403", flavor, w.Code)
	}

	var token struct {
		AccessToken string `json:"access_token"`
	}
	body := ask(t.Context(), m, "instance/service-accounts/default/token").Body.Bytes()
	if err := json.Unmarshal(body, &token); err != nil || token.AccessToken != credentials.Token(email) {
		t.Errorf("token %s, %v", body, err)
	}

	text := ask(t.Context(), m, identities+"?audience=me&format=full").Body.String()
	claims := jwt.MapClaims{}
	if _, err := jwt.ParseWithClaims(text, claims, func(token *jwt.Token) (any, error) {
		keys := map[string]string{}
		answer := httptest.NewRecorder()
		credentials.IdentityKeys(answer, nil)
		if err := json.Unmarshal(answer.Body.Bytes(), &keys); err != nil {
			return nil, err
		}
		id, _ := token.Header["kid"].(string)
		return jwt.ParseRSAPublicKeyFromPEM([]byte(keys[id]))
	}, jwt.WithAudience("me"), jwt.WithValidMethods([]string{"RS256"})); err != nil || claims["email"] != email {
		t.Errorf("identity %s: %v, %v", text, claims, err)
	}
	if got := ask(t.Context(), m, identities); got.Code != http.StatusBadRequest {
		t.Errorf("an identity without audience: %d", got.Code)
	}
}

// TestMetadataWaits asks for the next change of a value. Changes of other values do not end the wait.
func TestMetadataWaits(t *testing.T) {
	m := newMetadata("7", func(email string) string { return "1" }, testInstance())
	first := ask(t.Context(), m, "instance/preempted")
	answer := make(chan *httptest.ResponseRecorder, 1)
	go func() {
		answer <- ask(t.Context(), m, "instance/preempted?wait_for_change=true&timeout_sec=60&last_etag="+
			first.Header().Get("ETag"))
	}()
	i := testInstance()
	i.Forwarded = []string{"10.0.0.100"}
	m.set(i)
	i.Preempted = true
	m.set(i)
	if got := strings.TrimSpace((<-answer).Body.String()); got != "TRUE" {
		t.Errorf("preempted is %q after the wait, want TRUE", got)
	}
	began := time.Now()
	if got := ask(t.Context(), m, "instance/id?wait_for_change=true&timeout_sec=0"); got.Body.String() != "42" {
		t.Errorf("a wait that timed out: %d %q after %s", got.Code, got.Body, time.Since(began))
	}
}
