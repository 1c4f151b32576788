package elbv2

import (
	"slices"
	"strconv"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Attribute is one setting of a load balancer, target group or listener.
type Attribute struct{ Key, Value string }

// attribute describes a setting: its key, its default and the validation of its values.
type attribute struct {
	key   string
	value string
	valid func(string) bool
}

func oneOf(values ...string) func(string) bool {
	return func(v string) bool { return slices.Contains(values, v) }
}

// within returns a validator. The validator accepts decimal numbers from low to high, and the texts in alternatives.
func within(low, high int, alternatives ...string) func(string) bool {
	return func(v string) bool {
		n, err := strconv.Atoi(v)
		return slices.Contains(alternatives, v) || err == nil && low <= n && n <= high && strconv.Itoa(n) == v
	}
}

func anyText(v string) bool { return len(v) <= 1024 }

var boolean = oneOf("true", "false")

// balancerAttributes are the attributes of network load balancers.
//
// https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_LoadBalancerAttribute.html
var balancerAttributes = []attribute{
	{"access_logs.s3.enabled", "false", boolean},
	{"access_logs.s3.bucket", "", anyText},
	{"access_logs.s3.prefix", "", anyText},
	{"deletion_protection.enabled", "false", boolean},
	{"load_balancing.cross_zone.enabled", "false", boolean},
	{"zonal_shift.config.enabled", "false", boolean},
	{"ipv6.deny_all_igw_traffic", "", boolean}, // The default depends on the scheme.
	{"dns_record.client_routing_policy", "any_availability_zone",
		oneOf("availability_zone_affinity", "partial_availability_zone_affinity", "any_availability_zone")},
	{"secondary_ips.auto_assigned.per_subnet", "0", within(0, 7)},
}

// groupAttributes are the attributes of target groups of network load balancers.
//
// https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_TargetGroupAttribute.html
var groupAttributes = []attribute{
	{"deregistration_delay.timeout_seconds", "300", within(0, 3600)},
	{"stickiness.enabled", "false", boolean},
	{"stickiness.type", "source_ip", oneOf("source_ip")},
	{"load_balancing.cross_zone.enabled", "use_load_balancer_configuration",
		oneOf("true", "false", "use_load_balancer_configuration")},
	{"target_group_health.dns_failover.minimum_healthy_targets.count", "1", within(1, 1000, "off")},
	{"target_group_health.dns_failover.minimum_healthy_targets.percentage", "off", within(1, 100, "off")},
	{"target_group_health.unhealthy_state_routing.minimum_healthy_targets.count", "1", within(1, 1000)},
	{"target_group_health.unhealthy_state_routing.minimum_healthy_targets.percentage", "off", within(1, 100, "off")},
	{"deregistration_delay.connection_termination.enabled", "false", boolean},           // true for UDP
	{"target_health_state.unhealthy.connection_termination.enabled", "true", boolean},   // false for UDP
	{"target_health_state.unhealthy.draining_interval_seconds", "0", within(0, 360000)}, // seconds
	{"preserve_client_ip.enabled", "true", boolean},
	{"proxy_protocol_v2.enabled", "false", boolean},
}

type attributesAnswer struct {
	Attributes []Attribute `xml:"Attributes>member"`
}

// listAttributes returns every attribute in the list `known`, with its value. The value is the one in the map `set`,
// else the one in the map `defaults`, else the one in `known`.
func listAttributes(known []attribute, set, defaults map[string]string) attributesAnswer {
	var out attributesAnswer
	for _, a := range known {
		value := a.value
		if v, ok := defaults[a.key]; ok {
			value = v
		}
		if v, ok := set[a.key]; ok {
			value = v
		}
		out.Attributes = append(out.Attributes, Attribute{a.key, value})
	}
	return out
}

// setAttributes sets the wanted attributes. If any of them is invalid, it sets none and returns an error.
func setAttributes(known []attribute, set map[string]string, wanted []Attribute) error {
	if len(wanted) == 0 {
		return invalid("At least one attribute must be specified")
	}
	for _, w := range wanted {
		i := slices.IndexFunc(known, func(a attribute) bool { return a.key == w.Key })
		if i < 0 {
			return wire.Errorf(400, "InvalidConfigurationRequest", "The attribute '%s' is not supported here", w.Key)
		}
		if !known[i].valid(w.Value) {
			return invalid("The value '%s' is not valid for the attribute '%s'", w.Value, w.Key)
		}
	}
	for _, w := range wanted {
		set[w.Key] = w.Value
	}
	return nil
}

func (b *balancer) describeAttributes() attributesAnswer {
	deny := "false"
	if b.scheme == "internal" {
		deny = "true"
	}
	return listAttributes(balancerAttributes, b.attributes, map[string]string{"ipv6.deny_all_igw_traffic": deny})
}

func (s *Service) modifyLoadBalancerAttributes(c *wire.Call) (any, error) {
	var in struct {
		LoadBalancerArn string
		Attributes      []Attribute
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, in.LoadBalancerArn, nil); err != nil {
		return nil, err
	}
	b, err := s.balancer(in.LoadBalancerArn)
	if err != nil {
		return nil, err
	}
	if err := setAttributes(balancerAttributes, b.attributes, in.Attributes); err != nil {
		return nil, err
	}
	return b.describeAttributes(), nil
}

func (s *Service) describeLoadBalancerAttributes(c *wire.Call) (any, error) {
	var in struct{ LoadBalancerArn string }
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, "*", nil); err != nil {
		return nil, err
	}
	b, err := s.balancer(in.LoadBalancerArn)
	if err != nil {
		return nil, err
	}
	return b.describeAttributes(), nil
}
