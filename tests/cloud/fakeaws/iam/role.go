package iam

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

type role struct {
	entity
	description string
	maxSession  int // seconds
	trustText   string
	trust       *policy.Document
	inline      map[string]document // by name
}

type document struct {
	text   string
	parsed *policy.Document
}

func (s *Service) roleOperations() map[string]wire.Handler {
	return map[string]wire.Handler{
		"CreateRole": s.createRole,
		"GetRole":    s.getRole,
		"ListRoles":  s.listRoles,
		"DeleteRole": s.deleteRole,
	}
}

type roleXML struct {
	Path, RoleName, RoleId, Arn string
	CreateDate                  wire.Time
	AssumeRolePolicyDocument    string
	Description                 string `xml:",omitempty"`
	MaxSessionDuration          int
	Tags                        []tag `xml:"Tags>member"`
}

func (r *role) xml() roleXML {
	return roleXML{
		Path: r.path, RoleName: r.name, RoleId: r.id, Arn: r.arn, CreateDate: wire.Time{Time: r.created},
		AssumeRolePolicyDocument: encoded(r.trustText),
		Description:              r.description, MaxSessionDuration: r.maxSession, Tags: r.tagList(),
	}
}

func (s *Service) createRole(c *wire.Call) (any, error) {
	in := struct {
		RoleName, Path, Description, AssumeRolePolicyDocument string
		MaxSessionDuration                                    int
		Tags                                                  []tag
	}{MaxSessionDuration: 3600}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	e, err := s.entity(c, "role", "AROA", in.RoleName, in.Path, in.Tags)
	if err != nil {
		return nil, err
	}
	if err := e.create(c, "Role", in.Tags); err != nil {
		return nil, err
	}
	if s.roles[in.RoleName] != nil {
		return nil, exists("Role with name %s already exists.", in.RoleName)
	}
	r := &role{entity: e, inline: map[string]document{}}
	if err := s.setTrust(r, in.AssumeRolePolicyDocument); err != nil {
		return nil, err
	}
	if err := r.describe(in.Description, in.MaxSessionDuration); err != nil {
		return nil, err
	}
	s.roles[r.name] = r
	return struct{ Role roleXML }{r.xml()}, nil
}

func (r *role) describe(description string, maxSession int) error {
	if len(description) > 1000 {
		return invalid("The description is longer than 1000 characters")
	}
	if maxSession < 3600 || maxSession > 43200 {
		return invalid("MaxSessionDuration must be between 3600 and 43200 seconds")
	}
	r.description, r.maxSession = description, maxSession
	return nil
}

func (s *Service) setTrust(r *role, text string) error {
	if size(text) > maxTrust {
		return limit("Cannot exceed quota for ACLSizePerRole: %d", maxTrust)
	}
	doc, err := parse(policy.Trust, text)
	if err != nil {
		return err
	}
	for _, statement := range doc.Statements {
		for _, arn := range statement.Principals.AWS {
			if !s.known(arn) {
				return wire.Errorf(http.StatusBadRequest, "MalformedPolicyDocument",
					"Invalid principal in policy: \"AWS\":%q", arn)
			}
		}
	}
	r.trustText, r.trust = text, doc
	return nil
}

// known reports whether a principal exists. Principals of other accounts are not checked.
func (s *Service) known(principal string) bool {
	name, isRole := strings.CutPrefix(principal, "arn:aws:iam::"+s.account+":role/")
	if !isRole {
		return true
	}
	r := s.roles[name[strings.LastIndexByte(name, '/')+1:]]
	return r != nil && r.arn == principal
}

// find returns a role. It returns an error if the caller may not perform the call's action on it.
func (s *Service) find(c *wire.Call, name string, keys ...policy.Context) (*role, error) {
	r := s.roles[name]
	if r == nil {
		if err := c.Authorize("iam:"+c.Action, "arn:aws:iam::"+s.account+":role/"+name, nil); err != nil {
			return nil, err
		}
		return nil, missing("The role with name %s cannot be found.", name)
	}
	return r, r.use(c, keys...)
}

// named is the input of operations whose only parameter is the name of a role.
type named struct{ RoleName string }

func (s *Service) findNamed(c *wire.Call) (*role, error) {
	var in named
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	return s.find(c, in.RoleName)
}

func (s *Service) getRole(c *wire.Call) (any, error) {
	r, err := s.findNamed(c)
	if err != nil {
		return nil, err
	}
	return struct{ Role roleXML }{r.xml()}, nil
}

func (s *Service) listRoles(c *wire.Call) (any, error) {
	var in struct {
		PathPrefix string
		pages
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := c.Authorize("iam:ListRoles", "arn:aws:iam::"+s.account+":role/", nil); err != nil {
		return nil, err
	}
	var all []roleXML
	for _, name := range slices.Sorted(maps.Keys(s.roles)) {
		if strings.HasPrefix(s.roles[name].path, in.PathPrefix) {
			all = append(all, s.roles[name].xml())
		}
	}
	page, end, err := cut(all, in.pages)
	return struct {
		Roles []roleXML `xml:"Roles>member"`
		pageEnd
	}{page, end}, err
}

func (s *Service) deleteRole(c *wire.Call) (any, error) {
	r, err := s.findNamed(c)
	if err != nil {
		return nil, err
	}
	switch {
	case len(r.inline) > 0:
		return nil, conflict("Cannot delete entity, must delete policies first.")
	}
	for _, p := range s.profiles {
		if p.role == r {
			return nil, conflict("Cannot delete entity, must remove roles from instance profile first.")
		}
	}
	delete(s.roles, r.name)
	return nil, nil
}
