package operatornonce_test

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/terraform"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
)

func TestMain(m *testing.M) { acctest.Main(m) }

func nonce(b acctest.Bucket, attributes string) string {
	return b.Provider() + fmt.Sprintf(`
ephemeral "nstance_operator_nonce" "test" {
  cluster_id = "example"
  %s
}
provider "echo" { data = ephemeral.nstance_operator_nonce.test }
resource "echo" "test" {}
`, attributes)
}

func TestAccNonce(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	if _, _, err := b.State(t).EnsureCA(t.Context()); err != nil {
		t.Fatal(err)
	}
	key, _, err := b.State(t).EnsureNonceKey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	checks := func(tenant string, ttl time.Duration) resource.TestCheckFunc {
		return func(s *terraform.State) error {
			data := s.RootModule().Resources["echo.test"].Primary.Attributes
			claims, err := authority.ParseNonce(key.Accepted(), acctest.Cluster, data["data.nonce"], time.Now(), false)
			if err != nil {
				return err
			}
			if claims.Role != authority.RoleOperator || claims.Tenant != tenant ||
				claims.ID.String() != data["data.operator_id"] ||
				claims.ExpiresAt.Format(time.RFC3339) != data["data.expires_at"] ||
				claims.ExpiresAt.Sub(claims.IssuedAt) != ttl {
				return fmt.Errorf("%+v, %v", claims, data)
			}
			return nil
		}
	}
	for _, step := range []resource.TestStep{
		{Config: nonce(b, ""), Check: checks("default", authority.OperatorNonceTTL)},
		{Config: nonce(b, "tenant = \"prod\"\n expiry = \"30m\""), Check: checks("prod", 30*time.Minute)},
		{Config: nonce(b, `tenant = "Prod"`), ExpectError: regexp.MustCompile(`Invalid tenant`)},
		{Config: nonce(b, `expiry = "-1h"`), ExpectError: regexp.MustCompile(`(?s)Invalid expiry.*negative`)},
	} {
		resource.Test(t, resource.TestCase{ProtoV6ProviderFactories: acctest.Factories(),
			Steps: []resource.TestStep{step}})
	}
}
