package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// auditPolicy records the requests of some users. %s is the list of their names, in JSON.
const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    users: %s
  - level: None
`

// auditEvent has some fields of an Event of audit.k8s.io/v1.
type auditEvent struct {
	Verb        string
	User        struct{ Username string }
	ObjectRef   *struct{ APIGroup, Resource, Subresource, Namespace, Name string }
	Annotations map[string]string
}

// Request is a request to the API server, from its audit log.
type Request struct {
	User, Verb, Group, Namespace, Name string
	// Resource contains the subresource, as in "pods/eviction".
	Resource string
	Allowed  bool
	// Reason is the authorizer's reason. It names the role that allowed the request.
	Reason string
}

func (c *Cluster) auditLog() string { return filepath.Join(c.Dir, "audit.log") }

// auditArgs returns the arguments that make the API server record the requests of the users in [Options.Audit]. The
// API server writes each record before it answers, so the log is complete even if the API server is killed.
func (c *Cluster) auditArgs() ([]string, error) {
	if len(c.Audit) == 0 {
		return nil, nil
	}
	users, err := json.Marshal(c.Audit)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(c.Dir, "audit-policy.yaml")
	if err := os.WriteFile(path, fmt.Appendf(nil, auditPolicy, users), 0o600); err != nil {
		return nil, err
	}
	return []string{"--audit-policy-file=" + path, "--audit-log-path=" + c.auditLog()}, nil
}

// Requests returns the requests of the users in [Options.Audit]. A watch may be listed twice.
func (c *Cluster) Requests() (requests []Request, err error) {
	file, err := os.Open(c.auditLog())
	if err != nil {
		return nil, err
	}
	defer file.Close()
	decoder := json.NewDecoder(file)
	for {
		var event auditEvent
		switch err := decoder.Decode(&event); {
		case errors.Is(err, io.EOF):
			return requests, nil
		case err != nil:
			return nil, fmt.Errorf("%s: %w", file.Name(), err)
		}
		if event.ObjectRef == nil {
			continue // such as discovery
		}
		r := Request{User: event.User.Username, Verb: event.Verb, Group: event.ObjectRef.APIGroup,
			Resource: event.ObjectRef.Resource, Namespace: event.ObjectRef.Namespace, Name: event.ObjectRef.Name,
			Allowed: event.Annotations["authorization.k8s.io/decision"] == "allow",
			Reason:  event.Annotations["authorization.k8s.io/reason"]}
		if event.ObjectRef.Subresource != "" {
			r.Resource += "/" + event.ObjectRef.Subresource
		}
		requests = append(requests, r)
	}
}
