package ec2

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// networkACL is a stateless packet filter of subnets.
type networkACL struct {
	entity
	vpc          string
	isDefault    bool
	entries      []aclEntry
	associations []aclAssociation
}

type aclAssociation struct{ id, subnet string }

type aclEntry struct {
	egress     bool
	number     int
	protocol   string // a number, -1 for all
	allow      bool
	block      netip.Prefix
	icmp       *icmpXML
	ports      *portRangeXML
	unmodified bool // AWS's own last rule
}

// Numbers of the last rules, which deny and stay.
const (
	lastRule  = 32767
	lastRule6 = 32768
)

// newACL makes a network ACL: the default one of a VPC lets everything pass, others nothing.
func (s *Service) newACL(v *vpc, isDefault bool) *networkACL {
	a := &networkACL{entity: s.entity("acl"), vpc: v.id, isDefault: isDefault}
	for _, egress := range []bool{false, true} {
		if isDefault {
			a.entries = append(a.entries, aclEntry{egress: egress, number: 100, protocol: "-1", allow: true,
				block: anyIPv4})
			if len(v.blocks6) > 0 {
				a.entries = append(a.entries, aclEntry{egress: egress, number: 101, protocol: "-1", allow: true,
					block: anyIPv6})
			}
		}
		a.entries = append(a.entries, aclEntry{egress: egress, number: lastRule, protocol: "-1", block: anyIPv4,
			unmodified: true})
		if len(v.blocks6) > 0 {
			a.entries = append(a.entries, aclEntry{egress: egress, number: lastRule6, protocol: "-1", block: anyIPv6,
				unmodified: true})
		}
	}
	s.acls[a.id] = a
	return a
}

func (a *networkACL) associate(subnetID string) string {
	id := newID("aclassoc")
	a.associations = append(a.associations, aclAssociation{id, subnetID})
	return id
}

func (s *Service) aclByID(id string) (*networkACL, error) {
	if id == "" {
		return nil, missing("networkAclId")
	}
	if a := s.acls[id]; a != nil {
		return a, nil
	}
	return nil, failf("InvalidNetworkAclID.NotFound", "The networkAcl ID '%s' does not exist", id)
}

func (s *Service) aclOperations() map[string]wire.Handler {
	return map[string]wire.Handler{
		"CreateNetworkAcl":             s.createACL,
		"DeleteNetworkAcl":             s.deleteACL,
		"DescribeNetworkAcls":          s.describeACLs,
		"CreateNetworkAclEntry":        s.putEntry(false),
		"ReplaceNetworkAclEntry":       s.putEntry(true),
		"DeleteNetworkAclEntry":        s.deleteEntry,
		"ReplaceNetworkAclAssociation": s.replaceACLAssociation,
	}
}

