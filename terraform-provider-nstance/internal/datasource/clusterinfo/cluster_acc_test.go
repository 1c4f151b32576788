package clusterinfo_test

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
)

func TestMain(m *testing.M) { acctest.Main(m) }

func data(b acctest.Bucket, id string) string {
	return b.Provider() + fmt.Sprintf("data \"nstance_cluster\" \"test\" { id = %s }\n", id)
}

func TestAccClusterData(t *testing.T) {
	acctest.Acceptance(t)
	const address = "data.nstance_cluster.test"
	b := acctest.S3(t)
	missing := resource.TestStep{Config: data(b, `"example"`), ExpectError: regexp.MustCompile(
		`(?s)Cannot read cluster example.*Create\s+the\s+cluster`)}
	resource.Test(t, resource.TestCase{ProtoV6ProviderFactories: acctest.Factories(),
		Steps: []resource.TestStep{missing, {Config: b.Provider()}}})
	ca, _, err := b.State(t).EnsureCA(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.Key = "" // the data source needs no key
	t.Setenv(acctest.KeyVariable, "")
	check := resource.ComposeAggregateTestCheckFunc(
		resource.TestCheckResourceAttr(address, "ca_certificate_pem", string(
			authority.EncodeCertificate(ca.Certificate()))),
		resource.TestCheckResourceAttr(address, "ca_fingerprint", authority.Fingerprint(ca.Certificate())),
		resource.TestCheckResourceAttr(address, "ca_not_after", ca.Certificate().NotAfter.UTC().Format(time.RFC3339)),
		resource.TestCheckResourceAttr(address, "ca_key_id", fmt.Sprintf("%x", ca.Certificate().SubjectKeyId)),
	)
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: acctest.Factories(),
		Steps: []resource.TestStep{
			{Config: data(b, `"example"`), Check: check},
			{Config: data(b, `"example"`), PlanOnly: true},
			{Config: data(b, "terraform_data.later.output") +
				"resource \"terraform_data\" \"later\" { input = \"example\" }\n", Check: check},
			{Config: data(b, `"other"`), ExpectError: regexp.MustCompile(
				`(?s)the\s+CA\s+there\s+is\s+of\s+cluster\s+"example"`)},
			{Config: data(b, `"Example"`), ExpectError: regexp.MustCompile(`Invalid cluster name`)},
			{Config: data(b, `"example"`)},
		},
	})
}
