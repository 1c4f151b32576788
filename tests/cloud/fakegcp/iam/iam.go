// Package iam fakes the service accounts, custom roles and projects of Google Cloud, with their policies.
package iam

import (
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

// IAM holds the accounts, roles and policies of one project in memory.
type IAM struct {
	project, number string

	mu       sync.Mutex
	accounts map[string]*account // by resource name
	roles    map[string]*role    // by resource name
	policy   policy.Policy       // of the project
	lastID   int
	pools    map[string]*pooled // pools and their providers by resource name
	// federated holds the members of policies that each caller with an exchanged token is.
	federated map[string][]string
}

type account struct {
	body   map[string]any
	policy policy.Policy
}

// role is a custom role. A deleted role keeps its ID.
type role struct {
	body    map[string]any
	deleted bool
	changes int
}

// New makes a project without accounts and roles.
func New(project, number string) *IAM {
	return &IAM{project: project, number: number, accounts: map[string]*account{}, roles: map[string]*role{},
		pools: map[string]*pooled{}, federated: map[string][]string{},
		lastID: 100000000000000000}
}

// Handlers returns the methods of the IAM API that the fake has.
func (i *IAM) Handlers() map[string]rest.Handler {
	handlers := i.poolHandlers()
	maps.Copy(handlers, map[string]rest.Handler{
		"iam.projects.serviceAccounts.create": i.createAccount,
		"iam.projects.serviceAccounts.get": i.onAccount(func(_ *rest.Call, _ string, a *account) (any, error) {
			return maps.Clone(a.body), nil
		}),
		"iam.projects.serviceAccounts.list": func(*rest.Call) (any, error) {
			all := []any{}
			for _, name := range slices.Sorted(maps.Keys(i.accounts)) {
				all = append(all, maps.Clone(i.accounts[name].body))
			}
			return map[string]any{"accounts": all}, nil
		},
		"iam.projects.roles.list": func(*rest.Call) (any, error) { // deleted roles are not listed
			all := []any{}
			for _, name := range slices.Sorted(maps.Keys(i.roles)) {
				if !i.roles[name].deleted {
					all = append(all, i.roles[name].describe())
				}
			}
			return map[string]any{"roles": all}, nil
		},
		"iam.projects.serviceAccounts.delete": i.onAccount(func(_ *rest.Call, name string, _ *account) (any, error) {
			delete(i.accounts, name)
			return map[string]any{}, nil
		}),
		"iam.projects.serviceAccounts.getIamPolicy": i.onAccount(func(c *rest.Call, _ string, a *account) (any, error) {
			version, _ := strconv.Atoi(c.Query.Get("options.requestedPolicyVersion"))
			return a.policy.Get(version), nil
		}),
		"iam.projects.serviceAccounts.setIamPolicy": i.onAccount(func(c *rest.Call, _ string, a *account) (any, error) {
			return a.policy.Set(c.Body["policy"])
		}),
		"iam.projects.roles.create": i.createRole,
		"iam.projects.roles.get": i.onRole(func(_ *rest.Call, r *role) (any, error) {
			return r.describe(), nil
		}),
		"iam.projects.roles.patch": i.onRole(func(c *rest.Call, r *role) (any, error) {
			for field, value := range c.Body {
				r.body[field] = value
			}
			r.changes++
			return r.describe(), nil
		}),
		"iam.projects.roles.delete": i.onRole(func(_ *rest.Call, r *role) (any, error) { return r.setDeleted(true) }),
		"iam.projects.roles.undelete": i.onRole(func(_ *rest.Call, r *role) (any, error) {
			return r.setDeleted(false)
		}),
	})
	return i.locked(handlers)
}

// ProjectHandlers returns the methods of the Resource Manager API that the fake has.
func (i *IAM) ProjectHandlers() map[string]rest.Handler {
	return i.locked(map[string]rest.Handler{
		"cloudresourcemanager.projects.get": func(c *rest.Call) (any, error) {
			if err := i.checkProject(c.Params["projectId"]); err != nil {
				return nil, err
			}
			return map[string]any{"projectId": i.project, "projectNumber": i.number, "name": i.project,
				"lifecycleState": "ACTIVE"}, nil
		},
		"cloudresourcemanager.projects.getIamPolicy": func(c *rest.Call) (any, error) {
			if err := i.checkProject(c.Params["resource"]); err != nil {
				return nil, err
			}
			options, _ := c.Body["options"].(map[string]any)
			version, _ := strconv.Atoi(fmt.Sprint(options["requestedPolicyVersion"]))
			return i.policy.Get(version), nil
		},
		"cloudresourcemanager.projects.setIamPolicy": func(c *rest.Call) (any, error) {
			if err := i.checkProject(c.Params["resource"]); err != nil {
				return nil, err
			}
			return i.policy.Set(c.Body["policy"])
		},
	})
}

// BillingHandlers returns the method of the Billing API that the Terraform provider calls when it reads a project.
func (i *IAM) BillingHandlers() map[string]rest.Handler {
	return map[string]rest.Handler{"cloudbilling.projects.getBillingInfo": func(c *rest.Call) (any, error) {
		name := strings.TrimPrefix(c.Params["name"], "projects/")
		if err := i.checkProject(name); err != nil {
			return nil, err
		}
		return map[string]any{"name": c.Params["name"] + "/billingInfo", "projectId": i.project,
			"billingAccountName": "billingAccounts/000000-000000-000000", "billingEnabled": true}, nil
	}}
}

func (i *IAM) locked(handlers map[string]rest.Handler) map[string]rest.Handler {
	for id, handler := range handlers {
		handlers[id] = func(c *rest.Call) (any, error) {
			i.mu.Lock()
			defer i.mu.Unlock()
			return handler(c)
		}
	}
	return handlers
}

func (i *IAM) checkProject(name string) error {
	if name != i.project && name != i.number {
		return &rest.Error{Code: http.StatusForbidden, Reason: "forbidden", Status: "PERMISSION_DENIED",
			Message: "The caller does not have permission on project " + name}
	}
	return nil
}

var accountID = regexp.MustCompile(`^[a-z]([-a-z0-9]{4,28}[a-z0-9])$`)

func (i *IAM) createAccount(c *rest.Call) (any, error) {
	id := rest.Text(c.Body, "accountId")
	if !accountID.MatchString(id) {
		return nil, &rest.Error{Code: http.StatusBadRequest, Reason: "badRequest", Status: "INVALID_ARGUMENT",
			Message: "The account ID \"" + id + "\" does not have a length between 6 and 30."}
	}
	email := id + "@" + i.project + ".iam.gserviceaccount.com"
	name := "projects/" + i.project + "/serviceAccounts/" + email
	if i.accounts[name] != nil {
		return nil, &rest.Error{Code: http.StatusConflict, Reason: "alreadyExists", Status: "ALREADY_EXISTS",
			Message: "Service account " + id + " already exists within project projects/" + i.project + "."}
	}
	i.lastID++
	body := map[string]any{"name": name, "projectId": i.project, "email": email, "uniqueId": strconv.Itoa(i.lastID),
		"oauth2ClientId": strconv.Itoa(i.lastID), "etag": "MDEwMjE5MjA="}
	given, _ := c.Body["serviceAccount"].(map[string]any)
	for _, field := range []string{"displayName", "description"} {
		if text := rest.Text(given, field); text != "" {
			body[field] = text
		}
	}
	i.accounts[name] = &account{body: body}
	return maps.Clone(body), nil
}

// onAccount returns the handler of a method of an account. In the account's name, a dash may replace the project.
func (i *IAM) onAccount(f func(*rest.Call, string, *account) (any, error)) rest.Handler {
	return func(c *rest.Call) (any, error) {
		name := c.Params["name"] + c.Params["resource"]
		name = strings.Replace(name, "projects/-/", "projects/"+i.project+"/", 1)
		a := i.accounts[name]
		if a == nil {
			return nil, rest.NotFound("Unknown service account: %s", name)
		}
		return f(c, name, a)
	}
}

var (
	roleID     = regexp.MustCompile(`^[a-zA-Z0-9_.]{3,64}$`)
	permission = regexp.MustCompile(`^[a-z]+(\.[a-zA-Z]+){2}$`)
)

func (i *IAM) createRole(c *rest.Call) (any, error) {
	id := rest.Text(c.Body, "roleId")
	name := c.Params["parent"] + "/roles/" + id
	body, _ := c.Body["role"].(map[string]any)
	switch {
	case !roleID.MatchString(id):
		return nil, &rest.Error{Code: http.StatusBadRequest, Reason: "badRequest", Status: "INVALID_ARGUMENT",
			Message: "The role_id " + id + " is invalid."}
	case i.roles[name] != nil:
		return nil, &rest.Error{Code: http.StatusConflict, Reason: "alreadyExists", Status: "ALREADY_EXISTS",
			Message: "A role named " + id + " in projects/" + i.project + " already exists."}
	}
	permissions, _ := body["includedPermissions"].([]any)
	for _, p := range permissions {
		if text, _ := p.(string); !permission.MatchString(text) {
			return nil, &rest.Error{Code: http.StatusBadRequest, Reason: "badRequest", Status: "INVALID_ARGUMENT",
				Message: "Permission " + text + " is not valid."}
		}
	}
	r := &role{body: maps.Clone(body)}
	r.body["name"] = name
	i.roles[name] = r
	return r.describe(), nil
}

func (i *IAM) onRole(f func(*rest.Call, *role) (any, error)) rest.Handler {
	return func(c *rest.Call) (any, error) {
		r := i.roles[c.Params["name"]]
		if r == nil {
			return nil, rest.NotFound("The role named %s was not found.", c.Params["name"])
		}
		return f(c, r)
	}
}

func (r *role) describe() map[string]any {
	out := maps.Clone(r.body)
	out["etag"] = fmt.Sprintf("BwY%05d", r.changes)
	if r.deleted {
		out["deleted"] = true
	}
	return out
}

func (r *role) setDeleted(deleted bool) (any, error) {
	if r.deleted == deleted {
		return nil, &rest.Error{Code: http.StatusBadRequest, Reason: "failedPrecondition",
			Status: "FAILED_PRECONDITION", Message: "The role is already in this state."}
	}
	r.deleted = deleted
	r.changes++
	return r.describe(), nil
}

// predefined holds the permissions of Google's predefined roles, by role. It has only the roles that the modules use.
var predefined = map[string][]string{
	"roles/secretmanager.secretAccessor": {"secretmanager.versions.access"},
	"roles/iam.serviceAccountUser":       {"iam.serviceAccounts.actAs"},
	federation:                           {"iam.serviceAccounts.getAccessToken", "iam.serviceAccounts.getOpenIdToken"},
}

// federation is the role of servers in another cloud, which get the tokens of a service account.
const federation = "roles/iam.workloadIdentityUser"

// Granted returns the permissions of the custom roles that are not deleted, and of the predefined roles that the
// modules use, apart from that of servers in another cloud.
func (i *IAM) Granted() (found []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, name := range slices.Concat(slices.Collect(maps.Keys(i.roles)), slices.Collect(maps.Keys(predefined))) {
		if name != federation {
			found = append(found, i.permissions(name)...)
		}
	}
	return found
}

// permissions returns the permissions of a custom role that is not deleted, or of a predefined one.
func (i *IAM) permissions(name string) (found []string) {
	r := i.roles[name]
	if r == nil || r.deleted {
		return predefined[name]
	}
	list, _ := r.body["includedPermissions"].([]any)
	for _, p := range list {
		found = append(found, fmt.Sprint(p))
	}
	return found
}

// Allows reports whether a policy gives a permission to a member. It checks the policy of the project. If the parameter
// "of" is not nil, it also checks that policy, which belongs to a resource.
func (i *IAM) Allows(member, permission string, attributes policy.Attributes, of *policy.Policy) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	includes := func(role string) bool { return slices.Contains(i.permissions(role), permission) }
	return i.policy.Allows(member, attributes, includes) || of != nil && of.Allows(member, attributes, includes)
}

// PolicyOf returns a copy of the policy of the service account that has the given email address. It returns nil if no
// account has the address.
func (i *IAM) PolicyOf(email string) *policy.Policy {
	i.mu.Lock()
	defer i.mu.Unlock()
	a := i.accounts["projects/"+i.project+"/serviceAccounts/"+email]
	if a == nil {
		return nil
	}
	of := a.policy
	return &of
}

// Inventory returns the accounts, the roles that are not deleted, and the bindings of the project.
func (i *IAM) Inventory() (found []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for name := range i.accounts {
		found = append(found, "service account "+name)
	}
	for name, r := range i.roles {
		if !r.deleted {
			found = append(found, "role "+name)
		}
	}
	for name, p := range i.pools {
		if !p.deleted() {
			found = append(found, name)
		}
	}
	for _, b := range i.policy.Bindings() {
		found = append(found, fmt.Sprintf("binding %s of %v", b.Role, b.Members))
	}
	slices.Sort(found)
	return found
}
