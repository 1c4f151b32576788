package ec2

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// maxRules is the limit of rules of a group per direction.
const maxRules = 60

var (
	anyIPv4 = netip.MustParsePrefix("0.0.0.0/0")
	anyIPv6 = netip.MustParsePrefix("::/0")
)

// securityRule allows traffic of one protocol with one peer: a CIDR block, a prefix list, or the members of a group.
type securityRule struct {
	entity
	owner       string // ID of its group
	egress      bool
	protocol    string // tcp, udp, icmp, icmpv6, a number, or -1 for all
	from, to    int    // ports, or type and code of ICMP; -1 means all
	block       netip.Prefix
	prefixList  string
	group       string
	groupOwner  string
	description string
}

// same reports whether two rules allow the same traffic, regardless of their groups and descriptions.
func (r *securityRule) same(o *securityRule) bool {
	return r.egress == o.egress && r.protocol == o.protocol && r.from == o.from && r.to == o.to && r.block == o.block &&
		r.prefixList == o.prefixList && r.group == o.group
}

func (r *securityRule) peer() string {
	if r.block.IsValid() {
		return r.block.String()
	}
	return r.prefixList + r.group
}

func (s *Service) addRule(g *securityGroup, r securityRule) *securityRule {
	r.entity = s.entity("sgr")
	r.owner = g.id
	s.groupRules[r.id] = &r
	return &r
}

// rulesOf returns a group's rules of one direction, in the order of their creation.
func (s *Service) rulesOf(group string, egress bool) []*securityRule {
	return slices.DeleteFunc(sorted(s.groupRules), func(r *securityRule) bool {
		return r.owner != group || r.egress != egress
	})
}

func (s *Service) dropRules(group string) {
	for id, r := range s.groupRules {
		if r.owner == group {
			drop(s, s.groupRules, id)
		}
	}
}

type referencedXML struct {
	Group string `xml:"groupId"`
	Owner string `xml:"userId"`
	VPC   string `xml:"vpcId,omitempty"`
}

type ruleXML struct {
	ID          string         `xml:"securityGroupRuleId"`
	ARN         string         `xml:"securityGroupRuleArn"`
	Group       string         `xml:"groupId"`
	GroupOwner  string         `xml:"groupOwnerId"`
	Egress      bool           `xml:"isEgress"`
	Protocol    string         `xml:"ipProtocol"`
	From        int            `xml:"fromPort"`
	To          int            `xml:"toPort"`
	IPv4        string         `xml:"cidrIpv4,omitempty"`
	IPv6        string         `xml:"cidrIpv6,omitempty"`
	PrefixList  string         `xml:"prefixListId,omitempty"`
	Referenced  *referencedXML `xml:"referencedGroupInfo"`
	Description string         `xml:"description,omitempty"`
	Tags        []Tag          `xml:"tagSet>item"`
}

func (s *Service) ruleXML(r *securityRule) ruleXML {
	out := ruleXML{
		ID: r.id, ARN: s.ARN(r.id), Group: r.owner, GroupOwner: s.cfg.Account, Egress: r.egress, Protocol: r.protocol,
		From: r.from, To: r.to,
		PrefixList: r.prefixList, Description: r.description, Tags: s.tagList(r.id),
	}
	switch {
	case r.group != "":
		out.Referenced = &referencedXML{Group: r.group, Owner: r.groupOwner}
	case r.block.IsValid() && r.block.Addr().Is4():
		out.IPv4 = r.block.String()
	case r.block.IsValid():
		out.IPv6 = r.block.String()
	}
	return out
}

func (s *Service) describeRules(c *wire.Call) (any, error) {
	var in struct {
		IDs        []string `query:"SecurityGroupRuleId"`
		Filter     []Filter
		MaxResults int
		NextToken  string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, "DescribeSecurityGroupRules"); err != nil {
		return nil, err
	}
	found, next, err := find(s, s.groupRules, query{in.IDs, in.Filter, in.MaxResults, in.NextToken},
		map[string]func(*securityRule) []string{
			"group-id":               func(r *securityRule) []string { return []string{r.owner} },
			"security-group-rule-id": func(r *securityRule) []string { return []string{r.id} },
		})
	if err != nil {
		return nil, err
	}
	return struct {
		Items []ruleXML `xml:"securityGroupRuleSet>item"`
		Next  string    `xml:"nextToken,omitempty"`
	}{each(found, s.ruleXML), next}, nil
}

