// Package secretmanager fakes the secrets of Google Secret Manager. As in the service, the alias "latest" means the
// previous version for a while after a version is added.
package secretmanager

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

// pageSize is the maximum number of secrets in one answer.
const pageSize = 10

// SecretManager holds secrets in memory.
type SecretManager struct {
	// Lag delays the alias "latest". After a version is added to a secret, this number of reads of the alias still
	// return the previous version.
	Lag int
	// Now replaces the clock.
	Now func() time.Time

	mu      sync.Mutex
	secrets map[string]*secret // by resource name
}

type secret struct {
	created  time.Time
	etag     string
	body     map[string]any
	versions []version
	lag      int
	policy   policy.Policy
}

type version struct {
	state   string
	payload map[string]any
}

// New makes an empty service.
func New() *SecretManager {
	return &SecretManager{Now: time.Now, secrets: map[string]*secret{}}
}

// Inventory returns the secrets.
func (s *SecretManager) Inventory() (found []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.secrets {
		found = append(found, "secret "+name)
	}
	slices.Sort(found)
	return found
}

// Handlers returns the methods that the fake has.
func (s *SecretManager) Handlers() map[string]rest.Handler {
	out := map[string]rest.Handler{}
	for id, handler := range map[string]rest.Handler{
		"secretmanager.projects.secrets.create": s.create, "secretmanager.projects.secrets.get": s.get,
		"secretmanager.projects.secrets.delete": s.remove, "secretmanager.projects.secrets.list": s.list,
		"secretmanager.projects.secrets.getIamPolicy":     s.getPolicy,
		"secretmanager.projects.secrets.setIamPolicy":     s.setPolicy,
		"secretmanager.projects.secrets.addVersion":       s.addVersion,
		"secretmanager.projects.secrets.versions.access":  s.access,
		"secretmanager.projects.secrets.versions.disable": s.setState("DISABLED"),
		"secretmanager.projects.secrets.versions.destroy": s.setState("DESTROYED"),
	} {
		out[id] = func(c *rest.Call) (any, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return handler(c)
		}
	}
	return out
}

func (s *SecretManager) create(c *rest.Call) (any, error) {
	id := c.Query.Get("secretId")
	if len(id) == 0 || len(id) > 255 || strings.ContainsFunc(id, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
	}) {
		return nil, &rest.Error{Code: http.StatusBadRequest, Reason: "badRequest", Status: "INVALID_ARGUMENT",
			Message: "The provided Secret ID [" + id + "] does not match the expected format [[a-zA-Z_0-9-]+]."}
	}
	if replication, _ := c.Body["replication"].(map[string]any); len(replication) != 1 {
		return nil, &rest.Error{Code: http.StatusBadRequest, Reason: "badRequest", Status: "INVALID_ARGUMENT",
			Message: "Secret.replication is required."}
	}
	name := c.Params["parent"] + "/secrets/" + id
	if s.secrets[name] != nil {
		return nil, &rest.Error{Code: http.StatusConflict, Reason: "alreadyExists", Status: "ALREADY_EXISTS",
			Message: "Secret [" + name + "] already exists."}
	}
	s.secrets[name] = &secret{created: s.Now().UTC(), etag: `"` + rand.Text()[:12] + `"`, body: c.Body}
	return s.describe(name), nil
}

func (s *SecretManager) describe(name string) map[string]any {
	found := s.secrets[name]
	out := map[string]any{"name": name, "etag": found.etag, "createTime": found.created.Format(time.RFC3339Nano)}
	for key, value := range found.body {
		out[key] = value
	}
	return out
}

// find returns a secret. If the request has an etag, it must be equal to the etag of the secret.
func (s *SecretManager) find(c *rest.Call, name string) (*secret, error) {
	found := s.secrets[name]
	if found == nil {
		return nil, rest.NotFound("Secret [%s] not found.", name)
	}
	if etag := c.Query.Get("etag"); etag != "" && etag != found.etag {
		return nil, precondition("The etag provided does not match that of Secret [%s].", name)
	}
	return found, nil
}

func precondition(format string, args ...any) error {
	return &rest.Error{Code: http.StatusBadRequest, Reason: "failedPrecondition", Status: "FAILED_PRECONDITION",
		Message: fmt.Sprintf(format, args...)}
}

