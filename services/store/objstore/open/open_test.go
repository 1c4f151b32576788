package open_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/open"
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
	if names := open.Names(); len(names) != len(open.Backends()) {
		t.Errorf("names %v", names)
	}
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
	if at, err := open.Canonical(t.Context(), objstore.Location{Provider: "s3", Bucket: "b"}); err == nil {
		t.Errorf("a location with an unknown endpoint is %+v", at)
	}
}

// TestCanonical checks what distinguishes two buckets, and what does not.
func TestCanonical(t *testing.T) {
	for _, name := range []string{"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_S3_USE_PATH_STYLE"} {
		t.Setenv(name, "")
	}
	profiles := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(profiles, []byte("[profile lab]\nendpoint_url = http://lab:9000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_CONFIG_FILE", profiles)
	at := func(endpoint string) objstore.Location {
		t.Helper()
		one, err := open.Canonical(t.Context(), objstore.Location{Provider: "s3", Bucket: "b", Prefix: "/team/",
			Region: "us-east-1", Endpoint: endpoint, PathStyle: true})
		if err != nil {
			t.Fatal(err)
		}
		return one
	}
	want := objstore.Location{Provider: "s3", Bucket: "b", Prefix: "team"}
	for _, endpoint := range []string{"", "https://s3.us-west-2.amazonaws.com",
		"https://bucket.vpce-1.s3.us-east-1.vpce.amazonaws.com"} {
		if got := at(endpoint); got != want {
			t.Errorf("%q: %+v", endpoint, got)
		}
	}
	want.Endpoint = "https://store.example.com:443"
	for _, endpoint := range []string{"https://store.example.com", "https://Store.Example.com:443/"} {
		if got := at(endpoint); got != want {
			t.Errorf("%q: %+v", endpoint, got)
		}
	}
	t.Setenv("AWS_PROFILE", "lab")
	if got := at(""); got.Endpoint != "http://lab:9000" {
		t.Errorf("with a profile: %+v", got)
	}
	t.Setenv("AWS_ENDPOINT_URL_S3", "http://env:9000")
	if got := at(""); got.Endpoint != "http://env:9000" {
		t.Errorf("with a variable: %+v", got)
	}

	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	one, err := open.Canonical(t.Context(), objstore.Location{Provider: "file", Bucket: link})
	two, err2 := open.Canonical(t.Context(), objstore.Location{Provider: "file", Bucket: dir + "/"})
	if err != nil || err2 != nil || one != two || !filepath.IsAbs(one.Bucket) {
		t.Errorf("%+v, %+v, %v, %v", one, two, err, err2)
	}
}

// TestOnlyS3HasRoles validates settings of S3 for other stores.
func TestOnlyS3HasRoles(t *testing.T) {
	for _, at := range []objstore.Location{
		{Provider: "gcs", Bucket: "dev", Profile: "state"},
		{Provider: "gcs", Bucket: "dev", AssumeRole: cloud.Role{ARN: "arn"}},
		{Provider: "file", Bucket: "/tmp/x", Encrypt: true},
		{Provider: "file", Bucket: "/tmp/x", KMSKeyID: "k"},
	} {
		if err := open.Validate(at); err == nil || !strings.Contains(err.Error(), "has no profile") {
			t.Errorf("%+v: %v", at, err)
		}
	}
	for _, at := range []objstore.Location{{Provider: "file", Bucket: "/tmp/x"}, {Provider: "gcs", Bucket: "dev"},
		{Provider: "s3", Bucket: "dev", Region: "us-east-1", Profile: "state", Encrypt: true}} {
		if err := open.Validate(at); err != nil {
			t.Errorf("%+v: %v", at, err)
		}
	}
}
