package stacks

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
	"github.com/nstance-kit/nstance/tests/stacks/lab"
)

// ledger records the calls of all stacks and the policies of their servers' roles.
//
// The policies must allow exactly the actions that the servers' calls require, and no call may be denied. Removing any
// action from a policy therefore makes the test fail: either a call is denied, or the action was never needed.
// TestLedger proves that the ledger reports each kind of difference.
type ledger struct {
	mu         sync.Mutex
	operations map[string]bool            // Every operation called by the servers or the AWS provider.
	used       map[string]map[string]bool // IAM actions that a server's call requires, by call: "ec2:RunInstances".
	allowed    map[string]bool            // IAM actions that the policies allow.
	denied     []string
}

// addPolicies records the actions that a stack's roles allow. The roles must still exist.
func (b *ledger) addPolicies(t *testing.T, l *lab.Lab, cluster string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used == nil {
		b.operations, b.used, b.allowed = map[string]bool{}, map[string]map[string]bool{}, map[string]bool{}
	}
	for _, role := range serverRoles(t, l, cluster) {
		for _, action := range policyActions(t, l, role) {
			b.allowed[action] = true
		}
	}
	if actions := policyActions(t, l, cluster+"-nstance-agent"); len(actions) > 0 {
		t.Errorf("the agents' role allows %v; agents need no permission", actions)
	}
}

// addCalls records all calls of a stack. It must be called after the stack is destroyed.
func (b *ledger) addCalls(l *lab.Lab, cluster string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, call := range l.Cloud.Calls() {
		name := call.Service + ":" + call.Action
		b.operations[name] = true
		if !strings.HasPrefix(call.Principal.Role, cluster+"-") {
			continue
		}
		if b.used[name] == nil {
			b.used[name] = map[string]bool{}
		}
		for _, check := range call.Checks {
			b.used[name][check.Action] = true
			if !check.Allowed {
				b.denied = append(b.denied, fmt.Sprintf("%s on %s: %s", check.Action, check.Resource, check.Reason))
			}
		}
	}
}

// serverRoles returns the names of the roles of a cluster's servers, one for each shard.
func serverRoles(t *testing.T, l *lab.Lab, cluster string) (names []string) {
	t.Helper()
	roles, err := iam.NewFromConfig(l.Config()).ListRoles(t.Context(), &iam.ListRolesInput{})
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range roles.Roles {
		if name := awssdk.ToString(role.RoleName); strings.HasPrefix(name, cluster+"-nstance-server-") {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		t.Errorf("the cluster %s has no roles for servers", cluster)
	}
	return names
}

// policyActions returns the actions that a role's inline policies allow.
func policyActions(t *testing.T, l *lab.Lab, role string) (actions []string) {
	t.Helper()
	client := iam.NewFromConfig(l.Config())
	attached, err := client.ListAttachedRolePolicies(t.Context(), &iam.ListAttachedRolePoliciesInput{RoleName: &role})
	if err != nil {
		t.Fatal(err)
	}
	if len(attached.AttachedPolicies) > 0 {
		t.Errorf("role %s has managed policies, which this test does not read", role)
	}
	inline, err := client.ListRolePolicies(t.Context(), &iam.ListRolePoliciesInput{RoleName: &role})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range inline.PolicyNames {
		policy, err := client.GetRolePolicy(t.Context(), &iam.GetRolePolicyInput{RoleName: &role, PolicyName: &name})
		if err != nil {
			t.Fatal(err)
		}
		text, err := url.QueryUnescape(awssdk.ToString(policy.PolicyDocument))
		if err != nil {
			t.Fatal(err)
		}
		var document struct {
			Statement []struct {
				Effect string
				Action any
			}
		}
		if err := json.Unmarshal([]byte(text), &document); err != nil {
			t.Fatal(err)
		}
		for _, statement := range document.Statement {
			switch action := statement.Action.(type) {
			case string:
				actions = append(actions, action)
			case []any:
				for _, one := range action {
					actions = append(actions, one.(string))
				}
			}
		}
	}
	return actions
}

// checkPermissions compares calls, policies and docs/reference/aws.md.
func (b *ledger) checkPermissions(t *testing.T) {
	if len(b.used) == 0 {
		t.Fatal("no stack ran, so there are no calls to compare with the policies")
	}
	for _, problem := range b.problems(documented(t)) {
		t.Error(problem)
	}
}

// checkOperations compares the calls with the fake's list of operations. The fake must not implement operations that
// are no longer called.
func (b *ledger) checkOperations(t *testing.T) {
	callers, err := fakeaws.CalledOperations()
	if err != nil {
		t.Fatal(err)
	}
	maps.DeleteFunc(callers, func(_, caller string) bool { return caller != fakeaws.CallerStacks })
	if diff := cmp.Diff(slices.Sorted(maps.Keys(callers)), slices.Sorted(maps.Keys(b.operations))); diff != "" {
		t.Errorf("operations.txt of fakeaws, caller stacks (-), and operations called (+):\n%s", diff)
	}
}

func (b *ledger) problems(documented map[string]string) (problems []string) {
	for _, denied := range b.denied {
		problems = append(problems, "a server was denied "+denied)
	}
	used, calls := map[string]bool{}, map[string]string{}
	for call, actions := range b.used {
		maps.Copy(used, actions)
		calls[call] = strings.Join(slices.Sorted(maps.Keys(actions)), " ")
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(b.allowed)), slices.Sorted(maps.Keys(used))); diff != "" {
		problems = append(problems, "actions that the policies allow (-), and that the servers' calls asked for (+):\n"+
			diff)
	}
	if diff := cmp.Diff(documented, calls); diff != "" {
		problems = append(problems, "calls in docs/reference/aws.md (-), and calls that servers made (+):\n"+diff)
	}
	return problems
}

