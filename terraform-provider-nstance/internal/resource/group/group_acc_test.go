package group_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
)

func TestMain(m *testing.M) { acctest.Main(m) }

const address = "nstance_group.test"

// testShard is a bucket with a server and an operator of the tenant default.
type testShard struct {
	acctest.Bucket
	server   *acctest.Server
	operator string // the provider's operator block in HCL
}

func newTestShard(t *testing.T) testShard {
	t.Helper()
	b := acctest.File(t)
	w := testShard{Bucket: b, server: acctest.Serve(t, b)}
	w.operator = fmt.Sprintf("operator = { identity_dir = %q }", b.Operator(t, "default"))
	return w
}

// group returns the provider and a group. Lines of the text that are attributes of the resource stay outside of its spec.
func (s testShard) group(text string) string {
	var own, spec []string
	for line := range strings.Lines(text) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if slices.Contains([]string{"name", "tenant", "wait_for_instances", "lifecycle"}, name) {
			own = append(own, line)
		} else {
			spec = append(spec, line)
		}
	}
	return s.Provider(s.operator) + "resource \"nstance_group\" \"test\" {\n  shard = \"dev-1\"\n" +
		strings.Join(own, "\n") + "\n  spec = {\n" + strings.Join(spec, "\n") + "\n}\n}\n"
}

const (
	small = "name = \"fleet\"\n template = \"worker\""
	whole = small + `
  tenant         = "default"
  size           = 0
  instance_type  = "large"
  instance_types = ["huge", "larger"]
  subnet_pool    = "other"
  vars           = { role = "db", environment = "x" }
  args           = { Deep = { B = [1, true, null] } }
  drain_timeout  = "1m30s"
  max_surge      = 2
  max_unhealthy  = "50%"
`
)

// spec returns the group's spec in the bucket, or nil if the group does not exist.
func (s testShard) spec(t *testing.T, tenant, name string) *config.GroupSpec {
	t.Helper()
	groups, _, _, err := s.State(t).ReadGroups(context.Background())
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		t.Fatal(err)
	}
	if spec, ok := groups.Tenants[tenant][name]; ok {
		return &spec
	}
	return nil
}

func (s testShard) says(t *testing.T, want config.GroupSpec) resource.TestCheckFunc {
	return func(*terraform.State) error {
		got := s.spec(t, "default", "fleet")
		if got == nil {
			return errors.New("there is no such group")
		}
		if diff := cmp.Diff(want, *got); diff != "" {
			return fmt.Errorf("-want +got:\n%s", diff)
		}
		return nil
	}
}

func ptr[T any](v T) *T { return &v }

