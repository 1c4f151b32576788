package compute

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

// Statuses of instances. https://cloud.google.com/compute/docs/instances/instance-life-cycle
const (
	provisioning = "PROVISIONING"
	running      = "RUNNING"
	stopping     = "STOPPING"
	terminated   = "TERMINATED"
	suspending   = "SUSPENDING"
	suspended    = "SUSPENDED"
)

var instances = Kind{Collection: "instances", Type: "instance", Methods: []string{"insert", "get", "list", "delete",
	"setLabels"}}

func (c *Compute) addInstances() {
	k := instances
	k.Check, k.Created, k.Changed = c.checkInstance, c.boot, c.changedInstance
	k.Removing = func(r *Resource) error {
		if r.Body["deletionProtection"] == true {
			return &rest.Error{Code: http.StatusBadRequest, Reason: "resourceInUseByAnotherResource",
				Message: "Resource cannot be deleted if it's protected against deletion."}
		}
		r.Body["status"], r.removing = stopping, true
		c.stopMachine(r)
		return nil
	}
	k.Removed = func(r *Resource) {
		for _, group := range c.All(r.scope(), "instanceGroups") {
			removeMember(group, r.Link())
		}
		for _, disk := range Objects(r.Body["disks"]) {
			if disk["autoDelete"] == true {
				if d := c.Find(rest.Text(disk, "source")); d != nil {
					delete(c.resources, d.Path)
				}
			}
		}
	}
	c.Add(k)
	c.Add(Kind{Collection: "disks", Type: "disk", Methods: []string{"insert", "get", "list", "delete", "setLabels"}})
	c.Handle("compute.instances.setMetadata", c.setMetadata)
	c.Handle("compute.instances.updateNetworkInterface", c.updateInterface)
	c.Handle("compute.instances.bulkInsert", c.bulkInsert)
	c.addPower()
	c.Handle("compute.instances.getSerialPortOutput", c.serialPort)
}

// checkInstance checks a new instance. It also sets the fields that Compute Engine itself sets, such as external
// addresses.
func (c *Compute) checkInstance(call *rest.Call, r *Resource, _ map[string]any) error {
	body, scope := r.Body, r.scope()
	machineType := rest.Text(body, "machineType")
	if i := strings.LastIndexByte(machineType, '/'); i < 0 || c.Find(machineType) == nil ||
		!strings.HasPrefix(c.Find(machineType).Path, scope+"/machineTypes/") {
		return Invalid("Invalid value for field 'resource.machineType': '%s'. The referenced resource does not exist.",
			machineType)
	}
	body["machineType"] = c.Find(machineType).Link()
	if err := checkMetadata(body); err != nil {
		return err
	}
	if err := checkScheduling(body); err != nil {
		return err
	}
	if err := c.checkDisks(r); err != nil {
		return err
	}
	policies, _ := body["resourcePolicies"].([]any)
	for _, link := range policies {
		if c.Find(fmt.Sprint(link)) == nil {
			return Invalid("Invalid value for field 'resource.resourcePolicies': '%v'. The referenced resource policy "+
				"resource cannot be found.", link)
		}
	}
	if accounts := Objects(body["serviceAccounts"]); len(accounts) > 1 {
		return Invalid("Invalid value for field 'resource.serviceAccounts': at most one service account is supported")
	}
	interfaces := Objects(body["networkInterfaces"])
	if len(interfaces) == 0 {
		return Invalid("Invalid value for field 'resource.networkInterfaces': ''. At least one network interface is " +
			"required.")
	}
	for i, nic := range interfaces {
		subnet := c.Find(rest.Text(nic, "subnetwork"))
		if subnet == nil || subnet.Collection != "subnetworks" {
			return Invalid("Invalid value for field 'resource.networkInterfaces[%d].subnetwork': '%s'. The referenced "+
				"subnetwork resource cannot be found.", i, rest.Text(nic, "subnetwork"))
		}
		if zone := scope[strings.LastIndexByte(scope, '/')+1:]; zone[:strings.LastIndexByte(zone, '-')] !=
			subnet.scope()[strings.LastIndexByte(subnet.scope(), '/')+1:] {
			return Invalid("Invalid value for field 'resource.networkInterfaces[%d].subnetwork': '%s'. Subnetwork "+
				"must be in the same region as the instance.", i, subnet.Link())
		}
		nic["name"], nic["subnetwork"] = fmt.Sprintf("nic%d", i), subnet.Link()
		if network := rest.Text(subnet.Body, "network"); network != "" {
			nic["network"] = network
		}
		nic["kind"], nic["stackType"] = "compute#networkInterface", "IPV4_ONLY"
		for n, config := range Objects(nic["accessConfigs"]) {
			config["kind"], config["natIP"] = "compute#accessConfig", fmt.Sprintf("203.0.113.%d", 1+(len(c.ops)+n)%250)
			config["name"], config["type"] = "external-nat", "ONE_TO_ONE_NAT"
		}
		sign(nic)
	}
	body["status"] = provisioning
	return nil
}

