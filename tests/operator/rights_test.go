package operator

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/nstance-kit/nstance/tests/kube"
)

// audited are the users with the rights in services/operator/kustomize/rbac: the operator, and Cluster API's core with
// the operator's kubeconfig.
var audited = []string{"system:serviceaccount:" + namespace + ":nstance-operator",
	"system:serviceaccount:" + namespace + ":nstance-capi-workload"}

// right is permission for a verb. A right without a name is for all objects.
type right struct{ role, group, resource, name, verb string }

func (r right) String() string {
	text := fmt.Sprintf("%s: %s %s", r.role, r.verb, strings.TrimSuffix(r.resource+"."+r.group, "."))
	if r.name != "" {
		text += " " + r.name
	}
	return text
}

// exempt returns the reason why no test must use a right, "" if there is none.
func (r right) exempt() string {
	switch {
	case r.verb == "list":
		return "client-go lists objects only if the API server cannot stream them"
	case r.resource == "nstancemachinepools/finalizers":
		return "the admission plugin OwnerReferencesPermissionEnforcement asks for it, not a request"
	case strings.Contains(r.role, "workload") && (r.verb == "get" || r.verb == "watch"):
		return "versions of Cluster API differ in what they read, and through which cache"
	}
	return ""
}

// requests collects the requests of all labs.
var requests = struct {
	sync.Mutex
	used    map[right]bool
	refused map[string]bool // requests that no right allows
}{used: map[right]bool{}, refused: map[string]bool{}}

// roleOf finds the role in the reason of an allowed request.
var roleOf = regexp.MustCompile(`of ((?:Cluster)?Role "[^"]+")`)

// recordRequests adds the requests of a lab's operator to those of the other labs. An earlier version of the operator
// has other rights.
func (l *lab) recordRequests(t *testing.T) {
	t.Helper()
	if l.first != thisVersion(t) {
		return
	}
	all, err := l.Requests()
	if err != nil {
		t.Error(err)
		return
	}
	requests.Lock()
	defer requests.Unlock()
	for _, r := range all {
		role := roleOf.FindStringSubmatch(r.Reason)
		if role == nil {
			if !l.restricted && r.User == audited[0] {
				requests.refused[fmt.Sprintf("%s: %s %s of group %q, %s/%s", t.Name(), r.Verb, r.Resource, r.Group,
					r.Namespace, r.Name)] = true
			}
			continue
		}
		one := right{role[1], r.Group, r.Resource, "", r.Verb}
		requests.used[one] = true
		one.name = r.Name
		requests.used[one] = true
	}
}

// checkRights fails a successful run of all tests if the operator or Cluster API has a right that no test uses, or
// lacks one. code is the exit code of the tests.
func checkRights(code int) int {
	for _, name := range []string{"test.run", "test.skip", "test.list"} {
		if flag.Lookup(name).Value.String() != "" {
			return code
		}
	}
	if code != 0 {
		return code
	}
	granted, err := grantedRights()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for _, one := range granted {
		if !requests.used[one] && one.exempt() == "" {
			fmt.Fprintf(os.Stderr, "--- FAIL: no test uses the right of %s\n", one)
			code = 1
		}
	}
	for one := range requests.refused {
		fmt.Fprintf(os.Stderr, "--- FAIL: a right is missing: %s\n", one)
		code = 1
	}
	return code
}

// grantedRights returns the rights in services/operator/kustomize/rbac.
func grantedRights() (rights []right, err error) {
	root, err := kube.Root()
	if err != nil {
		return nil, err
	}
	for _, file := range []string{"role.yaml", "workload-role.yaml"} {
		raw, err := os.ReadFile(filepath.Join(root, "services", "operator", "kustomize", "rbac", file))
		if err != nil {
			return nil, err
		}
		decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(raw), 4096)
		for {
			var role rbacv1.ClusterRole // A Role has the same fields.
			if err := decoder.Decode(&role); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			for _, rule := range role.Rules {
				rights = append(rights, rightsOf(fmt.Sprintf("%s %q", role.Kind, role.Name), rule)...)
			}
		}
	}
	return rights, nil
}

func rightsOf(role string, rule rbacv1.PolicyRule) (rights []right) {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, name := range names {
				for _, verb := range rule.Verbs {
					rights = append(rights, right{role, group, resource, name, verb})
				}
			}
		}
	}
	slices.SortFunc(rights, func(a, b right) int { return strings.Compare(a.String(), b.String()) })
	return rights
}
