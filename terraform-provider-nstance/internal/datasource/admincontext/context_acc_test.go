package admincontext_test

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"

	"github.com/nstance-kit/nstance/services/contract/contexts"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
)

func TestMain(m *testing.M) { acctest.Main(m) }

// TestAccAdminContext writes contexts from the provider's configuration, and from arguments. nstance-admin must accept
// them.
func TestAccAdminContext(t *testing.T) {
	acctest.Acceptance(t)
	const address = "data.nstance_admin_context.test"
	b := acctest.File(t)
	data := func(arguments string) string {
		return b.Provider(`operator = { servers = { us-b = "10.0.1.1:8993", us-a = "10.0.0.1:8993, 10.0.0.2:8993" } }`) +
			"data \"nstance_admin_context\" \"test\" {\n  name = \"prod\"\n" + arguments + "}\n"
	}
	is := func(want contexts.Context) resource.TestCheckFunc {
		return resource.TestCheckResourceAttrWith(address, "json", func(text string) error {
			file, err := contexts.Parse([]byte(text))
			if err != nil {
				return err
			}
			for field, value := range file.Contexts["prod"] {
				if value == "" {
					delete(file.Contexts["prod"], field)
				}
			}
			if diff := cmp.Diff(want, file.Contexts["prod"]); diff != "" || file.Current != "prod" {
				return fmt.Errorf("%s\n%s", text, diff)
			}
			return nil
		})
	}
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: acctest.Factories(),
		Steps: []resource.TestStep{
			{Config: data(""), Check: is(contexts.Context{"cluster_id": "prod", "storage_provider": "file",
				"servers":        "us-a=10.0.0.1:8993,us-a=10.0.0.2:8993,us-b=10.0.1.1:8993",
				"storage_bucket": b.Location.Bucket, "key_provider": "env", "key_source": acctest.KeyVariable})},
			{Config: data(""), PlanOnly: true},
			{Config: data(`
  cluster_id     = "example"
  shard          = "us-c"
  via            = { us-c = "ssh:bastion" }
  servers        = { us-c = terraform_data.later.output }
  storage        = { provider = "s3", bucket = "b", prefix = "p", region = "r", endpoint = "http://h", path_style = true }
  shard_storage  = { us-d = { provider = "gcs", bucket = "d", prefix = "x" } }
  secrets        = { provider = "google-secret-manager", prefix = "s", project_id = "project" }
  encryption_key = { provider = "file", source = "/key" }
`) + "resource \"terraform_data\" \"later\" { input = \"10.0.2.1:8993\" }\n",
				Check: is(contexts.Context{"cluster_id": "example", "shard": "us-c", "servers": "us-c=10.0.2.1:8993",
					"via":              "us-c=ssh:bastion",
					"storage_provider": "s3", "storage_bucket": "b", "storage_prefix": "p", "storage_region": "r",
					"storage_endpoint": "http://h", "storage_path_style": "true",
					"shard_storage":    "us-d=gcs://d/x",
					"secrets_provider": "google-secret-manager", "secrets_prefix": "s", "secrets_project": "project",
					"key_provider": "file", "key_source": "/key"})},
			{Config: data("servers = { us-a = \"10.0.0.1\" }\n"), ExpectError: regexp.MustCompile(
				`(?s)contexts.prod.servers:.*no\s+port`)},
			{Config: data("via = { us-a = \"ssh:-x\" }\n"), ExpectError: regexp.MustCompile(`want\s+ssh:HOST`)},
			{Config: data("shard_storage = { us-d = { provider = \"gs\", bucket = \"d\" } }\n"),
				ExpectError: regexp.MustCompile(`(?s)contexts.prod.shard_storage:.*"gs"\s+is\s+none\s+of`)},
			{Config: data("encryption_key = { provider = \"fil\" }\n"), ExpectError: regexp.MustCompile(
				`(?s)contexts.prod.key_provider:.*did\s+you\s+mean\s+"file"`)},
		},
	})
}
