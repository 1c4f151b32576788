package serversready_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"

	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/credentials"
)

// config returns a configuration with a group of machines.
func config(b acctest.Bucket, generation, timeout, group string) string {
	return b.Provider() + fmt.Sprintf("resource \"nstance_servers_ready\" \"test\" {\n  shard = %q\n"+
		"  generation = %q\n  timeout = %q\n  machine_group = {\n%s\n}\n}\n", acctest.Shard, generation, timeout, group)
}

// TestAccRefusedMachine checks that an apply fails with the reason for which the cloud starts no machine, long before
// its time limit.
func TestAccRefusedMachine(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	const group = "kind = \"aws\"\nname = \"solo-server\"\nregion = \"eu-west-1\""
	const launch = "<member><Description>Launching a new EC2 instance</Description><StatusCode>Failed</StatusCode>" +
		"<StatusMessage>no capacity for t3.nano</StatusMessage><StartTime>2026-01-01T12:00:00Z</StartTime></member>"
	var launches atomic.Int64 // failed so far
	var denied atomic.Bool
	cloud := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		action, result := r.PostFormValue("Action"), ""
		if denied.Load() {
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprint(w, "<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>")
			return
		}
		if action == "DescribeScalingActivities" {
			result = "<Activities>" + strings.Repeat(launch, int(launches.Add(1))) + "</Activities>"
		}
		_, _ = fmt.Fprintf(w, "<%[1]sResponse><%[1]sResult>%[2]s</%[1]sResult></%[1]sResponse>", action, result)
	}))
	t.Cleanup(cloud.Close)
	for name, value := range map[string]string{"AWS_ENDPOINT_URL_AUTO_SCALING": cloud.URL, "AWS_ACCESS_KEY_ID": "x",
		"AWS_SECRET_ACCESS_KEY": "x"} {
		t.Setenv(name, value)
	}
	resource.Test(t, resource.TestCase{ProtoV6ProviderFactories: acctest.Factories(), Steps: []resource.TestStep{
		{Config: config(b, "a", "1m", strings.Replace(group, "aws", "tmux", 1)),
			ExpectError: regexp.MustCompile(`machine_group\.kind value must be one of`)},
		// One refusal may pass: the apply waits.
		{Config: config(b, "a", "1s", group), ExpectError: regexp.MustCompile(
			`(?s)No new server.*became ready\s+within 1s.*refused the\s+last machine:\s+no\s+capacity`)},
		{Config: config(b, "a", "5m", group), ExpectError: regexp.MustCompile(
			`(?s)The cloud starts no new server of shard.*Auto Scaling group solo-server in\s+eu-west-1.*` +
				`no\s+capacity\s+for\s+t3.nano.*apply again`)},
		{PreConfig: func() { denied.Store(true) }, Config: config(b, "a", "1s", group),
			ExpectError: regexp.MustCompile(`(?s)became ready\s+within 1s.*cannot\s+be\s+read.*AccessDenied`)},
		{PreConfig: report(t, b, "server-1", "a", ""), Config: config(b, "a", "1m", group),
			Check: resource.TestCheckResourceAttr(address, "machine", "server-1")},
		{Config: config(b, "a", "1m", strings.Replace(group, "eu-west-1", "eu-west-2", 1)),
			Check: resource.TestCheckResourceAttr(address, "machine", "server-1")},
	}})
}

// TestAccCurrentGroup checks that an apply needs no server's report if the cloud knows that the group is current.
func TestAccCurrentGroup(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.File(t)
	const group = "kind = \"gcp\"\nname = \"solo-server\"\nzone = \"us-central1-a\""
	cloud := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/listManagedInstances") {
			_, _ = fmt.Fprint(w, `{"managedInstances": [{"name": "solo-server-1", "currentAction": "NONE"}]}`)
			return
		}
		_, _ = fmt.Fprint(w, `{"status": {"isStable": true, "versionTarget": {"isReached": true}}}`)
	}))
	t.Cleanup(cloud.Close)
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", credentials.Write(t, "p"))
	t.Setenv("GOOGLE_COMPUTE_CUSTOM_ENDPOINT", cloud.URL+"/compute/v1/")
	resource.Test(t, resource.TestCase{ProtoV6ProviderFactories: acctest.Factories(), Steps: []resource.TestStep{
		{Config: config(b, "a", "1s", strings.Replace(group, "zone", "region", 1)),
			ExpectError: regexp.MustCompile(`(?s)group of machines\s+solo-server.*has\s+no\s+zone`)},
		{Config: config(b, "a", "1m", group),
			Check: resource.TestCheckResourceAttr(address, "machine", "solo-server-1")},
	}})
}
