// Package credentials makes credentials of service accounts for programs that use a fake of Google Cloud.
package credentials

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Account is the email of the service account.
const Account = "nstance@p.iam.gserviceaccount.com"

// Write writes the file of a service account of a project, and returns its path for GOOGLE_APPLICATION_CREDENTIALS. The
// account's access tokens consist of "token-of-" and its email.
func Write(t testing.TB, project string) string {
	t.Helper()
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" ||
			strings.Count(r.FormValue("assertion"), ".") != 2 {
			http.Error(w, `{"error": "invalid_grant"}`, http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token": %q, "expires_in": 3600, "token_type": "Bearer"}`, Token(Account))
	}))
	t.Cleanup(tokens.Close)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]string{"type": "service_account", "project_id": project,
		"client_email": Account, "private_key_id": "1", "token_uri": tokens.URL,
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY",
			Bytes: x509.MarshalPKCS1PrivateKey(key)}))})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "credentials.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// prefix is the beginning of every access token.
const prefix = "token-of-"

// Token returns an access token of a service account.
func Token(email string) string { return prefix + email }

// Identify returns the email in a request's access token. The servers of the fakes call it.
func Identify(r *http.Request) (string, error) {
	email, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "+prefix)
	if !ok {
		return "", fmt.Errorf("request had invalid authentication credentials: %q", r.Header.Get("Authorization"))
	}
	return email, nil
}
