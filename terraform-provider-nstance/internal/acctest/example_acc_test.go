package acctest_test

import (
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
)

func TestMain(m *testing.M) { acctest.Main(m) }

// TestAccExampleLocal applies examples/local, the configuration of `make up`. A second plan must contain no changes. If
// the greeting changes, the plan must push the files again. Destroy must leave nothing in the bucket.
func TestAccExampleLocal(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.S3(t)
	cli := acctest.NewCLIOf(t, "examples/local")
	cli.Setenv("NSTANCE_ENCRYPTION_KEY", b.Key)
	vars := []string{"-var=endpoint=" + b.Location.Endpoint, "-var=bucket=" + b.Location.Bucket,
		"-var=first_port=12000", `-var=agents={"dir":"/some/where","socket":"x"}`}
	run := func(args ...string) string { return cli.Run(t, append(args, vars...)...) }
	b = b.Prefixed(t, "") // the example has no prefix

	run("apply", "-auto-approve")
	object, err := b.Get(t.Context(), keys.Config("dev-1"))
	if err != nil {
		t.Fatal(err)
	}
	s, problems := config.Parse("config", object.Body)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if s.Server.Bind.Agent != "127.0.0.1:12004" || s.Server.Provider.Options["dir"] != "/some/where" ||
		*s.Groups["default"]["workers"].Size != 2 {
		t.Errorf("variables are not used: %+v", s.Server)
	}
	if out := run("plan"); !strings.Contains(out, "No changes") {
		t.Errorf("the second plan is not empty:\n%s", out)
	}
	if out := run("plan", "-var=greeting=hi"); !strings.Contains(out,
		"Files will be pushed to running instances in shard dev-1") {
		t.Errorf("no word of the push:\n%s", out)
	}
	run("destroy", "-auto-approve")
	if left := b.Keys(t); len(left) > 0 {
		t.Errorf("left in the bucket: %v", left)
	}
}
