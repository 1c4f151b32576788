package ec2

import (
	"slices"
	"strconv"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// endpointService is a service that endpoints lead to.
type endpointService struct{ name, kind string }

// endpointServices are those of AWS that stacks of ours may use.
func (s *Service) endpointServices() []endpointService {
	prefix := "com.amazonaws." + s.cfg.Region + "."
	all := []endpointService{{prefix + "dynamodb", "Gateway"}, {prefix + "s3", "Gateway"}}
	for _, name := range []string{
		"autoscaling", "ec2", "ec2messages", "elasticloadbalancing", "kms", "logs", "monitoring", "s3",
		"secretsmanager", "ssm", "ssmmessages", "sts",
	} {
		all = append(all, endpointService{prefix + name, "Interface"})
	}
	return all
}

// privateServiceName is the usual name of a service: what private DNS answers for.
func (s *Service) privateServiceName(service string) string {
	return service[strings.LastIndex(service, ".")+1:] + "." + s.cfg.Region + ".amazonaws.com"
}

func (s *Service) describeEndpointServices(c *wire.Call) (any, error) {
	var in struct {
		ServiceName   []string
		ServiceRegion []string
		Filter        []Filter
		MaxResults    int
		NextToken     string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, "DescribeVpcEndpointServices"); err != nil {
		return nil, err
	}
	for _, name := range in.ServiceName {
		if !slices.ContainsFunc(s.endpointServices(), func(e endpointService) bool { return e.name == name }) {
			return nil, failf("InvalidServiceName", "The Vpc Endpoint Service '%s' does not exist", name)
		}
	}
	type serviceType struct {
		Type string `xml:"serviceType"`
	}
	type privateName struct {
		Name string `xml:"privateDnsName"`
	}
	type detail struct {
		Name               string        `xml:"serviceName"`
		ID                 string        `xml:"serviceId"`
		Region             string        `xml:"serviceRegion"`
		Types              []serviceType `xml:"serviceType>item"`
		Zones              []string      `xml:"availabilityZoneSet>item"`
		ZoneIDs            []string      `xml:"availabilityZoneIdSet>item"`
		Owner              string        `xml:"owner"`
		BaseNames          []string      `xml:"baseEndpointDnsNameSet>item"`
		PrivateName        string        `xml:"privateDnsName,omitempty"`
		PrivateNames       []privateName `xml:"privateDnsNameSet>item"`
		PolicySupported    bool          `xml:"vpcEndpointPolicySupported"`
		AcceptanceRequired bool          `xml:"acceptanceRequired"`
		ManagesEndpoints   bool          `xml:"managesVpcEndpoints"`
		AddressTypes       []string      `xml:"supportedIpAddressTypeSet>item"`
	}
	var names []string
	var details []detail
	for n, e := range s.endpointServices() {
		if len(in.ServiceName) > 0 && !slices.Contains(in.ServiceName, e.name) || len(in.ServiceRegion) > 0 &&
			!slices.Contains(in.ServiceRegion, s.cfg.Region) {
			continue
		}
		fits, err := matches(in.Filter, map[string]string{}, func(filter string) ([]string, bool) {
			value, known := map[string]string{
				"owner": "amazon", "service-name": e.name, "service-region": s.cfg.Region, "service-type": e.kind,
				"supported-ip-address-types": "ipv4",
			}[filter]
			return []string{value}, known
		})
		if err != nil {
			return nil, err
		}
		if !fits {
			continue
		}
		d := detail{
			Name: e.name, ID: "vpce-svc-0" + strings.Repeat("0", 13) + strconv.Itoa(100+n), Region: s.cfg.Region,
			Types: []serviceType{{e.kind}}, Zones: s.cfg.Zones,
			ZoneIDs: each(s.cfg.Zones, s.zoneID), Owner: "amazon", PolicySupported: true,
			AddressTypes: []string{"ipv4"},
		}
		short := e.name[strings.LastIndex(e.name, ".")+1:]
		if e.kind == "Interface" {
			d.BaseNames = []string{short + "." + s.cfg.Region + ".vpce.amazonaws.com"}
			d.PrivateName = s.privateServiceName(e.name)
			d.PrivateNames = []privateName{{d.PrivateName}}
		} else {
			d.BaseNames = []string{s.privateServiceName(e.name)}
		}
		details = append(details, d)
		if !slices.Contains(names, e.name) {
			names = append(names, e.name)
		}
	}
	page, next, err := paged(details, in.MaxResults, in.NextToken)
	if err != nil {
		return nil, err
	}
	return struct {
		Names   []string `xml:"serviceNameSet>item"`
		Details []detail `xml:"serviceDetailSet>item"`
		Next    string   `xml:"nextToken,omitempty"`
	}{names, page, next}, nil
}

// prefixList is a list of AWS's own: the addresses of a service.
type prefixList struct {
	entity
	name   string
	blocks []string
}

// addPrefixLists makes the lists of the services with gateway endpoints. They have always been there.
func (s *Service) addPrefixLists() {
	for id, list := range map[string]prefixList{
		"pl-68a54001": {name: "s3", blocks: []string{"3.5.76.0/22", "18.34.244.0/22", "18.34.48.0/20",
			"52.218.128.0/17", "52.92.128.0/17", "35.80.36.208/28"}},
		"pl-00a54069": {name: "dynamodb", blocks: []string{"35.71.64.0/22", "52.94.10.0/24", "52.94.248.32/28",
			"52.119.252.0/22"}},
	} {
		list.entity = entity{id: id}
		list.name = "com.amazonaws." + s.cfg.Region + "." + list.name
		s.prefixLists[id] = &list
	}
}

// servicePrefixList is the list of a service with gateway endpoints.
func (s *Service) servicePrefixList(service string) *prefixList {
	for _, list := range s.prefixLists {
		if list.name == service {
			return list
		}
	}
	return &prefixList{}
}

// lists are the prefix lists in a fixed order.
func (s *Service) lists(q query, filters map[string]func(*prefixList) []string) ([]*prefixList, string, error) {
	found, _, err := find(s, s.prefixLists, query{ids: q.ids, filters: q.filters}, filters)
	if err != nil {
		return nil, "", err
	}
	slices.SortFunc(found, func(a, b *prefixList) int { return strings.Compare(a.name, b.name) })
	return paged(found, q.maxResults, q.nextToken)
}

type listInput struct {
	PrefixListID []string `query:"PrefixListId"`
	Filter       []Filter
	MaxResults   int
	NextToken    string
}

func (s *Service) describePrefixLists(c *wire.Call) (any, error) {
	var in listInput
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, "DescribePrefixLists"); err != nil {
		return nil, err
	}
	found, next, err := s.lists(query{in.PrefixListID, in.Filter, in.MaxResults, in.NextToken},
		map[string]func(*prefixList) []string{
			"prefix-list-id":   func(l *prefixList) []string { return []string{l.id} },
			"prefix-list-name": func(l *prefixList) []string { return []string{l.name} },
		})
	if err != nil {
		return nil, err
	}
	type item struct {
		ID     string   `xml:"prefixListId"`
		Name   string   `xml:"prefixListName"`
		Blocks []string `xml:"cidrSet>item"`
	}
	return struct {
		Items []item `xml:"prefixListSet>item"`
		Next  string `xml:"nextToken,omitempty"`
	}{each(found, func(l *prefixList) item { return item{l.id, l.name, l.blocks} }), next}, nil
}

