package cluster_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/terraform"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	secretstores "github.com/nstance-kit/nstance/services/store/secretstore/open"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
)

// secretsServices starts a fake AWS for secrets and points the SDK at it. The fake refuses to reveal secrets while
// denied is set.
func secretsServices(t *testing.T) (cfg aws.Config, denied *atomic.Bool) {
	t.Helper()
	cloud, err := fakeaws.New(fakeaws.Config{})
	if err != nil {
		t.Fatal(err)
	}
	denied = new(atomic.Bool)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if target := r.Header.Get("X-Amz-Target"); denied.Load() && (strings.HasSuffix(target, ".GetSecretValue") ||
			strings.HasSuffix(target, ".GetParameter")) {
			w.Header().Set("Content-Type", "application/x-amz-json-1.1")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(`{"__type": "AccessDeniedException", "message": "not authorized"}`))
			return
		}
		cloud.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		server.Close()
		if err := cloud.Close(); err != nil {
			t.Error(err)
		}
	})
	access, secret := cloud.Credentials()
	for name, value := range map[string]string{"AWS_ENDPOINT_URL_SECRETS_MANAGER": server.URL,
		"AWS_ENDPOINT_URL_SSM": server.URL, "AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret,
		"AWS_REGION": cloud.Region()} {
		t.Setenv(name, value)
	}
	return aws.Config{Region: cloud.Region(), BaseEndpoint: &server.URL,
		Credentials: credentials.NewStaticCredentialsProvider(access, secret, "")}, denied
}

// everything returns a function that makes a configuration with a cluster, a secret and an operator.
func everything(t *testing.T, clusterAttributes string) func(secretVersion int) string {
	t.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := authority.EncodePublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return func(secretVersion int) string {
		return fmt.Sprintf(`
resource "nstance_cluster" "test" {
  id = "example"
  %s
}
resource "nstance_secret" "test" {
  cluster_id       = nstance_cluster.test.id
  name             = "db-password"
  value_wo         = "value %d"
  value_wo_version = %[2]d
}
resource "nstance_operator" "test" {
  cluster_id     = nstance_cluster.test.id
  public_key_pem = <<-PEM
%s  PEM
}
`, clusterAttributes, secretVersion, key)
	}
}

// TestAccSecretsStores checks for each secrets store that secrets are in the store, and never in the bucket.
func TestAccSecretsStores(t *testing.T) {
	acctest.Acceptance(t)
	for _, settings := range []config.Secrets{
		{Provider: "aws-secrets-manager", Prefix: "nstance/example/"},
		{Provider: "aws-parameter-store", Prefix: "/nstance/example/"},
	} {
		t.Run(settings.Provider, func(t *testing.T) {
			b := acctest.File(t)
			secretsServices(t)
			store, err := secretstores.Open(t.Context(), settings, secretstore.Options{})
			if err != nil {
				t.Fatal(err)
			}
			provider := b.Provider(fmt.Sprintf("secrets = { provider = %q, prefix = %q }", settings.Provider,
				settings.Prefix))
			with := everything(t, "")
			stored := func(value string) func(*terraform.State) error {
				return func(*terraform.State) error {
					for _, key := range b.Keys(t) {
						if strings.HasPrefix(key, keys.SecretPrefix()) {
							return fmt.Errorf("%s is in the bucket", key)
						}
					}
					secret, err := store.Get(context.Background(), "db-password")
					if err == nil && string(secret.Value.Reveal()) != value {
						err = fmt.Errorf("the secret is %q, want %q", secret.Value.Reveal(), value)
					}
					return err
				}
			}
			// "other" is a secret of another program under the same prefix, which a destroy must not delete.
			// WorkloadCAKey is a secret that a leader makes, which a destroy must delete.
			for _, name := range []string{"other", secretstore.WorkloadCAKey} {
				if err := store.Put(t.Context(), name, secretstore.NewValue([]byte("x")), secretstore.Any); err != nil {
					t.Fatal(err)
				}
			}
			resource.Test(t, resource.TestCase{
				ProtoV6ProviderFactories: acctest.Factories(),
				CheckDestroy: func(*terraform.State) error {
					names, err := store.List(context.Background())
					if err == nil && !slices.Equal(names, []string{"other"}) {
						err = fmt.Errorf("left in the secrets store: %v", names)
					}
					return err
				},
				Steps: []resource.TestStep{
					{Config: provider + with(1), Check: resource.ComposeTestCheckFunc(stored("value 1"),
						resource.TestCheckResourceAttrSet(address, "ca_fingerprint"),
						resource.TestCheckNoResourceAttr(address, "encryption_key_id"),
						resource.TestCheckNoResourceAttr("nstance_secret.test", "encryption_key_id"),
						resource.TestCheckResourceAttrSet("nstance_operator.test", "certificate_pem"))},
					{Config: provider + with(1), PlanOnly: true},
					{Config: provider + with(2), Check: stored("value 2")},
					{PreConfig: func() {
						if err := store.Delete(t.Context(), "db-password"); err != nil {
							t.Fatal(err)
						}
					}, Config: provider + with(2), PlanOnly: true, ExpectNonEmptyPlan: true},
					{Config: provider + with(3), Check: stored("value 3")},
				},
			})
		})
	}
}

