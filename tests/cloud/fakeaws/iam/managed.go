package iam

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// managed is a customer managed policy.
type managed struct {
	entity
	description string
	versions    []version // oldest first
	byDefault   string    // ID of the version in force
	made        int       // versions ever
	updated     time.Time
}

type version struct {
	id      string // v1
	created time.Time
	document
}

func (m *managed) find(id string) (version, bool) {
	i := slices.IndexFunc(m.versions, func(v version) bool { return v.id == id })
	if i < 0 {
		return version{}, false
	}
	return m.versions[i], true
}

// document is the version in force.
func (m *managed) document() *policy.Document {
	v, _ := m.find(m.byDefault)
	return v.parsed
}

func (s *Service) managedOperations() map[string]wire.Handler {
	return map[string]wire.Handler{
		"CreatePolicy":            s.createPolicy,
		"GetPolicy":               s.getPolicy,
		"ListPolicies":            s.listPolicies,
		"DeletePolicy":            s.deletePolicy,
		"CreatePolicyVersion":     s.createPolicyVersion,
		"GetPolicyVersion":        s.getPolicyVersion,
		"ListPolicyVersions":      s.listPolicyVersions,
		"DeletePolicyVersion":     s.deletePolicyVersion,
		"SetDefaultPolicyVersion": s.setDefaultPolicyVersion,
		"TagPolicy":               s.tagPolicy,
		"UntagPolicy":             s.untagPolicy,
		"ListPolicyTags":          s.listPolicyTags,
	}
}

type managedXML struct {
	PolicyName, PolicyId, Arn, Path, DefaultVersionId string
	AttachmentCount, PermissionsBoundaryUsageCount    int
	IsAttachable                                      bool
	Description                                       string `xml:",omitempty"`
	CreateDate, UpdateDate                            wire.Time
	Tags                                              []tag `xml:"Tags>member"`
}

func (s *Service) managedXML(m *managed) managedXML {
	out := managedXML{
		PolicyName: m.name, PolicyId: m.id, Arn: m.arn, Path: m.path, DefaultVersionId: m.byDefault, IsAttachable: true,
		Description: m.description,
		CreateDate:  wire.Time{Time: m.created}, UpdateDate: wire.Time{Time: m.updated}, Tags: m.tagList(),
	}
	for _, r := range s.roles {
		if slices.Contains(r.attached, m.arn) {
			out.AttachmentCount++
		}
		if r.boundary == m.arn {
			out.PermissionsBoundaryUsageCount++
		}
	}
	return out
}

type versionXML struct {
	VersionId        string
	IsDefaultVersion bool
	CreateDate       wire.Time
	Document         string `xml:",omitempty"`
}

func (m *managed) versionXML(v version, withText bool) versionXML {
	out := versionXML{VersionId: v.id, IsDefaultVersion: v.id == m.byDefault, CreateDate: wire.Time{Time: v.created}}
	if withText {
		out.Document = encoded(v.text)
	}
	return out
}

