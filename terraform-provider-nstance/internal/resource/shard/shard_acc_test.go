package shard_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"
	"github.com/hashicorp/terraform-plugin-testing/tfjsonpath"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
)

func TestMain(m *testing.M) { acctest.Main(m) }

const address = "nstance_shard.test"

// options are the values that a test can choose in the configuration that [typed] returns.
type options struct {
	size    int
	message string
	script  string
	extra   string // further attributes in HCL
}

func typed(b acctest.Bucket, o options) string {
	if o.message == "" {
		o.message = "hello"
	}
	if o.script == "" {
		o.script = "#!/bin/sh"
	}
	return b.Provider() + fmt.Sprintf(`
resource "nstance_shard" "test" {
  config = {
    cluster = {
      id      = "example"
      secrets = { encryption_key = { provider = "env" } }
    }
    server = {
      shard                 = "dev-1"
      provider              = { kind = "mock" }
      subnet_pools          = { local = ["a", "b"] }
      request_timeout       = "60s"
      default_drain_timeout = "0s"
      leader_network        = null
    }
    tenants  = { prod = {} }
    defaults = { userdata = { content = %q } }
    templates = {
      worker = {
        kind        = "wrk"
        arch        = "amd64"
        subnet_pool = "local"
        args        = { Tags = { "a<b" = "{{ .Instance.ID }}" }, Count = 2, KeyName = null }
        files = {
          "app.env"  = { kind = "env", vars = { MESSAGE = %q } }
          "app.json" = { kind = "json", json = { a = [1, true, null] } }
        }
      }
    }
    groups = {
      default = { workers = { template = "worker", size = %d } }
      prod    = { others = { template = "worker", size = 0, max_surge = 2 } }
    }
  }
  %s
}
`, o.script, o.message, o.size, o.extra)
}

// mustRead reads the configuration in the bucket.
func mustRead(t testing.TB, b acctest.Bucket) (*config.Shard, objstore.Token) {
	t.Helper()
	body, token, err := b.State(t).ReadConfig(context.Background(), acctest.Shard)
	if err != nil {
		t.Fatal(err)
	}
	s, problems := config.Parse("config", body)
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	return s, token
}

// left returns a function that checks the bucket after everything was destroyed: it must hold exactly the keys in want.
func left(t *testing.T, b acctest.Bucket, want ...string) func(*terraform.State) error {
	return func(*terraform.State) error {
		if got := b.Keys(t); !slices.Equal(got, want) {
			return fmt.Errorf("left in the bucket: %v, want %v", got, want)
		}
		return nil
	}
}

