package iam

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

// pooled is a workload identity pool or a provider of a pool. A deleted one keeps its ID for 30 days.
type pooled struct{ body map[string]any }

func (p *pooled) deleted() bool { return p.body["state"] == "DELETED" }

const (
	poolMethods     = "iam.projects.locations.workloadIdentityPools."
	providerMethods = poolMethods + "providers."
)

// poolHandlers returns the methods of workload identity pools and their providers.
func (i *IAM) poolHandlers() map[string]rest.Handler {
	found := map[string]rest.Handler{}
	for methods, kind := range map[string]string{poolMethods: "workloadIdentityPool",
		providerMethods: "workloadIdentityPoolProvider"} {
		found[methods+"create"] = func(c *rest.Call) (any, error) { return i.createPooled(c, kind) }
		found[methods+"get"] = i.onPooled(func(p *pooled) (any, error) { return maps.Clone(p.body), nil })
		found[methods+"delete"] = i.onPooled(func(p *pooled) (any, error) {
			p.body["state"] = "DELETED"
			return operation(p), nil
		})
	}
	found[poolMethods+"list"] = i.listPools
	return found
}

// listPools lists the pools of a project that are not deleted.
func (i *IAM) listPools(c *rest.Call) (any, error) {
	pools := []any{}
	for _, name := range slices.Sorted(maps.Keys(i.pools)) {
		p := i.pools[name]
		if strings.HasPrefix(name, i.numbered(c.Params["parent"])+"/") && !strings.Contains(name, "/providers/") &&
			!p.deleted() {
			pools = append(pools, maps.Clone(p.body))
		}
	}
	return map[string]any{"workloadIdentityPools": pools}, nil
}

// numbered returns the name of a resource with the project's number in place of its ID.
func (i *IAM) numbered(name string) string {
	return strings.Replace(name, "projects/"+i.project+"/", "projects/"+i.number+"/", 1)
}

func operation(p *pooled) map[string]any {
	return map[string]any{"name": fmt.Sprint(p.body["name"], "/operations/1"), "done": true}
}

var poolID = regexp.MustCompile(`^[a-z][a-z0-9-]{3,31}$`)

func (i *IAM) createPooled(c *rest.Call, kind string) (any, error) {
	id, collection := c.Query.Get(kind+"Id"), kind+"s"
	if kind != "workloadIdentityPool" {
		collection = "providers"
		if pool := i.pools[i.numbered(c.Params["parent"])]; pool == nil || pool.deleted() {
			return nil, rest.NotFound("Requested entity was not found.")
		}
		if mapping, given := c.Body["attributeMapping"]; given {
			return nil, invalid("the fake has only the default mapping for AWS, not %v", mapping)
		}
		if aws, _ := c.Body["aws"].(map[string]any); aws == nil {
			return nil, invalid("the fake has only providers for AWS")
		}
	}
	name := i.numbered(c.Params["parent"]) + "/" + collection + "/" + id
	switch {
	case !poolID.MatchString(id) || strings.HasPrefix(id, "gcp-"):
		return nil, invalid("The ID %q is invalid.", id)
	case i.pools[name] != nil:
		return nil, &rest.Error{Code: http.StatusConflict, Reason: "alreadyExists", Status: "ALREADY_EXISTS",
			Message: "Requested entity already exists"}
	}
	p := &pooled{maps.Clone(c.Body)}
	p.body["name"], p.body["state"] = name, "ACTIVE"
	i.pools[name] = p
	return operation(p), nil
}

func invalid(format string, args ...any) error {
	return &rest.Error{Code: http.StatusBadRequest, Reason: "badRequest", Status: "INVALID_ARGUMENT",
		Message: fmt.Sprintf(format, args...)}
}

func (i *IAM) onPooled(f func(*pooled) (any, error)) rest.Handler {
	return func(c *rest.Call) (any, error) {
		p := i.pools[i.numbered(c.Params["name"])]
		if p == nil {
			return nil, rest.NotFound("Requested entity was not found.")
		}
		return f(p)
	}
}

// Account returns the number of the AWS account that a provider of a pool trusts. It returns "" if the provider, or its
// pool, does not exist or is disabled.
func (i *IAM) Account(provider string) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	pool, _, _ := strings.Cut(provider, "/providers/")
	for _, name := range []string{pool, provider} {
		p := i.pools[name]
		if p == nil || p.deleted() || p.body["disabled"] == true {
			return ""
		}
	}
	aws, _ := i.pools[provider].body["aws"].(map[string]any)
	return rest.Text(aws, "accountId")
}

// Federate returns a name for an AWS role that a provider has identified. [IAM.Members] returns its members.
// https://cloud.google.com/iam/docs/workload-identity-federation-with-other-clouds#attribute-mapping
func (i *IAM) Federate(provider, arn string) (name string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	pool, _, _ := strings.Cut(provider, "/providers/")
	pool = "iam.googleapis.com/" + pool
	role := arn
	if account, rest, assumed := strings.Cut(arn, "assumed-role/"); assumed {
		role, _, _ = strings.Cut(rest, "/")
		role = account + "assumed-role/" + role
	}
	name = "federated-" + rand.Text()
	i.federated[name] = []string{"principal://" + pool + "/subject/" + arn,
		"principalSet://" + pool + "/attribute.aws_role/" + role, "principalSet://" + pool + "/*"}
	return name
}

// Members returns the members of policies that a caller is.
func (i *IAM) Members(caller string) []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	if members := i.federated[caller]; members != nil {
		return members
	}
	return []string{"serviceAccount:" + caller}
}

// UniqueID returns the number of a service account, or its email if it does not exist.
func (i *IAM) UniqueID(email string) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	if a := i.accounts["projects/"+i.project+"/serviceAccounts/"+email]; a != nil {
		return cmp.Or(rest.Text(a.body, "uniqueId"), email)
	}
	return email
}
