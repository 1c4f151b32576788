package function_test

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"

	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
)

func TestAccJSONCDecode(t *testing.T) {
	acctest.Acceptance(t)
	// output returns a configuration that outputs the decoded document as JSON, to compare it with the result of
	// jsondecode.
	output := func(document string) string {
		return fmt.Sprintf(
			"provider \"nstance\" {}\nlocals { value = provider::nstance::jsonc_decode(%q) }\noutput \"test\" { "+
				"value = jsonencode(local.value) }\n", document)
	}
	same := func(document, want string) resource.TestStep {
		return resource.TestStep{Config: output(document), Check: resource.TestCheckOutput("test", want)}
	}
	bad := func(document, want string) resource.TestStep {
		return resource.TestStep{Config: output(document), ExpectError: regexp.MustCompile(want)}
	}
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: acctest.Factories(),
		Steps: []resource.TestStep{
			same("{\n// a comment\n\"b\": [1, 2.5, \"x\", null, true, {}, []], /* and */ \"a\": {\"c\": null},}",
				`{"a":{"c":null},"b":[1,2.5,"x",null,true,{},[]]}`),
			same(`"text"`, `"text"`),
			same(`null`, `null`),
			same(`-1e3`, `-1000`),
			same(`9007199254740991`, `9007199254740991`),
			bad(`{"a": {"b": 1, "b": 2}}`, `(?s)document:1:\d+: a\.b: `),
			bad(`{"a": [1, 123456789012345678]}`, `(?s)document:1:\d+: a\[1\]: .*too\s+large`),
			bad(`{"a": `, `document:1:\d+`),
			same(`{}`, `{}`),
		},
	})
}
