package compute_test

import (
	"testing"
	"time"

	api "google.golang.org/api/compute/v1"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/compute"
)

// TestPower moves an instance through the statuses, and calls the methods that its status does not allow.
func TestPower(t *testing.T) {
	c := start(t)
	c.insert(instance("a"), "")
	do := func(method string) (op *api.Operation) {
		t.Helper()
		var err error
		switch calls := c.client.Instances; method {
		case "stop":
			op, err = calls.Stop(project, zone, "a").Do()
		case "start":
			op, err = calls.Start(project, zone, "a").Do()
		case "suspend":
			op, err = calls.Suspend(project, zone, "a").Do()
		case "resume":
			op, err = calls.Resume(project, zone, "a").Do()
		}
		if err != nil {
			t.Fatal(err)
		}
		return op
	}
	before := c.get("a")
	for _, step := range []struct{ method, code, during, after string }{
		{"resume", "UNSUPPORTED_OPERATION", "RUNNING", "RUNNING"},
		{"start", "", "RUNNING", "RUNNING"},
		{"suspend", "", "SUSPENDING", "SUSPENDED"},
		{"suspend", "UNSUPPORTED_OPERATION", "SUSPENDED", "SUSPENDED"},
		{"start", "UNSUPPORTED_OPERATION", "SUSPENDED", "SUSPENDED"},
		{"resume", "", "PROVISIONING", "RUNNING"},
		{"stop", "", "STOPPING", "TERMINATED"},
		{"stop", "", "TERMINATED", "TERMINATED"},
		{"suspend", "UNSUPPORTED_OPERATION", "TERMINATED", "TERMINATED"},
		{"start", "", "PROVISIONING", "RUNNING"},
	} {
		c.SetDelay(step.method, time.Minute)
		op := do(step.method)
		if got := c.get("a").Status; got != step.during {
			t.Errorf("during %s it is %s, want %s", step.method, got, step.during)
		}
		c.now = c.now.Add(time.Minute)
		if code := codeOf(c.wait(op, nil)); code != step.code {
			t.Errorf("%s: code %q, want %q", step.method, code, step.code)
		}
		if got := c.get("a").Status; got != step.after {
			t.Errorf("after %s it is %s, want %s", step.method, got, step.after)
		}
	}
	after := c.get("a")
	if after.Disks[0].Source != before.Disks[0].Source ||
		after.NetworkInterfaces[0].NetworkIP != before.NetworkInterfaces[0].NetworkIP {
		t.Errorf("the instance changed from %+v to %+v", before, after)
	}
	c.Fail(compute.Fault{Type: "suspend", Failure: compute.Stockout()})
	op := do("suspend")
	c.now = c.now.Add(time.Minute)
	if code, status := codeOf(c.wait(op, nil)), c.get("a").Status; code == "" || status != "RUNNING" {
		t.Errorf("after a failed suspend: code %q, status %s", code, status)
	}
}
