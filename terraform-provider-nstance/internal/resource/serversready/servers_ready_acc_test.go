package serversready_test

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
)

const address = "nstance_servers_ready.test"

// report returns a function that writes a server's report.
func report(t *testing.T, b acctest.Bucket, server, generation, problem string) func() {
	return func() {
		if err := b.State(t).WriteServerReport(t.Context(), record.ServerReport{
			Schema: record.ServerReportSchema, Generation: generation, Machine: server, Problem: problem,
			ReportedAt: time.Now()}); err != nil {
			t.Error(err)
		}
	}
}

func TestMain(m *testing.M) { acctest.Main(m) }

func TestAccServersReady(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	text := func(generation, timeout string) string {
		return b.Provider() + fmt.Sprintf("resource \"nstance_servers_ready\" \"test\" {\n  shard = %q\n"+
			"  generation = %q\n  timeout = %q\n}\n", acctest.Shard, generation, timeout)
	}
	resource.Test(t, resource.TestCase{ProtoV6ProviderFactories: acctest.Factories(), Steps: []resource.TestStep{
		{Config: text("a", "soon"), ExpectError: regexp.MustCompile("Invalid timeout")},
		{Config: text("a", "1s"), ExpectError: regexp.MustCompile(`(?s)No new server.*became ready\s+within 1s`)},
		{PreConfig: report(t, b, "server-1", "a", ""), Config: text("a", "1m"),
			Check: resource.TestCheckResourceAttr(address, "machine", "server-1")},
		// An apply waits for a server of a new generation. A problem that a server reported before the apply does not
		// end the wait.
		{PreConfig: report(t, b, "server-2", "b", "503: no bucket"), Config: text("b", "1s"),
			ExpectError: regexp.MustCompile(`(?s)server-2 of shard.*did not become ready.*503: no bucket`)},
		{PreConfig: func() {
			time.AfterFunc(3*time.Second, report(t, b, "server-3", "b", "503: no key"))
		}, Config: text("b", "1m"), ExpectError: regexp.MustCompile(`(?s)server-3 of shard.*503: no key`)},
		{PreConfig: report(t, b, "server-4", "b", ""), Config: text("b", "1m"),
			Check: resource.TestCheckResourceAttr(address, "machine", "server-4")},
		{Config: text("b", "2m"), Check: resource.TestCheckResourceAttr(address, "machine", "server-4")},
	}})
}
