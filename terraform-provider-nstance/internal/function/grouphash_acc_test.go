package function_test

import (
	"fmt"
	"os"
	"regexp"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/knownvalue"
	"github.com/hashicorp/terraform-plugin-testing/statecheck"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
)

func TestAccGroupHash(t *testing.T) {
	acctest.Acceptance(t)
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	output := func(path, group string) string {
		return fmt.Sprintf(
			"provider \"nstance\" {}\noutput \"test\" { value = provider::nstance::group_hash("+
				"provider::nstance::jsonc_decode(file(%q)), %q) }", dir+
				"/../../../"+path, group)
	}
	const document = "examples/config-tmux.jsonc"
	src, err := os.ReadFile("../../../" + document)
	if err != nil {
		t.Fatal(err)
	}
	shard, problems := config.Parse(document, src)
	if problems.Err() != nil {
		t.Fatal(problems)
	}
	merged, _ := shard.Merged(config.Groups{})
	want := merged[config.GroupKey{Tenant: "default", Group: "workers"}]
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: acctest.Factories(),
		Steps: []resource.TestStep{
			{Config: output(document, "default/workers"), ConfigStateChecks: []statecheck.StateCheck{
				statecheck.ExpectKnownOutputValue("test", knownvalue.ObjectExact(map[string]knownvalue.Check{
					"infra": knownvalue.StringExact(want.InfraHash), "runtime": knownvalue.StringExact(
						want.RuntimeHash),
				})),
			}},
			{Config: output(document, "default/nosuch"), ExpectError: regexp.MustCompile(
				`(?s)there\s+is\s+no\s+groups\.default\.nosuch`)},
			{Config: output(document, "workers"), ExpectError: regexp.MustCompile(`(?s)want\s+tenant/name`)},
			{Config: output("services/contract/testdata/ten-mistakes.jsonc", "default/api"),
				ExpectError: regexp.MustCompile(`(?s)cluster\.id:`)},
			{Config: `provider "nstance" {}`},
		},
	})
}
