package elbv2

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// The types of load balancers.
const (
	typeApplication = "application"
	typeNetwork     = "network"
)

// balancer is one load balancer.
type balancer struct {
	arn, name, id string
	created       time.Time
	in            createBalancer // what it was made from: the same again is the same load balancer
	kind          string         // typeApplication or typeNetwork
	scheme        string
	vpc           string
	addresses     string // ip address type
	securityGroup []string
	// EnforceSecurityGroupInboundRulesOnPrivateLinkTraffic, of a network load balancer with security groups
	inbound    string
	sourceNAT  string // EnablePrefixForIpv6SourceNat
	zones      []node
	attributes map[string]string
	capacity   int // units reserved
	reserved   time.Time
}

// node is a load balancer's part in one zone.
type node struct {
	SubnetMapping
	zone, eni string
}

// SubnetMapping places a load balancer's node.
type SubnetMapping struct {
	SubnetId, AllocationId, PrivateIPv4Address, IPv6Address, SourceNatIpv6Prefix string
}

type createBalancer struct {
	Name                         string
	Type, Scheme, IpAddressType  string
	Subnets                      []string
	SubnetMappings               []SubnetMapping
	SecurityGroups               []string
	EnablePrefixForIpv6SourceNat string
	Tags                         []Tag
}

func (s *Service) balancerOperations() map[string]wire.Handler {
	return map[string]wire.Handler{
		"CreateLoadBalancer":             s.createLoadBalancer,
		"DescribeLoadBalancers":          s.describeLoadBalancers,
		"DeleteLoadBalancer":             s.deleteLoadBalancer,
		"SetSubnets":                     s.setSubnets,
		"SetSecurityGroups":              s.setSecurityGroups,
		"SetIpAddressType":               s.setIPAddressType,
		"ModifyLoadBalancerAttributes":   s.modifyLoadBalancerAttributes,
		"DescribeLoadBalancerAttributes": s.describeLoadBalancerAttributes,
		"DescribeCapacityReservation":    s.describeCapacityReservation,
		"ModifyCapacityReservation":      s.modifyCapacityReservation,
	}
}

