package configmerge_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/terraform"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
)

func TestMain(m *testing.M) { acctest.Main(m) }

func merge(documents ...string) string {
	var quoted []string
	for _, d := range documents {
		quoted = append(quoted, fmt.Sprintf("%q", strings.ReplaceAll(d, "${", "$${")))
	}
	return "provider \"nstance\" {}\noutput \"test\" { value = provider::nstance::config_merge(" +
		strings.Join(quoted, ", ") + ") }\n"
}

func TestAccConfigMerge(t *testing.T) {
	acctest.Acceptance(t)
	src, err := os.ReadFile("../../../services/contract/testdata/v1/config.jsonc")
	if err != nil {
		t.Fatal(err)
	}
	makes := func(want string, documents ...string) resource.TestStep {
		return resource.TestStep{Config: merge(documents...), Check: resource.TestCheckOutput("test", want)}
	}
	bad := func(want string, documents ...string) resource.TestStep {
		return resource.TestStep{Config: merge(documents...), ExpectError: regexp.MustCompile(want)}
	}
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: acctest.Factories(),
		Steps: []resource.TestStep{
			makes("{\n  \"a\": \"c\"\n}\n", `{"a":"b"}`, `{"a":"c"}`),
			makes("{\n  \"a\": null,\n  \"b\": \"c\"\n}\n", `{"a":"b","b":"c"}`, `{"a":null}`),
			makes("{\n  \"a\": \"c\"\n}\n", `{"a":["b"]}`, `{"a":"c"}`),
			makes("{\n  \"a\": {\n    \"b\": \"d\",\n    \"c\": 1\n  }\n}\n", `{"a":{"b":"c"}}`,
				`{"a":{"b":"d","c":1}}`),
			makes("{\n  \"a\": {\n    \"b\": {}\n  }\n}\n", `{"a": [1]}`, `{"a":{"b":{}}}`),
			makes("{\n  \"a\": \"<&>\"\n}\n", `{"a": "<&>"}`),
			makes("{\n  \"a\": 2,\n  \"b\": {\n    \"c\": 3\n  }\n}\n", "{ // one\n}", `{"a": 1,}`, `{"a": 2}`,
				`{"b": {"c": 3}}`),
			{ // A complete configuration changes only where the patch has values.
				Config: merge(string(src), `{"server": {"request_timeout": "77s"}}`),
				Check: func(s *terraform.State) error {
					want, problems := config.Parse("want", src)
					if problems.Err() != nil {
						return problems
					}
					got, problems := config.Parse("got", []byte(s.RootModule().Outputs["test"].Value.(string)))
					if problems.Err() != nil {
						return problems
					}
					if got.Server.RequestTimeout.String() != "1m17s" {
						return fmt.Errorf("request_timeout is %s", got.Server.RequestTimeout)
					}
					want.Server.RequestTimeout = got.Server.RequestTimeout
					if diff := cmp.Diff(string(config.Encode(want)), string(config.Encode(got))); diff != "" {
						return fmt.Errorf("-want +got:\n%s", diff)
					}
					return nil
				},
			},
			bad(`(?s)document 2:1:\d+: a\.b: `, `{}`, `{"a": {"b": 1, "b": 2}}`),
			bad(`document 2: want an object`, `{}`, `[]`),
			bad(`document 1: want an object`, `"x"`),
			bad(`document 3:1:\d+`, `{}`, `{}`, `{`),
			makes("{}\n", `{}`),
		},
	})
}
