package gcp_test

import (
	"encoding/base64"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/keyring/gcp"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	"github.com/nstance-kit/nstance/services/store/secretstore/googlesecretmanager"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/credentials"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/secretmanager"
)

const key = "thisisatest32bytekey123456789012"

// TestSources reads keys with the default credentials, which are in the file that GOOGLE_APPLICATION_CREDENTIALS names.
func TestSources(t *testing.T) {
	server, err := rest.New("secretmanager", "v1", secretmanager.New().Handlers(), credentials.Identify)
	if err != nil {
		t.Fatal(err)
	}
	listener := httptest.NewServer(server)
	defer listener.Close()
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", credentials.Write(t, "mine"))
	t.Setenv("GOOGLE_CLOUD_PROJECT", "")
	t.Setenv("GOOGLE_SECRET_MANAGER_CUSTOM_ENDPOINT", listener.URL+"/v1/")

	text := base64.StdEncoding.EncodeToString([]byte(key))
	for _, project := range []string{"mine", "theirs"} {
		store, err := googlesecretmanager.Backend.Open(t.Context(), config.Secrets{ProjectID: project},
			secretstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for name, content := range map[string]string{"text": text, "binary": key} {
			value := secretstore.NewValue([]byte(content))
			if err := store.Put(t.Context(), project+"-"+name, value, secretstore.IfAbsent); err != nil {
				t.Fatal(err)
			}
		}
	}

	load := func(source config.KeySource) (keyring.Ring, error) {
		source.Provider = "google-secret-manager"
		return keyring.Load(t.Context(), config.Secrets{EncryptionKey: &source}, gcp.Sources(cloud.Access{}))
	}
	for _, source := range []config.KeySource{
		{Source: "mine-text"}, {Source: "mine-binary"}, {Source: "mine-text/versions/1"},
		{Source: "theirs-text", ProjectID: "theirs"}, {Source: "projects/theirs/secrets/theirs-binary"},
		{Source: "projects/theirs/secrets/theirs-text/versions/1"},
	} {
		if ring, err := load(source); err != nil || ring.Current.IsZero() {
			t.Errorf("%+v: %v", source, err)
		}
	}
	for source, want := range map[config.KeySource]string{{}: "no source is named", {Source: "none"}: "404",
		{Source: "mine-text/versions/2"}: "404", {Source: "mine-text", ProjectID: "theirs"}: "404"} {
		_, err := load(source)
		if err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, keyring.ErrDenied) {
			t.Errorf("%+v: %v, want %q", source, err, want)
		} else if strings.Contains(err.Error(), text) || strings.Contains(err.Error(), key) {
			t.Errorf("the error quotes a key: %v", err)
		}
	}
	for _, code := range []int{http.StatusForbidden, http.StatusUnauthorized} {
		server.Refuse("secretmanager.projects.secrets.versions.access", &rest.Error{Code: code, Reason: "forbidden",
			Message: "Permission 'secretmanager.versions.access' denied"})
		if _, err := load(config.KeySource{Source: "mine-text"}); !errors.Is(err, keyring.ErrDenied) {
			t.Errorf("a refusal with status %d is %v", code, err)
		}
	}
}
