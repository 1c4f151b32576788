package group_test

import (
	"context"
	"regexp"
	"strings"
	"testing"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/servers"
)

// squeeze removes the frame and the line wrapping that the CLIs add to messages.
func squeeze(s string) string {
	return strings.Join(strings.Fields(regexp.MustCompile(`[│╷╵]`).ReplaceAllString(s, " ")), " ")
}

// TestAccGroupOfVMs checks a group with VMs. An apply waits until they are healthy, a plan warns that they will be
// replaced, and a destroy waits until they are deleted.
func TestAccGroupOfVMs(t *testing.T) {
	acctest.Acceptance(t)
	w := newTestShard(t)
	cli := acctest.NewCLI(t, w.group(small+"\n size = 1\n wait_for_instances = true"))
	cli.Run(t, "apply", "-auto-approve")
	instances := func() []*nstancev1.InstanceStatus {
		var out []*nstancev1.InstanceStatus
		err := w.server.Client(t, "default").Call(t.Context(), "dev-1",
			func(ctx context.Context, c servers.Client) error {
				answer, err := c.ListInstances(ctx, &nstancev1.ListInstancesRequest{})
				for _, i := range answer.GetInstances() {
					if i.GetDeletedAt() == nil {
						out = append(out, i)
					}
				}
				return err
			})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	first := instances()
	if len(first) != 1 || first[0].GetHealth() != "healthy" {
		t.Fatalf("the apply did not wait: %v", first)
	}

	cli.Write(t, "main.tf", w.group(small+"\n size = 1\n wait_for_instances = true\n instance_type = \"large\""))
	if out := squeeze(cli.Run(t, "plan")); !strings.Contains(out,
		"Warning: Instances will be replaced in group fleet of shard dev-1") {
		t.Errorf("no word of the replacement:\n%s", out)
	}
	cli.Run(t, "apply", "-auto-approve")
	second := instances()
	if len(second) != 1 || second[0].GetInstanceId() == first[0].GetInstanceId() ||
		second[0].GetInstanceType() != "large" {
		t.Errorf("the apply did not wait for the replacement: %v", second)
	}

	// An apply fails if another client changed the same field after the plan was made.
	cli.Write(t, "main.tf", w.group(small+"\n size = 0\n instance_type = \"large\""))
	cli.Run(t, "plan", "-out=plan")
	w.edit(t, func(s *config.GroupSpec) { s.Size = ptr(2) })
	out, err := cli.Try("apply", "plan")
	if err == nil || !strings.Contains(out, "Group fleet was changed meanwhile") ||
		!strings.Contains(squeeze(out), "Plan again") {
		t.Errorf("%v\n%s", err, out)
	}

	cli.Run(t, "destroy", "-auto-approve")
	if left := instances(); len(left) > 0 || w.spec(t, "default", "fleet") != nil {
		t.Errorf("left: %v", left)
	}
	for name, text := range cli.Texts(t) {
		if strings.Contains(text, "PRIVATE KEY") {
			t.Errorf("%s holds a key", name)
		}
	}
}

// TestAccGroupWithoutServer checks that a plan succeeds while no server of the shard runs, and that an apply fails.
func TestAccGroupWithoutServer(t *testing.T) {
	acctest.Acceptance(t)
	w := newTestShard(t)
	cli := acctest.NewCLI(t, w.group(small))
	cli.Run(t, "apply", "-auto-approve")
	w.server.Stop()
	out := squeeze(cli.Run(t, "plan"))
	if !strings.Contains(out, "No changes") || !strings.Contains(out, "Warning: Group fleet was not read") {
		t.Errorf("%s", out)
	}
	cli.Write(t, "main.tf", w.group(small+"\n size = 0"))
	out, err := cli.Try("apply", "-auto-approve")
	if err == nil || !strings.Contains(squeeze(out), "Cannot update group fleet") ||
		!strings.Contains(squeeze(out), "Check that a server of the shard runs") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestAccGroupUnknownAtPlan checks a group with a shard and an operator that become known during the apply.
func TestAccGroupUnknownAtPlan(t *testing.T) {
	acctest.Acceptance(t)
	w := newTestShard(t)
	text := strings.NewReplacer(regexp.MustCompile(`identity_dir = "[^"]*"`).FindString(w.operator),
		"identity_dir = terraform_data.later.output.dir",
		`shard = "dev-1"`, "shard = terraform_data.later.output.shard", "size = 0",
		"size = terraform_data.later.output.size").Replace(w.group(small + "\n size = 0"))
	dir := regexp.MustCompile(`"[^"]*"`).FindString(w.operator)
	cli := acctest.NewCLI(t, text+"resource \"terraform_data\" \"later\" { input = { dir = "+dir+
		", shard = \"dev-1\", size = 0 } }\n")
	cli.Run(t, "apply", "-auto-approve")
	if spec := w.spec(t, "default", "fleet"); spec == nil || *spec.Size != 0 {
		t.Errorf("%+v", spec)
	}
	if out := cli.Run(t, "plan"); !strings.Contains(out, "No changes") {
		t.Errorf("%s", out)
	}
}

// TestAccGroupNoOperator checks the advice in errors about a missing or unusable operator identity.
func TestAccGroupNoOperator(t *testing.T) {
	acctest.Acceptance(t)
	w := newTestShard(t)
	for operator, want := range map[string]string{
		"": "Set operator in the provider's configuration: identity_dir",
		`operator = { identity_dir = "/dev/null/nowhere" }`: "Correct the identity in the provider's operator block",
		strings.Replace(w.operator, "{ ", `{ servers = { dev-1 = "127.0.0.1:1" }, `,
			1): "Check that a server of the shard runs",
		strings.Replace(w.operator, "{ ", `{ servers = { dev-1 = "127.0.0.1" }, `,
			1): "want host:port",
		`operator = { private_key_pem = "x" }`:                                                  "certificate_pem",
		`operator = { ca_certificate_pem = "x", certificate_pem = "x", private_key_pem = "x" }`: "CA certificate",
		strings.Replace(w.operator, "{ ", `{ private_key_pem = "x", certificate_pem = "x", ca_certificate_pem = "x", `,
			1): "identity_dir",
	} {
		w.operator = operator
		cli := acctest.NewCLI(t, w.group(small))
		out, err := cli.Try("apply", "-auto-approve")
		if err == nil || !strings.Contains(squeeze(out), want) {
			t.Errorf("%s: %v\n%s", operator, err, out)
		}
	}
}

// TestAccGroupOperatorFromEnvironment checks that the provider reads the environment variables of nstance-admin if it
// has no operator block.
func TestAccGroupOperatorFromEnvironment(t *testing.T) {
	acctest.Acceptance(t)
	w := newTestShard(t)
	w.operator = ""
	cli := acctest.NewCLI(t, w.group(small))
	cli.Setenv("NSTANCE_ADMIN_IDENTITY_DIR", w.Operator(t, "default"))
	cli.Setenv("NSTANCE_ADMIN_SERVERS", "dev-1="+w.server.Operator+",dev-2=127.0.0.1:1")
	cli.Run(t, "apply", "-auto-approve")
	if w.spec(t, "default", "fleet") == nil {
		t.Error("no group was made")
	}
	cli.Setenv("NSTANCE_ADMIN_SERVERS", "nonsense")
	if out, err := cli.Try("plan"); err == nil || !strings.Contains(out, "Invalid NSTANCE_ADMIN_SERVERS") {
		t.Errorf("%v\n%s", err, out)
	}
}