func (s *Service) createLoadBalancer(c *wire.Call) (any, error) {
	var in createBalancer
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	kind, short := typeApplication, "app"
	switch in.Type {
	case "", typeApplication:
	case typeNetwork:
		kind, short = typeNetwork, "net"
	default:
		// gateway: there is no such use here
		return nil, invalid("Load balancer type '%s' must be one of application, network", in.Type)
	}
	if err := checkName("load balancer", in.Name); err != nil {
		return nil, err
	}
	b := &balancer{
		name: in.Name, id: newID(), in: in, kind: kind, created: c.Now, scheme: "internet-facing", addresses: "ipv4",
		securityGroup: in.SecurityGroups,
		sourceNAT:     in.EnablePrefixForIpv6SourceNat, attributes: map[string]string{},
	}
	b.arn = s.arn("loadbalancer/"+short, b.name, b.id)
	if in.Scheme != "" {
		b.scheme = in.Scheme
	}
	if err := s.allowCreate(c, b.arn, b.arn, in.Tags, policy.Context{
		"elasticloadbalancing:Scheme": {b.scheme}, "elasticloadbalancing:Subnet": subnetIDs(in.Subnets,
			in.SubnetMappings),
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
	if err := checkTags(nil, in.Tags); err != nil {
		return nil, err
	}
	zones, vpc, err := s.place(b, in.Subnets, in.SubnetMappings)
	if err != nil {
		return nil, err
	}
	b.vpc = vpc
	if in.IpAddressType != "" {
		if err := s.checkAddresses(b, zones, in.IpAddressType); err != nil {
			return nil, err
		}
		b.addresses = in.IpAddressType
	}
	if kind == typeApplication && len(b.securityGroup) == 0 {
		b.securityGroup = []string{s.cfg.Network.DefaultSecurityGroup(vpc)}
	}
	if err := s.checkSecurityGroups(vpc, b.securityGroup); err != nil {
		return nil, err
	}
	if kind == typeNetwork && len(b.securityGroup) > 0 {
		b.inbound = "on"
	}
	if err := s.plug(b, zones); err != nil {
		return nil, err
	}
	s.balancers[b.arn] = b
	s.setTags(b.arn, in.Tags)
	return balancersAnswer{LoadBalancers: []loadBalancer{s.describeBalancer(c.Now, b)}}, nil
}

func subnetIDs(subnets []string, mappings []SubnetMapping) []string {
	ids := slices.Clone(subnets)
	for _, m := range mappings {
		ids = append(ids, m.SubnetId)
	}
	return ids
}

// place checks the subnets that were asked for and finds their zones and VPC.
func (s *Service) place(b *balancer, subnets []string, mappings []SubnetMapping) (zones []node, vpc string, err error) {
	if (len(subnets) == 0) == (len(mappings) == 0) {
		return nil, "", invalid("You must specify either subnets or subnet mappings")
	}
	for _, id := range subnets {
		mappings = append(mappings, SubnetMapping{SubnetId: id})
	}
	seen := map[string]bool{}
	for _, m := range mappings {
		subnet, ok := s.cfg.Network.Subnet(m.SubnetId)
		switch {
		case !ok:
			return nil, "", wire.Errorf(400, "SubnetNotFound", "The subnet ID '%s' does not exist", m.SubnetId)
		case vpc != "" && subnet.VPC != vpc:
			return nil, "", wire.Errorf(400, "InvalidConfigurationRequest",
				"All subnets must belong to the same VPC: '%s'", vpc)
		case seen[subnet.Zone]:
			return nil, "", wire.Errorf(400, "InvalidConfigurationRequest",
				"A load balancer cannot be attached to multiple subnets in the same Availability Zone")
		case b.kind == typeApplication && m != (SubnetMapping{SubnetId: m.SubnetId}):
			return nil, "", wire.Errorf(400, "InvalidConfigurationRequest",
				"You cannot specify addresses for the subnets of an application load balancer")
		case m.PrivateIPv4Address != "" && b.scheme != "internal":
			return nil, "", wire.Errorf(400, "InvalidConfigurationRequest",
				"A private IPv4 address can be specified only for an internal load balancer")
		case m.AllocationId != "" && b.scheme == "internal":
			return nil, "", wire.Errorf(400, "InvalidConfigurationRequest",
				"Elastic IP addresses are not supported for load balancers with scheme 'internal'")
		}
		if m.PrivateIPv4Address != "" {
			if a, err := netip.ParseAddr(m.PrivateIPv4Address); err != nil || !a.Is4() {
				return nil, "", invalid("'%s' is not a valid IPv4 address", m.PrivateIPv4Address)
			}
		}
		seen[subnet.Zone], vpc = true, subnet.VPC
		zones = append(zones, node{SubnetMapping: m, zone: subnet.Zone})
	}
	if b.kind == typeApplication && len(zones) < 2 {
		return nil, "", invalid("At least two subnets in two different Availability Zones must be specified")
	}
	slices.SortFunc(zones, func(a, b node) int { return strings.Compare(a.zone, b.zone) })
	return zones, vpc, nil
}

func (s *Service) checkAddresses(b *balancer, zones []node, addresses string) error {
	switch {
	case addresses == "ipv4":
		return nil
	case addresses != "dualstack" && (addresses != "dualstack-without-public-ipv4" || b.kind != typeApplication):
		return invalid("IP address type '%s' is not one that a load balancer of type %s can have", addresses, b.kind)
	}
	for _, z := range zones {
		if subnet, _ := s.cfg.Network.Subnet(z.SubnetId); !subnet.IPv6 {
			return wire.Errorf(400, "InvalidConfigurationRequest",
				"You must specify subnets with an associated IPv6 CIDR block: '%s' has none", z.SubnetId)
		}
	}
	return nil
}

func (s *Service) checkSecurityGroups(vpc string, ids []string) error {
	for _, id := range ids {
		if of, ok := s.cfg.Network.SecurityGroup(id); !ok || of != vpc {
			return wire.Errorf(400, "InvalidConfigurationRequest", "One or more security groups are invalid: '%s'", id)
		}
	}
	return nil
}

// plug makes the load balancer's interfaces follow the zones wanted: those of zones that stay are kept. On an error
// nothing has changed.
func (s *Service) plug(b *balancer, zones []node) error {
	had := map[SubnetMapping]node{}
	for _, z := range b.zones {
		had[z.SubnetMapping] = z
	}
	kind := "interface"
	if b.kind == typeNetwork {
		kind = "network_load_balancer"
	}
	for i, z := range zones {
		if old, ok := had[z.SubnetMapping]; ok {
			zones[i] = old
			continue
		}
		id, err := s.cfg.Network.CreateInterface(Interface{
			Subnet: z.SubnetId, Description: "ELB " + strings.TrimPrefix(b.arn, s.arn("loadbalancer")), Kind: kind,
			Groups:  b.securityGroup,
			Address: z.PrivateIPv4Address, IPv6: b.addresses != "ipv4",
		})
		if err != nil {
			for _, made := range zones[:i] {
				if _, ok := had[made.SubnetMapping]; !ok {
					s.cfg.Network.DeleteInterface(made.eni)
				}
			}
			return err
		}
		zones[i].eni = id
	}
	for _, z := range b.zones {
		if !slices.ContainsFunc(zones, func(n node) bool { return n.eni == z.eni }) {
			s.cfg.Network.DeleteInterface(z.eni)
		}
	}
	b.zones = zones
	return nil
}

// loadBalancer is one as answers tell it.
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

type availabilityZone struct {
	ZoneName              string
	SubnetId              string
	LoadBalancerAddresses []balancerAddress `xml:"LoadBalancerAddresses>member"`
}

type balancerAddress struct {
	AllocationId       string `xml:",omitempty"`
	PrivateIPv4Address string `xml:",omitempty"`
	IPv6Address        string `xml:",omitempty"`
}

type balancersAnswer struct {
	LoadBalancers []loadBalancer `xml:"LoadBalancers>member"`
	NextMarker    string         `xml:",omitempty"`
}

func (s *Service) describeBalancer(now time.Time, b *balancer) loadBalancer {
	out := loadBalancer{
		LoadBalancerArn: b.arn, LoadBalancerName: b.name, CreatedTime: wire.Time{Time: b.created}, Scheme: b.scheme,
		VpcId: b.vpc, Type: b.kind,
		SecurityGroups: b.securityGroup, IpAddressType: b.addresses, Inbound: b.inbound, SourceNAT: b.sourceNAT,
		AvailabilityZones: zonesAnswer(b),
	}
	// The hosted zones are those of us-west-2 ("Elastic Load Balancing endpoints and quotas"): records point at them by
	// ID only.
	out.DNSName, out.CanonicalHostedZoneId = b.name+"-"+b.id+".elb."+s.cfg.Region+".amazonaws.com", "Z18D5FSROUN65G"
	if b.kind == typeApplication {
		number, _ := strconv.ParseUint(b.id[:8], 16, 64) // eight hexadecimal digits
		out.DNSName, out.CanonicalHostedZoneId = b.name+"-"+strconv.FormatUint(number, 10)+"."+s.cfg.Region+
			".elb.amazonaws.com", "Z1H1FL5HABSF5"
		if b.scheme == "internal" {
			out.DNSName = "internal-" + out.DNSName
		}
	}
	out.State.Code = "active"
	if !now.After(b.created) {
		out.State.Code = "provisioning" // in the answer to the call that made it
	}
	if b.kind == typeNetwork && b.sourceNAT == "" {
		out.SourceNAT = "off"
	}
	return out
}

func zonesAnswer(b *balancer) []availabilityZone {
	var out []availabilityZone
	for _, z := range b.zones {
		zone := availabilityZone{ZoneName: z.zone, SubnetId: z.SubnetId}
		if a := (balancerAddress{AllocationId: z.AllocationId, PrivateIPv4Address: z.PrivateIPv4Address,
			IPv6Address: z.IPv6Address}); a != (balancerAddress{}) {
			zone.LoadBalancerAddresses = []balancerAddress{a}
		}
		out = append(out, zone)
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
		return nil, nil // "if the load balancer does not exist or has already been deleted, the call succeeds"
	}
	if b.attributes["deletion_protection.enabled"] == "true" {
		return nil,
			wire.Errorf(400, "OperationNotPermitted",
				"Load balancer '%s' cannot be deleted because deletion protection is enabled", b.arn)
	}
	for _, l := range slices.Collect(maps.Values(s.listeners)) {
		if l.balancer == b {
			s.forgetListener(l)
		}
	}
	for _, z := range b.zones {
		s.cfg.Network.DeleteInterface(z.eni)
	}
	delete(s.balancers, b.arn)
	delete(s.tags, b.arn)
	return nil, nil
}
