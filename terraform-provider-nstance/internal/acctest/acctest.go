// Package acctest holds the shared fixtures of the provider's acceptance tests: buckets on real back ends, a fake
// leader, a real server, and the Terraform or OpenTofu CLI with the provider's binary.
package acctest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-testing/echoprovider"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/open"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/provider"
)

// Names that all tests share.
const (
	Cluster = "example"
	Shard   = "dev-1"
	// KeyVariable is the environment variable with the encryption key of a [Bucket].
	KeyVariable = "NSTANCE_TEST_KEY"
	bucketName  = "test-bucket"
)

// Factories returns the providers of a test: nstance, and echo, which makes ephemeral values visible.
func Factories() map[string]func() (tfprotov6.ProviderServer, error) {
	return map[string]func() (tfprotov6.ProviderServer, error){
		"nstance": providerserver.NewProtocol6WithError(provider.New("test")()),
		"echo":    echoprovider.NewProviderServer(),
	}
}

// Bucket is an empty bucket with a store through which the test reads and writes it.
type Bucket struct {
	objstore.Store
	Location objstore.Location
	Key      string // base64
}

// File returns a bucket in a temporary directory.
func File(t *testing.T) Bucket {
	t.Helper()
	return newBucket(t, objstore.Location{Provider: "file", Bucket: filepath.Join(t.TempDir(), "bucket")})
}

// S3 returns a bucket in an S3 server in this process.
func S3(t *testing.T) Bucket {
	t.Helper()
	b, _ := GuardedS3(t)
	return b
}

// Guard decides which requests a server answers. If the guard's function returns an error, the server refuses the
// request with AccessDenied, and the error is the message.
type Guard struct {
	check atomic.Pointer[func(*http.Request) error]
}

// Store replaces the function.
func (g *Guard) Store(check func(*http.Request) error) { g.check.Store(&check) }

// GuardedS3 is like S3, with a guard that at first permits everything. The guard also decides about the test's own
// requests.
func GuardedS3(t *testing.T) (Bucket, *Guard) {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket(bucketName); err != nil {
		t.Fatal(err)
	}
	guard, s3 := new(Guard), gofakes3.New(backend).Server()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if check := guard.check.Load(); check != nil {
			if err := (*check)(r); err != nil {
				w.Header().Set("Content-Type", "application/xml")
				w.WriteHeader(http.StatusForbidden)
				fmt.Fprintf(w, "<Error><Code>AccessDenied</Code><Message>%v</Message></Error>", err)
				return
			}
		}
		s3.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	hermetic(t)
	return newBucket(t, objstore.Location{Provider: "s3", Bucket: bucketName, Prefix: "some/where", Region: "us-east-1",
		Endpoint: server.URL, PathStyle: true}), guard
}

// Versitygw returns a bucket in a versitygw process, a real S3 server.
func Versitygw(t *testing.T) Bucket {
	t.Helper()
	binary := os.Getenv("NSTANCE_VERSITYGW")
	if binary == "" {
		build := exec.CommandContext(t.Context(), filepath.Join(root(t), "scripts/tool.sh"), "versitygw")
		build.Stderr = os.Stderr
		out, err := build.Output()
		if err != nil {
			t.Fatalf("build versitygw: %v", err)
		}
		binary = strings.TrimSpace(string(out))
	}
	hermetic(t)
	data := t.TempDir()
	if err := os.Mkdir(filepath.Join(data, bucketName), 0o700); err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	// Without --disableotmp, the object listings of versitygw 1.8.0 contain its own temporary files.
	server := exec.Command(binary, "--quiet", "--port", "127.0.0.1:"+port, "--access", "access", "--secret",
		"secret-of-the-test", "posix", "--disableotmp", data)
	var output bytes.Buffer
	server.Stdout, server.Stderr = &output, &output
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
		if t.Failed() {
			t.Logf("versitygw: %s", output.String())
		}
	})
	endpoint := "http://127.0.0.1:" + port
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	Eventually(ctx, t, "versitygw answers", func() bool {
		resp, err := http.Get(endpoint)
		if err != nil {
			return false
		}
		return resp.Body.Close() == nil
	})
	return newBucket(t, objstore.Location{Provider: "s3", Bucket: bucketName, Region: "us-east-1", Endpoint: endpoint,
		PathStyle: true})
}

// hermetic disables the AWS profiles and variables of the machine, and sets test credentials for this process.
func hermetic(t *testing.T) {
	t.Helper()
	for _, name := range []string{"AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"} {
		t.Setenv(name, filepath.Join(t.TempDir(), "none"))
	}
	for _, name := range []string{"AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL",
		"AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE", "AWS_SESSION_TOKEN"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_ACCESS_KEY_ID", "access")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-test")
}

func newBucket(t *testing.T, at objstore.Location) Bucket {
	t.Helper()
	store, err := open.Open(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	b := Bucket{Store: store, Location: at, Key: NewKey()}
	t.Setenv(KeyVariable, b.Key)
	return b
}

// Prefixed returns the same bucket with the given key prefix.
func (b Bucket) Prefixed(t *testing.T, prefix string) Bucket {
	t.Helper()
	b.Location.Prefix = prefix
	store, err := open.Open(t.Context(), b.Location)
	if err != nil {
		t.Fatal(err)
	}
	b.Store = store
	return b
}

// NewKey returns a new encryption key in base64.
func NewKey() string {
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails
	return base64.StdEncoding.EncodeToString(key[:])
}

// Provider returns the provider block for the bucket, in HCL. The parameter more has additional lines for the block.
func (b Bucket) Provider(more ...string) string {
	at := b.Location
	return fmt.Sprintf(`
provider "nstance" {
  storage = {
    provider   = %q
    bucket     = %q
    prefix     = %q
    region     = %q
    endpoint   = %q
    path_style = %t
  }
  encryption_key = { provider = "env", source = %q }
  %s
}
`, at.Provider, at.Bucket, at.Prefix, at.Region, at.Endpoint, at.PathStyle, KeyVariable, strings.Join(more, "\n  "))
}

// State returns the state of the cluster and the shard, read directly from the bucket.
func (b Bucket) State(t testing.TB) *clusterstate.State {
	t.Helper()
	key, err := keyring.Parse([]byte(b.Key))
	if err != nil {
		t.Fatal(err)
	}
	secrets := secretstore.NewObjects(secretstore.Options{Bucket: b, Cluster: Cluster, Ring: keyring.Ring{Current: key},
		Rand: rand.Reader})
	return clusterstate.New(clusterstate.Options{Cluster: b, Shard: b, ClusterID: Cluster, ShardID: Shard,
		Secrets: secrets})
}

// Keys returns all keys in the bucket.
func (b Bucket) Keys(t testing.TB) []string {
	t.Helper()
	entries, err := b.List(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, entry := range entries {
		out = append(out, entry.Key)
	}
	return out
}

// Eventually checks a condition every 20 ms until it holds. It fails the test if ctx ends first.
func Eventually(ctx context.Context, t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("never: %s", what)
		}
	}
}

// root returns the root directory of the repository.
func root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above the working directory")
		}
	}
}
