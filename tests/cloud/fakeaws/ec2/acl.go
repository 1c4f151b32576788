package ec2

import "github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"

// networkACL is the default network ACL of a VPC. It is associated with all subnets and allows all traffic.
type networkACL struct {
	entity
	vpc          *vpc
	associations []aclAssociationXML
}

func (s *Service) newACL(v *vpc) *networkACL {
	a := &networkACL{entity: s.entity("acl"), vpc: v}
	s.acls[a.id] = a
	return a
}

func (a *networkACL) associate(subnetID string) {
	a.associations = append(a.associations, aclAssociationXML{newID("aclassoc"), a.id, subnetID})
}

type aclEntryXML struct {
	Number   int    `xml:"ruleNumber"`
	Protocol string `xml:"protocol"`
	Action   string `xml:"ruleAction"`
	Egress   bool   `xml:"egress"`
	IPv4     string `xml:"cidrBlock,omitempty"`
	IPv6     string `xml:"ipv6CidrBlock,omitempty"`
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

// entries returns the rules: the first allows all traffic, the last denies all traffic.
//
// https://docs.aws.amazon.com/vpc/latest/userguide/default-network-acl.html
func (a *networkACL) entries() (list []aclEntryXML) {
	for _, egress := range []bool{false, true} {
		list = append(list,
			aclEntryXML{Number: 100, Protocol: "-1", Action: "allow", Egress: egress, IPv4: anyIPv4.String()},
			aclEntryXML{Number: 32767, Protocol: "-1", Action: "deny", Egress: egress, IPv4: anyIPv4.String()})
		if len(a.vpc.blocks6) > 0 {
			list = append(list,
				aclEntryXML{Number: 101, Protocol: "-1", Action: "allow", Egress: egress, IPv6: anyIPv6.String()},
				aclEntryXML{Number: 32768, Protocol: "-1", Action: "deny", Egress: egress, IPv6: anyIPv6.String()})
		}
	}
	return list
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
	found, next, err := find(s, s.acls, query{in.NetworkACLID, in.Filter, in.MaxResults, in.NextToken},
		map[string]func(*networkACL) []string{
			"association.subnet-id": func(a *networkACL) []string {
				return each(a.associations, func(x aclAssociationXML) string { return x.Subnet })
			},
			"default":        func(*networkACL) []string { return flag(true) },
			"network-acl-id": func(a *networkACL) []string { return []string{a.id} },
			"vpc-id":         func(a *networkACL) []string { return []string{a.vpc.id} },
		})
	if err != nil {
		return nil, err
	}
	return struct {
		Items []aclXML `xml:"networkAclSet>item"`
		Next  string   `xml:"nextToken,omitempty"`
	}{each(found, func(a *networkACL) aclXML {
		return aclXML{ID: a.id, VPC: a.vpc.id, Owner: s.cfg.Account, Default: true, Entries: a.entries(),
			Associations: a.associations, Tags: s.tagList(a.id)}
	}), next}, nil
}
