package userdata_test

import (
	"encoding/base64"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"

	"github.com/nstance-kit/nstance/services/contract/bootscript"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
)

func TestMain(m *testing.M) { acctest.Main(m) }

func userdata(attributes string) string {
	return fmt.Sprintf(
		"provider \"nstance\" {}\ndata \"nstance_userdata\" \"test\" {\n%s\n}\noutput \"script\" { value = "+
			"data.nstance_userdata.test.content }\n", attributes)
}

// says returns a function that makes checks. Each check compares the data source's script with the wanted one, both as
// text and in base64.
func says(t *testing.T) func(string, error) resource.TestCheckFunc {
	return func(want string, err error) resource.TestCheckFunc {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return func(s *terraform.State) error {
			return resource.ComposeAggregateTestCheckFunc(
				resource.TestCheckResourceAttr("data.nstance_userdata.test", "content", want),
				resource.TestCheckResourceAttr("data.nstance_userdata.test", "content_base64",
					base64.StdEncoding.EncodeToString([]byte(want))),
			)(s)
		}
	}
}

func TestAccUserdata(t *testing.T) {
	acctest.Acceptance(t)
	sum := strings.Repeat("0a", 32)
	common := bootscript.Common{
		Binaries:       map[string]bootscript.Binary{"arm64": {URL: "https://example.com/nstance", SHA256: sum}},
		Environment:    map[string]string{"GREETING": "it's here"},
		CommandsBefore: []string{"echo hello", "echo world"},
	}
	shared := fmt.Sprintf(`
  binaries        = { arm64 = { url = "https://example.com/nstance", sha256 = %q } }
  environment     = { GREETING = "it's here" }
  commands_before = ["echo hello", "echo world"]
`, sum)
	small := bootscript.Server{Shard: "a", Storage: "s3", Bucket: "b"}
	whole := bootscript.Server{
		Common: common, Shard: "us-west-2a", Storage: "gcs", Bucket: "my-bucket", Prefix: "x/y", Region: "us-west-2",
		LeaderInterface: "eni-1", ExtraArgs: []string{"--debug"},
		LeaderNetwork: bootscript.LeaderNetwork{MAC: "02:00:00:ab:cd:ef", IPv4: "10.0.1.100", Gateway: "10.0.1.1"},
	}
	bad := func(attributes, expect string) resource.TestStep {
		return resource.TestStep{Config: userdata(attributes), PlanOnly: true, ExpectError: regexp.MustCompile(expect)}
	}
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: acctest.Factories(),
		Steps: []resource.TestStep{
			{Config: userdata("role = \"server\"\n shard = \"a\"\n bucket = \"b\""), Check: says(t)(small.Script())},
			{Config: userdata("role = \"server\"\n shard = \"a\"\n bucket = \"b\""), PlanOnly: true},
			{
				Config: userdata(`
  role             = "server"
  shard            = "us-west-2a"
  storage          = "gcs"
  bucket           = "my-bucket"
  prefix           = "x/y"
  region           = "us-west-2"
  leader_interface = "eni-1"
  leader_network   = { mac_address = "02:00:00:ab:cd:ef", ipv4 = "10.0.1.100", ipv4_gateway = "10.0.1.1" }
  extra_args       = ["--debug"]` + shared),
				Check: says(t)(whole.Script()),
			},
			{Config: userdata(`role = "agent"`), Check: says(t)(bootscript.Agent{}.Script())},
			{Config: userdata(`role = "agent"` + shared), Check: says(t)(bootscript.Agent{Common: common}.Script())},
			{ // An argument may be unknown at plan time.
				Config: userdata("role = \"server\"\n shard = \"a\"\n bucket = terraform_data.later.output") +
					"resource \"terraform_data\" \"later\" { input = \"b\" }",
				ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{
					plancheck.ExpectUnknownOutputValue("script"),
				}},
				Check: says(t)(small.Script()),
			},
			bad(`role = "operator"`, `role value must be one of`),
			bad(`role = "server"`,
				`(?s)Invalid userdata: shard.*Invalid userdata: bucket|Invalid userdata: bucket.*Invalid userdata: shard`),
			bad("role = \"server\"\n shard = \"a\"\n bucket = \"b c\"",
				`(?s)Invalid userdata: bucket.*cannot be an argument`),
			bad("role = \"server\"\n shard = \"a\"\n bucket = \"b\"\n extra_args = [\"a\", \"$(id)\"]",
				`Invalid userdata: extra_args\[1\]`),
			bad("role = \"agent\"\n bucket = \"b\"", `(?s)Invalid userdata: bucket.*is for servers`),
			bad("role = \"agent\"\n commands_before = [\"{{ .Nothing }}\"]",
				`(?s)Invalid userdata: commands_before.*there is no .Nothing`),
			bad("role = \"agent\"\n binaries = { arm64 = { url = \"https://example.com/nstance\", sha256 = \"0\" } }",
				`(?s)Invalid userdata: binaries\["arm64"\].sha256`),
			{Config: userdata(`role = "agent"`)}, // the test framework destroys this configuration
		},
	})
}
