package operator_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/registration"
)

func TestMain(m *testing.M) { acctest.Main(m) }

const address = "nstance_operator.test"

func newKey(t *testing.T) string {
	t.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	text, err := authority.EncodePublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func operator(b acctest.Bucket, key, attributes string) string {
	return b.Provider() +
		fmt.Sprintf(
			"resource \"nstance_operator\" \"test\" {\n  cluster_id = \"example\"\n  public_key_pem = %q\n  %s\n}\n",
			key, attributes)
}

func cluster(t *testing.T, b acctest.Bucket) {
	t.Helper()
	if _, _, err := b.State(t).EnsureCA(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// live returns the registered operators of a tenant and the number of operators with a tombstone.
func live(t *testing.T, b acctest.Bucket, tenant string) (out []record.Operator, tombstones int) {
	t.Helper()
	all, err := b.State(t).ListOperators(context.Background(), tenant)
	if err != nil {
		t.Fatal(err)
	}
	for _, rec := range all {
		if rec.Removed() {
			tombstones++
		} else {
			out = append(out, rec)
		}
	}
	return out, tombstones
}

// good returns a function that checks the certificate in the state: the CA issued it for the given public key, and the
// only operator in the bucket has this certificate. The function also checks the other computed attributes.
func good(t *testing.T, b acctest.Bucket, key, tenant string, ttl time.Duration) resource.TestCheckFunc {
	return func(s *terraform.State) error {
		attributes := s.RootModule().Resources[address].Primary.Attributes
		block, _ := pem.Decode([]byte(attributes["certificate_pem"]))
		if block == nil {
			return fmt.Errorf("no certificate: %v", attributes)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return err
		}
		bundle, err := authority.ParseBundle([]byte(attributes["ca_certificate_pem"]))
		if err != nil {
			return err
		}
		if err := cert.CheckSignatureFrom(bundle[0]); err != nil {
			return err
		}
		who, err := authority.ParseIdentity(cert)
		if err != nil {
			return err
		}
		public, err := registration.ParsePublicKey(key)
		if err != nil {
			return err
		}
		operators, _ := live(t, b, tenant)
		if len(operators) != 1 {
			return fmt.Errorf("%d operators", len(operators))
		}
		rec := operators[0]
		if rec.ID != who.ID || rec.Certificate.Serial != authority.Serial(cert) || !public.Equal(cert.PublicKey) ||
			who.Tenant != tenant || rec.ID.String() != attributes["id"] ||
			attributes["serial"] != authority.Serial(cert) || attributes["not_after"] != cert.NotAfter.UTC().Format(
			time.RFC3339) ||
			cert.NotAfter.Sub(cert.NotBefore) != ttl+authority.Skew {
			return fmt.Errorf("%+v, %+v, %v", rec, who, attributes)
		}
		return nil
	}
}

func TestAccOperator(t *testing.T) {
	acctest.Acceptance(t)
	b, key, other := acctest.S3(t), newKey(t), newKey(t)
	cluster(t, b)
	var serial string
	remember := func(s *terraform.State) error {
		now := s.RootModule().Resources[address].Primary.Attributes["serial"]
		if now == serial {
			return errors.New("the certificate is the same")
		}
		serial = now
		return nil
	}
	kept := func(s *terraform.State) error {
		if now := s.RootModule().Resources[address].Primary.Attributes["serial"]; now != serial {
			return errors.New("the certificate is another")
		}
		return nil
	}
	empty := resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()}}
	does := func(action plancheck.ResourceActionType) resource.ConfigPlanChecks {
		return resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{plancheck.ExpectResourceAction(address,
			action)}}
	}
	const month = 30 * 24 * time.Hour
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: acctest.Factories(),
		CheckDestroy: func(*terraform.State) error {
			if operators, tombstones := live(t, b, "prod"); len(operators) > 0 || tombstones != 2 {
				return fmt.Errorf("%d operators and %d tombstones are left", len(operators), tombstones)
			}
			return nil
		},
		Steps: []resource.TestStep{
			{Config: operator(b, key, ""), Check: resource.ComposeTestCheckFunc(good(t, b, key, "default", month),
				remember)},
			{Config: operator(b, key, ""), ConfigPlanChecks: empty},
			// The same key in another formatting does not replace the operator.
			{Config: operator(b, "\n"+key+"\n", ""), Check: resource.ComposeTestCheckFunc(good(t, b, key, "default",
				month), kept), ConfigPlanChecks: does(plancheck.ResourceActionUpdate)},
			{Config: operator(b, key, `renew_before = "29d"`), Check: resource.ComposeTestCheckFunc(good(t, b, key,
				"default", month), kept)},
			{ // The certificate is due immediately, and due again at the next plan.
				Config:             operator(b, key, `renew_before = "29d23h59m59.9s"`),
				ConfigPlanChecks:   does(plancheck.ResourceActionUpdate),
				Check:              resource.ComposeTestCheckFunc(good(t, b, key, "default", month), remember),
				ExpectNonEmptyPlan: true,
			},
			{Config: operator(b, key, `ttl = "2h"`), Check: resource.ComposeTestCheckFunc(good(t, b, key, "default",
				2*time.Hour), remember), ConfigPlanChecks: does(plancheck.ResourceActionUpdate)},
			{
				ResourceName: address, ImportState: true, ImportStateVerify: true,
				ImportStateIdFunc: func(s *terraform.State) (string, error) {
					return "example/default/" + s.RootModule().Resources[address].Primary.ID, nil
				},
				ImportStateVerifyIgnore: []string{"certificate_pem", "ca_certificate_pem", "serial", "not_after",
					"ttl"},
			},
			{ResourceName: address, ImportState: true, ImportStateId: "opr06bgm7733st2576nx5jht4ecjw",
				ExpectError: regexp.MustCompile(`want cluster/tenant/operator-id`)},
			{ // An operator that another client removed is registered again.
				PreConfig: func() {
					operators, _ := live(t, b, "default")
					if err := registration.Remove(context.Background(), b.State(t), "default", operators[0].ID,
						"test"); err != nil {
						t.Fatal(err)
					}
				},
				Config: operator(b, key, ""), ConfigPlanChecks: does(plancheck.ResourceActionCreate),
				Check: resource.ComposeTestCheckFunc(good(t, b, key, "default", month), remember),
			},
			// A new tenant or a new key replaces the operator.
			{Config: operator(b, key, `tenant = "prod"`), ConfigPlanChecks: does(plancheck.ResourceActionReplace),
				Check: good(t, b, key, "prod", month)},
			{Config: operator(b, other, `tenant = "prod"`), ConfigPlanChecks: does(plancheck.ResourceActionReplace),
				Check: good(t, b, other, "prod", month)},
		},
	})
	if operators, tombstones := live(t, b, "default"); len(operators) > 0 || tombstones != 2 {
		t.Errorf("%d operators and %d tombstones of the first tenant are left", len(operators), tombstones)
	}
}

