package bucket_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/bucket"
)

// TestRing checks that a key can be read from every source that the provider's schema lists, except for clouds that are
// not supported yet.
func TestRing(t *testing.T) {
	key := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32)))
	aws := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answers := map[string]any{
			"secretsmanager.GetSecretValue": map[string]string{"Name": "my-key", "SecretString": key},
			"AmazonSSM.GetParameter": map[string]any{"Parameter": map[string]string{"Name": "/my/key",
				"Value": key}},
		}
		w.Header().Set("Content-Type", "application/x-amz-json-1.1")
		_ = json.NewEncoder(w).Encode(answers[r.Header.Get("X-Amz-Target")]) // the client notices a broken answer
	}))
	t.Cleanup(aws.Close)
	for _, name := range []string{"AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"} {
		t.Setenv(name, filepath.Join(t.TempDir(), "none"))
	}
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL": aws.URL, "AWS_REGION": "us-west-2", "AWS_ACCESS_KEY_ID": "access",
		"AWS_SECRET_ACCESS_KEY": "secret", "AWS_PROFILE": "", "AWS_SESSION_TOKEN": "",
		"NSTANCE_TEST_KEY": key,
	} {
		t.Setenv(name, value)
	}
	want, err := keyring.Parse([]byte(key))
	if err != nil {
		t.Fatal(err)
	}
	for _, source := range []config.KeySource{
		{Provider: "env", Source: "NSTANCE_TEST_KEY"}, {Provider: "aws-secrets-manager", Source: "my-key"},
		{Provider: "aws-parameter-store", Source: "/my/key"},
	} {
		ring, err := bucket.New(bucket.Settings{Secrets: config.Secrets{EncryptionKey: &source}}).Ring(t.Context())
		if err != nil || !ring.Current.Equal(want) {
			t.Errorf("%s: %v", source.Provider, err)
		}
	}
	google := config.KeySource{Provider: "google-secret-manager", Source: "my-key"}
	if _, err := bucket.New(bucket.Settings{Secrets: config.Secrets{EncryptionKey: &google}}).Ring(
		t.Context()); !errors.Is(err, bucket.ErrKey) || !strings.Contains(err.Error(), "google-secret-manager") {
		t.Errorf("google: %v", err)
	}
}

// TestUnconditionalStoreIsRefused writes to an S3 endpoint that ignores the conditions of puts. The store must refuse
// the write.
func TestUnconditionalStoreIsRefused(t *testing.T) {
	var puts []string
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			puts = append(puts, r.URL.Path)
		}
		w.Header().Set("ETag", `"e"`)
	}))
	defer endpoint.Close()
	t.Setenv("AWS_ACCESS_KEY_ID", "access")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	connection := bucket.New(bucket.Settings{Storage: &objstore.Location{Provider: "s3", Bucket: "b", Region: "r",
		Endpoint: endpoint.URL, PathStyle: true}})
	store, err := connection.Store(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = store.Put(t.Context(), "config/a.jsonc", []byte("{}"), objstore.IfAbsent())
	if !errors.Is(err, objstore.ErrUnconditional) {
		t.Errorf("put: %v, want ErrUnconditional", err)
	}
	if slices.Contains(puts, "/b/config/a.jsonc") {
		t.Errorf("the store was written before it was proven: %q", puts)
	}
}

// TestKnownAndSealed checks what settings that are unknown or not set mean.
func TestKnownAndSealed(t *testing.T) {
	var none *bucket.Connection
	unknown := bucket.New(bucket.Settings{StorageUnknown: true})
	if none.Known() || unknown.Known() || !bucket.New(bucket.Settings{}).Known() {
		t.Error("the bucket is known while its settings are not, or the other way round")
	}
	for c, want := range map[*bucket.Connection]error{none: bucket.ErrUnknown, unknown: bucket.ErrUnknown,
		bucket.New(bucket.Settings{}): bucket.ErrNotSet} {
		if _, err := c.Store(t.Context()); !errors.Is(err, want) {
			t.Errorf("store: %v, want %v", err, want)
		}
	}
	for provider, want := range map[string]bool{"": true, config.ObjectStorage: true, "aws-secrets-manager": false} {
		if got := bucket.New(bucket.Settings{Secrets: config.Secrets{Provider: provider}}).Sealed(); got != want {
			t.Errorf("secrets of provider %q are sealed in the bucket: %v", provider, got)
		}
	}
	first := bucket.New(bucket.Settings{})
	if !first.Claim("a") || first.Claim("a") || !first.Claim("b") {
		t.Error("two resources claim one key")
	}
}
