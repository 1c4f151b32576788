package elbv2

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// balancer is a network load balancer.
type balancer struct {
	arn, name, id  string
	created        time.Time
	in             createBalancer // A repeated request with the same settings returns the same load balancer.
	scheme         string
	vpc            string
	addressType    string
	securityGroups []string
	inbound        string // EnforceSecurityGroupInboundRulesOnPrivateLinkTraffic
	zones          []node
	attributes     map[string]string
}

// node is the part of a load balancer in one zone.
type node struct{ subnet, zone, eni string }

type subnetMapping struct{ SubnetId string }

type createBalancer struct {
	Name                        string
	Type, Scheme, IpAddressType string
	Subnets                     []string
	SubnetMappings              []subnetMapping // The Terraform provider sends these instead of Subnets.
	SecurityGroups              []string
	Tags                        []Tag
}

func (s *Service) createLoadBalancer(c *wire.Call) (any, error) {
	var in createBalancer
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if in.Type != "network" {
		return nil, wire.Errorf(501, "NotImplemented", "fakeaws has no load balancers of type '%s'", in.Type)
	}
	if err := checkName("load balancer", in.Name); err != nil {
		return nil, err
	}
	subnets := slices.Clone(in.Subnets)
	for _, m := range in.SubnetMappings {
		subnets = append(subnets, m.SubnetId)
	}
	b := &balancer{
		name: in.Name, id: newID(), in: in, created: c.Now, scheme: "internet-facing", addressType: "ipv4",
		securityGroups: in.SecurityGroups, attributes: map[string]string{},
	}
	b.arn = s.arn("loadbalancer/net", b.name, b.id)
	if in.Scheme != "" {
		b.scheme = in.Scheme
	}
	if in.IpAddressType != "" {
		b.addressType = in.IpAddressType
	}
	if err := s.allowCreate(c, b.arn, b.arn, in.Tags, policy.Context{
		"elasticloadbalancing:Scheme": {b.scheme}, "elasticloadbalancing:Subnet": subnets,
		"elasticloadbalancing:SecurityGroup": in.SecurityGroups,
	}); err != nil {
		return nil, err
	}
	for _, old := range s.balancers {
		if old.name != in.Name {
			continue
		}
		if reflect.DeepEqual(old.in, in) {
			return balancersAnswer{LoadBalancers: []loadBalancer{s.describeBalancer(c.Now, old)}}, nil
		}
		return nil, wire.Errorf(400, "DuplicateLoadBalancerName",
			"A load balancer with the same name '%s' exists, but with different settings", in.Name)
	}
	if b.scheme != "internet-facing" && b.scheme != "internal" {
		return nil, invalid("Scheme '%s' must be one of internet-facing, internal", b.scheme)
	}
	if err := checkTags(in.Tags); err != nil {
		return nil, err
	}
	if err := s.placeBalancer(b, subnets); err != nil {
		return nil, err
	}
	for _, id := range b.securityGroups {
		if vpc, ok := s.cfg.Network.SecurityGroup(id); !ok || vpc != b.vpc {
			return nil, wire.Errorf(400, "InvalidConfigurationRequest",
				"One or more security groups are invalid: '%s'", id)
		}
	}
	if len(b.securityGroups) > 0 {
		b.inbound = "on"
	}
	if err := s.createInterfaces(b); err != nil {
		return nil, err
	}
	s.balancers[b.arn] = b
	s.setTags(b.arn, in.Tags)
	return balancersAnswer{LoadBalancers: []loadBalancer{s.describeBalancer(c.Now, b)}}, nil
}

// placeBalancer checks the requested subnets and sets the load balancer's zones and VPC.
func (s *Service) placeBalancer(b *balancer, subnets []string) error {
	if len(subnets) == 0 {
		return invalid("You must specify either subnets or subnet mappings")
	}
	if b.addressType != "ipv4" && b.addressType != "dualstack" {
		return invalid("IP address type '%s' must be one of ipv4, dualstack", b.addressType)
	}
	seen := map[string]bool{}
	for _, id := range subnets {
		subnet, ok := s.cfg.Network.Subnet(id)
		switch {
		case !ok:
			return wire.Errorf(400, "SubnetNotFound", "The subnet ID '%s' does not exist", id)
		case b.vpc != "" && subnet.VPC != b.vpc:
			return wire.Errorf(400, "InvalidConfigurationRequest", "All subnets must belong to the same VPC: '%s'",
				b.vpc)
		case seen[subnet.Zone]:
			return wire.Errorf(400, "InvalidConfigurationRequest",
				"A load balancer cannot be attached to multiple subnets in the same Availability Zone")
		case b.addressType == "dualstack" && !subnet.IPv6:
			return wire.Errorf(400, "InvalidConfigurationRequest",
				"You must specify subnets with an associated IPv6 CIDR block: '%s' has none", id)
		}
		seen[subnet.Zone], b.vpc = true, subnet.VPC
		b.zones = append(b.zones, node{subnet: id, zone: subnet.Zone})
	}
	slices.SortFunc(b.zones, func(a, b node) int { return strings.Compare(a.zone, b.zone) })
	return nil
}