// sign sets the fingerprint of an interface.
func sign(nic map[string]any) {
	delete(nic, "fingerprint")
	nic["fingerprint"] = Fingerprint(nic)
}

// Objects returns the objects in a JSON array.
func Objects(list any) (out []map[string]any) {
	elements, _ := list.([]any)
	for _, element := range elements {
		if object, ok := element.(map[string]any); ok {
			out = append(out, object)
		}
	}
	return out
}

var metadataKey = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,128}$`)

// checkMetadata checks the metadata in a body and sets its fingerprint.
// https://cloud.google.com/compute/docs/metadata/setting-custom-metadata#limitations
func checkMetadata(body map[string]any) error {
	metadata, _ := body["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
		body["metadata"] = metadata
	}
	total, seen := 0, map[string]bool{}
	for _, item := range Objects(metadata["items"]) {
		key, value := rest.Text(item, "key"), rest.Text(item, "value")
		total += len(key) + len(value)
		switch {
		case !metadataKey.MatchString(key) || seen[key]:
			return Invalid("Invalid value for field 'resource.metadata.items.key': '%s'.", key)
		case len(value) > 256<<10:
			return Invalid("Value for field 'metadata.items[%s].value' is too large: maximum size 262144 character(s)",
				key)
		}
		seen[key] = true
	}
	if total > 512<<10 {
		return Invalid("Metadata has exceeded maximum size of 524288")
	}
	delete(metadata, "fingerprint")
	metadata["kind"], metadata["fingerprint"] = "compute#metadata", Fingerprint(metadata["items"])
	return nil
}

func checkScheduling(body map[string]any) error {
	scheduling, _ := body["scheduling"].(map[string]any)
	if scheduling == nil {
		scheduling = map[string]any{}
		body["scheduling"] = scheduling
	}
	spot := scheduling["provisioningModel"] == "SPOT"
	if scheduling["automaticRestart"] == nil {
		scheduling["automaticRestart"] = !spot
	}
	switch {
	case spot && scheduling["automaticRestart"] == true:
		return Invalid("Scheduling must have automaticRestart be false when SPOT is specified.")
	case scheduling["instanceTerminationAction"] != nil && !spot && scheduling["maxRunDuration"] == nil:
		return Invalid("You can specify an instance termination action only for Spot VMs or VMs with a limited run " +
			"time.")
	}
	return nil
}

// checkDisks checks the disks of a new instance. The boot disk is made from an image and is named after the instance.
func (c *Compute) checkDisks(r *Resource) error {
	disks := Objects(r.Body["disks"])
	if len(disks) == 0 || disks[0]["boot"] != true {
		return Invalid("Invalid value for field 'resource.disks': ''. At least one boot disk must be specified.")
	}
	for i, disk := range disks {
		params, _ := disk["initializeParams"].(map[string]any)
		if image := rest.Text(params, "sourceImage"); params != nil {
			if err := c.checkSources(i, params); err != nil {
				return err
			}
			if c.findImage(image) == nil && image != "" || i == 0 && image == "" && params["sourceSnapshot"] == nil {
				return Invalid("Invalid value for field 'resource.disks[%d].initializeParams.sourceImage': '%s'. The "+
					"referenced image resource cannot be found.", i, image)
			}
		} else if c.Find(rest.Text(disk, "source")) == nil {
			return Invalid("Invalid value for field 'resource.disks[%d].source': '%s'. The referenced disk resource "+
				"cannot be found.", i, rest.Text(disk, "source"))
		}
		if key := rest.Text(disk, "diskEncryptionKey", "kmsKeyName"); key != "" {
			if err := c.useKey(key); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkSources checks the resources that the fields of a new disk name.
func (c *Compute) checkSources(disk int, params map[string]any) error {
	if params["sourceImage"] != nil && params["sourceSnapshot"] != nil {
		return Invalid("Invalid value for field 'resource.disks[%d].initializeParams': Only one source may be "+
			"specified.", disk)
	}
	policies, _ := params["resourcePolicies"].([]any)
	for field, links := range map[string][]any{"sourceSnapshot": {params["sourceSnapshot"]},
		"storagePool": {params["storagePool"]}, "resourcePolicies": policies} {
		for _, link := range links {
			if link != nil && c.Find(fmt.Sprint(link)) == nil {
				return Invalid("Invalid value for field 'resource.disks[%d].initializeParams.%s': '%v'. The "+
					"referenced resource cannot be found.", disk, field, link)
			}
		}
	}
	return nil
}

func (c *Compute) useKey(name string) error {
	if c.UseKey == nil {
		return Invalid("Invalid value for field 'resource.disks[0].diskEncryptionKey.kmsKeyName': '%s'.", name)
	}
	return c.UseKey(name)
}

// makeDisks makes the disks of an instance at the end of its insert.
func (c *Compute) makeDisks(r *Resource) {
	for i, disk := range Objects(r.Body["disks"]) {
		disk["kind"], disk["index"] = "compute#attachedDisk", i
		params, _ := disk["initializeParams"].(map[string]any)
		delete(disk, "initializeParams")
		if params == nil {
			continue
		}
		name := r.Name()
		if i > 0 {
			name = fmt.Sprintf("%s-%d", name, i)
		}
		body := map[string]any{"status": "READY", "users": []any{r.Link()}, "sizeGb": "10"}
		for from, to := range map[string]string{"sourceImage": "sourceImage", "diskSizeGb": "sizeGb",
			"diskType": "type", "labels": "labels"} {
			if params[from] != nil {
				body[to] = params[from]
			}
		}
		d := c.Put(r.scope()+"/disks/"+name, body)
		disk["source"] = d.Link()
	}
}

// assign gives an interface a free address of its subnet, and checks its alias addresses.
func (c *Compute) assign(r *Resource, nic map[string]any) error {
	subnet := c.Find(rest.Text(nic, "subnetwork"))
	if subnet == nil {
		return &Failure{Code: "RESOURCE_NOT_FOUND", Message: rest.Text(nic, "subnetwork")}
	}
	prefix, err := netip.ParsePrefix(rest.Text(subnet.Body, "ipCidrRange"))
	if err != nil {
		return err
	}
	inUse := c.addresses(nil)
	if ip := rest.Text(nic, "networkIP"); ip == "" {
		size := uint32(1) << (32 - prefix.Bits())
		for i := uint32(0); ; i++ { // The first two and the last two addresses are reserved.
			if i >= size-4 {
				return &Failure{Code: "IP_SPACE_EXHAUSTED_WITH_DETAILS", Message: "Instance '" + r.Name() +
					"' creation failed: IP space of '" + subnet.Path + "' is exhausted."}
			}
			addr := add(prefix.Masked().Addr(), 2+(c.lastIP[subnet.Path]+i)%(size-4))
			if _, taken := inUse[addr]; !taken {
				nic["networkIP"] = addr.String()
				c.lastIP[subnet.Path] += i + 1
				break
			}
		}
	}
	if err := c.checkAliases(r, nic, subnet); err != nil {
		return err
	}
	sign(nic)
	return nil
}

func add(addr netip.Addr, n uint32) netip.Addr {
	b := addr.As4()
	v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	v += n
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

// addresses maps the primary and alias addresses of instances to the instances' names. It includes stopped instances,
// but not the instance in the parameter except.
func (c *Compute) addresses(except *Resource) map[netip.Addr]string {
	used := map[netip.Addr]string{}
	for _, r := range c.All("", "instances") {
		if r == except {
			continue
		}
		for _, nic := range Objects(r.Body["networkInterfaces"]) {
			if addr, err := netip.ParseAddr(rest.Text(nic, "networkIP")); err == nil {
				used[addr] = r.Name()
			}
			for _, alias := range Objects(nic["aliasIpRanges"]) {
				if p, err := netip.ParsePrefix(rest.Text(alias, "ipCidrRange")); err == nil {
					used[p.Addr()] = r.Name()
				}
			}
		}
	}
	return used
}

// checkAliases checks that the alias ranges of an interface are in the subnet's ranges and free.
func (c *Compute) checkAliases(r *Resource, nic map[string]any, subnet *Resource) error {
	inUse := c.addresses(r)
	for _, alias := range Objects(nic["aliasIpRanges"]) {
		rangeText, name := rest.Text(subnet.Body, "ipCidrRange"), rest.Text(alias, "subnetworkRangeName")
		for _, secondary := range Objects(subnet.Body["secondaryIpRanges"]) {
			if name != "" && rest.Text(secondary, "rangeName") == name {
				rangeText, name = rest.Text(secondary, "ipCidrRange"), ""
			}
		}
		within, err := netip.ParsePrefix(rangeText)
		p, err2 := netip.ParsePrefix(rest.Text(alias, "ipCidrRange"))
		if err != nil || err2 != nil || name != "" || !within.Contains(p.Addr()) {
			return &Failure{Code: "INVALID_FIELD_VALUE", Message: "Invalid IP CIDR range '" +
				rest.Text(alias, "ipCidrRange") + "' for alias IP range of '" + subnet.Path + "'"}
		}
		if _, taken := inUse[p.Addr()]; taken {
			return &Failure{Code: "IP_IN_USE_BY_ANOTHER_RESOURCE", Message: "IP '" + p.Addr().String() +
				"' is already being used by another resource."}
		}
	}
	return nil
}

// updateInterface changes the alias ranges of an interface. Fields that the body does not name stay as they are.
func (c *Compute) updateInterface(call *rest.Call) (any, error) {
	r, err := c.Target(call, instances)
	if err != nil {
		return nil, err
	}
	nics := Objects(r.Body["networkInterfaces"])
	i := slices.IndexFunc(nics, func(nic map[string]any) bool {
		return rest.Text(nic, "name") == call.Query.Get("networkInterface")
	})
	given := rest.Text(call.Body, "fingerprint")
	switch {
	case i < 0:
		return nil, Invalid("Invalid value for field 'networkInterface': '%s'. Interface not found.",
			call.Query.Get("networkInterface"))
	case given == "":
		return nil, &rest.Error{Code: http.StatusBadRequest, Reason: "required",
			Message: "Required field 'resource.fingerprint' not specified"}
	case given != rest.Text(nics[i], "fingerprint"):
		return nil, Stale("fingerprint")
	}
	aliases, named := clone(call.Body["aliasIpRanges"]), call.Body["aliasIpRanges"] != nil
	return c.Start(call.Method, r, func() error {
		nic := nics[i]
		if named {
			next := map[string]any{"aliasIpRanges": aliases}
			if err := c.checkAliases(r, next, c.Find(rest.Text(nic, "subnetwork"))); err != nil {
				return err
			}
			if nic["aliasIpRanges"] = aliases; len(Objects(aliases)) == 0 {
				delete(nic, "aliasIpRanges")
			}
		}
		sign(nic)
		return c.changedInstance(r)
	}, nil), nil
}

func (c *Compute) setMetadata(call *rest.Call) (any, error) {
	r, err := c.Target(call, instances)
	if err != nil {
		return nil, err
	}
	metadata, _ := r.Body["metadata"].(map[string]any)
	if rest.Text(call.Body, "fingerprint") != rest.Text(metadata, "fingerprint") {
		return nil, Stale("fingerprint")
	}
	next := map[string]any{"metadata": clone(call.Body)}
	if err := checkMetadata(next); err != nil {
		return nil, err
	}
	return c.Start(call.Method, r, func() error {
		r.Body["metadata"] = next["metadata"]
		return c.changedInstance(r)
	}, nil), nil
}

// JSON parses a body for [Compute.Put].
func JSON(text string) (body map[string]any) {
	if err := json.Unmarshal([]byte(text), &body); err != nil {
		panic(err)
	}
	return body
}