func (s *Service) createPolicy(c *wire.Call) (any, error) {
	var in struct {
		PolicyName, Path, PolicyDocument, Description string
		Tags                                          []tag
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	e, err := s.entity(c, "policy", "ANPA", in.PolicyName, in.Path, in.Tags)
	if err != nil {
		return nil, err
	}
	if err := e.create(c, "Policy", in.Tags, nil); err != nil {
		return nil, err
	}
	for _, other := range s.policies {
		if strings.EqualFold(other.name, in.PolicyName) {
			return nil, exists("A policy called %s already exists. Duplicate names are not allowed.", in.PolicyName)
		}
	}
	m := &managed{entity: e, description: in.Description}
	if err := m.add(c.Now, in.PolicyDocument, true); err != nil {
		return nil, err
	}
	s.policies[m.arn] = m
	return struct{ Policy managedXML }{s.managedXML(m)}, nil
}

func (m *managed) add(now time.Time, text string, byDefault bool) error {
	if size(text) > maxManaged {
		return limit("Cannot exceed quota for PolicySize: %d", maxManaged)
	}
	doc, err := parse(policy.Identity, text)
	if err != nil {
		return err
	}
	if len(m.versions) >= maxVersions {
		return limit(
			"A managed policy can have up to %d versions. Before you create a new version, you must delete an "+
				"existing version.", maxVersions)
	}
	m.made++
	v := version{id: fmt.Sprintf("v%d", m.made), created: now, document: document{text: text, parsed: doc}}
	m.versions, m.updated = append(m.versions, v), now
	if byDefault {
		m.byDefault = v.id
	}
	return nil
}

// findPolicy gets a managed policy and asks for permission to do the call's action to it.
func (s *Service) findPolicy(c *wire.Call, arn string, keys ...policy.Context) (*managed, error) {
	m := s.policies[arn]
	if m == nil {
		if err := c.Authorize("iam:"+c.Action, arn, nil); err != nil {
			return nil, err
		}
		return nil, missing("Policy %s was not found.", arn)
	}
	return m, m.use(c, keys...)
}

func (s *Service) getPolicy(c *wire.Call) (any, error) {
	var in struct{ PolicyArn string }
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	m, err := s.findPolicy(c, in.PolicyArn)
	if err != nil {
		return nil, err
	}
	return struct{ Policy managedXML }{s.managedXML(m)}, nil
}

func (s *Service) listPolicies(c *wire.Call) (any, error) {
	var in struct {
		Scope, PathPrefix, PolicyUsageFilter string
		OnlyAttached                         bool
		pages
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := c.Authorize("iam:ListPolicies", "*", nil); err != nil {
		return nil, err
	}
	var all []managedXML
	for _, arn := range slices.Sorted(maps.Keys(s.policies)) {
		m := s.managedXML(s.policies[arn])
		used := m.AttachmentCount
		if in.PolicyUsageFilter == "PermissionsBoundary" {
			used = m.PermissionsBoundaryUsageCount
		}
		if in.Scope != "AWS" && strings.HasPrefix(m.Path, in.PathPrefix) &&
			(used > 0 || !in.OnlyAttached && in.PolicyUsageFilter == "") {
			all = append(all, m)
		}
	}
	page, end, err := cut(all, in.pages)
	return struct {
		Policies []managedXML `xml:"Policies>member"`
		pageEnd
	}{page, end}, err
}

func (s *Service) deletePolicy(c *wire.Call) (any, error) {
	var in struct{ PolicyArn string }
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	m, err := s.findPolicy(c, in.PolicyArn)
	if err != nil {
		return nil, err
	}
	if x := s.managedXML(m); x.AttachmentCount+x.PermissionsBoundaryUsageCount > 0 {
		return nil, conflict("Cannot delete a policy attached to entities.")
	}
	if len(m.versions) > 1 {
		return nil,
			conflict(
				"This policy has more than one version. Before you delete a policy, you must delete the policy's " +
					"versions. The default version is deleted with the policy.")
	}
	delete(s.policies, m.arn)
	return nil, nil
}

func (s *Service) createPolicyVersion(c *wire.Call) (any, error) {
	var in struct {
		PolicyArn, PolicyDocument string
		SetAsDefault              bool
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	m, err := s.findPolicy(c, in.PolicyArn)
	if err != nil {
		return nil, err
	}
	if err := m.add(c.Now, in.PolicyDocument, in.SetAsDefault); err != nil {
		return nil, err
	}
	return struct{ PolicyVersion versionXML }{m.versionXML(m.versions[len(m.versions)-1], false)}, nil
}

// findVersion gets a policy and one of its versions.
func (s *Service) findVersion(c *wire.Call) (*managed, version, error) {
	var in struct{ PolicyArn, VersionId string }
	if err := c.Decode(&in); err != nil {
		return nil, version{}, err
	}
	m, err := s.findPolicy(c, in.PolicyArn)
	if err != nil {
		return nil, version{}, err
	}
	v, ok := m.find(in.VersionId)
	if !ok {
		return nil, version{}, missing("Policy %s version %s does not exist or is not attachable.", in.PolicyArn,
			in.VersionId)
	}
	return m, v, nil
}

func (s *Service) getPolicyVersion(c *wire.Call) (any, error) {
	m, v, err := s.findVersion(c)
	if err != nil {
		return nil, err
	}
	return struct{ PolicyVersion versionXML }{m.versionXML(v, true)}, nil
}

func (s *Service) listPolicyVersions(c *wire.Call) (any, error) {
	var in struct {
		PolicyArn string
		pages
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	m, err := s.findPolicy(c, in.PolicyArn)
	if err != nil {
		return nil, err
	}
	all := make([]versionXML, 0, len(m.versions))
	for _, v := range slices.Backward(m.versions) {
		all = append(all, m.versionXML(v, false))
	}
	page, end, err := cut(all, in.pages)
	return struct {
		Versions []versionXML `xml:"Versions>member"`
		pageEnd
	}{page, end}, err
}

func (s *Service) deletePolicyVersion(c *wire.Call) (any, error) {
	m, v, err := s.findVersion(c)
	if err != nil {
		return nil, err
	}
	if v.id == m.byDefault {
		return nil, conflict("Cannot delete the default version of a policy.")
	}
	m.versions = slices.DeleteFunc(m.versions, func(other version) bool { return other.id == v.id })
	return nil, nil
}

func (s *Service) setDefaultPolicyVersion(c *wire.Call) (any, error) {
	m, v, err := s.findVersion(c)
	if err != nil {
		return nil, err
	}
	m.byDefault = v.id
	return nil, nil
}

func (s *Service) tagPolicy(c *wire.Call) (any, error) {
	var in struct {
		PolicyArn string
		Tags      []tag
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	m, err := s.findPolicy(c, in.PolicyArn, tagKeys(in.Tags))
	if err != nil {
		return nil, err
	}
	return nil, m.tag(in.Tags)
}

func (s *Service) untagPolicy(c *wire.Call) (any, error) {
	var in struct {
		PolicyArn string
		TagKeys   []string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	m, err := s.findPolicy(c, in.PolicyArn, policy.Context{"aws:TagKeys": in.TagKeys})
	if err != nil {
		return nil, err
	}
	m.untag(in.TagKeys)
	return nil, nil
}

func (s *Service) listPolicyTags(c *wire.Call) (any, error) {
	var in struct {
		PolicyArn string
		pages
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	m, err := s.findPolicy(c, in.PolicyArn)
	if err != nil {
		return nil, err
	}
	return tagPage(&m.entity, in.pages)
}