func TestAccOperatorRefusals(t *testing.T) {
	acctest.Acceptance(t)
	b, key := acctest.File(t), newKey(t)
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: acctest.Factories(),
		Steps: []resource.TestStep{
			{Config: operator(b, key, ""), ExpectError: regexp.MustCompile(
				`(?s)Cannot register an operator.*Create\s+the\s+cluster\s+first`)},
			{Config: operator(b, strings.ReplaceAll(key, "PUBLIC", "PRIVATE"), ""), PlanOnly: true,
				ExpectError: regexp.MustCompile(`Invalid public key`)},
			{Config: operator(b, key, `ttl = "5s"`), PlanOnly: true, ExpectError: regexp.MustCompile(
				`(?s)Invalid ttl.*between\s+a\s+minute`)},
			{Config: operator(b, key, "ttl = \"1h\"\n renew_before = \"1h\""), PlanOnly: true,
				ExpectError: regexp.MustCompile(`Every plan would renew`)},
			{Config: operator(b, key, `tenant = "Prod"`), PlanOnly: true,
				ExpectError: regexp.MustCompile(`Invalid tenant`)},
			{
				PreConfig: func() {
					cluster(t, b)
					public, err := registration.ParsePublicKey(key)
					if err != nil {
						t.Fatal(err)
					}
					if _, err := registration.Register(context.Background(), b.State(t), "default",
						public, time.Hour, "test"); err != nil {
						t.Fatal(err)
					}
				},
				Config: operator(b, key, ""), ExpectError: regexp.MustCompile(
					`(?s)registered\s+already: as\s+operator\s+opr.*Import\s+that\s+operator`),
			},
			{Config: b.Provider()},
		},
	})
}

// TestAccOperatorDamaged destroys an operator whose record is damaged.
func TestAccOperatorDamaged(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	cluster(t, b)
	cli := acctest.NewCLI(t, operator(b, newKey(t), ""))
	cli.Run(t, "apply", "-auto-approve")
	all, _ := live(t, b, "default")
	if len(all) != 1 {
		t.Fatalf("%d operators", len(all))
	}
	key := keys.ClusterOperator("default", all[0].ID.Storage())
	if _, err := b.Put(t.Context(), key, []byte("{"), objstore.Always()); err != nil {
		t.Fatal(err)
	}
	out := strings.Join(strings.Fields(cli.Run(t, "destroy", "-auto-approve", "-no-color")), " ")
	for _, want := range []string{"was not removed, because its record is damaged", key,
		"Servers refuse the operator"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
}
