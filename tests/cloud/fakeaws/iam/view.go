package iam

import (
	"maps"
	"slices"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
)

// Role is the view of a role for other fakes.
type Role struct {
	Name, ARN, ID string
	Tags          map[string]string
	Identity      []*policy.Document // inline policies
	Trust         *policy.Document
}

// Role finds a role by its name.
func (s *Service) Role(name string) (Role, bool) {
	r := s.roles[name]
	if r == nil {
		return Role{}, false
	}
	out := Role{Name: r.name, ARN: r.arn, ID: r.id, Tags: maps.Clone(r.tags), Trust: r.trust}
	for _, name := range slices.Sorted(maps.Keys(r.inline)) {
		out.Identity = append(out.Identity, r.inline[name].parsed)
	}
	return out, true
}

// Profile is the view of an instance profile for other fakes.
type Profile struct {
	Name, ARN, ID string
	Role          string // "" without a role
}

// Profile finds an instance profile by its name or its ARN.
func (s *Service) Profile(nameOrARN string) (Profile, bool) {
	for _, p := range s.profiles {
		if p.name == nameOrARN || p.arn == nameOrARN {
			out := Profile{Name: p.name, ARN: p.arn, ID: p.id}
			if p.role != nil {
				out.Role = p.role.name
			}
			return out, true
		}
	}
	return Profile{}, false
}
