package iam

import (
	"maps"
	"slices"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

func (s *Service) inlineOperations() map[string]wire.Handler {
	return map[string]wire.Handler{
		"PutRolePolicy":            s.putRolePolicy,
		"GetRolePolicy":            s.getRolePolicy,
		"ListRolePolicies":         s.listRolePolicies,
		"ListAttachedRolePolicies": s.listAttachedRolePolicies,
		"DeleteRolePolicy":         s.deleteRolePolicy,
	}
}

func (s *Service) putRolePolicy(c *wire.Call) (any, error) {
	var in struct{ RoleName, PolicyName, PolicyDocument string }
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	r, err := s.find(c, in.RoleName)
	if err != nil {
		return nil, err
	}
	if !nameForm.MatchString(in.PolicyName) {
		return nil, invalid("The specified value for policyName is invalid: %q", in.PolicyName)
	}
	doc, err := parse(policy.Identity, in.PolicyDocument)
	if err != nil {
		return nil, err
	}
	total := size(in.PolicyDocument)
	for name, other := range r.inline {
		if name != in.PolicyName {
			total += size(other.text)
		}
	}
	if total > maxInline {
		return nil, limit("Maximum policy size of %d bytes exceeded for role %s", maxInline, r.name)
	}
	r.inline[in.PolicyName] = document{text: in.PolicyDocument, parsed: doc}
	return nil, nil
}

// findInline returns the role and the policy name in a call. It returns an error if the role has no inline policy with
// that name.
func (s *Service) findInline(c *wire.Call) (*role, string, error) {
	var in struct{ RoleName, PolicyName string }
	if err := c.Decode(&in); err != nil {
		return nil, "", err
	}
	r, err := s.find(c, in.RoleName)
	if err != nil {
		return nil, "", err
	}
	if _, ok := r.inline[in.PolicyName]; !ok {
		return nil, "", missing("The role policy with name %s cannot be found.", in.PolicyName)
	}
	return r, in.PolicyName, nil
}

func (s *Service) getRolePolicy(c *wire.Call) (any, error) {
	r, name, err := s.findInline(c)
	if err != nil {
		return nil, err
	}
	return struct{ RoleName, PolicyName, PolicyDocument string }{r.name, name, encoded(r.inline[name].text)}, nil
}

func (s *Service) listRolePolicies(c *wire.Call) (any, error) {
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
	page, end, err := cut(slices.Sorted(maps.Keys(r.inline)), in.pages)
	return struct {
		PolicyNames []string `xml:"PolicyNames>member"`
		pageEnd
	}{page, end}, err
}

func (s *Service) deleteRolePolicy(c *wire.Call) (any, error) {
	r, name, err := s.findInline(c)
	if err != nil {
		return nil, err
	}
	delete(r.inline, name)
	return nil, nil
}

// listAttachedRolePolicies returns an empty list. This fake has no managed policies.
func (s *Service) listAttachedRolePolicies(c *wire.Call) (any, error) {
	var in struct {
		named
		PathPrefix string
		pages
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	_, err := s.find(c, in.RoleName)
	return pageEnd{}, err
}
