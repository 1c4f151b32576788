package elbv2

import (
	"slices"
	"strconv"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Attribute is one setting of a load balancer, target group or listener.
type Attribute struct{ Key, Value string }

// attribute is what is known of one: where it exists, its default and what it may be.
type attribute struct {
	key   string
	kinds string // of what it is an attribute; "" is every kind
	value string // default
	ok    func(string) bool
}

func oneOf(values ...string) func(string) bool {
	return func(v string) bool { return slices.Contains(values, v) }
}

func within(low, high int) func(string) bool {
	return func(v string) bool {
		n, err := strconv.Atoi(v)
		return err == nil && low <= n && n <= high && strconv.Itoa(n) == v
	}
}

func either(a, b func(string) bool) func(string) bool {
	return func(v string) bool { return a(v) || b(v) }
}

func anything(v string) bool { return len(v) <= 1024 }

var boolean = oneOf("true", "false")

// balancerAttributes: kinds are the types of load balancers. Source: API reference, LoadBalancerAttribute.
var balancerAttributes = []attribute{
	{"access_logs.s3.enabled", "", "false", boolean},
	{"access_logs.s3.bucket", "", "", anything},
	{"access_logs.s3.prefix", "", "", anything},
	{"deletion_protection.enabled", "", "false", boolean},
	{"load_balancing.cross_zone.enabled", typeNetwork, "false", boolean},
	{"load_balancing.cross_zone.enabled", typeApplication, "true", oneOf("true")},
	{"zonal_shift.config.enabled", "", "false", boolean},
	{"ipv6.deny_all_igw_traffic", "", "", boolean}, // the default follows the scheme
	{"dns_record.client_routing_policy", typeNetwork, "any_availability_zone",
		oneOf("availability_zone_affinity", "partial_availability_zone_affinity", "any_availability_zone")},
	{"secondary_ips.auto_assigned.per_subnet", typeNetwork, "0", within(0, 7)},
	{"idle_timeout.timeout_seconds", typeApplication, "60", within(1, 4000)},
	{"client_keep_alive.seconds", typeApplication, "3600", within(60, 604800)},
	{"connection_logs.s3.enabled", typeApplication, "false", boolean},
	{"connection_logs.s3.bucket", typeApplication, "", anything},
	{"connection_logs.s3.prefix", typeApplication, "", anything},
	{"health_check_logs.s3.enabled", typeApplication, "false", boolean},
	{"health_check_logs.s3.bucket", typeApplication, "", anything},
	{"health_check_logs.s3.prefix", typeApplication, "", anything},
	{"routing.http.desync_mitigation_mode", typeApplication, "defensive", oneOf("monitor", "defensive", "strictest")},
	{"routing.http.drop_invalid_header_fields.enabled", typeApplication, "false", boolean},
	{"routing.http.preserve_host_header.enabled", typeApplication, "false", boolean},
	{"routing.http.x_amzn_tls_version_and_cipher_suite.enabled", typeApplication, "false", boolean},
	{"routing.http.xff_client_port.enabled", typeApplication, "false", boolean},
	{"routing.http.xff_header_processing.mode", typeApplication, "append", oneOf("append", "preserve", "remove")},
	{"routing.http2.enabled", typeApplication, "true", boolean},
	{"waf.fail_open.enabled", typeApplication, "false", boolean},
}

// The kinds of target groups, by protocol: whose load balancer they are for.
const (
	groupOfApplication = "HTTP HTTPS"
	groupOfNetwork     = "TCP TLS UDP TCP_UDP QUIC TCP_QUIC"
)

// groupAttributes: kinds are protocols. Source: API reference, TargetGroupAttribute.
var groupAttributes = []attribute{
	{"deregistration_delay.timeout_seconds", "", "300", within(0, 3600)},
	{"stickiness.enabled", "", "false", boolean},
	{"stickiness.type", groupOfNetwork, "source_ip", oneOf("source_ip")},
	{"stickiness.type", groupOfApplication, "lb_cookie", oneOf("lb_cookie", "app_cookie")},
	{"load_balancing.cross_zone.enabled", "", "use_load_balancer_configuration",
		oneOf("true", "false", "use_load_balancer_configuration")},
	{"target_group_health.dns_failover.minimum_healthy_targets.count", "", "1", either(oneOf("off"), within(1, 1000))},
	{"target_group_health.dns_failover.minimum_healthy_targets.percentage", "", "off",
		either(oneOf("off"), within(1, 100))},
	{"target_group_health.unhealthy_state_routing.minimum_healthy_targets.count", "", "1", within(1, 1000)},
	{"target_group_health.unhealthy_state_routing.minimum_healthy_targets.percentage", "", "off",
		either(oneOf("off"), within(1, 100))},
	{"load_balancing.algorithm.type", groupOfApplication, "round_robin",
		oneOf("round_robin", "least_outstanding_requests", "weighted_random")},
	{"load_balancing.algorithm.anomaly_mitigation", groupOfApplication, "off", oneOf("on", "off")},
	{"slow_start.duration_seconds", groupOfApplication, "0", either(oneOf("0"), within(30, 900))},
	{"stickiness.app_cookie.cookie_name", groupOfApplication, "", anything},
	{"stickiness.app_cookie.duration_seconds", groupOfApplication, "86400", within(1, 604800)},
	{"stickiness.lb_cookie.duration_seconds", groupOfApplication, "86400", within(1, 604800)},
	{"deregistration_delay.connection_termination.enabled", groupOfNetwork, "false", boolean}, // true for UDP
	// false for TCP and TLS to IP addresses
	{"preserve_client_ip.enabled", groupOfNetwork, "true", boolean},
	{"proxy_protocol_v2.enabled", groupOfNetwork, "false", boolean},
	{"target_health_state.unhealthy.connection_termination.enabled", groupOfNetwork, "true", boolean},
	{"target_health_state.unhealthy.draining_interval_seconds", groupOfNetwork, "0", within(0, 360000)},
}

// listenerAttributes: kinds are protocols. Source: API reference, ListenerAttribute.
var listenerAttributes = []attribute{
	{"tcp.idle_timeout.seconds", "TCP", "350", within(60, 6000)},
	{"routing.http.response.server.enabled", groupOfApplication, "true", boolean},
	{"routing.http.response.strict_transport_security.header_value", groupOfApplication, "", anything},
	{"routing.http.response.access_control_allow_origin.header_value", groupOfApplication, "", anything},
	{"routing.http.response.access_control_allow_methods.header_value", groupOfApplication, "", anything},
	{"routing.http.response.access_control_allow_headers.header_value", groupOfApplication, "", anything},
	{"routing.http.response.access_control_allow_credentials.header_value", groupOfApplication, "", anything},
	{"routing.http.response.access_control_expose_headers.header_value", groupOfApplication, "", anything},
	{"routing.http.response.access_control_max_age.header_value", groupOfApplication, "", anything},
	{"routing.http.response.content_security_policy.header_value", groupOfApplication, "", anything},
	{"routing.http.response.x_content_type_options.header_value", groupOfApplication, "", anything},
	{"routing.http.response.x_frame_options.header_value", groupOfApplication, "", anything},
	{"routing.http.request.x_amzn_mtls_clientcert_serial_number.header_name", "HTTPS",
		"X-Amzn-Mtls-Clientcert-Serial-Number", anything},
	{"routing.http.request.x_amzn_mtls_clientcert_issuer.header_name", "HTTPS", "X-Amzn-Mtls-Clientcert-Issuer",
		anything},
	{"routing.http.request.x_amzn_mtls_clientcert_subject.header_name", "HTTPS", "X-Amzn-Mtls-Clientcert-Subject",
		anything},
	{"routing.http.request.x_amzn_mtls_clientcert_validity.header_name", "HTTPS", "X-Amzn-Mtls-Clientcert-Validity",
		anything},
	{"routing.http.request.x_amzn_mtls_clientcert_leaf.header_name", "HTTPS", "X-Amzn-Mtls-Clientcert-Leaf", anything},
	{"routing.http.request.x_amzn_mtls_clientcert.header_name", "HTTPS", "X-Amzn-Mtls-Clientcert", anything},
	{"routing.http.request.x_amzn_tls_version.header_name", "HTTPS", "X-Amzn-Tls-Version", anything},
	{"routing.http.request.x_amzn_tls_cipher_suite.header_name", "HTTPS", "X-Amzn-Tls-Cipher-Suite", anything},
}

func (a attribute) of(kind string) bool {
	return a.kinds == "" || slices.Contains(strings.Fields(a.kinds), kind)
}

// attributesAnswer lists what a resource of the kind has: what was set, and defaults.
type attributesAnswer struct {
	Attributes []Attribute `xml:"Attributes>member"`
}

// list tells all attributes of a resource. defaults are those that depend on more than its kind.
func list(known []attribute, kind string, set, defaults map[string]string) attributesAnswer {
	var out attributesAnswer
	for _, a := range known {
		if !a.of(kind) {
			continue
		}
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

// setAttributes checks all and then sets all.
func setAttributes(known []attribute, kind string, set map[string]string, wanted []Attribute) error {
	if len(wanted) == 0 {
		return invalid("At least one attribute must be specified")
	}
	for _, w := range wanted {
		i := slices.IndexFunc(known, func(a attribute) bool { return a.key == w.Key && a.of(kind) })
		if i < 0 {
			if slices.ContainsFunc(known, func(a attribute) bool { return a.key == w.Key }) {
				return wire.Errorf(400, "InvalidConfigurationRequest", "The attribute '%s' is not supported here (%s)",
					w.Key, kind)
			}
			return invalid("The attribute '%s' is not recognized", w.Key)
		}
		if !known[i].ok(w.Value) {
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
	return list(balancerAttributes, b.kind, b.attributes, map[string]string{"ipv6.deny_all_igw_traffic": deny})
}

func (s *Service) modifyLoadBalancerAttributes(c *wire.Call) (any, error) {
	var in struct {
		LoadBalancerArn string
		Attributes      []Attribute
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	b, err := s.change(c, in.LoadBalancerArn, nil)
	if err != nil {
		return nil, err
	}
	for _, logs := range []string{"access_logs", "connection_logs", "health_check_logs"} {
		if value(in.Attributes, logs+".s3.enabled") == "true" && value(in.Attributes, logs+".s3.bucket") == "" &&
			b.attributes[logs+".s3.bucket"] == "" {
			return nil, wire.Errorf(400, "InvalidConfigurationRequest", "The value of '%s.s3.bucket' cannot be empty",
				logs)
		}
	}
	if err := setAttributes(balancerAttributes, b.kind, b.attributes, in.Attributes); err != nil {
		return nil, err
	}
	return b.describeAttributes(), nil
}

func value(attributes []Attribute, key string) string {
	for _, a := range attributes {
		if a.Key == key {
			return a.Value
		}
	}
	return ""
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
