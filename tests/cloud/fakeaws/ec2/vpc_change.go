package ec2

import (
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// attribute is a boolean attribute in requests and answers.
type attribute struct {
	Value *bool `xml:"value"`
}

func (s *Service) describeVPCAttribute(c *wire.Call) (any, error) {
	var in struct {
		Attribute string
		VpcID     string `query:"VpcId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "DescribeVpcAttribute", in.VpcID); err != nil {
		return nil, err
	}
	v, err := s.vpcByID(in.VpcID)
	if err != nil {
		return nil, err
	}
	var out struct {
		ID        string     `xml:"vpcId"`
		Hostnames *attribute `xml:"enableDnsHostnames"`
		Support   *attribute `xml:"enableDnsSupport"`
		Metrics   *attribute `xml:"enableNetworkAddressUsageMetrics"`
	}
	out.ID = v.id
	switch in.Attribute {
	case "enableDnsHostnames":
		out.Hostnames = &attribute{&v.dnsHostnames}
	case "enableDnsSupport":
		out.Support = &attribute{&v.dnsSupport}
	case "enableNetworkAddressUsageMetrics":
		out.Metrics = &attribute{&v.usageMetrics}
	case "":
		return nil, missing("attribute")
	default:
		return nil, invalid("attribute", in.Attribute)
	}
	return out, nil
}

func (s *Service) modifyVPCAttribute(c *wire.Call) (any, error) {
	var in struct {
		VpcID                            string `query:"VpcId"`
		EnableDnsHostnames               *attribute
		EnableDnsSupport                 *attribute
		EnableNetworkAddressUsageMetrics *attribute
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "ModifyVpcAttribute", in.VpcID); err != nil {
		return nil, err
	}
	v, err := s.vpcByID(in.VpcID)
	if err != nil {
		return nil, err
	}
	// DNS support and host names cannot be changed in the same request.
	given := 0
	for _, a := range []*attribute{in.EnableDnsHostnames, in.EnableDnsSupport, in.EnableNetworkAddressUsageMetrics} {
		if a != nil && a.Value != nil {
			given++
		}
	}
	switch {
	case given == 0:
		return nil, missing("attribute")
	case given > 1:
		return nil, failf("InvalidParameterCombination", "Fields for multiple attribute types specified")
	case in.EnableDnsHostnames != nil:
		if *in.EnableDnsHostnames.Value && !v.dnsSupport {
			return nil, failf("InvalidParameterCombination", "DNS hostnames need DNS support, which is off in '%s'",
				v.id)
		}
		v.dnsHostnames = *in.EnableDnsHostnames.Value
	case in.EnableDnsSupport != nil:
		v.dnsSupport = *in.EnableDnsSupport.Value
	default:
		v.usageMetrics = *in.EnableNetworkAddressUsageMetrics.Value
	}
	return ok, nil
}
