package iam

import (
	"maps"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

func (s *Service) attachmentOperations() map[string]wire.Handler {
	return map[string]wire.Handler{
		"AttachRolePolicy":         s.attachRolePolicy,
		"DetachRolePolicy":         s.detachRolePolicy,
		"ListAttachedRolePolicies": s.listAttachedRolePolicies,
		"ListEntitiesForPolicy":    s.listEntitiesForPolicy,
	}
}

func (s *Service) attachRolePolicy(c *wire.Call) (any, error) {
	var in struct{ RoleName, PolicyArn string }
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	r, err := s.find(c, in.RoleName, policy.Context{"iam:PolicyARN": {in.PolicyArn}})
	if err != nil {
		return nil, err
	}
	if s.policies[in.PolicyArn] == nil {
		return nil, missing("Policy %s does not exist or is not attachable.", in.PolicyArn)
	}
	if slices.Contains(r.attached, in.PolicyArn) {
		return nil, nil
	}
	if len(r.attached) >= maxAttached {
		return nil, limit("Cannot exceed quota for PoliciesPerRole: %d", maxAttached)
	}
	r.attached = append(r.attached, in.PolicyArn)
	return nil, nil
}

func (s *Service) detachRolePolicy(c *wire.Call) (any, error) {
	var in struct{ RoleName, PolicyArn string }
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	r, err := s.find(c, in.RoleName, policy.Context{"iam:PolicyARN": {in.PolicyArn}})
	if err != nil {
		return nil, err
	}
	if !slices.Contains(r.attached, in.PolicyArn) {
		return nil, missing("Policy %s was not found.", in.PolicyArn)
	}
	r.attached = slices.DeleteFunc(r.attached, func(arn string) bool { return arn == in.PolicyArn })
	return nil, nil
}

func (s *Service) listAttachedRolePolicies(c *wire.Call) (any, error) {
	var in struct {
		named
		PathPrefix string
		pages
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	r, err := s.find(c, in.RoleName)
	if err != nil {
		return nil, err
	}
	type attached struct{ PolicyName, PolicyArn string }
	var all []attached
	for _, arn := range slices.Sorted(slices.Values(r.attached)) {
		if m := s.policies[arn]; strings.HasPrefix(m.path, in.PathPrefix) {
			all = append(all, attached{m.name, arn})
		}
	}
	page, end, err := cut(all, in.pages)
	return struct {
		AttachedPolicies []attached `xml:"AttachedPolicies>member"`
		pageEnd
	}{page, end}, err
}

// listEntitiesForPolicy knows roles only: there are no users and groups here.
func (s *Service) listEntitiesForPolicy(c *wire.Call) (any, error) {
	var in struct {
		PolicyArn, EntityFilter, PathPrefix, PolicyUsageFilter string
		pages
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	m, err := s.findPolicy(c, in.PolicyArn)
	if err != nil {
		return nil, err
	}
	type entry struct{ RoleName, RoleId string }
	var all []entry
	for _, name := range slices.Sorted(maps.Keys(s.roles)) {
		r := s.roles[name]
		attached := slices.Contains(r.attached, m.arn) && in.PolicyUsageFilter != "PermissionsBoundary"
		bounded := r.boundary == m.arn && in.PolicyUsageFilter != "PermissionsPolicy"
		if (attached || bounded) && strings.HasPrefix(r.path, in.PathPrefix) &&
			(in.EntityFilter == "" || in.EntityFilter == "Role") {
			all = append(all, entry{r.name, r.id})
		}
	}
	page, end, err := cut(all, in.pages)
	return struct {
		PolicyRoles []entry `xml:"PolicyRoles>member"`
		pageEnd
	}{page, end}, err
}