// createInterfaces creates a network interface in each zone. On an error it deletes those that it has created.
func (s *Service) createInterfaces(b *balancer) error {
	for i, z := range b.zones {
		id, err := s.cfg.Network.CreateInterface(Interface{
			Subnet: z.subnet, Description: "ELB " + strings.TrimPrefix(b.arn, s.arn("loadbalancer")),
			Groups: b.securityGroups, IPv6: b.addressType != "ipv4",
		})
		if err != nil {
			for _, made := range b.zones[:i] {
				s.cfg.Network.DeleteInterface(made.eni)
			}
			return err
		}
		b.zones[i].eni = id
	}
	return nil
}

// loadBalancer describes a load balancer in answers.
type loadBalancer struct {
	LoadBalancerArn       string
	DNSName               string
	CanonicalHostedZoneId string
	CreatedTime           wire.Time
	LoadBalancerName      string
	Scheme                string
	VpcId                 string
	State                 struct{ Code string }
	Type                  string
	AvailabilityZones     []availabilityZone `xml:"AvailabilityZones>member"`
	SecurityGroups        []string           `xml:"SecurityGroups>member"`
	IpAddressType         string
	Inbound               string `xml:"EnforceSecurityGroupInboundRulesOnPrivateLinkTraffic,omitempty"`
	SourceNAT             string `xml:"EnablePrefixForIpv6SourceNat,omitempty"`
}

type availabilityZone struct{ ZoneName, SubnetId string }

type balancersAnswer struct {
	LoadBalancers []loadBalancer `xml:"LoadBalancers>member"`
	NextMarker    string         `xml:",omitempty"`
}

func (s *Service) describeBalancer(now time.Time, b *balancer) loadBalancer {
	out := loadBalancer{
		LoadBalancerArn: b.arn, LoadBalancerName: b.name, CreatedTime: wire.Time{Time: b.created}, Scheme: b.scheme,
		VpcId: b.vpc, Type: "network", SecurityGroups: b.securityGroups, IpAddressType: b.addressType,
		Inbound: b.inbound, SourceNAT: "off",
		DNSName: b.name + "-" + b.id + ".elb." + s.cfg.Region + ".amazonaws.com",
		// The hosted zone of us-west-2: https://docs.aws.amazon.com/general/latest/gr/elb.html
		CanonicalHostedZoneId: "Z18D5FSROUN65G",
	}
	for _, z := range b.zones {
		out.AvailabilityZones = append(out.AvailabilityZones, availabilityZone{z.zone, z.subnet})
	}
	out.State.Code = "active"
	if !now.After(b.created) {
		out.State.Code = "provisioning" // In the answer to CreateLoadBalancer.
	}
	return out
}

func (s *Service) describeLoadBalancers(c *wire.Call) (any, error) {
	var in struct {
		LoadBalancerArns, Names []string
		Marker                  string
		PageSize                int
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "*", nil); err != nil {
		return nil, err
	}
	if len(in.LoadBalancerArns) > 0 && len(in.Names) > 0 {
		return nil, invalid("Load balancer names and load balancer ARNs cannot be specified at the same time")
	}
	all := inOrder(s.balancers, func(b *balancer) (time.Time, string) { return b.created, b.arn })
	wanted := all
	if len(in.LoadBalancerArns)+len(in.Names) > 0 {
		wanted = nil
	}
	for _, arn := range in.LoadBalancerArns {
		b, err := s.balancer(arn)
		if err != nil {
			return nil, err
		}
		wanted = append(wanted, b)
	}
	for _, name := range in.Names {
		i := slices.IndexFunc(all, func(b *balancer) bool { return b.name == name })
		if i < 0 {
			return nil, wire.Errorf(400, "LoadBalancerNotFound", "Load balancers '[%s]' not found", name)
		}
		wanted = append(wanted, all[i])
	}
	var out balancersAnswer
	var err error
	wanted, out.NextMarker, err = page(wanted, in.PageSize, in.Marker)
	for _, b := range wanted {
		out.LoadBalancers = append(out.LoadBalancers, s.describeBalancer(c.Now, b))
	}
	return out, err
}

// deleteLoadBalancer deletes a load balancer. It succeeds if the load balancer does not exist.
//
// https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_DeleteLoadBalancer.html
func (s *Service) deleteLoadBalancer(c *wire.Call) (any, error) {
	var in struct{ LoadBalancerArn string }
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, in.LoadBalancerArn, nil); err != nil {
		return nil, err
	}
	if err := s.checkARN(in.LoadBalancerArn, "loadbalancer"); err != nil {
		return nil, err
	}
	b, ok := s.balancers[in.LoadBalancerArn]
	if !ok {
		return nil, nil
	}
	if b.attributes["deletion_protection.enabled"] == "true" {
		return nil, wire.Errorf(400, "OperationNotPermitted",
			"Load balancer '%s' cannot be deleted because deletion protection is enabled", b.arn)
	}
	for _, l := range slices.Collect(maps.Values(s.listeners)) {
		if l.balancer == b {
			s.removeListener(l)
		}
	}
	for _, z := range b.zones {
		s.cfg.Network.DeleteInterface(z.eni)
	}
	delete(s.balancers, b.arn)
	delete(s.tags, b.arn)
	return nil, nil
}

// describeCapacityReservation answers that no capacity units are reserved.
func (s *Service) describeCapacityReservation(c *wire.Call) (any, error) {
	var in struct{ LoadBalancerArn string }
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "*", nil); err != nil {
		return nil, err
	}
	_, err := s.balancer(in.LoadBalancerArn)
	return struct{ DecreaseRequestsRemaining int }{2}, err
}