func (s *SecretManager) get(c *rest.Call) (any, error) {
	if _, err := s.find(c, c.Params["name"]); err != nil {
		return nil, err
	}
	return s.describe(c.Params["name"]), nil
}

func (s *SecretManager) remove(c *rest.Call) (any, error) {
	if _, err := s.find(c, c.Params["name"]); err != nil {
		return nil, err
	}
	delete(s.secrets, c.Params["name"])
	return map[string]any{}, nil
}

func (s *SecretManager) list(c *rest.Call) (any, error) {
	var names []string
	for name := range s.secrets {
		if strings.HasPrefix(name, c.Params["parent"]+"/") && name > c.Query.Get("pageToken") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	answer, secrets := map[string]any{}, []any{}
	if len(names) > pageSize {
		names = names[:pageSize]
		answer["nextPageToken"] = names[pageSize-1]
	}
	for _, name := range names {
		secrets = append(secrets, s.describe(name))
	}
	answer["secrets"] = secrets
	return answer, nil
}

func (s *SecretManager) addVersion(c *rest.Call) (any, error) {
	found, err := s.find(c, c.Params["parent"])
	if err != nil {
		return nil, err
	}
	payload, _ := c.Body["payload"].(map[string]any)
	found.versions = append(found.versions, version{"ENABLED", payload})
	found.etag, found.lag = `"`+rand.Text()[:12]+`"`, s.Lag
	return map[string]any{"name": fmt.Sprintf("%s/versions/%d", c.Params["parent"], len(found.versions)),
		"state": "ENABLED"}, nil
}

// findVersion returns the version that the request asks for, by a number or by the alias "latest". It also returns the
// version's number.
func (s *SecretManager) findVersion(c *rest.Call) (name string, found *version, number int, err error) {
	name, text, _ := strings.Cut(c.Params["name"], "/versions/")
	of, err := s.find(c, name)
	if err != nil {
		return "", nil, 0, rest.NotFound("Secret [%s] not found or has no versions.", name)
	}
	if number = len(of.versions); text != "latest" {
		number, _ = strconv.Atoi(text)
	} else if of.lag > 0 {
		of.lag--
		number--
	}
	if number < 1 || number > len(of.versions) {
		return "", nil, 0, rest.NotFound("Secret Version [%s] not found.", c.Params["name"])
	}
	return name, &of.versions[number-1], number, nil
}

func (s *SecretManager) access(c *rest.Call) (any, error) {
	name, found, number, err := s.findVersion(c)
	if err != nil {
		return nil, err
	}
	if found.state != "ENABLED" {
		return nil, precondition("Secret Version [%s/versions/%d] is in %s state.", name, number, found.state)
	}
	return map[string]any{"name": fmt.Sprintf("%s/versions/%d", name, number), "payload": found.payload}, nil
}

func (s *SecretManager) setState(state string) rest.Handler {
	return func(c *rest.Call) (any, error) {
		name, found, number, err := s.findVersion(c)
		if err != nil {
			return nil, err
		}
		if found.state == "DESTROYED" {
			return nil, precondition("Secret Version [%s/versions/%d] is in DESTROYED state.", name, number)
		}
		found.state = state
		return map[string]any{"name": fmt.Sprintf("%s/versions/%d", name, number), "state": state}, nil
	}
}

func (s *SecretManager) getPolicy(c *rest.Call) (any, error) {
	found, err := s.find(c, c.Params["resource"])
	if err != nil {
		return nil, err
	}
	version, _ := strconv.Atoi(c.Query.Get("options.requestedPolicyVersion"))
	return found.policy.Get(version), nil
}

func (s *SecretManager) setPolicy(c *rest.Call) (any, error) {
	found, err := s.find(c, c.Params["resource"])
	if err != nil {
		return nil, err
	}
	return found.policy.Set(c.Body["policy"])
}

// PolicyOf returns a copy of the policy of the secret that has the given resource name. It returns nil if no secret has
// the name.
func (s *SecretManager) PolicyOf(name string) *policy.Policy {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.secrets[name]
	if found == nil {
		return nil
	}
	of := found.policy
	return &of
}
