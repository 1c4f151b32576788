package shard_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
)

// TestAccLeaderAppliesAtOnce runs `apply` against a real server. With an operator block, an apply ends when the leader has applied the configuration, even if the leader must restart for
// that. If the leader refuses the configuration, the apply fails with the leader's reasons. A destroy does not wait for
// the next poll.
func TestAccLeaderAppliesAtOnce(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	server := acctest.Serve(t, b)
	body, _, err := b.State(t).ReadConfig(t.Context(), acctest.Shard)
	if err != nil {
		t.Fatal(err)
	}
	cli := acctest.NewCLI(t, b.Provider(fmt.Sprintf("operator = { identity_dir = %q, servers = { %q = %q } }",
		b.Operator(t, "default"), acctest.Shard, server.Operator))+`
resource "nstance_shard" "test" {
  config = provider::nstance::jsonc_decode(file("shard.jsonc"))
  timeouts     = { update = "1m", delete = "1m" }
}
`)
	write := func(old, replacement string) {
		text := strings.ReplaceAll(string(body), old, replacement)
		if text == string(body) && old != replacement {
			t.Fatalf("no %s in the configuration", old)
		}
		cli.Write(t, "shard.jsonc", text)
	}
	write("", "")
	cli.Run(t, "import", address, acctest.Shard)
	isApplied := func() bool {
		t.Helper()
		_, token, err := b.State(t).ReadConfig(t.Context(), acctest.Shard)
		if err != nil {
			t.Fatal(err)
		}
		applied, err := b.State(t).ReadApplied(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return objstore.Token(applied.Source) == token
	}

	for name, change := range map[string][2]string{
		"in place":       {`"environment": "test"`, `"environment": "changed"`},
		"with a restart": {`"zone": "deva"`, `"zone": "devb"`},
	} {
		write(change[0], change[1])
		cli.Run(t, "apply", "-auto-approve")
		if !isApplied() {
			t.Errorf("%s: the apply ended before the leader applied the configuration", name)
		}
	}

	write(`"encryption_key": {`,
		`"old_encryption_keys": [{"provider": "file", "source": "/no/such/key"}], "encryption_key": {`)
	out, err := cli.Try("apply", "-auto-approve")
	if err == nil || !strings.Contains(squeeze(out), "its leader refuses it") ||
		!strings.Contains(out, "/no/such/key") || isApplied() {
		t.Errorf("a configuration that the leader refuses: %v\n%s", err, out)
	}
	const notApplied = "has not applied the configuration in the bucket"
	if out := cli.Run(t, "apply", "-auto-approve"); !strings.Contains(squeeze(out), notApplied) {
		t.Errorf("a second apply of the configuration that the leader refuses does not warn:\n%s", out)
	}

	write("", "")
	cli.Run(t, "apply", "-auto-approve")
	if out := cli.Run(t, "plan"); strings.Contains(squeeze(out), notApplied) {
		t.Errorf("after the apply of a good configuration the plan warns:\n%s", out)
	}
	cli.Run(t, "destroy", "-auto-approve")
}

// TestAccReportsBlockedGroups checks that an apply reports a group for which the leader cannot create VMs.
func TestAccReportsBlockedGroups(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	server := acctest.Serve(t, b)
	body, _, err := b.State(t).ReadConfig(t.Context(), acctest.Shard)
	if err != nil {
		t.Fatal(err)
	}
	shard, problems := config.Parse("config", body)
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	cli := acctest.NewCLI(t, b.Provider(fmt.Sprintf("operator = { identity_dir = %q, servers = { %q = %q } }",
		b.Operator(t, "default"), acctest.Shard, server.Operator))+`
resource "nstance_shard" "test" {
  config = provider::nstance::jsonc_decode(file("shard.jsonc"))
  wait_for_leader = true
}
`)
	cli.Write(t, "shard.jsonc", string(body))
	cli.Run(t, "import", address, acctest.Shard)
	size := 1
	shard.Defaults.Userdata.Content = "not a script, which the provider finds out when it makes the VM"
	shard.Groups["default"]["static"] = config.GroupSpec{Template: "worker", Size: &size}
	cli.Write(t, "shard.jsonc", string(config.Encode(shard)))
	out := squeeze(cli.Run(t, "apply", "-auto-approve"))
	if !strings.Contains(out, "cannot create all instances") || !strings.Contains(out, "static: ") {
		t.Errorf("the apply does not say that the group is blocked:\n%s", out)
	}
}

// TestAccLeaderNoticesAConfiguration runs `apply` without an operator block, so that the provider cannot tell the leader
// that there is a new configuration. The leader must notice it in time for an apply that waits for one minute.
func TestAccLeaderNoticesAConfiguration(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	acctest.Serve(t, b)
	body, _, err := b.State(t).ReadConfig(t.Context(), acctest.Shard)
	if err != nil {
		t.Fatal(err)
	}
	cli := acctest.NewCLI(t, b.Provider("")+`
resource "nstance_shard" "test" {
  config = provider::nstance::jsonc_decode(file("shard.jsonc"))
  wait_for_leader = true
  timeouts        = { update = "1m", delete = "1m" }
}
`)
	cli.Write(t, "shard.jsonc", string(body))
	cli.Run(t, "import", address, acctest.Shard)
	cli.Write(t, "shard.jsonc", strings.Replace(string(body), `"environment": "test"`, `"environment": "changed"`, 1))
	cli.Run(t, "apply", "-auto-approve")
}