func TestAccGroup(t *testing.T) {
	acctest.Acceptance(t)
	w := newTestShard(t)
	drain := config.Duration(90e9)
	all := config.GroupSpec{
		Template: "worker", Size: ptr(0), InstanceType: "large", InstanceTypes: []string{"huge", "larger"},
		SubnetPool: "other",
		Vars:       map[string]string{"role": "db", "environment": "x"}, DrainTimeout: &drain, MaxSurge: ptr(2),
		MaxUnhealthy: "50%",
	}
	tree, _ := config.ParseTree("", []byte(`{"Deep": {"B": [1, true, null]}}`))
	all.Args = tree.(map[string]any)
	edit := func(change func(*config.GroupSpec)) func() {
		return func() { w.edit(t, change) }
	}
	empty := resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()}}
	updates := resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{plancheck.ExpectResourceAction(address,
		plancheck.ResourceActionUpdate)}}
	creates := resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{plancheck.ExpectResourceAction(address,
		plancheck.ResourceActionCreate)}}
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: acctest.Factories(),
		CheckDestroy: func(*terraform.State) error {
			if spec := w.spec(t, "default", "fleet"); spec != nil {
				return fmt.Errorf("it is still there: %+v", spec)
			}
			return nil
		},
		Steps: []resource.TestStep{
			{Config: w.group(whole), Check: resource.ComposeAggregateTestCheckFunc(w.says(t, all),
				resource.TestCheckResourceAttr(address, "id", "dev-1/default/fleet"),
				resource.TestMatchResourceAttr(address, "infra_hash", regexp.MustCompile(`^[0-9a-f]{32}$`)),
				resource.TestMatchResourceAttr(address, "runtime_hash", regexp.MustCompile(`^[0-9a-f]{32}$`)),
				resource.TestCheckResourceAttrSet(address, "etag"),
			)},
			{Config: w.group(whole), ConfigPlanChecks: empty},
			{ResourceName: address, ImportState: true, ImportStateVerify: true},
			{ResourceName: address, ImportState: true, ImportStateId: "dev-1/fleet",
				ExpectError: regexp.MustCompile(`want shard/tenant/group`)},
			{ResourceName: address, ImportState: true, ImportStateId: "dev-1/default/nosuch",
				ExpectError: regexp.MustCompile(`non-existent remote object`)},
			// Another form of the same value changes nothing. An empty value has the same effect as a missing one.
			{Config: w.group(strings.Replace(whole, `"1m30s"`, `"90s"`, 1)), Check: w.says(t, all)},
			// If an attribute is removed, the group uses the template's value again.
			{Config: w.group(small), ConfigPlanChecks: updates, Check: w.says(t, config.GroupSpec{Template: "worker"})},
			{Config: w.group(small + "\n vars = {}\n instance_types = []"),
				Check: w.says(t, config.GroupSpec{Template: "worker"})},
			{Config: w.group(small + "\n vars = {}\n instance_types = []"), ConfigPlanChecks: empty},
			{Config: w.group(whole), Check: w.says(t, all)},
			// A plan shows a change by another client, and the apply reverts it.
			{PreConfig: edit(func(s *config.GroupSpec) {
				s.MaxSurge, s.Vars = ptr(3), map[string]string{"role": "other"}
			}), Config: w.group(whole), ConfigPlanChecks: updates, Check: w.says(t, all)},
			// The apply creates a group that another client deleted.
			{PreConfig: edit(nil), Config: w.group(whole), ConfigPlanChecks: creates, Check: w.says(t, all)},
			// A change of the shard's template changes the group's hashes and ETag, but not its own fields.
			{
				PreConfig: func() { w.server.Reconfigure(strings.NewReplacer(`"Deep": {"A": 1}`, `"Deep": {"A": 2}`)) },
				Config:    w.group(whole), ConfigPlanChecks: empty,
			},
			{Config: w.group(small), Check: w.says(t, config.GroupSpec{Template: "worker"})},
			// Terraform replaces the group if its name changes.
			{
				Config: w.group(strings.Replace(small, "fleet", "herd", 1)),
				ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{
					plancheck.ExpectResourceAction(address, plancheck.ResourceActionReplace)}},
				Check: func(*terraform.State) error {
					if w.spec(t, "default", "fleet") != nil || w.spec(t, "default", "herd") == nil {
						return errors.New("not renamed")
					}
					return nil
				},
			},
		},
	})
}

// edit changes the group through the operator API, outside Terraform. A nil change deletes the group.
func (s testShard) edit(t *testing.T, change func(*config.GroupSpec)) {
	t.Helper()
	if err := s.call(t, change); err != nil {
		t.Fatal(err)
	}
}

func TestAccGroupRefusals(t *testing.T) {
	acctest.Acceptance(t)
	w := newTestShard(t)
	w.edit(t, func(s *config.GroupSpec) { *s = config.GroupSpec{Template: "worker"} })
	steps := []resource.TestStep{}
	for attributes, want := range map[string]string{
		small + "\n size = -1":                                       `(?s)Invalid group.*size: .*cannot be negative`,
		small + "\n args = []":                                       `(?s)Invalid group.*spec\.args: want\s+an\s+object`,
		small + "\n max_unhealth = \"3\"":                            `(?s)Invalid group.*spec\.max_unhealth:.*did\s+you\s+mean\s+"max_unhealthy"`,
		small + "\n rollout = { canry = 1 }":                         `(?s)Invalid group.*spec\.rollout\.canry:.*did\s+you\s+mean\s+"canary"`,
		small + "\n size = 1e400":                                    `(?s)Invalid group.*spec\.size:`,
		small + "\n protected = []":                                  `(?s)Invalid group.*spec\.protected:.*only\s+the\s+server`,
		"name = \"x\"\n size = 1":                                    `(?s)Invalid group.*spec\.template:.*is\s+required`,
		small + "\n max_unhealthy = \"many\"":                        `(?s)Invalid group.*max_unhealthy: `,
		small + "\n drain_timeout = \"soon\"":                        `(?s)Invalid group.*drain_timeout: `,
		"name = \"a--b\"\n template = \"worker\"":                    `Invalid group`,
		"name = \"new\"\n template = \"workr\"":                      `(?s)Cannot create group new.*template: .*did\s+you\s+mean\s+"worker"`,
		small:                                                        `(?s)Group fleet exists already.*terraform\s+import.*dev-1/default/fleet`,
		"name = \"static\"\n template = \"worker\"":                  `(?s)Group static is static.*name: .*is\s+a\s+group\s+of`,
		"name = \"new\"\n template = \"worker\"\n tenant = \"prod\"": `(?s)tenant of group new is not the operator's.*tenant = "prod"|(?s)tenant of group new is not the operator's`,
		"name = \"new\"\n template = \"worker\"\n" +
			" subnet_pool = \"nosuch\"": `(?s)Cannot create group new.*subnet_pool: `,
	} {
		steps = append(steps, resource.TestStep{Config: w.group(attributes), ExpectError: regexp.MustCompile(want)})
	}
	resource.Test(t, resource.TestCase{ProtoV6ProviderFactories: acctest.Factories(),
		Steps: append(steps, resource.TestStep{Config: w.Provider(w.operator)})})
	if diff := cmp.Diff([]string{"fleet"}, w.names(t)); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
}

