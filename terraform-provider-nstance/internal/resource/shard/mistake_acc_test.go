package shard_test

import (
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
)

// TestAccMisspeltCluster checks that a shard or secret of another cluster than the bucket's is refused, in the plan when
// the bucket can be read.
func TestAccMisspeltCluster(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	if _, _, err := b.State(t).EnsureCA(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused := func(t *testing.T, cli *acctest.CLI, action ...string) {
		t.Helper()
		out, err := cli.Try(append(action, "-no-color")...)
		if text := squeeze(out); err == nil || !strings.Contains(text, `of cluster "example", not of "exampel"`) {
			t.Errorf("%v\n%s", err, out)
		}
	}
	misspell := func(text string) string { return strings.ReplaceAll(text, `"example"`, `"exampel"`) }
	secret := b.Provider() + `
resource "nstance_secret" "test" {
  cluster_id       = "example"
  name             = "a"
  value_wo         = "b"
  value_wo_version = 1
}
`
	for name, config := range map[string]string{"shard": typed(b, options{}), "secret": secret} {
		t.Run(name, func(t *testing.T) {
			cli := acctest.NewCLI(t, misspell(config))
			refused(t, cli, "plan")
			refused(t, cli, "apply", "-auto-approve")
			cli.Write(t, "main.tf", config)
			cli.Run(t, "apply", "-auto-approve", "-no-color")
			cli.Write(t, "main.tf", misspell(config))
			refused(t, cli, "plan")
		})
	}
	t.Run("known after apply", func(t *testing.T) {
		cli := acctest.NewCLI(t, `resource "terraform_data" "id" { input = "exampel" }
`+strings.ReplaceAll(secret, `"example"`, "terraform_data.id.output"))
		refused(t, cli, "apply", "-auto-approve")
	})
}

// TestAccSecondResourceOfOneShard checks that a resource never takes over the configuration that another resource
// wrote, even if both have the same content: the destroy of one of them would empty the shard.
func TestAccSecondResourceOfOneShard(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	one := typed(b, options{size: 1})
	second := strings.TrimPrefix(strings.Replace(one, `"nstance_shard" "test"`, `"nstance_shard" "other"`, 1),
		b.Provider())
	t.Run("renamed address", func(t *testing.T) {
		cli := acctest.NewCLI(t, one)
		cli.Run(t, "apply", "-auto-approve", "-no-color")
		cli.Write(t, "main.tf", one+second)
		out, err := cli.Try("apply", "-auto-approve", "-no-color")
		if err == nil || !strings.Contains(squeeze(out), "Shard dev-1 has a configuration already") ||
			!strings.Contains(out, "moved") {
			t.Errorf("%v\n%s", err, out)
		}
		if s, _ := mustRead(t, b); s.Terminating {
			t.Error("the shard is terminating")
		}
	})
	t.Run("both in one apply", func(t *testing.T) {
		empty := acctest.File(t)
		both := strings.Replace(one+second, b.Location.Bucket, empty.Location.Bucket, 1)
		cli := acctest.NewCLI(t, both)
		out, err := cli.Try("apply", "-auto-approve", "-no-color")
		if err == nil || !strings.Contains(squeeze(out), "Shard dev-1 has a configuration already") {
			t.Errorf("%v\n%s", err, out)
		}
	})
}
