package iam

import (
	"maps"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// profile is an instance profile. It holds at most one role.
type profile struct {
	entity
	role *role
}

func (s *Service) profileOperations() map[string]wire.Handler {
	return map[string]wire.Handler{
		"CreateInstanceProfile":         s.createProfile,
		"GetInstanceProfile":            s.getProfile,
		"ListInstanceProfiles":          s.listProfiles,
		"ListInstanceProfilesForRole":   s.listProfilesForRole,
		"DeleteInstanceProfile":         s.deleteProfile,
		"AddRoleToInstanceProfile":      s.addRole,
		"RemoveRoleFromInstanceProfile": s.removeRole,
	}
}

type profileXML struct {
	Path, InstanceProfileName, InstanceProfileId, Arn string
	CreateDate                                        wire.Time
	Roles                                             []roleXML `xml:"Roles>member"`
	Tags                                              []tag     `xml:"Tags>member"`
}

func (p *profile) xml() profileXML {
	out := profileXML{
		Path: p.path, InstanceProfileName: p.name, InstanceProfileId: p.id, Arn: p.arn,
		CreateDate: wire.Time{Time: p.created}, Tags: p.tagList(),
	}
	if p.role != nil {
		out.Roles = []roleXML{p.role.xml()}
	}
	return out
}

type profileName struct{ InstanceProfileName string }

func (s *Service) createProfile(c *wire.Call) (any, error) {
	var in struct {
		profileName
		Path string
		Tags []tag
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	e, err := s.entity(c, "instance-profile", "AIPA", in.InstanceProfileName, in.Path, in.Tags)
	if err != nil {
		return nil, err
	}
	if err := e.create(c, "InstanceProfile", in.Tags); err != nil {
		return nil, err
	}
	if s.profiles[e.name] != nil {
		return nil, exists("Instance Profile %s already exists.", e.name)
	}
	p := &profile{entity: e}
	s.profiles[p.name] = p
	return struct{ InstanceProfile profileXML }{p.xml()}, nil
}

// findProfile returns an instance profile. It returns an error if the caller may not perform the call's action on it.
func (s *Service) findProfile(c *wire.Call, name string, keys ...policy.Context) (*profile, error) {
	p := s.profiles[name]
	if p == nil {
		if err := c.Authorize("iam:"+c.Action, "arn:aws:iam::"+s.account+":instance-profile/"+name, nil); err != nil {
			return nil, err
		}
		return nil, missing("Instance Profile %s cannot be found.", name)
	}
	return p, p.use(c, keys...)
}

func (s *Service) getProfile(c *wire.Call) (any, error) {
	var in profileName
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	p, err := s.findProfile(c, in.InstanceProfileName)
	if err != nil {
		return nil, err
	}
	return struct{ InstanceProfile profileXML }{p.xml()}, nil
}

func (s *Service) listProfiles(c *wire.Call) (any, error) {
	var in struct {
		PathPrefix string
		pages
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := c.Authorize("iam:ListInstanceProfiles", "arn:aws:iam::"+s.account+":instance-profile/", nil); err != nil {
		return nil, err
	}
	return s.profilePage(in.pages, func(p *profile) bool { return strings.HasPrefix(p.path, in.PathPrefix) })
}

func (s *Service) listProfilesForRole(c *wire.Call) (any, error) {
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
	return s.profilePage(in.pages, func(p *profile) bool { return p.role == r })
}

func (s *Service) profilePage(p pages, wanted func(*profile) bool) (any, error) {
	var all []profileXML
	for _, name := range slices.Sorted(maps.Keys(s.profiles)) {
		if wanted(s.profiles[name]) {
			all = append(all, s.profiles[name].xml())
		}
	}
	page, end, err := cut(all, p)
	return struct {
		InstanceProfiles []profileXML `xml:"InstanceProfiles>member"`
		pageEnd
	}{page, end}, err
}

func (s *Service) deleteProfile(c *wire.Call) (any, error) {
	var in profileName
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	p, err := s.findProfile(c, in.InstanceProfileName)
	if err != nil {
		return nil, err
	}
	if p.role != nil {
		return nil, conflict("Cannot delete entity, must remove roles from instance profile first.")
	}
	delete(s.profiles, p.name)
	return nil, nil
}

// addRole adds a role to an instance profile. The caller also needs permission to pass the role.
// Source: https://docs.aws.amazon.com/IAM/latest/APIReference/API_AddRoleToInstanceProfile.html
func (s *Service) addRole(c *wire.Call) (any, error) {
	var in struct {
		profileName
		named
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	p, err := s.findProfile(c, in.InstanceProfileName)
	if err != nil {
		return nil, err
	}
	r := s.roles[in.RoleName]
	if r == nil {
		return nil, missing("The role with name %s cannot be found.", in.RoleName)
	}
	if err := c.Authorize("iam:PassRole", r.arn, r.keys()); err != nil {
		return nil, err
	}
	if p.role != nil {
		return nil, limit("Cannot exceed quota for InstanceSessionsPerInstanceProfile: 1")
	}
	p.role = r
	return nil, nil
}

func (s *Service) removeRole(c *wire.Call) (any, error) {
	var in struct {
		profileName
		named
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	p, err := s.findProfile(c, in.InstanceProfileName)
	if err != nil {
		return nil, err
	}
	if p.role == nil || p.role.name != in.RoleName {
		return nil, missing("The role with name %s cannot be found.", in.RoleName)
	}
	p.role = nil
	return nil, nil
}
