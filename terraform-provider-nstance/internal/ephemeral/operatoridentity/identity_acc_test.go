package operatoridentity_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/terraform"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/registration"
)

func TestMain(m *testing.M) { acctest.Main(m) }

func identity(b acctest.Bucket, attributes string) string {
	return b.Provider() + fmt.Sprintf(`
ephemeral "nstance_operator_identity" "test" {
  cluster_id = "example"
  %s
}
provider "echo" { data = ephemeral.nstance_operator_identity.test }
resource "echo" "test" {}
`, attributes)
}

func TestAccIdentity(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	ca, _, err := b.State(t).EnsureCA(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	checks := func(tenant string, ttl time.Duration) resource.TestCheckFunc {
		return func(s *terraform.State) error {
			data := s.RootModule().Resources["echo.test"].Primary.Attributes
			pair, err := tls.X509KeyPair([]byte(data["data.certificate_pem"]), []byte(data["data.private_key_pem"]))
			if err != nil {
				return err
			}
			who, err := authority.ParseIdentity(pair.Leaf)
			if err != nil {
				return err
			}
			if who.Tenant != tenant || who.ID.String() != data["data.operator_id"] ||
				pair.Leaf.NotAfter.Sub(pair.Leaf.NotBefore) != ttl+authority.Skew ||
				data["data.not_after"] != pair.Leaf.NotAfter.UTC().Format(time.RFC3339) ||
				pair.Leaf.CheckSignatureFrom(ca.Certificate()) != nil {
				return fmt.Errorf("%+v, %v", who, data)
			}
			return nil
		}
	}
	for _, step := range []resource.TestStep{
		{Config: identity(b, ""), Check: checks("default", time.Hour)},
		{Config: identity(b, "tenant = \"prod\"\n ttl = \"30m\""), Check: checks("prod", 30*time.Minute)},
		{Config: identity(b, `tenant = "Prod"`), ExpectError: regexp.MustCompile(`Invalid tenant`)},
		{Config: identity(b, `ttl = "1s"`), ExpectError: regexp.MustCompile(`(?s)Invalid ttl.*between\s+a\s+minute`)},
	} {
		resource.Test(t, resource.TestCase{ProtoV6ProviderFactories: acctest.Factories(),
			Steps: []resource.TestStep{step}})
	}
	if all, err := b.State(t).ListOperators(t.Context(), ""); err != nil || len(all) > 0 {
		t.Errorf("left of those runs: %v, %v", all, err)
	}
}

// TestAccIdentityRemovesExpiredOperators checks that a run removes expired operators of interrupted runs. It must not
// remove the operator of a run that is in progress, or an operator from another resource.
func TestAccIdentityRemovesExpiredOperators(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	state := b.State(t)
	if _, _, err := state.EnsureCA(t.Context()); err != nil {
		t.Fatal(err)
	}
	ids := map[string]string{}
	for name, of := range map[string]struct {
		writer string
		ended  bool
	}{"broken off": {"terraform-identity", true}, "running": {"terraform-identity", false},
		"another": {"terraform-operator", true}} {
		public, _, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		operator, err := registration.Register(t.Context(), state, "default", public, time.Hour,
			of.writer)
		if err != nil {
			t.Fatal(err)
		}
		ids[operator.ID.String()] = name
		if of.ended {
			rec, token, err := state.GetOperator(t.Context(), "default", operator.ID)
			if err != nil {
				t.Fatal(err)
			}
			rec.Revision++
			rec.Certificate.NotAfter = time.Now().Add(-time.Second)
			if _, err := state.PutOperator(t.Context(), rec, token); err != nil {
				t.Fatal(err)
			}
		}
	}
	cli := acctest.NewCLI(t, b.Provider()+
		"ephemeral \"nstance_operator_identity\" \"test\" {\n cluster_id = \"example\"\n}\n")
	cli.Run(t, "apply", "-auto-approve")
	all, err := state.ListOperators(context.Background(), "default")
	if err != nil || len(all) != 2 {
		t.Fatalf("%v, %v", all, err)
	}
	for _, rec := range all {
		if rec.Removed() || ids[rec.ID.String()] == "broken off" {
			t.Errorf("left: %s", ids[rec.ID.String()])
		}
	}
}

// TestAccIdentityOfARun checks a pipeline that creates a cluster and then a group. It creates the group with an
// operator identity for this run only. No file may contain the identity's key afterwards.
func TestAccIdentityOfARun(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	acctest.Serve(t, b)
	before := operators(t, b)
	cli := acctest.NewCLI(t, b.Provider()+`
resource "nstance_cluster" "this" { id = "example" }

ephemeral "nstance_operator_identity" "run" { cluster_id = nstance_cluster.this.id }

`+b.Provider("alias = \"fleet\"", `operator = {
    ca_certificate_pem = ephemeral.nstance_operator_identity.run.ca_certificate_pem
    certificate_pem    = ephemeral.nstance_operator_identity.run.certificate_pem
    private_key_pem    = ephemeral.nstance_operator_identity.run.private_key_pem
  }`)+`
resource "nstance_group" "test" {
  provider = nstance.fleet
  shard    = "dev-1"
  name     = "fleet"
  spec     = { template = "worker" }
}
`)
	cli.Run(t, "plan", "-out=first.plan")
	cli.Run(t, "apply", "first.plan")
	cli.Run(t, "plan", "-out=second.plan")
	if out := cli.Run(t, "plan"); !strings.Contains(out, "No changes") {
		t.Errorf("%s", out)
	}
	texts := cli.Texts(t)
	if !strings.Contains(texts["terraform.tfstate"], "dev-1/default/fleet") || len(texts) < 3 {
		t.Fatalf("%d files", len(texts))
	}
	for name, text := range texts {
		if strings.Contains(text, "PRIVATE KEY") {
			t.Errorf("%s holds a key", name)
		}
	}
	if now := operators(t, b); now != before {
		t.Errorf("%d operators before, %d after", before, now)
	}
	cli.Run(t, "destroy", "-auto-approve", "-target=nstance_group.test")
}

func operators(t *testing.T, b acctest.Bucket) int {
	t.Helper()
	all, err := b.State(t).ListOperators(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