func (s *Service) createACL(c *wire.Call) (any, error) {
	var in struct {
		VpcID            string `query:"VpcId"`
		ClientToken      string
		TagSpecification []TagSpecification
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	tags, err := specified(in.TagSpecification, "network-acl")
	if err != nil {
		return nil, err
	}
	if err := s.allowNew(c, "CreateNetworkAcl", "network-acl", tags, policy.Context{
		"ec2:Vpc": {s.arn("vpc", in.VpcID)}}); err != nil {
		return nil, err
	}
	if err := s.allow(c, "CreateNetworkAcl", in.VpcID); err != nil {
		return nil, err
	}
	v, err := s.vpcByID(in.VpcID)
	if err != nil {
		return nil, err
	}
	id, err := s.replayed(c, in.ClientToken)
	if err != nil {
		return nil, err
	}
	a := s.acls[id]
	if a == nil {
		a = s.newACL(v, false)
		s.SetTags(a.id, tags)
		s.remember(c, in.ClientToken, a.id)
	}
	return struct {
		ACL         aclXML `xml:"networkAcl"`
		ClientToken string `xml:"clientToken,omitempty"`
	}{s.aclXML(a), in.ClientToken}, nil
}

func (s *Service) deleteACL(c *wire.Call) (any, error) {
	var in struct {
		NetworkACLID string `query:"NetworkAclId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "DeleteNetworkAcl", in.NetworkACLID); err != nil {
		return nil, err
	}
	a, err := s.aclByID(in.NetworkACLID)
	switch {
	case err != nil:
		return nil, err
	case a.isDefault:
		return nil, failf("InvalidParameterValue", "cannot delete default network ACL %s", a.id)
	case len(a.associations) > 0:
		return nil, failf("DependencyViolation", "The networkAcl '%s' has dependencies and cannot be deleted.", a.id)
	}
	drop(s, s.acls, a.id)
	return ok, nil
}

type icmpXML struct {
	Code *int `xml:"code"`
	Type *int `xml:"type"`
}

type portRangeXML struct {
	From *int `xml:"from"`
	To   *int `xml:"to"`
}

type aclEntryXML struct {
	Number   int           `xml:"ruleNumber"`
	Protocol string        `xml:"protocol"`
	Action   string        `xml:"ruleAction"`
	Egress   bool          `xml:"egress"`
	IPv4     string        `xml:"cidrBlock,omitempty"`
	IPv6     string        `xml:"ipv6CidrBlock,omitempty"`
	ICMP     *icmpXML      `xml:"icmpTypeCode"`
	Ports    *portRangeXML `xml:"portRange"`
}

type aclAssociationXML struct {
	ID     string `xml:"networkAclAssociationId"`
	ACL    string `xml:"networkAclId"`
	Subnet string `xml:"subnetId"`
}

type aclXML struct {
	ID           string              `xml:"networkAclId"`
	VPC          string              `xml:"vpcId"`
	Owner        string              `xml:"ownerId"`
	Default      bool                `xml:"default"`
	Entries      []aclEntryXML       `xml:"entrySet>item"`
	Associations []aclAssociationXML `xml:"associationSet>item"`
	Tags         []Tag               `xml:"tagSet>item"`
}

func (e aclEntry) xml() aclEntryXML {
	out := aclEntryXML{Number: e.number, Protocol: e.protocol, Action: "deny", Egress: e.egress, ICMP: e.icmp,
		Ports: e.ports}
	if e.allow {
		out.Action = "allow"
	}
	if e.block.Addr().Is4() {
		out.IPv4 = e.block.String()
	} else {
		out.IPv6 = e.block.String()
	}
	return out
}

func (s *Service) aclXML(a *networkACL) aclXML {
	return aclXML{
		ID: a.id, VPC: a.vpc, Owner: s.cfg.Account, Default: a.isDefault, Entries: each(a.entries, aclEntry.xml),
		Associations: each(a.associations, func(x aclAssociation) aclAssociationXML {
			return aclAssociationXML{x.id, a.id, x.subnet}
		}), Tags: s.tagList(a.id),
	}
}

func (s *Service) describeACLs(c *wire.Call) (any, error) {
	var in struct {
		NetworkACLID []string `query:"NetworkAclId"`
		Filter       []Filter
		MaxResults   int
		NextToken    string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, "DescribeNetworkAcls"); err != nil {
		return nil, err
	}
	entry := func(value func(aclEntryXML) string) func(*networkACL) []string {
		return func(a *networkACL) []string {
			return each(a.entries, func(e aclEntry) string { return value(e.xml()) })
		}
	}
	found, next, err := find(s, s.acls, query{in.NetworkACLID, in.Filter, in.MaxResults, in.NextToken},
		map[string]func(*networkACL) []string{
			"association.association-id": func(a *networkACL) []string {
				return each(a.associations, func(x aclAssociation) string { return x.id })
			},
			"association.network-acl-id": func(a *networkACL) []string {
				return slices.Repeat([]string{a.id}, min(1, len(a.associations)))
			},
			"association.subnet-id": func(a *networkACL) []string {
				return each(a.associations, func(x aclAssociation) string { return x.subnet })
			},
			"default":           func(a *networkACL) []string { return flag(a.isDefault) },
			"entry.cidr":        entry(func(x aclEntryXML) string { return x.IPv4 }),
			"entry.egress":      entry(func(x aclEntryXML) string { return flag(x.Egress)[0] }),
			"entry.ipv6-cidr":   entry(func(x aclEntryXML) string { return x.IPv6 }),
			"entry.protocol":    entry(func(x aclEntryXML) string { return x.Protocol }),
			"entry.rule-action": entry(func(x aclEntryXML) string { return x.Action }),
			"entry.rule-number": entry(func(x aclEntryXML) string { return strconv.Itoa(x.Number) }),
			"network-acl-id":    func(a *networkACL) []string { return []string{a.id} },
			"owner-id":          func(*networkACL) []string { return []string{s.cfg.Account} },
			"vpc-id":            func(a *networkACL) []string { return []string{a.vpc} },
		})
	if err != nil {
		return nil, err
	}
	return struct {
		Items []aclXML `xml:"networkAclSet>item"`
		Next  string   `xml:"nextToken,omitempty"`
	}{each(found, s.aclXML), next}, nil
}

func (a *networkACL) index(egress bool, number int) int {
	return slices.IndexFunc(a.entries, func(e aclEntry) bool { return e.egress == egress && e.number == number })
}

// putEntry adds an entry, or replaces the one with its number.
func (s *Service) putEntry(replace bool) wire.Handler {
	return func(c *wire.Call) (any, error) {
		var in struct {
			NetworkACLID  string `query:"NetworkAclId"`
			RuleNumber    int
			Protocol      string
			RuleAction    string
			Egress        bool
			CidrBlock     string
			Ipv6CidrBlock string
			Icmp          *struct{ Code, Type *int }
			PortRange     *struct{ From, To *int }
		}
		if err := c.Decode(&in); err != nil {
			return nil, err
		}
		if err := s.allow(c, c.Action, in.NetworkACLID); err != nil {
			return nil, err
		}
		a, err := s.aclByID(in.NetworkACLID)
		if err != nil {
			return nil, err
		}
		proto, err := protocol(in.Protocol)
		if err != nil {
			return nil, err
		}
		if number, named := map[string]string{"tcp": "6", "udp": "17", "icmp": "1", "icmpv6": "58"}[proto]; named {
			proto = number
		}
		e := aclEntry{egress: in.Egress, number: in.RuleNumber, protocol: proto, allow: in.RuleAction == "allow"}
		switch {
		case in.RuleNumber < 1 || in.RuleNumber >= lastRule:
			return nil, invalid("ruleNumber", in.RuleNumber)
		case in.RuleAction != "allow" && in.RuleAction != "deny":
			return nil, invalid("ruleAction", in.RuleAction)
		case (in.CidrBlock == "") == (in.Ipv6CidrBlock == ""):
			return nil,
				failf("InvalidParameterCombination", "Exactly one of cidrBlock and ipv6CidrBlock must be specified")
		case (proto == "6" || proto == "17") && (in.PortRange == nil || in.PortRange.From == nil ||
			in.PortRange.To == nil):
			return nil, missing("portRange")
		}
		if e.block, err = blockOf(in.CidrBlock+in.Ipv6CidrBlock, in.Ipv6CidrBlock != ""); err != nil {
			return nil, err
		}
		if in.Icmp != nil && (proto == "1" || proto == "58") {
			e.icmp = &icmpXML{in.Icmp.Code, in.Icmp.Type}
		}
		if in.PortRange != nil && (proto == "6" || proto == "17") {
			e.ports = &portRangeXML{in.PortRange.From, in.PortRange.To}
		}
		at := a.index(in.Egress, in.RuleNumber)
		switch {
		case replace && at < 0:
			return nil, noEntry(in.RuleNumber, a.id)
		case replace:
			a.entries[at] = e
		case at >= 0:
			return nil, failf("NetworkAclEntryAlreadyExists", "The network acl entry identified by %d already exists.",
				in.RuleNumber)
		default:
			a.entries = append(a.entries, e)
		}
		return ok, nil
	}
}

func noEntry(number int, acl string) error {
	return failf("InvalidNetworkAclEntry.NotFound", "The network acl entry %d does not exist in %s", number, acl)
}

func (s *Service) deleteEntry(c *wire.Call) (any, error) {
	var in struct {
		NetworkACLID string `query:"NetworkAclId"`
		RuleNumber   int
		Egress       bool
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "DeleteNetworkAclEntry", in.NetworkACLID); err != nil {
		return nil, err
	}
	a, err := s.aclByID(in.NetworkACLID)
	if err != nil {
		return nil, err
	}
	at := a.index(in.Egress, in.RuleNumber)
	switch {
	case at < 0:
		return nil, noEntry(in.RuleNumber, a.id)
	case a.entries[at].unmodified:
		return nil, invalid("ruleNumber", in.RuleNumber)
	}
	a.entries = slices.Delete(a.entries, at, at+1)
	return ok, nil
}

func (s *Service) replaceACLAssociation(c *wire.Call) (any, error) {
	var in struct {
		AssociationID string `query:"AssociationId"`
		NetworkACLID  string `query:"NetworkAclId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "ReplaceNetworkAclAssociation", in.NetworkACLID); err != nil {
		return nil, err
	}
	to, err := s.aclByID(in.NetworkACLID)
	if err != nil {
		return nil, err
	}
	for _, from := range s.acls {
		at := slices.IndexFunc(from.associations, func(x aclAssociation) bool { return x.id == in.AssociationID })
		if at < 0 {
			continue
		}
		if from.vpc != to.vpc {
			return nil, failf("InvalidParameterValue", "network ACL %s and association %s belong to different networks",
				to.id, in.AssociationID)
		}
		subnetID := from.associations[at].subnet
		from.associations = slices.Delete(from.associations, at, at+1)
		return struct {
			ID string `xml:"newAssociationId"`
		}{to.associate(subnetID)}, nil
	}
	return nil, noAssociation(in.AssociationID)
}
