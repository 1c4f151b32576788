package ec2

import (
	"slices"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// permissionInput is an IpPermission of a request: several rules with the same protocol and port range.
type permissionInput struct {
	IPProtocol       string `query:"IpProtocol"`
	FromPort, ToPort *int
	Groups           []struct {
		GroupID     string `query:"GroupId"`
		UserID      string `query:"UserId"`
		VpcID       string `query:"VpcId"`
		Description string
	}
	IPRanges []struct {
		CidrIP      string `query:"CidrIp"`
		Description string
	} `query:"IpRanges"`
	Ipv6Ranges []struct {
		CidrIpv6    string
		Description string
	}
	PrefixListIDs []struct {
		PrefixListID string `query:"PrefixListId"`
		Description  string
	} `query:"PrefixListIds"`
}

// permissionsInput holds the common parameters of the operations that add and revoke rules: permissions, or one rule in
// separate parameters.
type permissionsInput struct {
	GroupID          string            `query:"GroupId"`
	GroupName        string            // a group of the default VPC, which does not exist here
	IPPermissions    []permissionInput `query:"IpPermissions"`
	IPProtocol       string            `query:"IpProtocol"`
	FromPort, ToPort *int
	CidrIP           string `query:"CidrIp"`
}

func (in permissionsInput) rules(egress bool, account string) ([]securityRule, error) {
	all := in.IPPermissions
	if in.CidrIP != "" || in.IPProtocol != "" {
		if len(all) > 0 {
			return nil,
				failf("InvalidParameterCombination", "The parameters cidrIp and ipPermissions cannot be used together")
		}
		old := permissionInput{IPProtocol: in.IPProtocol, FromPort: in.FromPort, ToPort: in.ToPort}
		old.IPRanges = append(old.IPRanges, struct {
			CidrIP      string `query:"CidrIp"`
			Description string
		}{CidrIP: in.CidrIP})
		all = append(all, old)
	}
	var rules []securityRule
	for _, p := range all {
		some, err := p.rules(egress, account)
		if err != nil {
			return nil, err
		}
		rules = append(rules, some...)
	}
	return rules, nil
}

func (in permissionInput) rules(egress bool, account string) ([]securityRule, error) {
	proto, err := protocol(in.IPProtocol)
	if err != nil {
		return nil, err
	}
	from, to, err := ports(proto, in.FromPort, in.ToPort)
	if err != nil {
		return nil, err
	}
	base := securityRule{egress: egress, protocol: proto, from: from, to: to}
	var rules []securityRule
	add := func(description string, change func(r *securityRule)) {
		r := base
		r.description = description
		change(&r)
		rules = append(rules, r)
	}
	for _, g := range in.Groups {
		if g.UserID != "" && g.UserID != account {
			return nil, failf("InvalidParameterValue", "The fake has no groups of the account %s", g.UserID)
		}
		if g.GroupID == "" {
			return nil, missing("groupId")
		}
		add(g.Description, func(r *securityRule) { r.group, r.groupOwner = g.GroupID, account })
	}
	for _, x := range in.IPRanges {
		block, err := blockOf(x.CidrIP, false)
		if err != nil {
			return nil, err
		}
		add(x.Description, func(r *securityRule) { r.block = block })
	}
	for _, x := range in.Ipv6Ranges {
		block, err := blockOf(x.CidrIpv6, true)
		if err != nil {
			return nil, err
		}
		add(x.Description, func(r *securityRule) { r.block = block })
	}
	for _, x := range in.PrefixListIDs {
		add(x.Description, func(r *securityRule) { r.prefixList = x.PrefixListID })
	}
	if len(rules) == 0 { // no peer: refused later with its own message
		rules = append(rules, base)
	}
	return rules, nil
}

// groupOf authorizes a call on a group's rules and returns the group.
func (s *Service) groupOf(c *wire.Call, in permissionsInput) (*securityGroup, error) {
	if in.GroupID == "" {
		if err := s.allowAny(c, c.Action); err != nil {
			return nil, err
		}
		if in.GroupName != "" {
			return nil, failf("InvalidGroup.NotFound", "The security group '%s' does not exist in default VPC",
				in.GroupName)
		}
		return nil, missing("groupId")
	}
	if err := s.allow(c, c.Action, in.GroupID); err != nil {
		return nil, err
	}
	return s.groupByID(in.GroupID)
}

func (s *Service) authorizeRules(egress bool) wire.Handler {
	return func(c *wire.Call) (any, error) {
		var in struct {
			permissionsInput
			TagSpecification []TagSpecification
		}
		if err := c.Decode(&in); err != nil {
			return nil, err
		}
		tags, err := specified(in.TagSpecification, "security-group-rule")
		if err != nil {
			return nil, err
		}
		g, err := s.groupOf(c, in.permissionsInput)
		if err != nil {
			return nil, err
		}
		if len(tags) > 0 {
			if err := s.allowNew(c, c.Action, "security-group-rule", tags, nil); err != nil {
				return nil, err
			}
		}
		rules, err := in.rules(egress, s.cfg.Account)
		if err != nil {
			return nil, err
		}
		if err := s.newRules(g, rules); err != nil {
			return nil, err
		}
		var added []ruleXML
		for _, r := range rules {
			made := s.addRule(g, r)
			s.SetTags(made.id, tags)
			added = append(added, s.ruleXML(made))
		}
		return struct {
			Return bool      `xml:"return"`
			Rules  []ruleXML `xml:"securityGroupRuleSet>item"`
		}{true, added}, nil
	}
}

// named returns those rules of a group that a request lists, either by ID or by content. If a rule does not exist, the
// error is InvalidPermission.NotFound, as AWS returns it in every VPC except the default VPC.
func (s *Service) named(g *securityGroup, egress bool, ids []string, wanted []securityRule) ([]*securityRule, error) {
	if len(ids)+len(wanted) == 0 {
		return nil, missing("ipPermissions")
	}
	if len(ids) > 0 && len(wanted) > 0 {
		return nil, failf("InvalidParameterCombination", "Rules may be named by ID or by permission, not both")
	}
	var found []*securityRule
	for _, id := range ids {
		r := s.groupRules[id]
		if r == nil || r.owner != g.id || r.egress != egress {
			return nil, failf("InvalidSecurityGroupRuleId.NotFound", "The security group rule ID '%s' does not exist",
				id)
		}
		found = append(found, r)
	}
	for _, w := range wanted {
		have := s.rulesOf(g.id, egress)
		at := slices.IndexFunc(have, func(r *securityRule) bool { return r.same(&w) })
		if at < 0 {
			return nil, failf("InvalidPermission.NotFound", "The specified rule does not exist in this security group.")
		}
		found = append(found, have[at])
	}
	return found, nil
}

type revokedXML struct {
	ID          string `xml:"securityGroupRuleId"`
	Group       string `xml:"groupId"`
	Egress      bool   `xml:"isEgress"`
	Protocol    string `xml:"ipProtocol"`
	From        int    `xml:"fromPort"`
	To          int    `xml:"toPort"`
	IPv4        string `xml:"cidrIpv4,omitempty"`
	IPv6        string `xml:"cidrIpv6,omitempty"`
	PrefixList  string `xml:"prefixListId,omitempty"`
	Referenced  string `xml:"referencedGroupId,omitempty"`
	Description string `xml:"description,omitempty"`
}

func (s *Service) revokeRules(egress bool) wire.Handler {
	return func(c *wire.Call) (any, error) {
		var in struct {
			permissionsInput
			IDs []string `query:"SecurityGroupRuleId"`
		}
		if err := c.Decode(&in); err != nil {
			return nil, err
		}
		g, err := s.groupOf(c, in.permissionsInput)
		if err != nil {
			return nil, err
		}
		wanted, err := in.rules(egress, s.cfg.Account)
		if err != nil {
			return nil, err
		}
		found, err := s.named(g, egress, in.IDs, wanted)
		if err != nil {
			return nil, err
		}
		var revoked []revokedXML
		for _, r := range found {
			x := s.ruleXML(r)
			revoked = append(revoked, revokedXML{x.ID, x.Group, x.Egress, x.Protocol, x.From, x.To, x.IPv4, x.IPv6,
				x.PrefixList, r.group, x.Description})
			drop(s, s.groupRules, r.id)
		}
		return struct {
			Return bool         `xml:"return"`
			Rules  []revokedXML `xml:"revokedSecurityGroupRuleSet>item"`
		}{true, revoked}, nil
	}
}

type rangeXML struct {
	Block       string `xml:"cidrIp"`
	Description string `xml:"description,omitempty"`
}

type range6XML struct {
	Block       string `xml:"cidrIpv6"`
	Description string `xml:"description,omitempty"`
}

type prefixListRefXML struct {
	ID          string `xml:"prefixListId"`
	Description string `xml:"description,omitempty"`
}

type groupPairXML struct {
	Group       string `xml:"groupId"`
	Owner       string `xml:"userId"`
	Description string `xml:"description,omitempty"`
}

type permissionXML struct {
	Protocol    string             `xml:"ipProtocol"`
	From        *int               `xml:"fromPort"`
	To          *int               `xml:"toPort"`
	Groups      []groupPairXML     `xml:"groups>item"`
	Ranges      []rangeXML         `xml:"ipRanges>item"`
	Ranges6     []range6XML        `xml:"ipv6Ranges>item"`
	PrefixLists []prefixListRefXML `xml:"prefixListIds>item"`
}

// permissions returns a group's rules as a list of IpPermission: one for each protocol and port range.
func (s *Service) permissions(g *securityGroup, egress bool) []permissionXML {
	type key struct {
		protocol string
		from, to int
	}
	var order []key
	byKey := map[key]*permissionXML{}
	for _, r := range s.rulesOf(g.id, egress) {
		k := key{r.protocol, r.from, r.to}
		p := byKey[k]
		if p == nil {
			p = &permissionXML{Protocol: r.protocol}
			if slices.Contains([]string{"tcp", "udp", "icmp", "icmpv6"}, r.protocol) { // others have no ports
				p.From, p.To = &k.from, &k.to
			}
			byKey[k] = p
			order = append(order, k)
		}
		switch {
		case r.group != "":
			p.Groups = append(p.Groups, groupPairXML{r.group, r.groupOwner, r.description})
		case r.prefixList != "":
			p.PrefixLists = append(p.PrefixLists, prefixListRefXML{r.prefixList, r.description})
		case r.block.Addr().Is4():
			p.Ranges = append(p.Ranges, rangeXML{r.block.String(), r.description})
		default:
			p.Ranges6 = append(p.Ranges6, range6XML{r.block.String(), r.description})
		}
	}
	return each(order, func(k key) permissionXML { return *byKey[k] })
}