func lifecycle(t *testing.T, b acctest.Bucket) {
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: acctest.Factories(),
		CheckDestroy:             left(t, b, keys.Leader(acctest.Shard)), // the leader still runs

		Steps: []resource.TestStep{
			{
				Config: typed(b, options{size: 2}),
				Check: func(s *terraform.State) error {
					shard, token := mustRead(t, b)
					if got := shard.Groups["prod"]["others"]; got.MaxSurge == nil || *got.MaxSurge != 2 ||
						got.Size == nil || *got.Size != 0 {
						return fmt.Errorf("group as written: %+v", got)
					}
					merged, _ := shard.Merged(config.Groups{})
					workers := merged[config.GroupKey{Tenant: "default", Group: "workers"}]
					return resource.ComposeAggregateTestCheckFunc(
						resource.TestCheckResourceAttr(address, "etag", string(token)),
						resource.TestCheckResourceAttr(address, "shard", "dev-1"),
						resource.TestCheckResourceAttr(address, "cluster_id", "example"),
						resource.TestCheckResourceAttr(address, "group_hashes.default/workers.infra",
							workers.InfraHash),
						resource.TestCheckResourceAttr(address, "group_hashes.default/workers.runtime",
							workers.RuntimeHash),
						resource.TestMatchResourceAttr(address, "group_settings.default/workers", regexp.MustCompile(
							`"\$defaults":\[.*"max_surge".*\].*"max_surge":1,.*"size":2,.*"template":"worker"`)),
					)(s)
				},
			},
			{
				Config: typed(b, options{size: 2}),
				ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{
					plancheck.ExpectEmptyPlan(),
				}},
			},
			{
				ResourceName: address, ImportState: true, ImportStateId: "dev-1", ImportStateVerify: true,
				ImportStateVerifyIdentifierAttribute: "shard",
				// The configuration has 60s for a duration and a null, and the import returns 1m and no null.
				ImportStateVerifyIgnore: []string{"config"},
			},
			{ // With wait_for_leader, the apply succeeds after the leader has applied the configuration.
				PreConfig: func() { acctest.Lead(t, b, false) },
				Config:    typed(b, options{size: 3, message: "changed", extra: "wait_for_leader = true"}),
				ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{
					plancheck.ExpectResourceAction(address, plancheck.ResourceActionUpdate),
				}},
				Check: func(*terraform.State) error {
					shard, _ := mustRead(t, b)
					if got := string(b.Applied(t)); got != string(config.Encode(shard)) {
						return fmt.Errorf("the apply did not wait; applied is\n%s", got)
					}
					return nil
				},
			},
			{ // A change outside Terraform is shown as drift, and the next apply reverts it.
				PreConfig: func() {
					shard, token := mustRead(t, b)
					five := 5
					workers := shard.Groups["default"]["workers"]
					workers.Size = &five
					shard.Groups["default"]["workers"] = workers
					if _, err := b.State(t).WriteConfig(context.Background(), acctest.Shard, config.Encode(shard),
						token); err != nil {
						t.Fatal(err)
					}
				},
				Config: typed(b, options{size: 3, message: "changed", extra: "wait_for_leader = true"}),
				ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{
					plancheck.ExpectResourceAction(address, plancheck.ResourceActionUpdate),
				}},
				Check: func(*terraform.State) error {
					if shard, _ := mustRead(t, b); *shard.Groups["default"]["workers"].Size != 3 {
						return fmt.Errorf("the drift is still there")
					}
					return nil
				},
			},
		},
	})
}

func TestAccLifecycleFile(t *testing.T) { acctest.Acceptance(t); lifecycle(t, acctest.File(t)) }
func TestAccLifecycleS3(t *testing.T)   { acctest.Acceptance(t); lifecycle(t, acctest.S3(t)) }
func TestAccLifecycleVersitygw(t *testing.T) {
	acctest.Acceptance(t)
	lifecycle(t, acctest.Versitygw(t))
}

// ofFile returns a shard whose configuration is in a file of JSON with comments.
func ofFile(b acctest.Bucket, document string) string {
	return b.Provider() + fmt.Sprintf(
		"resource \"nstance_shard\" \"test\" {\n  config = provider::nstance::jsonc_decode(<<-EOT\n%s\n  EOT\n  )\n}\n",
		strings.ReplaceAll(document, "${", "$${"))
}

const document = `{
  // A comment.
  "cluster": {"id": "example", "secrets": {"encryption_key": {"provider": "env"}}},
  "server": {"shard": "%s", "provider": {"kind": "mock"}, "subnet_pools": {"local": ["a"]}},
  "templates": {"worker": {"kind": "wrk", "arch": "amd64", "subnet_pool": "local"}},
  "groups": {"default": {"workers": {"template": "worker", "size": 0}}},
}`

func TestAccDocument(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.S3(t)
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: acctest.Factories(),
		CheckDestroy:             left(t, b),
		Steps: []resource.TestStep{
			{
				Config: ofFile(b, fmt.Sprintf(document, "dev-1")),
			},
			{Config: ofFile(b, fmt.Sprintf(document, "dev-1")), PlanOnly: true},
			{ResourceName: address, ImportState: true, ImportStateId: "dev-1", ImportStateVerify: true,
				ImportStateVerifyIdentifierAttribute: "shard"},
			{ // A new name replaces the shard.
				Config: ofFile(b, fmt.Sprintf(document, "dev-2")),
				ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{
					plancheck.ExpectResourceAction(address, plancheck.ResourceActionDestroyBeforeCreate),
				}},
				Check: func(*terraform.State) error {
					if got := b.Keys(t); !slices.Equal(got, []string{keys.Config("dev-2")}) {
						return fmt.Errorf("in the bucket: %v", got)
					}
					return nil
				},
			},
			{ // A configuration that has become invalid in the bucket is shown as drift and replaced.
				PreConfig: func() {
					if _, err := b.Put(context.Background(), keys.Config("dev-2"), []byte("{"),
						objstore.Always()); err != nil {
						t.Fatal(err)
					}
				},
				Config: ofFile(b, fmt.Sprintf(document, "dev-2")),
				ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{
					plancheck.ExpectResourceAction(address, plancheck.ResourceActionUpdate),
				}},
			},
		},
	})
}

