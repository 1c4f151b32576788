package open_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/objstore/open"
)

func TestFile(t *testing.T) {
	dir := t.TempDir()
	store, err := open.Open(t.Context(), objstore.Location{Provider: "file", Bucket: dir, Prefix: "team/"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Put(t.Context(), "k", []byte("x"), objstore.IfAbsent()); err != nil {
		t.Fatal(err)
	}
	if body, err := os.ReadFile(filepath.Join(dir, "team", "k")); err != nil || string(body) != "x" {
		t.Errorf("file holds %q, %v", body, err)
	}
}

// TestS3FromEnvironment checks that the environment variables in the documentation are enough to use S3. A region is
// not needed.
func TestS3FromEnvironment(t *testing.T) {
	var path string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path = r.URL.Path
		w.Header().Set("ETag", `"e"`)
	}))
	defer server.Close()
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_ACCESS_KEY_ID", "dev")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "dev")
	t.Setenv("AWS_ENDPOINT_URL", strings.Replace(server.URL, "127.0.0.1", "localhost", 1))
	t.Setenv("AWS_S3_USE_PATH_STYLE", "true")
	store, err := open.Open(t.Context(), objstore.Location{Provider: "s3", Bucket: "dev", Prefix: "team"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Put(t.Context(), "k", []byte("x"), objstore.IfAbsent()); err != nil {
		t.Fatal(err)
	}
	if path != "/dev/team/k" {
		t.Errorf("path = %q", path)
	}
}

// TestNames checks that the configuration accepts the name of every back end.
func TestNames(t *testing.T) {
	for _, name := range open.Names() {
		if !slices.Contains(config.ObjectStoreNames(), name) {
			t.Errorf("the configuration does not know %q", name)
		}
	}
}

func TestErrors(t *testing.T) {
	t.Setenv("AWS_S3_USE_PATH_STYLE", "perhaps")
	for _, at := range []objstore.Location{{}, {Provider: "ftp", Bucket: "b"}, {Provider: "file"},
		{Provider: "s3", Bucket: "b"}} {
		if store, err := open.Open(t.Context(), at); err == nil {
			t.Errorf("%+v opened %v", at, store)
		}
	}
}
