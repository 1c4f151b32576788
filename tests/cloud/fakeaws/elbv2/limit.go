package elbv2

import (
	"slices"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

type limit struct{ Name, Max string }

// limits are the documented defaults. Source: "Elastic Load Balancing endpoints and quotas". They are told, not
// enforced.
var limits = []limit{
	{"application-load-balancers", "50"},
	{"listeners-per-application-load-balancer", "50"},
	{"rules-per-application-load-balancer", "100"},
	{"network-load-balancers", "50"},
	{"listeners-per-network-load-balancer", "50"},
	{"targets-per-network-load-balancer", "3000"},
	{"targets-per-availability-zone-per-network-load-balancer", "500"},
	{"targets-per-application-load-balancer", "1000"},
	{"target-groups", "3000"},
	{"targets-per-target-group", "1000"},
	{"target-groups-per-application-load-balancer", "100"},
	{"target-groups-per-action-on-application-load-balancer", "5"},
	{"target-groups-per-action-on-network-load-balancer", "1"},
	{"certificates-per-application-load-balancer", "25"},
	{"certificates-per-network-load-balancer", "25"},
}

func (s *Service) describeAccountLimits(c *wire.Call) (any, error) {
	var in struct {
		Marker   string
		PageSize int
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "*", nil); err != nil {
		return nil, err
	}
	var out struct {
		Limits     []limit `xml:"Limits>member"`
		NextMarker string  `xml:",omitempty"`
	}
	var err error
	out.Limits, out.NextMarker, err = page(limits, in.PageSize, in.Marker)
	return out, err
}

// sslPolicies are the names of some of the predefined security policies; what they contain is not told.
var sslPolicies = []string{
	"ELBSecurityPolicy-2016-08", "ELBSecurityPolicy-TLS13-1-2-2021-06", "ELBSecurityPolicy-TLS13-1-2-Res-2021-06",
	"ELBSecurityPolicy-TLS13-1-3-2021-06",
	"ELBSecurityPolicy-TLS-1-2-2017-01", "ELBSecurityPolicy-TLS-1-2-Ext-2018-06",
	"ELBSecurityPolicy-FS-1-2-Res-2020-10",
}

type sslPolicy struct {
	Name                       string
	SupportedLoadBalancerTypes []string `xml:"SupportedLoadBalancerTypes>member"`
}

func (s *Service) describeSSLPolicies(c *wire.Call) (any, error) {
	var in struct {
		Names                    []string
		LoadBalancerType, Marker string
		PageSize                 int
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "*", nil); err != nil {
		return nil, err
	}
	wanted := in.Names
	if len(wanted) == 0 {
		wanted = sslPolicies
	}
	var out struct {
		SslPolicies []sslPolicy `xml:"SslPolicies>member"`
		NextMarker  string      `xml:",omitempty"`
	}
	for _, name := range wanted {
		if !slices.Contains(sslPolicies, name) {
			return nil, wire.Errorf(400, "SSLPolicyNotFound", "SSL policy '%s' not found", name)
		}
		out.SslPolicies = append(out.SslPolicies, sslPolicy{name, []string{typeApplication, typeNetwork}})
	}
	var err error
	out.SslPolicies, out.NextMarker, err = page(out.SslPolicies, in.PageSize, in.Marker)
	return out, err
}
