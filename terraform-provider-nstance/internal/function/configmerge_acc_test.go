package function_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"

	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
)

func TestMain(m *testing.M) { acctest.Main(m) }

// output merges objects in HCL, and prints the result as JSON.
func output(objects ...string) string {
	return "provider \"nstance\" {}\noutput \"test\" { value = jsonencode(provider::nstance::config_merge(" +
		strings.Join(objects, ", ") + ")) }\n"
}

func TestAccConfigMerge(t *testing.T) {
	acctest.Acceptance(t)
	makes := func(want string, objects ...string) resource.TestStep {
		return resource.TestStep{Config: output(objects...), Check: resource.TestCheckOutput("test", want)}
	}
	bad := func(want string, objects ...string) resource.TestStep {
		return resource.TestStep{Config: output(objects...), ExpectError: regexp.MustCompile(want)}
	}
	const object = `(?s)want\s+an\s+object`
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: acctest.Factories(),
		Steps: []resource.TestStep{
			makes(`{"a":"c"}`, `{a = "b"}`, `{a = "c"}`),
			makes(`{"a":"b","b":"c"}`, `{a = "b", b = "c"}`, `{a = null}`),
			makes(`{"defaults":{"args":{"K":null},"userdata":{}}}`, `{defaults = {args = {K = {}}, userdata = {}}}`,
				`{defaults = {args = {K = null}, userdata = null}}`),
			makes(`{"a":{"b":"d","c":1,"x":[1,"y"]}}`, `{a = {b = "c", x = [1, "y"]}}`, `{a = {b = "d", c = 1}}`),
			makes(`{"a":{"b":{}}}`, `{a = [1]}`, `{a = {b = {}}}`),
			makes(`{"a":2,"b":{"c":3}}`, `{}`, `{a = 1}`, `{a = 2}`, `{b = tomap({c = 3})}`),
			makes(`{"a":{"b":"c","d":"e"}}`, `{a = tomap({b = "c"})}`, `{a = {d = "e"}}`),
			makes(`{}`, `{}`),
			bad(object, `{}`, `[]`), bad(object, `"x"`), bad(object, `{}`, `{}`, `jsonencode({})`),
			bad(`(?s)null`, `{}`, `null`),
		},
	})
}
