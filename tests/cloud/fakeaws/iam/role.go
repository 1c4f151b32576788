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
	attached    []string            // ARNs of managed policies
	boundary    string              // ARN of one, or ""
}

type document struct {
	text   string
	parsed *policy.Document
}

func (s *Service) roleOperations() map[string]wire.Handler {
	return map[string]wire.Handler{
		"CreateRole":                    s.createRole,
		"GetRole":                       s.getRole,
		"ListRoles":                     s.listRoles,
		"UpdateRole":                    s.updateRole,
		"UpdateRoleDescription":         s.updateRoleDescription,
		"UpdateAssumeRolePolicy":        s.updateAssumeRolePolicy,
		"DeleteRole":                    s.deleteRole,
		"PutRolePermissionsBoundary":    s.putBoundary,
		"DeleteRolePermissionsBoundary": s.deleteBoundary,
		"TagRole":                       s.tagRole,
		"UntagRole":                     s.untagRole,
		"ListRoleTags":                  s.listRoleTags,
	}
}

type roleXML struct {
	Path, RoleName, RoleId, Arn string
	CreateDate                  wire.Time
	AssumeRolePolicyDocument    string
	Description                 string `xml:",omitempty"`
	MaxSessionDuration          int
	PermissionsBoundary         *boundaryXML
	Tags                        []tag `xml:"Tags>member"`
}

type boundaryXML struct {
	PermissionsBoundaryType string
	PermissionsBoundaryArn  string
}

func (r *role) xml() roleXML {
	out := roleXML{
		Path: r.path, RoleName: r.name, RoleId: r.id, Arn: r.arn, CreateDate: wire.Time{Time: r.created},
		AssumeRolePolicyDocument: encoded(r.trustText),
		Description:              r.description, MaxSessionDuration: r.maxSession, Tags: r.tagList(),
	}
	if r.boundary != "" {
		out.PermissionsBoundary = &boundaryXML{PermissionsBoundaryType: "Policy", PermissionsBoundaryArn: r.boundary}
	}
	return out
}

func (s *Service) createRole(c *wire.Call) (any, error) {
	in := struct {
		RoleName, Path, Description, AssumeRolePolicyDocument, PermissionsBoundary string
		MaxSessionDuration                                                         int
		Tags                                                                       []tag
	}{MaxSessionDuration: 3600}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	e, err := s.entity(c, "role", "AROA", in.RoleName, in.Path, in.Tags)
	if err != nil {
		return nil, err
	}
	keys := policy.Context{}
	if in.PermissionsBoundary != "" {
		keys["iam:PermissionsBoundary"] = []string{in.PermissionsBoundary}
	}
	if err := e.create(c, "Role", in.Tags, keys); err != nil {
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
	if in.PermissionsBoundary != "" {
		if err := s.setBoundary(r, in.PermissionsBoundary); err != nil {
			return nil, err
		}
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

// known says whether a principal exists. Those of other accounts are taken as they are.
func (s *Service) known(principal string) bool {
	name, isRole := strings.CutPrefix(principal, "arn:aws:iam::"+s.account+":role/")
	if !isRole {
		return true
	}
	r := s.roles[name[strings.LastIndexByte(name, '/')+1:]]
	return r != nil && r.arn == principal
}

// find gets the call's role and asks for permission to do the call's action to it.
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

// named is the input of operations that need a role only.
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

func (s *Service) updateRole(c *wire.Call) (any, error) {
	var in struct {
		named
		Description        *string
		MaxSessionDuration *int
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	r, err := s.find(c, in.RoleName)
	if err != nil {
		return nil, err
	}
	description, maxSession := r.description, r.maxSession
	if in.Description != nil {
		description = *in.Description
	}
	if in.MaxSessionDuration != nil {
		maxSession = *in.MaxSessionDuration
	}
	return nil, r.describe(description, maxSession)
}

func (s *Service) updateRoleDescription(c *wire.Call) (any, error) {
	var in struct {
		named
		Description string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	r, err := s.find(c, in.RoleName)
	if err != nil {
		return nil, err
	}
	if err := r.describe(in.Description, r.maxSession); err != nil {
		return nil, err
	}
	return struct{ Role roleXML }{r.xml()}, nil
}

func (s *Service) updateAssumeRolePolicy(c *wire.Call) (any, error) {
	var in struct {
		named
		PolicyDocument string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	r, err := s.find(c, in.RoleName)
	if err != nil {
		return nil, err
	}
	return nil, s.setTrust(r, in.PolicyDocument)
}

func (s *Service) deleteRole(c *wire.Call) (any, error) {
	r, err := s.findNamed(c)
	if err != nil {
		return nil, err
	}
	switch {
	case len(r.attached) > 0:
		return nil, conflict("Cannot delete entity, must detach all policies first.")
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

func (s *Service) putBoundary(c *wire.Call) (any, error) {
	var in struct {
		named
		PermissionsBoundary string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	r, err := s.find(c, in.RoleName, policy.Context{"iam:PermissionsBoundary": {in.PermissionsBoundary}})
	if err != nil {
		return nil, err
	}
	return nil, s.setBoundary(r, in.PermissionsBoundary)
}

func (s *Service) setBoundary(r *role, arn string) error {
	if s.policies[arn] == nil {
		return missing("Policy %s does not exist or is not attachable.", arn)
	}
	r.boundary = arn
	return nil
}

func (s *Service) deleteBoundary(c *wire.Call) (any, error) {
	r, err := s.findNamed(c)
	if err != nil {
		return nil, err
	}
	if r.boundary == "" {
		return nil, missing("The role with name %s has no permissions boundary.", r.name)
	}
	r.boundary = ""
	return nil, nil
}

func (s *Service) tagRole(c *wire.Call) (any, error) {
	var in struct {
		named
		Tags []tag
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	r, err := s.find(c, in.RoleName, tagKeys(in.Tags))
	if err != nil {
		return nil, err
	}
	return nil, r.tag(in.Tags)
}

func (s *Service) untagRole(c *wire.Call) (any, error) {
	var in struct {
		named
		TagKeys []string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	r, err := s.find(c, in.RoleName, policy.Context{"aws:TagKeys": in.TagKeys})
	if err != nil {
		return nil, err
	}
	r.untag(in.TagKeys)
	return nil, nil
}

func (s *Service) listRoleTags(c *wire.Call) (any, error) {
	var in struct {
		named
		pages
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	r, err := s.find(c, in.RoleName)
	if err != nil {
		return nil, err
	}
	return tagPage(&r.entity, in.pages)
}

// tagPage is the answer of all List…Tags operations.
func tagPage(e *entity, p pages) (any, error) {
	page, end, err := cut(e.tagList(), p)
	return struct {
		Tags []tag `xml:"Tags>member"`
		pageEnd
	}{page, end}, err
}
