package ec2

import (
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// endpointService is a service that an endpoint can connect to.
type endpointService struct{ name, kind string }

// endpointServices returns the AWS services that this fake offers to endpoints.
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

// privateServiceName returns the usual host name of a service. If an endpoint has private DNS, this name leads to the
// endpoint in its VPC.
func (s *Service) privateServiceName(service string) string {
	return service[strings.LastIndex(service, ".")+1:] + "." + s.cfg.Region + ".amazonaws.com"
}

// prefixList is a prefix list of AWS: the addresses of a service.
type prefixList struct {
	entity
	name   string
	blocks []string
}

// addPrefixLists makes the lists of the services with gateway endpoints. On AWS such lists exist in every region.
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

// servicePrefixList returns the prefix list of a service with gateway endpoints.
func (s *Service) servicePrefixList(service string) *prefixList {
	for _, list := range s.prefixLists {
		if list.name == service {
			return list
		}
	}
	return &prefixList{}
}

// lists returns a page of the prefix lists that the query selects, in a fixed order.
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