// protocol returns a protocol's name as AWS reports it.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_IpPermission.html
func protocol(text string) (string, error) {
	text = strings.ToLower(text)
	if name, known := map[string]string{"all": "-1", "6": "tcp", "17": "udp", "1": "icmp",
		"58": "icmpv6"}[text]; known {
		return name, nil
	}
	if slices.Contains([]string{"-1", "tcp", "udp", "icmp", "icmpv6"}, text) {
		return text, nil
	}
	if n, err := strconv.Atoi(text); err == nil && n >= 0 && n <= 255 {
		return strconv.Itoa(n), nil
	}
	return "", failf("InvalidParameterValue", "Invalid value '%s' for IP protocol. Unknown protocol.", text)
}

// ports checks a rule's port range for its protocol.
func ports(protocol string, from, to *int) (int, int, error) {
	switch protocol {
	case "tcp", "udp":
		if from == nil || to == nil {
			return 0, 0,
				failf("InvalidParameterValue",
					"Invalid value for portRange. Must specify both from and to ports with TCP/UDP.")
		}
		if *from == -1 && *to == -1 {
			return 0, 65535, nil
		}
		if *from < 0 || *to > 65535 || *from > *to {
			return 0, 0, failf("InvalidParameterValue", "Invalid TCP/UDP port range (%d:%d)", *from, *to)
		}
		return *from, *to, nil
	case "icmp", "icmpv6":
		if protocol == "icmp" && (from == nil || to == nil) {
			return 0, 0,
				failf("InvalidParameterValue",
					"Invalid value for portRange. Must specify both type and code with ICMP.")
		}
		f, t := -1, -1
		if from != nil {
			f = *from
		}
		if to != nil {
			t = *to
		}
		if f < -1 || f > 255 || t < -1 || t > 255 || f == -1 && t != -1 {
			return 0, 0, failf("InvalidParameterValue", "ICMP code (%d) or type (%d) out of range", t, f)
		}
		return f, t, nil
	}
	return -1, -1, nil // other protocols have no ports, so AWS ignores the range
}

// blockOf reads a rule's CIDR block.
func blockOf(text string, six bool) (netip.Prefix, error) {
	block, err := netip.ParsePrefix(text)
	if err != nil || block.Addr().Is6() != six || block.Addr().Is4In6() {
		return netip.Prefix{}, failf("InvalidParameterValue", "CIDR block %s is malformed", text)
	}
	return block.Masked(), nil
}

// newRules checks the rules that a call adds to a group.
func (s *Service) newRules(g *securityGroup, rules []securityRule) error {
	if len(rules) == 0 {
		return missing("ipPermissions")
	}
	byDirection := map[bool]int{}
	for at, r := range rules {
		byDirection[r.egress]++
		if slices.ContainsFunc(rules[:at], func(o securityRule) bool { return o.same(&r) }) {
			return failf("InvalidParameterValue", "The same permission must not appear multiple times")
		}
		if some(s.groupRules, func(o *securityRule) bool { return o.owner == g.id && o.same(&r) }) {
			return failf("InvalidPermission.Duplicate",
				"the specified rule \"peer: %s, %s, from port: %d, to port: %d, ALLOW\" already exists",
				r.peer(), strings.ToUpper(r.protocol), r.from, r.to)
		}
		if err := s.checkPeer(r); err != nil {
			return err
		}
	}
	for egress, n := range byDirection {
		if len(s.rulesOf(g.id, egress))+n > maxRules {
			return failf("RulesPerSecurityGroupLimitExceeded",
				"The maximum number of rules per security group has been reached.")
		}
	}
	return nil
}

// checkPeer checks that a rule has exactly one peer, that the peer exists, and that the description is valid.
func (s *Service) checkPeer(r securityRule) error {
	switch {
	case r.group != "" && s.groups[r.group] == nil:
		return failf("InvalidGroup.NotFound", "The security group '%s' does not exist", r.group)
	case r.prefixList != "" && s.prefixLists[r.prefixList] == nil:
		return failf("InvalidPrefixListID.NotFound", "The prefix list ID '%s' does not exist", r.prefixList)
	case r.group == "" && r.prefixList == "" && !r.block.IsValid():
		return failf("MissingParameter",
			"Missing source specification: include source security group or CIDR information")
	case len(r.description) > maxGroupText || strings.Trim(r.description, descriptionCharacters) != "":
		return failf("InvalidParameterValue",
			"Invalid rule description. Valid descriptions are strings less than 256 characters from the following "+
				"set:  "+
				"a-zA-Z0-9. _-:/()#,@[]+=&;{}!$*")
	}
	return nil
}

func itoa(n int) string { return strconv.Itoa(n) }
