package secret_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"regexp"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
)

func TestMain(m *testing.M) { acctest.Main(m) }

const address = "nstance_secret.test"

func secret(b acctest.Bucket, name, value string, version int) string {
	return b.Provider() + fmt.Sprintf(`
resource "nstance_secret" "test" {
  cluster_id       = "example"
  name             = %q
  value_wo         = %q
  value_wo_version = %d
}
`, name, value, version)
}

func open(t *testing.T, b acctest.Bucket) *secretstore.Objects {
	t.Helper()
	key, err := keyring.Parse([]byte(b.Key))
	if err != nil {
		t.Fatal(err)
	}
	return secretstore.NewObjects(secretstore.Options{Bucket: b, Cluster: acctest.Cluster,
		Ring: keyring.Ring{Current: key}, Rand: rand.Reader})
}

func holds(t *testing.T, b acctest.Bucket, name, want string) func(*terraform.State) error {
	return func(*terraform.State) error {
		secret, err := open(t, b).Get(context.Background(), name)
		if err == nil && string(secret.Value.Reveal()) != want {
			err = fmt.Errorf("the secret is %q, want %q", secret.Value.Reveal(), want)
		}
		return err
	}
}

func lifecycle(t *testing.T, b acctest.Bucket) {
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: acctest.Factories(),
		CheckDestroy: func(*terraform.State) error {
			if left := b.Keys(t); len(left) > 0 {
				return fmt.Errorf("left in the bucket: %v", left)
			}
			return nil
		},
		Steps: []resource.TestStep{
			{Config: secret(b, "a", "one", 1), Check: holds(t, b, "a", "one")},
			{Config: secret(b, "a", "one", 1), PlanOnly: true},
			{Config: secret(b, "a", "two", 1), Check: holds(t, b, "a", "one")}, // same version, so not stored
			{Config: secret(b, "a", "two", 2), Check: holds(t, b, "a", "two")},
			{ResourceName: address, ImportState: true, ImportStateId: "example/a", ImportStateVerify: true,
				ImportStateVerifyIdentifierAttribute: "name",
				ImportStateVerifyIgnore:              []string{"value_wo_version"}},
			{
				Config: secret(b, "b", "two", 2), Check: holds(t, b, "b", "two"),
				ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{
					plancheck.ExpectResourceAction(address, plancheck.ResourceActionDestroyBeforeCreate),
				}},
			},
			{ // A missing secret is stored again.
				PreConfig: func() {
					if err := b.Delete(context.Background(), keys.ClusterSecret("b")); err != nil {
						t.Fatal(err)
					}
				},
				Config: secret(b, "b", "two", 2), Check: holds(t, b, "b", "two"),
			},
		},
	})
}

func TestAccSecretFile(t *testing.T) { acctest.Acceptance(t); lifecycle(t, acctest.File(t)) }
func TestAccSecretS3(t *testing.T)   { acctest.Acceptance(t); lifecycle(t, acctest.S3(t)) }

func TestAccSecretMistakes(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	if err := open(t, b).Put(t.Context(), "taken", secretstore.NewValue([]byte("x")),
		secretstore.IfAbsent); err != nil {
		t.Fatal(err)
	}
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: acctest.Factories(),
		Steps: []resource.TestStep{
			{Config: secret(b, "ca.key", "x", 1), ExpectError: regexp.MustCompile(`the cluster's own`)},
			{Config: secret(b, "../x", "x", 1), ExpectError: regexp.MustCompile(`Invalid secret name`)},
			{Config: secret(b, "empty", "", 1), ExpectError: regexp.MustCompile(`Give a value of 1 to`)},
			{Config: secret(b, "taken", "y", 1), ExpectError: regexp.MustCompile(
				`(?s)Secret taken exists.*example/taken`)},
		},
	})
	if err := holds(t, b, "taken", "x")(nil); err != nil {
		t.Error(err)
	}
}