// names returns the names of the dynamic groups in the bucket.
func (s testShard) names(t *testing.T) []string {
	t.Helper()
	groups, _, _, err := s.State(t).ReadGroups(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return slices.Sorted(maps.Keys(groups.Tenants["default"]))
}

// TestAccGroupScaledBetweenPlanAndApply checks that a scaling between plan and apply fails no apply that does not change
// the size, and that it is kept.
func TestAccGroupScaledBetweenPlanAndApply(t *testing.T) {
	acctest.Acceptance(t)
	w := newTestShard(t)
	const ignored = "\n size = 0\n lifecycle { ignore_changes = [spec.size] }"
	cli := acctest.NewCLI(t, w.group(small+ignored))
	cli.Run(t, "apply", "-auto-approve", "-no-color")
	cli.Write(t, "main.tf", w.group(small+ignored+"\n max_surge = 2"))
	cli.Run(t, "plan", "-out=plan", "-no-color")
	w.edit(t, func(s *config.GroupSpec) { s.Size = ptr(2) })
	cli.Run(t, "apply", "-no-color", "plan")
	if spec := w.spec(t, "default", "fleet"); spec == nil || *spec.Size != 2 || *spec.MaxSurge != 2 {
		t.Errorf("%+v", spec)
	}
	if out := cli.Run(t, "plan", "-no-color"); !strings.Contains(out, "No changes") {
		t.Errorf("after the apply:\n%s", out)
	}
	cli.Write(t, "main.tf", w.group(small+ignored+"\n max_surge = 3"))
	cli.Run(t, "plan", "-out=plan", "-no-color")
	w.edit(t, func(s *config.GroupSpec) { s.MaxSurge = ptr(5) })
	out, err := cli.Try("apply", "-no-color", "plan")
	if err == nil || !strings.Contains(squeeze(out), "max_surge") || !strings.Contains(out, "changed meanwhile") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestAccGroupDestroyWithoutServer checks that the error of a destroy without a server names the way out.
func TestAccGroupDestroyWithoutServer(t *testing.T) {
	acctest.Acceptance(t)
	w := newTestShard(t)
	cli := acctest.NewCLI(t, w.group(small))
	cli.Run(t, "apply", "-auto-approve", "-no-color")
	w.server.Stop()
	out, err := cli.Try("destroy", "-auto-approve", "-no-color")
	if err == nil || !strings.Contains(squeeze(out), "Cannot destroy group fleet") ||
		!strings.Contains(squeeze(out), "state rm") {
		t.Errorf("%v\n%s", err, out)
	}
	body, token, err := w.State(t).ReadConfig(t.Context(), acctest.Shard)
	if err != nil {
		t.Fatal(err)
	}
	s, problems := config.Parse("config", body)
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	s.Terminating = true
	if _, err := w.State(t).WriteConfig(t.Context(), acctest.Shard, config.Encode(s), token); err != nil {
		t.Fatal(err)
	}
	if out := cli.Run(t, "destroy", "-auto-approve", "-no-color"); !strings.Contains(squeeze(out), "is terminating") {
		t.Errorf("%s", out)
	}
}
