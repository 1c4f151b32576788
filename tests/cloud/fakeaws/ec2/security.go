package ec2

import (
	"maps"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// maxGroupText is the maximum length of a group's name, and of its description.
const maxGroupText = 255

// securityGroup is a set of rules for incoming and outgoing traffic.
type securityGroup struct {
	entity
	vpc, name, description string
}

func (s *Service) groupContext(id string) policy.Context {
	return policy.Context{"ec2:SecurityGroupID": {id}, "ec2:Vpc": {s.arn("vpc", s.groups[id].vpc)}}
}

// SecurityGroup returns the VPC of a security group.
func (s *Service) SecurityGroup(id string) (vpc string, ok bool) {
	g := s.groups[id]
	if g == nil {
		return "", false
	}
	return g.vpc, true
}

// newGroup makes a group that allows all outgoing traffic.
func (s *Service) newGroup(v *vpc, name, description string) *securityGroup {
	g := &securityGroup{entity: s.entity("sg"), vpc: v.id, name: name, description: description}
	s.groups[g.id] = g
	s.addRule(g, securityRule{egress: true, protocol: "-1", from: -1, to: -1, block: anyIPv4})
	if len(v.blocks6) > 0 {
		s.addRule(g, securityRule{egress: true, protocol: "-1", from: -1, to: -1, block: anyIPv6})
	}
	return g
}

func (s *Service) groupByID(id string) (*securityGroup, error) {
	if id == "" {
		return nil, missing("groupId")
	}
	if g := s.groups[id]; g != nil {
		return g, nil
	}
	return nil, failf("InvalidGroup.NotFound", "The security group '%s' does not exist", id)
}

func (s *Service) createGroup(c *wire.Call) (any, error) {
	var in struct {
		GroupName        string
		GroupDescription string
		VpcID            string `query:"VpcId"`
		TagSpecification []TagSpecification
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	tags, err := specified(in.TagSpecification, "security-group")
	if err != nil {
		return nil, err
	}
	keys := policy.Context{}
	if in.VpcID != "" {
		keys["ec2:Vpc"] = []string{s.arn("vpc", in.VpcID)}
	}
	if err := s.allowNew(c, "CreateSecurityGroup", "security-group", tags, keys); err != nil {
		return nil, err
	}
	if in.VpcID == "" {
		return nil, failf("VPCIdNotSpecified", "No default VPC for this user")
	}
	if err := s.allow(c, "CreateSecurityGroup", in.VpcID); err != nil {
		return nil, err
	}
	if err := required("groupName", in.GroupName, "groupDescription", in.GroupDescription); err != nil {
		return nil, err
	}
	v, err := s.vpcByID(in.VpcID)
	switch {
	case err != nil:
		return nil, err
	case len(in.GroupName) > maxGroupText:
		return nil, invalid("groupName", in.GroupName)
	case strings.HasPrefix(in.GroupName, "sg-"):
		return nil, failf("InvalidParameterValue", "Group names may not be in the format sg-*")
	case in.GroupName == "default":
		return nil, failf("InvalidParameterValue", "Cannot use reserved security group name: default")
	case len(in.GroupDescription) > maxGroupText || strings.Trim(in.GroupDescription, descriptionCharacters) != "":
		return nil,
			failf("InvalidParameterValue",
				"Value (%s) for parameter GroupDescription is invalid. Character sets beyond ASCII are not supported.",
				in.GroupDescription)
	case some(s.groups, func(g *securityGroup) bool { return g.vpc == v.id && g.name == in.GroupName }):
		return nil, failf("InvalidGroup.Duplicate", "The security group '%s' already exists for VPC '%s'", in.GroupName,
			v.id)
	}
	g := s.newGroup(v, in.GroupName, in.GroupDescription)
	s.SetTags(g.id, tags)
	return struct {
		Return bool   `xml:"return"`
		ID     string `xml:"groupId"`
		ARN    string `xml:"securityGroupArn"`
		Tags   []Tag  `xml:"tagSet>item"`
	}{true, g.id, s.ARN(g.id), s.tagList(g.id)}, nil
}

// descriptionCharacters are the valid characters in descriptions of groups and rules.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateSecurityGroup.html
const descriptionCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ._-:/()#,@[]+=&;{}!$*"

func (s *Service) deleteGroup(c *wire.Call) (any, error) {
	var in struct {
		GroupID   string `query:"GroupId"`
		GroupName string // names a group of the default VPC, which does not exist here
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if in.GroupID == "" {
		if err := s.allowAny(c, "DeleteSecurityGroup"); err != nil {
			return nil, err
		}
		if in.GroupName != "" {
			return nil, failf("InvalidGroup.NotFound", "The security group '%s' does not exist", in.GroupName)
		}
		return nil, missing("groupId")
	}
	if err := s.allow(c, "DeleteSecurityGroup", in.GroupID); err != nil {
		return nil, err
	}
	g, err := s.groupByID(in.GroupID)
	switch {
	case err != nil:
		return nil, err
	case s.vpcs[g.vpc].defaultGroup == g.id:
		return nil, failf("CannotDelete", "the specified group: %q name: %q cannot be deleted by a user", g.id, g.name)
	case some(s.interfaces, func(i *Interface) bool { return slices.Contains(i.Groups, g.id) }),
		some(s.groupRules, func(r *securityRule) bool { return r.group == g.id && r.owner != g.id }):
		return nil, failf("DependencyViolation", "resource %s has a dependent object", g.id)
	}
	s.dropRules(g.id)
	drop(s, s.groups, g.id)
	return struct {
		Return bool   `xml:"return"`
		ID     string `xml:"groupId"`
	}{true, g.id}, nil
}

type groupXML struct {
	ID          string          `xml:"groupId"`
	ARN         string          `xml:"securityGroupArn"`
	Name        string          `xml:"groupName"`
	Description string          `xml:"groupDescription"`
	Owner       string          `xml:"ownerId"`
	VPC         string          `xml:"vpcId"`
	Ingress     []permissionXML `xml:"ipPermissions>item"`
	Egress      []permissionXML `xml:"ipPermissionsEgress>item"`
	Tags        []Tag           `xml:"tagSet>item"`
}

func (s *Service) groupXML(g *securityGroup) groupXML {
	return groupXML{
		ID: g.id, ARN: s.ARN(g.id), Name: g.name, Description: g.description, Owner: s.cfg.Account, VPC: g.vpc,
		Ingress: s.permissions(g, false),
		Egress:  s.permissions(g, true), Tags: s.tagList(g.id),
	}
}

func (s *Service) describeGroups(c *wire.Call) (any, error) {
	var in struct {
		GroupID    []string `query:"GroupId"`
		GroupName  []string
		Filter     []Filter
		MaxResults int
		NextToken  string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, "DescribeSecurityGroups"); err != nil {
		return nil, err
	}
	for _, name := range in.GroupName { // of a default VPC
		return nil, failf("InvalidGroup.NotFound", "The security group '%s' does not exist", name)
	}
	filters := map[string]func(*securityGroup) []string{
		"description": func(g *securityGroup) []string { return []string{g.description} },
		"group-id":    func(g *securityGroup) []string { return []string{g.id} },
		"group-name":  func(g *securityGroup) []string { return []string{g.name} },
		"owner-id":    func(*securityGroup) []string { return []string{s.cfg.Account} },
		"vpc-id":      func(g *securityGroup) []string { return []string{g.vpc} },
	}
	maps.Copy(filters, s.ruleFilters("ip-permission.", false))
	maps.Copy(filters, s.ruleFilters("egress.ip-permission.", true))
	found, next, err := find(s, s.groups, query{in.GroupID, in.Filter, in.MaxResults, in.NextToken}, filters)
	if err != nil {
		return nil, err
	}
	return struct {
		Items []groupXML `xml:"securityGroupInfo>item"`
		Next  string     `xml:"nextToken,omitempty"`
	}{each(found, s.groupXML), next}, nil
}

// ruleFilters returns the filters that select security groups by properties of their rules.
func (s *Service) ruleFilters(prefix string, egress bool) map[string]func(*securityGroup) []string {
	of := func(value func(ruleXML) string) func(*securityGroup) []string {
		return func(g *securityGroup) []string {
			var all []string
			for _, r := range s.rulesOf(g.id, egress) {
				if v := value(s.ruleXML(r)); v != "" {
					all = append(all, v)
				}
			}
			return all
		}
	}
	referenced := func(value func(referencedXML) string) func(ruleXML) string {
		return func(x ruleXML) string {
			if x.Referenced == nil {
				return ""
			}
			return value(*x.Referenced)
		}
	}
	return map[string]func(*securityGroup) []string{
		prefix + "cidr":           of(func(x ruleXML) string { return x.IPv4 }),
		prefix + "ipv6-cidr":      of(func(x ruleXML) string { return x.IPv6 }),
		prefix + "from-port":      of(func(x ruleXML) string { return itoa(x.From) }),
		prefix + "to-port":        of(func(x ruleXML) string { return itoa(x.To) }),
		prefix + "protocol":       of(func(x ruleXML) string { return x.Protocol }),
		prefix + "prefix-list-id": of(func(x ruleXML) string { return x.PrefixList }),
		prefix + "group-id":       of(referenced(func(r referencedXML) string { return r.Group })),
		prefix + "user-id":        of(referenced(func(r referencedXML) string { return r.Owner })),
	}
}
