package function_test

import (
	"fmt"
	"os"
	"regexp"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"

	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
)

func TestAccConfigValidate(t *testing.T) {
	acctest.Acceptance(t)
	output := func(path string) string {
		dir, err := os.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(
			"provider \"nstance\" {}\noutput \"test\" { value = provider::nstance::config_validate("+
				"provider::nstance::jsonc_decode(file(%q))) }", dir+
				"/../../../"+path)
	}
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: acctest.Factories(),
		Steps: []resource.TestStep{
			{Config: output("services/contract/testdata/v1/config.jsonc"),
				Check: resource.TestCheckOutput("test", "true")},
			{Config: output("examples/config-tmux.jsonc"), Check: resource.TestCheckOutput("test", "true")},
			{Config: output("services/contract/testdata/ten-mistakes.jsonc"),
				ExpectError: regexp.MustCompile(`(?s)cluster\.id:.*groups\.default\.api\.template`)},
			{Config: `provider "nstance" {}
output "test" { value = provider::nstance::config_validate("{}") }`, ExpectError: regexp.MustCompile(
				`(?s)want\s+an\s+object`)},
		},
	})
}