// TestAccTenMistakes checks that a document with ten mistakes yields ten plan errors, each with its path.
func TestAccTenMistakes(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	src, err := os.ReadFile("../../../../services/contract/testdata/ten-mistakes.jsonc")
	if err != nil {
		t.Fatal(err)
	}
	cli := acctest.NewCLI(t, b.Provider()+
		`resource "nstance_shard" "test" { config = provider::nstance::jsonc_decode(file("ten-mistakes.jsonc")) }`)
	cli.Write(t, "ten-mistakes.jsonc", string(src))
	out, err := cli.Try("plan", "-no-color")
	if err == nil {
		t.Errorf("the plan succeeds")
	}
	if got := len(regexp.MustCompile(`Error: Invalid shard configuration`).FindAllString(out, -1)); got != 10 {
		t.Errorf("%d errors, want 10", got)
	}
	_, problems := config.Parse("", src)
	for _, p := range problems {
		if want := "config." + p.Path + ": " + strings.Fields(p.Message)[0]; !strings.Contains(squeeze(out), want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if t.Failed() {
		t.Log(out)
	}
	if left := b.Keys(t); len(left) > 0 {
		t.Errorf("in the bucket: %v", left)
	}
}

// squeeze removes the frame and the line wrapping that the CLI adds to messages.
func squeeze(s string) string {
	return strings.Join(strings.Fields(strings.NewReplacer("│", " ", "╷", " ", "╵", " ").Replace(s)), " ")
}

// misspelt are ten fields that the example has not, each with the path and the hint of the error.
var misspelt = []struct{ old, new, path, hint string }{
	{`{ encryption_key = { provider = "env" } }`, `{ encryption_kye = {} }`, "cluster.secrets.encryption_kye",
		"encryption_key"},
	{`request_timeout `, `requesttimeout `, "server.requesttimeout", "request_timeout"},
	{`subnet_pools `, `subnetpools `, "server.subnetpools", "subnet_pools"},
	{`userdata =`, `userdta =`, "defaults.userdta", "userdata"},
	{`content =`, `contnet =`, "defaults.userdata.contnet", "content"},
	{`arch `, `archh `, "templates.worker.archh", "arch"},
	{`vars =`, `var =`, `templates.worker.files["app.env"].var`, "vars"},
	{`size = 2`, `max_unhealth = "3"`, "groups.default.workers.max_unhealth", "max_unhealthy"},
	{`max_surge = 2`, `rollout = { canry = 1 }`, "groups.prod.others.rollout.canry", "canary"},
	{`groups =`, `grops =`, "grops", "groups"},
}

// TestAccMisspelt misspells ten fields, also while other values are unknown: each is an error with its path and the
// name that was meant. All are found at once.
func TestAccMisspelt(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	good := typed(b, options{size: 2})
	unknown := strings.NewReplacer(`["a", "b"]`, `[terraform_data.later.id]`, `size = 0`,
		`size = length(terraform_data.later.id)`, `{ prod = {} }`, `{ for id in [terraform_data.later.id] : id => {} }`).Replace(
		good) + "\nresource \"terraform_data\" \"later\" {}\n"
	cli := acctest.NewCLI(t, good)
	for name, main := range map[string]string{"known": good, "unknown": unknown} {
		for _, m := range misspelt {
			cli.Write(t, "main.tf", strings.Replace(main, m.old, m.new, 1))
			out, err := cli.Try("validate", "-no-color")
			want := fmt.Sprintf("config.%s: there is no such field. Hint: did you mean %q?", m.path, m.hint)
			if err == nil || !strings.Contains(squeeze(out), want) {
				t.Errorf("%s: %s: %v, want %s\n%s", name, m.new, err, want, out)
			}
		}
		cli.Write(t, "main.tf", main)
		cli.Run(t, "plan")
	}
}

// TestAccMistakes checks that each mistake is reported with its path, at the resource.
func TestAccMistakes(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	broken := strings.NewReplacer(`"60s"`, `"-1m"`, `arch        = "amd64"`, `arch        = "amd46"`,
		`"{{ .Instance.ID }}"`, `"{{ .Instance.Id }}"`, `size = 2`, `size = -2`,
		`prod = {}`, `Prod = {}`).Replace(typed(b, options{size: 2}))
	cli := acctest.NewCLI(t, broken)
	out, err := cli.Try("validate", "-json")
	if err == nil {
		t.Fatal("it is valid")
	}
	var result struct {
		Diagnostics []struct {
			Summary, Detail string
			Range           struct{ Start struct{ Line int } }
		}
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines, got := strings.Split(broken, "\n"), map[string]bool{}
	for _, d := range result.Diagnostics {
		if d.Summary == "Invalid shard configuration" && d.Range.Start.Line > 0 &&
			lines[d.Range.Start.Line-1] == `resource "nstance_shard" "test" {` {
			got[strings.SplitN(d.Detail, ": ", 2)[0]] = true
		}
	}
	for _, path := range []string{"server.request_timeout", "templates.worker.arch",
		`templates.worker.args.Tags["a<b"]`, "groups.default.workers.size", "tenants.Prod", "groups.prod"} {
		if !got["config."+path] {
			t.Errorf("%s is not reported", path)
		}
	}
	if t.Failed() {
		t.Log(out)
	}
}

// TestAccPlanOfManyGroups checks that the plan of a change of one group of 500 fits on a screen, and so does the plan
// after a change of one number in the bucket.
func TestAccPlanOfManyGroups(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	const groups, most = 500, 60
	many := func(size int) string {
		return strings.Replace(typed(b, options{}), `default = { workers = { template = "worker", size = 0 } }`,
			fmt.Sprintf("default = { for i in range(%d) : \"group-${i}\" => { template = \"worker\", "+
				"size = i == 77 ? %d : 1 } }", groups, size), 1)
	}
	cli := acctest.NewCLI(t, many(1))
	cli.Run(t, "apply", "-auto-approve")
	short := func(what string) {
		t.Helper()
		out := cli.Run(t, "plan", "-no-color")
		if lines := strings.Count(out, "\n"); lines > most || !strings.Contains(out, "group-77") {
			t.Errorf("%s: the plan has %d lines, want at most %d with the group:\n%.3000s", what, lines, most, out)
		}
	}
	cli.Write(t, "main.tf", many(2))
	short("one size in the configuration")
	cli.Write(t, "main.tf", many(1))
	shard, token := mustRead(t, b)
	three := 3
	group := shard.Groups["default"]["group-77"]
	group.Size = &three
	shard.Groups["default"]["group-77"] = group
	if _, err := b.State(t).WriteConfig(t.Context(), acctest.Shard, config.Encode(shard), token); err != nil {
		t.Fatal(err)
	}
	short("one size in the bucket")
}

// TestAccUnknownAtPlan checks that a plan succeeds while provider settings and resource attributes are unknown.
func TestAccUnknownAtPlan(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	main := strings.NewReplacer(
		fmt.Sprintf("%q", b.Location.Bucket), "terraform_data.known_later.output.bucket",
		fmt.Sprintf("%q", acctest.KeyVariable), "terraform_data.known_later.output.variable",
		`"local"`, "terraform_data.known_later.output.pool",
		`size = 2`, "size = terraform_data.known_later.output.size",
	).Replace(typed(b, options{size: 2, message: "${terraform_data.known_later.output.message}"}))
	main += fmt.Sprintf(`
resource "terraform_data" "known_later" {
  input = { bucket = %q, variable = %q, pool = "local", size = 0, message = "hi" }
}
`, b.Location.Bucket, acctest.KeyVariable)
	main = strings.ReplaceAll(main, "$${", "${")
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: acctest.Factories(),
		CheckDestroy:             left(t, b),
		Steps: []resource.TestStep{
			{
				Config: main,
				ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{
					plancheck.ExpectUnknownValue(address, path("group_hashes")),
				}},
				Check: func(*terraform.State) error {
					if shard, _ := mustRead(t, b); shard.Templates["worker"].SubnetPool != "local" {
						return fmt.Errorf("written: %+v", shard.Templates)
					}
					return nil
				},
			},
			{Config: main, PlanOnly: true},
			{ // The value becomes known during the apply and is not valid, so nothing is written.
				Config:      strings.Replace(main, "size = 0, message", "size = -1, message", 1),
				ExpectError: regexp.MustCompile(`cannot be negative`),
			},
			{Config: main},
		},
	})
}