func (s *Service) describeManagedPrefixLists(c *wire.Call) (any, error) {
	var in listInput
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, "DescribeManagedPrefixLists"); err != nil {
		return nil, err
	}
	found, next, err := s.lists(query{in.PrefixListID, in.Filter, in.MaxResults, in.NextToken},
		map[string]func(*prefixList) []string{
			"owner-id":         func(*prefixList) []string { return []string{"AWS"} },
			"prefix-list-id":   func(l *prefixList) []string { return []string{l.id} },
			"prefix-list-name": func(l *prefixList) []string { return []string{l.name} },
		})
	if err != nil {
		return nil, err
	}
	type item struct { // a list of AWS's has no version, no limit of entries and no tags
		ID     string `xml:"prefixListId"`
		ARN    string `xml:"prefixListArn"`
		Name   string `xml:"prefixListName"`
		Family string `xml:"addressFamily"`
		State  string `xml:"state"`
		Owner  string `xml:"ownerId"`
	}
	return struct {
		Items []item `xml:"prefixListSet>item"`
		Next  string `xml:"nextToken,omitempty"`
	}{each(found, func(l *prefixList) item {
		return item{l.id, "arn:aws:ec2:" + s.cfg.Region + ":aws:prefix-list/" + l.id, l.name, "IPv4", "create-complete",
			"AWS"}
	}), next}, nil
}

func (s *Service) prefixListEntries(c *wire.Call) (any, error) {
	var in struct {
		PrefixListID string `query:"PrefixListId"`
		MaxResults   int
		NextToken    string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "GetManagedPrefixListEntries", in.PrefixListID); err != nil {
		return nil, err
	}
	l := s.prefixLists[in.PrefixListID]
	if l == nil {
		return nil, failf("InvalidPrefixListID.NotFound", "The prefix list ID '%s' does not exist", in.PrefixListID)
	}
	type item struct {
		Block string `xml:"cidr"`
	}
	page, next, err := paged(each(l.blocks, func(b string) item { return item{b} }), in.MaxResults, in.NextToken)
	if err != nil {
		return nil, err
	}
	return struct {
		Items []item `xml:"entrySet>item"`
		Next  string `xml:"nextToken,omitempty"`
	}{page, next}, nil
}