// TestLedger changes what is allowed, called or documented, and checks that the ledger reports every difference.
func TestLedger(t *testing.T) {
	docs := map[string]string{"ec2:RunInstances": "ec2:CreateTags ec2:RunInstances iam:PassRole",
		"s3:ListObjectsV2": "s3:ListBucket"}
	book := func() *ledger {
		b := &ledger{used: map[string]map[string]bool{}, allowed: map[string]bool{}}
		for call, actions := range docs {
			b.used[call] = map[string]bool{}
			for _, action := range strings.Fields(actions) {
				b.used[call][action], b.allowed[action] = true, true
			}
		}
		return b
	}
	if problems := book().problems(docs); len(problems) > 0 {
		t.Errorf("unexpected problems: %v", problems)
	}
	for action := range book().allowed {
		without := book()
		delete(without.allowed, action)
		if len(without.problems(docs)) == 0 {
			t.Errorf("a policy without %s is not found", action)
		}
	}
	for what, change := range map[string]func(b *ledger){
		"an unneeded action":   func(b *ledger) { b.allowed["s3:DeleteBucket"] = true },
		"an undocumented call": func(b *ledger) { b.used["s3:GetObject"] = map[string]bool{"s3:ListBucket": true} },
		"a removed call":       func(b *ledger) { delete(b.used, "s3:ListObjectsV2") },
		"a denial":             func(b *ledger) { b.denied = []string{"s3:GetObject on x"} },
	} {
		b := book()
		change(b)
		if len(b.problems(docs)) == 0 {
			t.Errorf("%s is not found", what)
		}
	}
}

var row = regexp.MustCompile("(?m)^\\| `([a-z0-9]+:[A-Za-z0-9]+)` \\| ((?:`[a-z0-9]+:[A-Za-z]+` ?)+)\\|")

// documented returns the contents of the tables in docs/reference/aws.md.
func documented(t *testing.T) map[string]string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(lab.Root(), "docs", "reference", "aws.md"))
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]string{}
	for _, match := range row.FindAllStringSubmatch(string(page), -1) {
		actions := strings.Fields(strings.ReplaceAll(match[2], "`", ""))
		slices.Sort(actions)
		calls[match[1]] = strings.Join(actions, " ")
	}
	return calls
}