// TestAccPlanNeedsNoBucket checks that a plan, and a refresh of an empty state, do not access the bucket.
func TestAccPlanNeedsNoBucket(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	b.Location.Bucket = "/dev/null/no/such/directory"
	cli := acctest.NewCLI(t, typed(b, options{size: 2}))
	cli.Run(t, "plan", "-out=plan")
	out, err := cli.Try("apply", "-no-color", "plan")
	if err == nil || !strings.Contains(out, "What to do:") || !strings.Contains(squeeze(out),
		"Where: directory /dev/null/no/such/directory, config/dev-1.jsonc") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestAccWarnsOfReplacements(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	cli := acctest.NewCLI(t, typed(b, options{size: 2}))
	cli.Run(t, "apply", "-auto-approve")

	cli.Write(t, "main.tf", typed(b, options{size: 2, message: "new"}))
	out := squeeze(cli.Run(t, "plan", "-no-color"))
	for _, want := range []string{"Files will be pushed",
		"to running instances of the groups: default/workers, prod/others.", "templates: worker."} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if strings.Contains(out, "replaced") {
		t.Errorf("a push is called a replacement")
	}
	cli.Write(t, "main.tf", typed(b, options{size: 2, script: "#!/bin/bash"}))
	out = squeeze(cli.Run(t, "plan", "-no-color"))
	if got := rolling(t, cli); !slices.Equal(got, []string{"default/workers", "prod/others"}) {
		t.Errorf("the plan announces a roll of %v", got)
	}
	want := "Instances that were made from another configuration are replaced, in waves of up to max_surge, in the " +
		"groups: default/workers, prod/others."
	if !strings.Contains(out, want) {
		t.Errorf("the output lacks %q:\n%s", want, out)
	}
	cli.Write(t, "main.tf", typed(b, options{size: 7}))
	if out = cli.Run(t, "plan", "-no-color"); strings.Contains(out, "Warning: Files") ||
		strings.Contains(out, "Warning: Instances") {
		t.Errorf("a size replaces nothing:\n%s", out)
	}
	if got := rolling(t, cli); len(got) > 0 {
		t.Errorf("the plan announces a roll of %v", got)
	}
	for _, pool := range []string{`["a", terraform_data.subnet.id]`, `[terraform_data.subnet.id]`,
		`terraform_data.subnet.output`} {
		main := strings.Replace(typed(b, options{size: 2}), `["a", "b"]`, pool, 1)
		cli.Write(t, "main.tf", main+`resource "terraform_data" "subnet" { input = ["c"] }`)
		out = squeeze(cli.Run(t, "plan", "-no-color"))
		for _, want := range []string{"Warning: Instances may be replaced in shard dev-1", "Instances in subnets " +
			"that leave their pool are replaced, in waves of up to max_surge: default/workers, prod/others."} {
			if !strings.Contains(out, want) {
				t.Errorf("with the pool %s the output lacks %q:\n%s", pool, want, out)
			}
		}
	}
}

// TestAccWarnsOfOverride changes the size of a group whose size an operator has set.
func TestAccWarnsOfOverride(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	cli := acctest.NewCLI(t, typed(b, options{size: 2}))
	cli.Run(t, "apply", "-auto-approve")
	const change = "The change of size in group default/workers from 2 to 3 "
	cli.Write(t, "main.tf", typed(b, options{size: 3}))
	if out := squeeze(cli.Run(t, "plan", "-no-color")); strings.Contains(out, change) {
		t.Errorf("a warning without an override:\n%s", out)
	}
	size, token := 5, objstore.Token("")
	for _, tt := range []struct {
		record config.Override
		wants  []string
	}{
		{config.Override{Configured: 2.0, By: "alice", Pinned: true}, []string{
			change + "has no effect: alice set 5 and pinned it", "nstance-admin group reset workers --shard dev-1"}},
		{config.Override{Configured: 2.0, By: "alice"}, []string{change + "ends the value 5, which alice set"}},
	} {
		var err error
		token, err = b.State(t).WriteGroups(t.Context(), config.Groups{Term: 1, Revision: 1,
			Tenants: map[string]map[string]config.GroupSpec{"default": {"workers": {Size: &size,
				Overrides: map[string]config.Override{"size": tt.record}}}}}, token)
		if err != nil {
			t.Fatal(err)
		}
		out := squeeze(cli.Run(t, "plan", "-no-color"))
		for _, want := range tt.wants {
			if !strings.Contains(out, want) {
				t.Errorf("the plan lacks %q:\n%s", want, out)
			}
		}
	}
}

// rolling returns `rolling_groups` from the JSON form of a plan. Automation reads this value, because automation does
// not see warnings.
func rolling(t *testing.T, cli *acctest.CLI) []string {
	t.Helper()
	cli.Run(t, "plan", "-out=json.plan")
	var plan struct {
		Changes []struct {
			Address string
			Change  struct {
				After struct {
					Rolling []string `json:"rolling_groups"`
				}
			}
		} `json:"resource_changes"`
	}
	if err := json.Unmarshal([]byte(cli.Run(t, "show", "-json", "json.plan")), &plan); err != nil {
		t.Fatal(err)
	}
	for _, c := range plan.Changes {
		if c.Address == address {
			return c.Change.After.Rolling
		}
	}
	t.Fatalf("no change of %s in the plan", address)
	return nil
}

// TestAccTwoApplies checks that two applies from separate states cannot overwrite each other.
func TestAccTwoApplies(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.S3(t)
	first := acctest.NewCLI(t, typed(b, options{size: 0}))
	first.Run(t, "apply", "-auto-approve")

	// An apply from a state without the shard cannot overwrite the shard.
	second := acctest.NewCLI(t, typed(b, options{size: 1}))
	out, err := second.Try("apply", "-auto-approve", "-no-color")
	if err == nil || !strings.Contains(out, "Shard dev-1 has a configuration already") ||
		!strings.Contains(squeeze(out), "import <address of the nstance_shard> dev-1") {
		t.Fatalf("%v\n%s", err, out)
	}

	// Both CLIs plan, and then both apply. The apply that comes second fails.
	second.Run(t, "import", "-no-color", address, "dev-1")
	second.Run(t, "plan", "-out=plan")
	first.Write(t, "main.tf", typed(b, options{size: 2}))
	first.Run(t, "plan", "-out=plan")

	type result struct {
		out string
		err error
	}
	results := make(chan result)
	for _, cli := range []*acctest.CLI{first, second} {
		go func() {
			out, err := cli.Try("apply", "-no-color", "plan")
			results <- result{out, err}
		}()
	}
	var lost []string
	for range 2 {
		if r := <-results; r.err != nil {
			lost = append(lost, r.out)
		}
	}
	if len(lost) != 1 || !strings.Contains(lost[0], "The configuration of shard dev-1 was changed meanwhile") ||
		!strings.Contains(squeeze(lost[0]), "Plan again") {
		t.Fatalf("%d lost: %s", len(lost), strings.Join(lost, "\n"))
	}
	first.Run(t, "apply", "-auto-approve")
	if shard, _ := mustRead(t, b); *shard.Groups["default"]["workers"].Size != 2 {
		t.Errorf("after applying again: %+v", shard.Groups)
	}
}

// TestAccDestroyTimesOut checks a destroy that reaches its time limit: it reports the remaining instances, loses
// nothing, and can be repeated.
func TestAccDestroyTimesOut(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	cli := acctest.NewCLI(t, typed(b, options{size: 2, extra: `timeouts = { delete = "4s" }`}))
	cli.Run(t, "apply", "-auto-approve")
	stuck := acctest.Lead(t, b, true)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	acctest.Eventually(ctx, t, "two instances", func() bool { return len(b.Keys(t)) >= 5 })
	out, err := cli.Try("destroy", "-auto-approve", "-no-color")
	if err == nil ||
		!regexp.MustCompile(`2 instances are left: wrk\w+ of default/workers \(deleting since`).MatchString(
			squeeze(out)) {
		t.Fatalf("%v\n%s", err, out)
	}
	if shard, _ := mustRead(t, b); !shard.Terminating {
		t.Error("the shard is not terminating")
	}
	// The leader stops, and another server takes over.
	stuck.Kill()
	acctest.Lead(t, b, false)
	out = cli.Run(t, "destroy", "-auto-approve", "-no-color", "-refresh=false")
	if diff := cmp.Diff([]string{keys.Leader(acctest.Shard)}, b.Keys(t)); diff != "" { // the leader still runs
		t.Errorf("left in the bucket (-want +got):\n%s\n%s", diff, out)
	}
}

// TestAccDestroyWithoutLeader checks that destroying an empty shard does not wait if the shard never had a leader. If
// the leader was killed, the destroy waits until the lock has expired.
func TestAccDestroyWithoutLeader(t *testing.T) {
	acctest.Acceptance(t)
	for _, died := range []bool{false, true} {
		b := acctest.File(t)
		cli := acctest.NewCLI(t, typed(b, options{size: 0}))
		cli.Run(t, "apply", "-auto-approve")
		if died {
			leader := acctest.Lead(t, b, false)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			acctest.Eventually(ctx, t, "a lock", func() bool {
				return slices.Contains(b.Keys(t), keys.Leader(acctest.Shard))
			})
			cancel()
			leader.Kill()
		}
		cli.Run(t, "destroy", "-auto-approve", "-no-color")
		if left := b.Keys(t); len(left) > 0 {
			t.Errorf("died %t: left in the bucket: %v", died, left)
		}
	}
}

func TestAccWaitTimesOut(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	cli := acctest.NewCLI(t,
		typed(b, options{size: 0, extra: "wait_for_leader = true\ntimeouts = { create = \"1s\", update = \"1s\" }"}))
	out := squeeze(cli.Run(t, "apply", "-auto-approve", "-no-color"))
	if !strings.Contains(out,
		"Warning: The configuration of shard dev-1 is written, but its leader did not apply it within 1s") ||
		!strings.Contains(out, "no server has led") {
		t.Errorf("creating: %s", out)
	}
	cli.Write(t, "main.tf",
		typed(b, options{size: 1, extra: "wait_for_leader = true\ntimeouts = { create = \"1s\", update = \"1s\" }"}))
	out, err := cli.Try("apply", "-auto-approve", "-no-color")
	if err == nil ||
		!strings.Contains(squeeze(out),
			"Error: The configuration of shard dev-1 is written, but its leader did not apply it within 1s") {
		t.Errorf("updating: %v\n%s", err, out)
	}
	if out := cli.Run(t, "plan", "-no-color"); !strings.Contains(out, "No changes") {
		t.Errorf("what was written is not in the state:\n%s", out)
	}
}

// TestAccRemovedSubnet checks an update that removes a subnet. The update must end only after the last VM has left the
// subnet, so that Terraform can then destroy the subnet.
func TestAccRemovedSubnet(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	pool := strings.NewReplacer(`local = ["a", "b"]`, `local = ["b"]`)
	extra := `timeouts = { update = "3s" }`
	cli := acctest.NewCLI(t, typed(b, options{size: 2, extra: extra}))
	cli.Run(t, "apply", "-auto-approve")
	stuck := acctest.Lead(t, b, true)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	acctest.Eventually(ctx, t, "two instances", func() bool { return len(b.Keys(t)) >= 5 })

	cli.Write(t, "main.tf", pool.Replace(typed(b, options{size: 2, extra: extra})))
	if out := squeeze(cli.Run(t, "plan", "-no-color")); !strings.Contains(out, "Instances in subnets that leave their "+
		"pool are replaced, in waves of up to max_surge, in the groups: default/workers") {
		t.Errorf("the plan does not warn of the replacements:\n%s", out)
	}
	if got := rolling(t, cli); !slices.Equal(got, []string{"default/workers", "prod/others"}) {
		t.Errorf("the plan announces a roll of %v", got)
	}
	out, err := cli.Try("apply", "-auto-approve", "-no-color")
	if err == nil || !regexp.MustCompile(`in a, 2 instances are left: wrk\w+ of default/workers`).MatchString(
		squeeze(out)) {
		t.Errorf("VMs that do not leave the subnet: %v\n%s", err, out)
	}
	stuck.Kill()
	acctest.Lead(t, b, false)
	cli.Write(t, "main.tf", typed(b, options{size: 2}))
	cli.Run(t, "apply", "-auto-approve")
	cli.Write(t, "main.tf", pool.Replace(typed(b, options{size: 2})))
	cli.Run(t, "apply", "-auto-approve")
	err = b.State(t).LoadInstances(t.Context(), func(rec record.Instance, _ objstore.Token) {
		if rec.SubnetID == "a" && rec.State != record.Deleted {
			t.Errorf("the apply ended while %s is in the removed subnet (%s)", rec.ID, rec.State)
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// TestAccForceDestroy checks that a shard with records and without a server can be destroyed. The destroy must list the
// VMs that it does not delete.
func TestAccForceDestroy(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	cli := acctest.NewCLI(t, typed(b, options{size: 2, extra: `timeouts = { delete = "6s" }`}))
	cli.Run(t, "apply", "-auto-approve")
	leader := acctest.Lead(t, b, false)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	acctest.Eventually(ctx, t, "two instances", func() bool { return len(b.Keys(t)) >= 5 })
	leader.Resign()
	out, err := cli.Try("destroy", "-auto-approve", "-no-color")
	if err == nil || !strings.Contains(squeeze(out), "set force_destroy = true") {
		t.Fatalf("without force_destroy: %v\n%s", err, out)
	}
	cli.Write(t, "main.tf", typed(b, options{size: 2, extra: "force_destroy = true\ndeletion_protection = true"}))
	cli.Run(t, "apply", "-auto-approve")
	if out, err := cli.Try("destroy", "-auto-approve", "-no-color"); err == nil ||
		!strings.Contains(out, "Cannot destroy shard dev-1") {
		t.Fatalf("with deletion_protection: %v\n%s", err, out)
	}
	cli.Write(t, "main.tf", typed(b, options{size: 2, extra: "force_destroy = true"}))
	cli.Run(t, "apply", "-auto-approve")
	out = squeeze(cli.Run(t, "destroy", "-auto-approve", "-no-color"))
	if n := len(regexp.MustCompile(`vm-wrk\w+ \(wrk\w+ of default/workers\)`).FindAllString(out, -1)); n != 2 ||
		!strings.Contains(out, "VMs of shard dev-1 may still run") {
		t.Errorf("the destroy names %d VMs, want 2:\n%s", n, out)
	}
	if left := b.Keys(t); len(left) > 0 {
		t.Errorf("left in the bucket: %v", left)
	}
}

func path(name string) tfjsonpath.Path { return tfjsonpath.New(name) }

// TestAccOlderState checks that a plan has no changes if an earlier provider version wrote the state, without
// `rolling_groups`.
func TestAccOlderState(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	cli := acctest.NewCLI(t, typed(b, options{size: 0}))
	cli.Run(t, "apply", "-auto-approve")
	const file = "terraform.tfstate"
	text := cli.Texts(t)[file]
	older := regexp.MustCompile(`(?s)\s*"rolling_groups": \[\],`).ReplaceAllString(text, "")
	if older == text {
		t.Fatalf("nothing to take away:\n%s", text)
	}
	cli.Write(t, file, older)
	if out := cli.Run(t, "plan"); !strings.Contains(out, "No changes") {
		t.Errorf("%s", out)
	}
	cli.Write(t, "main.tf", typed(b, options{size: 0, script: "#!/bin/bash"}))
	cli.Run(t, "apply", "-auto-approve")
	if text := cli.Texts(t)[file]; !regexp.MustCompile(`"rolling_groups": \[\s*"default/workers",`).MatchString(text) {
		t.Errorf("what rolled is not in the state:\n%s", text)
	}
}
