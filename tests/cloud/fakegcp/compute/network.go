package compute

import (
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

// reference matches the URL or path of a resource.
var reference = regexp.MustCompile(
	`^(?:https?://[^/]+/compute/v1/)?(projects/[^/]+/(?:global|(?:zones|regions)/[^/]+)/[a-zA-Z]+/[a-z0-9-]+)$`)

// partial matches a resource URL that omits the project. The API accepts such a partial URL instead of a full one.
// https://cloud.google.com/compute/docs/reference/rest/v1/instances/insert
var partial = regexp.MustCompile(`^(?:global|(?:zones|regions)/[a-z0-9-]+)/[a-zA-Z]+/[a-z0-9-]+(?:/[a-z0-9-]+)?$`)

// Complete adds the project of a call to the partial URLs in its body, in place.
func Complete(project string, value any) any {
	switch value := value.(type) {
	case string:
		if partial.MatchString(value) {
			return "projects/" + project + "/" + value
		}
	case []any:
		for i := range value {
			value[i] = Complete(project, value[i])
		}
	case map[string]any:
		for field := range value {
			if !slices.Contains([]string{"items", "labels", "description"}, field) { // items: metadata and tags
				value[field] = Complete(project, value[field])
			}
		}
	}
	return value
}

// resolve replaces the references in a body by URLs. A referenced resource must exist.
func (c *Compute) resolve(value any) (any, error) {
	switch value := value.(type) {
	case string:
		match := reference.FindStringSubmatch(value)
		if match == nil {
			return value, nil
		}
		r := c.Find(match[1])
		if r == nil {
			return nil, rest.NotFound("The resource '%s' was not found", match[1])
		}
		return r.Link(), nil
	case []any:
		for i := range value {
			var err error
			if value[i], err = c.resolve(value[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for field := range value {
			if field == "items" || field == "region" || field == "zone" { // metadata and tags; the scope
				continue
			}
			var err error
			if value[field], err = c.resolve(value[field]); err != nil {
				return nil, err
			}
		}
	}
	return value, nil
}

// addReferring adds a type of resource that refers to other resources. Such a resource can be made only if the other
// resources exist. It cannot be deleted while another resource refers to it.
func (c *Compute) addReferring(k Kind) {
	check, removing := k.Check, k.Removing
	k.Check = func(call *rest.Call, r *Resource, old map[string]any) error {
		delete(r.Body, "region")
		delete(r.Body, "zone")
		if _, err := c.resolve(r.Body); err != nil {
			return err
		}
		if check == nil {
			return nil
		}
		return check(call, r, old)
	}
	k.Removing = func(r *Resource) error {
		for _, path := range slices.Sorted(maps.Keys(c.resources)) {
			if other := c.resources[path]; other != r && refers(other.Body, r.Link()) {
				return &rest.Error{Code: http.StatusBadRequest, Reason: "resourceInUseByAnotherResource",
					Message: "The " + k.Type + " resource '" + r.Path + "' is already being used by '" + path + "'"}
			}
		}
		if removing == nil {
			return nil
		}
		return removing(r)
	}
	c.Add(k)
}

// refers reports whether a body contains the URL of a resource.
func refers(value any, link string) bool {
	switch value := value.(type) {
	case string:
		return value == link
	case []any:
		return slices.ContainsFunc(value, func(v any) bool { return refers(v, link) })
	case map[string]any:
		for field, v := range value {
			if field != "items" && refers(v, link) { // not metadata
				return true
			}
		}
	}
	return false
}

// setDefaults sets the fields that a body lacks.
func setDefaults(body map[string]any, defaults map[string]any) {
	for field, value := range defaults {
		if body[field] == nil {
			body[field] = value
		}
	}
}

// addNetworks adds networks, subnetworks, routers and firewall rules.
func (c *Compute) addNetworks() {
	c.addReferring(Kind{Collection: "networks", Type: "network", Methods: []string{"insert", "get", "list", "delete",
		"patch"}, Check: func(_ *rest.Call, r *Resource, _ map[string]any) error {
		setDefaults(r.Body, map[string]any{"autoCreateSubnetworks": true, "mtu": 1460,
			"networkFirewallPolicyEnforcementOrder": "AFTER_CLASSIC_FIREWALL",
			"routingConfig":                         map[string]any{"routingMode": "REGIONAL"}})
		return nil
	}})
	subnets := Kind{Collection: "subnetworks", Type: "subnetwork", Methods: []string{"insert", "get", "list", "delete",
		"patch"}, Check: c.checkSubnet}
	c.addReferring(subnets)
	c.Handle("compute.subnetworks.setPrivateIpGoogleAccess", func(call *rest.Call) (any, error) {
		r, err := c.Target(call, subnets)
		if err != nil {
			return nil, err
		}
		return c.Start(call.Method, r, func() error {
			r.Body["privateIpGoogleAccess"] = call.Body["privateIpGoogleAccess"]
			return nil
		}, nil), nil
	})
	c.addReferring(Kind{Collection: "routers", Type: "router", Methods: []string{"insert", "get", "list", "delete",
		"patch"}, Check: func(_ *rest.Call, r *Resource, _ map[string]any) error {
		for _, nat := range Objects(r.Body["nats"]) {
			setDefaults(nat, map[string]any{"endpointTypes": []any{"ENDPOINT_TYPE_VM"}, "type": "PUBLIC",
				"enableEndpointIndependentMapping": false})
		}
		return nil
	}})
	c.addReferring(Kind{Collection: "firewalls", Type: "firewall", Methods: []string{"insert", "get", "list", "delete",
		"patch", "update"}, Check: func(_ *rest.Call, r *Resource, _ map[string]any) error {
		if len(Objects(r.Body["allowed"])) == 0 && len(Objects(r.Body["denied"])) == 0 {
			return Invalid("Invalid value for field 'resource': a firewall rule needs allowed or denied.")
		}
		setDefaults(r.Body, map[string]any{"direction": "INGRESS", "priority": 1000, "disabled": false,
			"logConfig": map[string]any{"enable": false}})
		return nil
	}})
}

// checkSubnet checks that the ranges of a subnet overlap no range of another subnet in the same network.
func (c *Compute) checkSubnet(_ *rest.Call, r *Resource, _ map[string]any) error {
	ranges := func(body map[string]any) (out []netip.Prefix, err error) {
		texts := []string{rest.Text(body, "ipCidrRange")}
		for _, secondary := range Objects(body["secondaryIpRanges"]) {
			texts = append(texts, rest.Text(secondary, "ipCidrRange"))
		}
		for _, text := range texts {
			p, err := netip.ParsePrefix(text)
			if err != nil || p != p.Masked() || p.Bits() > 29 {
				return nil, Invalid("Invalid value for field 'resource.ipCidrRange': '%s'. ", text)
			}
			out = append(out, p)
		}
		return out, nil
	}
	mine, err := ranges(r.Body)
	if err != nil {
		return err
	}
	taken := []netip.Prefix{}
	for _, p := range mine {
		if slices.ContainsFunc(taken, p.Overlaps) {
			return Invalid("Invalid IPCidrRange: %s conflicts with another range of the subnetwork.", p)
		}
		taken = append(taken, p)
	}
	for _, other := range c.All("", "subnetworks") {
		theirs, err := ranges(other.Body)
		if other.Path == r.Path || other.Body["network"] != r.Body["network"] || err != nil {
			continue
		}
		for _, p := range mine {
			if slices.ContainsFunc(theirs, p.Overlaps) {
				return Invalid("Invalid IPCidrRange: %s conflicts with existing subnetwork '%s' in region.", p,
					other.Name())
			}
		}
	}
	setDefaults(r.Body, map[string]any{"purpose": "PRIVATE", "stackType": "IPV4_ONLY", "privateIpGoogleAccess": false,
		"privateIpv6GoogleAccess": "DISABLE_GOOGLE_ACCESS", "gatewayAddress": mine[0].Addr().Next().String()})
	delete(r.Body, "fingerprint")
	r.Body["fingerprint"] = Fingerprint(r.Body)
	return nil
}

// addBalancers adds health checks, backend services, addresses and forwarding rules.
func (c *Compute) addBalancers() {
	for _, api := range []string{"healthChecks", "regionHealthChecks"} {
		c.addReferring(Kind{Collection: "healthChecks", API: api, Type: "healthCheck",
			Methods: []string{"insert", "get", "list", "delete", "update", "patch"},
			Check: func(_ *rest.Call, r *Resource, _ map[string]any) error {
				setDefaults(r.Body, map[string]any{"checkIntervalSec": 5, "timeoutSec": 5, "healthyThreshold": 2,
					"unhealthyThreshold": 2})
				return nil
			}})
	}
	services := Kind{Collection: "backendServices", API: "regionBackendServices", Type: "backendService",
		Methods: []string{"insert", "get", "list", "delete", "update", "patch"},
		Check: func(_ *rest.Call, r *Resource, _ map[string]any) error {
			setDefaults(r.Body, map[string]any{"sessionAffinity": "NONE", "timeoutSec": 30, "port": 80,
				"portName": "http"})
			for _, backend := range Objects(r.Body["backends"]) {
				setDefaults(backend, map[string]any{"balancingMode": "CONNECTION"})
			}
			delete(r.Body, "fingerprint")
			r.Body["fingerprint"] = Fingerprint(r.Body)
			return nil
		}}
	c.addReferring(services)
	c.Handle("compute.regionBackendServices.getHealth", func(call *rest.Call) (any, error) {
		return c.backendHealth(call, services)
	})
	c.addReferring(Kind{Collection: "addresses", Type: "address", Methods: []string{"insert", "get", "list", "delete",
		"setLabels"}, Check: c.checkAddress})
	c.addReferring(Kind{Collection: "forwardingRules", Type: "forwardingRule",
		Methods: []string{"insert", "get", "list", "delete", "patch", "setLabels"},
		Check: func(_ *rest.Call, r *Resource, _ map[string]any) error {
			if a := c.Find(rest.Text(r.Body, "IPAddress")); a != nil {
				r.Body["IPAddress"] = a.Body["address"]
			}
			setDefaults(r.Body, map[string]any{"loadBalancingScheme": "EXTERNAL", "networkTier": "PREMIUM",
				"IPProtocol": "TCP"})
			delete(r.Body, "fingerprint")
			r.Body["fingerprint"] = Fingerprint(r.Body)
			return nil
		}})
}

// backendHealth returns the health of the members of one group of a backend service. It lists each member once per
// forwarding rule of the service. Without a forwarding rule, there are no health checks.
// https://cloud.google.com/compute/docs/reference/rest/v1/regionBackendServices/getHealth
func (c *Compute) backendHealth(call *rest.Call, services Kind) (any, error) {
	service, err := c.Target(call, services)
	if err != nil {
		return nil, err
	}
	group := c.Find(rest.Text(call.Body, "group"))
	if group == nil || !refers(service.Body["backends"], group.Link()) {
		return nil, Invalid("Invalid value for field 'group': '%s'. It is no backend of '%s'.",
			rest.Text(call.Body, "group"), service.Path)
	}
	statuses := []any{}
	for _, rule := range c.All("", "forwardingRules") {
		if rest.Text(rule.Body, "backendService") != service.Link() {
			continue
		}
		for _, link := range group.members {
			i := c.Find(link)
			if i == nil {
				continue
			}
			state, view, address := "UNHEALTHY", c.machineView(i), rest.Text(rule.Body, "IPAddress")
			if i.Body["status"] == running && (c.Healthy == nil || c.Healthy(view, address)) {
				state = "HEALTHY"
			}
			statuses = append(statuses, map[string]any{"instance": link, "healthState": state,
				"ipAddress": rest.Text(view.Interface(), "networkIP"), "forwardingRule": rule.Link(),
				"forwardingRuleIp": address})
		}
	}
	return map[string]any{"kind": "compute#backendServiceGroupHealth", "healthStatus": statuses}, nil
}

// checkAddress sets the defaults of a new address, and chooses the IP address if the request names none.
func (c *Compute) checkAddress(_ *rest.Call, r *Resource, _ map[string]any) error {
	setDefaults(r.Body, map[string]any{"addressType": "EXTERNAL", "status": "RESERVED", "networkTier": "PREMIUM"})
	if rest.Text(r.Body, "address") != "" {
		return nil
	}
	if r.Body["addressType"] == "EXTERNAL" {
		r.Body["address"] = fmt.Sprintf("198.51.100.%d", 1+len(c.All("", "addresses"))%250)
		return nil
	}
	subnet := c.Find(rest.Text(r.Body, "subnetwork"))
	if subnet == nil {
		return Invalid("Invalid value for field 'resource.subnetwork': ''. An internal address needs a subnetwork.")
	}
	prefix, err := netip.ParsePrefix(rest.Text(subnet.Body, "ipCidrRange"))
	if err != nil {
		return err
	}
	inUse := c.addresses(nil)
	for _, other := range c.All(strings.TrimSuffix(r.Path, r.Name()), "addresses") {
		if addr, err := netip.ParseAddr(rest.Text(other.Body, "address")); err == nil {
			inUse[addr] = other.Name()
		}
	}
	for addr := add(prefix.Addr(), 200); prefix.Contains(addr); addr = addr.Next() {
		if _, taken := inUse[addr]; !taken {
			r.Body["address"] = addr.String()
			return nil
		}
	}
	return Invalid("IP space of '%s' is exhausted.", subnet.Path)
}
