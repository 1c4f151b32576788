package stacks

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
	"github.com/nstance-kit/nstance/tests/stacks/lab"
	"github.com/nstance-kit/nstance/tests/stacks/scenario"
)

// ledger records the calls of all stacks, and the actions that their servers' roles allow.
type ledger struct {
	scenario.Ledger

	mu         sync.Mutex
	operations map[string]bool // Every operation called by the servers or the AWS provider.
}

// addPolicies records the actions that a stack's roles allow. The roles must still exist.
func (b *ledger) addPolicies(t *testing.T, l *lab.Lab, cluster string) {
	t.Helper()
	for _, role := range serverRoles(t, l, cluster) {
		b.Allow(policyActions(t, l, role)...)
	}
	if actions := policyActions(t, l, cluster+"-nstance-agent"); len(actions) > 0 {
		t.Errorf("the agents' role allows %v; agents need no permission", actions)
	}
}

// addCalls records all calls of a stack. It must be called after the stack is destroyed.
func (b *ledger) addCalls(l *lab.Lab, cluster string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.operations == nil {
		b.operations = map[string]bool{}
	}
	calls := l.Cloud.Calls()
	for i, call := range calls {
		name := call.Service + ":" + call.Action
		b.operations[name] = true
		if !strings.HasPrefix(call.Principal.Role, cluster+"-") {
			continue
		}
		b.Use(name)
		for _, check := range call.Checks {
			denied := ""
			if !check.Allowed && !strings.Contains(check.Resource, missingSecret) &&
				!(isKey(check.Resource) && readsKey(calls[i+1:], call.Principal.Role)) {
				denied = fmt.Sprintf("on %s at %s: %s", check.Resource, call.Time.Format(time.TimeOnly), check.Reason)
			}
			b.Check(name, check.Action, denied)
		}
	}
}

func isKey(resource string) bool { return strings.Contains(resource, "/encryption-key-") }

// readsKey reports whether one of the calls reads an encryption key with a role. While an apply moves the key, the role
// allows only the new key before the configuration names it. A server that starts between is denied the old one, and
// tries again (modules/aws/cluster/README.md).
func readsKey(calls []fakeaws.Call, role string) bool {
	return slices.ContainsFunc(calls, func(call fakeaws.Call) bool {
		return call.Principal.Role == role && call.Code == "" && slices.ContainsFunc(call.Checks,
			func(c fakeaws.Check) bool { return c.Allowed && isKey(c.Resource) })
	})
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

// checkOperations compares the calls with the fake's list of operations. The fake must not implement an operation that
// no test calls any more.
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