// TestAccPlanWithReadOnlyCredentials checks that a plan works with credentials that may neither write to the bucket nor
// read sealed secrets and encryption keys.
func TestAccPlanWithReadOnlyCredentials(t *testing.T) {
	acctest.Acceptance(t)
	b, guard := acctest.GuardedS3(t)
	cfg, denied := secretsServices(t)
	// The fake secrets service and the S3 server accept the credentials of this process.
	key := acctest.NewKey()
	for _, name := range []string{"first", "second"} {
		if _, err := secretsmanager.NewFromConfig(cfg).CreateSecret(t.Context(), &secretsmanager.CreateSecretInput{
			Name: aws.String(name), SecretString: &key}); err != nil {
			t.Fatal(err)
		}
	}
	source := func(name string) string {
		return fmt.Sprintf(`encryption_key = { provider = "aws-secrets-manager", source = %q }`, name)
	}
	// The resources of the secret and the operator use the provider's key, which must be the cluster's key.
	provider := strings.Replace(b.Provider(),
		`encryption_key = { provider = "env", source = "`+acctest.KeyVariable+`" }`, source("first"), 1)
	shard := func(interval string) string {
		return fmt.Sprintf(`
resource "nstance_shard" "test" {
  config = {
    cluster = { id = nstance_cluster.test.id, secrets = { %s } }
    server = {
      shard                 = "dev-1"
      provider              = { kind = "tmux" }
      subnet_pools          = { default = ["local"] }
      health_check_interval = %q
    }
  }
}
`, source("first"), interval)
	}
	with := everything(t, "")
	moved := everything(t, source("second"))
	restrict := func() {
		denied.Store(true)
		guard.Store(func(r *http.Request) error {
			if r.Method != http.MethodGet && r.Method != http.MethodHead {
				return errors.New("this credential may not write")
			}
			if strings.Contains(r.URL.Path, "/"+keys.SecretPrefix()) {
				return errors.New("this credential may not read secrets")
			}
			return nil
		})
	}
	release := func() {
		denied.Store(false)
		guard.Store(func(*http.Request) error { return nil })
	}
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: acctest.Factories(),
		Steps: []resource.TestStep{
			{PreConfig: restrict, Config: provider + with(1) + shard("5s"), PlanOnly: true, ExpectNonEmptyPlan: true},
			{PreConfig: release, Config: provider + with(1) + shard("5s")},
			{PreConfig: restrict, Config: provider + with(1) + shard("5s"), PlanOnly: true},
			{Config: provider + with(2) + shard("6s"), PlanOnly: true, ExpectNonEmptyPlan: true},
			{Config: provider + moved(1) + shard("5s"), PlanOnly: true, ExpectNonEmptyPlan: true},
			{Config: provider + with(2) + shard("5s"), ExpectError: regexp.MustCompile(`AccessDenied`)},
			{PreConfig: release, Config: provider + moved(2) + shard("6s")},
		},
	})
}
