package shardstatus_test

import (
	"context"
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/servers"
)

func TestMain(m *testing.M) { acctest.Main(m) }

func TestAccShardStatus(t *testing.T) {
	acctest.Acceptance(t)
	const address = "data.nstance_shard_status.test"
	b := acctest.File(t)
	text := b.Provider() + "data \"nstance_shard_status\" \"test\" { shard = \"dev-1\" }\n"
	has := func(pairs ...string) resource.TestCheckFunc {
		var checks []resource.TestCheckFunc
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i+1] == "" {
				checks = append(checks, resource.TestCheckNoResourceAttr(address, pairs[i]))
				continue
			}
			checks = append(checks, resource.TestCheckResourceAttr(address, pairs[i], pairs[i+1]))
		}
		return resource.ComposeAggregateTestCheckFunc(checks...)
	}
	run := func(steps ...resource.TestStep) {
		resource.Test(t, resource.TestCase{ProtoV6ProviderFactories: acctest.Factories(), Steps: steps})
	}
	run(resource.TestStep{Config: text, ExpectError: regexp.MustCompile(
		`(?s)Cannot read the status of shard dev-1.*Create\s+the\s+shard`)}, resource.TestStep{Config: b.Provider()})

	server := acctest.Serve(t, b)
	upsert := func(name string, size uint32) {
		err := server.Client(t, "default").Call(context.Background(), acctest.Shard,
			func(ctx context.Context, c servers.Client) error {
				_, err := c.UpsertGroup(ctx, &nstancev1.UpsertGroupRequest{Group: name,
					Patch: fmt.Sprintf(`{"template": "worker", "size": %d}`, size)})
				return err
			})
		if err != nil {
			t.Fatal(err)
		}
	}
	upsert("fleet", 1)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	acctest.Eventually(ctx, t, "a registered instance", func() bool {
		registered := 0 // reservations have records too
		err := b.State(t).LoadInstances(ctx, func(rec record.Instance, _ objstore.Token) {
			if rec.State == record.Registered {
				registered++
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return registered == 1
	})
	t.Setenv(acctest.KeyVariable, "") // no key is needed
	run(
		resource.TestStep{Config: text, Check: has("cluster_id", "example", "applied", "true", "generation", "1",
			"terminating", "false", "leader.id", "server-1", "leader.term", "1",
			"leader.operator_addr", server.Operator, "groups.%", "2", "groups.default/static.static", "true",
			"groups.default/static.size", "0", "groups.default/static.actual_size", "0",
			"groups.default/fleet.static", "false", "groups.default/fleet.size", "1",
			"groups.default/fleet.actual_size", "1", "groups.default/fleet.registered", "1",
			"groups.default/fleet.deleting", "0", "groups.default/fleet.template", "worker")},
		resource.TestStep{Config: text, Check: resource.TestCheckResourceAttrPair(address, "config_etag", address,
			"applied_etag")},
	)
	server.Stop()
	run(resource.TestStep{Config: text, Check: has("leader.id", "", "applied", "false",
		"groups.default/fleet.actual_size", "1")})
}
