package function_test

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/knownvalue"
	"github.com/hashicorp/terraform-plugin-testing/statecheck"

	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
)

func TestAccInstanceIDParse(t *testing.T) {
	acctest.Acceptance(t)
	output := func(id string) string {
		return fmt.Sprintf(
			"provider \"nstance\" {}\noutput \"test\" { value = provider::nstance::instance_id_parse(%q) }", id)
	}
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: acctest.Factories(),
		Steps: []resource.TestStep{
			{Config: output("acc06bgm7733st2576nx5jht4ecjw"), ConfigStateChecks: []statecheck.StateCheck{
				statecheck.ExpectKnownOutputValue("test", knownvalue.ObjectExact(map[string]knownvalue.Check{
					"kind": knownvalue.StringExact("acc"), "uuid": knownvalue.StringExact(
						"01970a1c-e31e-7422-9cd5-e9651d11cc97"),
					"storage":    knownvalue.StringExact("01970a1c-e31e-7422-9cd5-e9651d11cc97-acc"),
					"created_at": knownvalue.StringExact("2025-05-26T01:02:34.782Z"),
				})),
			}},
			{Config: output("ACC06bgm7733st2576nx5jht4ecjw"), ExpectError: regexp.MustCompile(`lower`)},
		},
	})
}
