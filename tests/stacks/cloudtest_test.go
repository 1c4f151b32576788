package stacks

import (
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/fault"
	"github.com/nstance-kit/nstance/tests/cloudtest/account"
	"github.com/nstance-kit/nstance/tests/cloudtest/trial"
	"github.com/nstance-kit/nstance/tests/stacks/lab"
)

// TestCloudTest runs cloud-test on a fake AWS, as users do in their accounts.
func TestCloudTest(t *testing.T) {
	t.Parallel() // with TestStacks: both mostly wait
	l := lab.New(t)
	override := filepath.Join(t.TempDir(), "override.tf")
	// The AWS provider waits a minute for the lifecycle rules.
	if err := os.WriteFile(override, []byte("module \"cluster\" {\n  versioning = false\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := &trial.Fake{Environment: l.Environment(),
		Inventory: func(t *testing.T) []string { t.Helper(); return described(t, l) },
		Flags: []string{"-cloud", "aws", "-region", l.Cloud.Region(), "-arch", "amd64", "-yes", "-terraform",
			cli(t, ""), "-server-image", lab.ServerAMI, "-agent-image", lab.AgentAMI, "-override", override},
		Refresh: func(t *testing.T, r trial.Run) {
			t.Helper()
			var key string
			for _, name := range l.Inventory(t) {
				if id, ok := strings.CutPrefix(name, "secret nstance/"+r.Name+"/"); ok {
					key = l.Key(t, "aws-secrets-manager", "nstance/"+r.Name+"/"+id)
				}
			}
			state := l.State(t, r.Name+"-"+r.Account+"-"+r.Region, r.Name, r.Zone, key)
			lab.KeepRefreshing(t, l.Operator(t, state, r.Name, l.Instances(r.Name)[0].VPC, "10.0.1.100"), nil)
		}}
	f.Build(t)
	before := f.Inventory(t)
	t.Run("refused", func(t *testing.T) { refusedByAWS(t, l, f) })
	t.Run("runs", func(t *testing.T) {
		t.Run("whole", func(t *testing.T) { t.Parallel(); f.Whole(t) })
		t.Run("interrupted", func(t *testing.T) { t.Parallel(); f.Interrupted(t, "subnet") })
		for name, at := range map[string]trial.Point{
			"ct-early": {Step: "apply", Made: "internet gateway", Alone: true},
			"ct-late":  {Step: "apply", Made: "instance "},
			"ct-kill":  {Step: "kill"}, "ct-change": {Step: "change"}, "ct-roll": {Step: "roll", Alone: true},
			"ct-failover": {Step: "failover"}, "ct-zero": {Step: "zero", Again: true}, "ct-destroy": {Step: "destroy"},
		} {
			t.Run(name, func(t *testing.T) { t.Parallel(); f.Killed(t, name, at) })
		}
	})
	if diff := cmp.Diff(before, f.Inventory(t)); diff != "" {
		t.Errorf("after all runs (-before +now):\n%s", diff)
	}
}

// described returns what the account has. The lines of resources without names in their IDs have their tags.
func described(t *testing.T, l *lab.Lab) []string {
	t.Helper()
	found := l.Inventory(t)
	l.Cloud.Locked(func() {
		for i, one := range found {
			id := one[strings.LastIndexByte(one, ' ')+1:]
			found[i] += " " + strings.Join(slices.Sorted(maps.Values(l.Cloud.EC2().Tags(id))), " ")
		}
	})
	return found
}

// refusedByAWS runs cloud-test with bad input, and with an AWS that refuses calls.
func refusedByAWS(t *testing.T, l *lab.Lab, f *trial.Fake) {
	empty := map[string]string{"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_PROFILE": "",
		"AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_CONFIG_FILE": "/dev/null"}
	f.With(empty).Refuses(t, 1, nil, "which account the credentials belong to", "aws sso login")
	f.Refuses(t, 1, []string{"-account", "999999999999"}, "belong to the account 123456789012", "nothing was created")
	f.Refuses(t, 1, []string{"-zone", "us-west-2z"}, "the region us-west-2 has no zone us-west-2z: it has us-west-2a")
	f.Refuses(t, 1, []string{"-terraform", "/nonexistent/tofu"}, "-terraform /nonexistent/tofu")
	f.Refuses(t, 2, []string{"-steps", "kill"}, "apply must be among the steps")
	f.Refuses(t, 2, []string{"-name", "production"}, "the name of a run is ct-")
	f.Taken(t, func(name string) { l.Cloud.EC2().AddKeyPair("packer_1", map[string]string{account.Tag: name}) })
	faults := l.Cloud.Faults()
	defer faults.Clear()
	for _, c := range []struct {
		service, action, code, message string
		status                         int
	}{
		{"ec2", "AllocateAddress", "AddressLimitExceeded", "The maximum number of addresses has been reached.",
			http.StatusBadRequest},
		{"iam", "CreateRole", "AccessDenied", "User is not authorized to perform: iam:CreateRole.",
			http.StatusForbidden},
	} {
		faults.Fail(fault.Match{Service: c.service, Action: c.action}, fault.Forever, c.status, c.code, c.message)
		f.Refuses(t, 1, nil, "step apply (create the cluster with one VM) failed", c.code, c.message,
			"nothing is left of ct-refused")
		faults.Clear()
	}
}
