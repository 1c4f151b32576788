package fakegcp

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/compute"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/credentials"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

// need is a permission that a call needs.
type need struct {
	permission string
	policy.Attributes

	of *policy.Policy // of the resource, besides that of the project
}

// authorize checks the permissions that a call needs from its service account. It denies a method whose permissions the
// fake does not know.
func (c *Cloud) authorize(call *rest.Call) (checks []rest.Check) {
	if call.Identity == credentials.Account {
		return nil
	}
	needs := c.needs(call)
	if len(needs) == 0 {
		return []rest.Check{{Permission: "of " + call.Method}}
	}
	for _, n := range needs {
		checks = append(checks, rest.Check{Permission: n.permission, Resource: n.Name,
			Allowed: slices.ContainsFunc(c.IAM.Members(call.Identity), func(member string) bool {
				return c.IAM.Allows(member, n.permission, n.Attributes, n.of)
			})})
	}
	return checks
}

// needs returns the permissions that a call needs. The reference of each API lists them.
func (c *Cloud) needs(call *rest.Call) []need {
	service, method, _ := strings.Cut(call.Method, ".")
	switch service {
	case "storage":
		return c.storageNeeds(call, method)
	case "secretmanager":
		return c.secretNeeds(call, method)
	case "iamcredentials":
		_, email, _ := strings.Cut(call.Params["name"], "/serviceAccounts/")
		return []need{{"iam.serviceAccounts.getAccessToken", policy.Attributes{Name: call.Params["name"],
			Type: "iam.googleapis.com/ServiceAccount"}, c.IAM.PolicyOf(email)}}
	case "compute":
		compute.Complete(Project, call.Body)
		return c.computeNeeds(call)
	}
	return nil
}

// storageNeeds returns the permissions for calls about objects.
// https://cloud.google.com/storage/docs/access-control/iam-json
func (c *Cloud) storageNeeds(call *rest.Call, method string) []need {
	bucket, name := call.Params["bucket"], cmp.Or(call.Params["object"], call.Query.Get("name"))
	path, of := "projects/_/buckets/"+bucket, c.Storage.PolicyOf(bucket)
	object := policy.Attributes{Name: path + "/objects/" + name, Type: "storage.googleapis.com/Object"}
	switch method {
	case "objects.get":
		return []need{{"storage.objects.get", object, of}}
	case "objects.delete":
		return []need{{"storage.objects.delete", object, of}}
	case "objects.insert":
		if name == "" {
			object.Name += rest.Text(call.Body, "name")
		}
		needs := []need{{"storage.objects.create", object, of}}
		if c.Storage.Has(bucket, cmp.Or(name, rest.Text(call.Body, "name"))) {
			needs = append(needs, need{"storage.objects.delete", object, of})
		}
		return needs
	case "objects.list":
		return []need{{"storage.objects.list", policy.Attributes{Name: path, Type: "storage.googleapis.com/Bucket",
			API: map[string]string{"storage.googleapis.com/objectListPrefix": call.Query.Get("prefix")}}, of}}
	}
	return nil
}

// secretNeeds returns the permissions for calls about secrets. In IAM conditions, resource names contain the project's
// number, not its ID.
// https://cloud.google.com/secret-manager/docs/access-control
func (c *Cloud) secretNeeds(call *rest.Call, method string) []need {
	name := cmp.Or(call.Params["name"], call.Params["parent"])
	secret, _, _ := strings.Cut(name, "/versions/")
	of := c.Secrets.PolicyOf(secret)
	numbered := strings.Replace(name, "projects/"+Project, "projects/"+Number, 1)
	on := policy.Attributes{Name: numbered, Type: "secretmanager.googleapis.com/Secret"}
	switch method {
	case "projects.secrets.create":
		return []need{{"secretmanager.secrets.create", policy.Attributes{Name: numbered,
			Type: "cloudresourcemanager.googleapis.com/Project"}, nil}}
	case "projects.secrets.get":
		return []need{{"secretmanager.secrets.get", on, of}}
	case "projects.secrets.delete":
		return []need{{"secretmanager.secrets.delete", on, of}}
	case "projects.secrets.addVersion":
		return []need{{"secretmanager.versions.add", on, of}}
	case "projects.secrets.versions.access":
		on.Type = "secretmanager.googleapis.com/SecretVersion"
		return []need{{"secretmanager.versions.access", on, of}}
	}
	return nil
}

// computeTypes maps the name of a collection to the resource type for IAM conditions.
// https://cloud.google.com/iam/docs/conditions-resource-attributes
var computeTypes = map[string]string{"instances": "compute.googleapis.com/Instance",
	"disks": "compute.googleapis.com/Disk", "images": "compute.googleapis.com/Image",
	"snapshots": "compute.googleapis.com/Snapshot"}

// on returns a need for the given permission on one Compute Engine resource. link is the resource's URL or path.
func on(permission, link string) need {
	if i := strings.Index(link, "projects/"); i > 0 {
		link = link[i:]
	}
	parts := strings.Split(link, "/")
	return need{permission: permission, Attributes: policy.Attributes{Name: link,
		Type: computeTypes[parts[max(0, len(parts)-2)]]}}
}

// simple maps each method that needs only one permission to that permission. The method needs it on the resource in its
// path. An empty entry means the permission with the method's name.
var simple = map[string]string{"compute.instances.get": "", "compute.instances.list": "",
	"compute.instances.delete": "", "compute.instances.getSerialPortOutput": "", "compute.images.list": "",
	"compute.instances.stop": "", "compute.instances.suspend": "", "compute.instances.start": "",
	"compute.instances.resume": "",
	"compute.subnetworks.get":  "", "compute.machineTypes.get": "", "compute.zoneOperations.list": "",
	"compute.zoneOperations.wait": "compute.zoneOperations.get", "compute.zoneOperations.get": "",
	"compute.instanceGroups.listInstances":    "compute.instanceGroups.list",
	"compute.regionBackendServices.getHealth": "compute.regionBackendServices.get",
	"compute.regionBackendServices.get":       ""}

// computeNeeds returns the permissions for calls of Compute Engine, from the section IAM Permissions of each method in
// https://cloud.google.com/compute/docs/reference/rest/v1.
func (c *Cloud) computeNeeds(call *rest.Call) []need {
	collection := strings.Split(call.Method, ".")[1]
	path := compute.Scope(call) + "/" + collection
	for _, name := range []string{"instance", "instanceGroup", "subnetwork", "machineType", "operation",
		"backendService"} {
		if call.Params[name] != "" {
			path += "/" + call.Params[name]
		}
	}
	if permission, ok := simple[call.Method]; ok {
		return []need{on(cmp.Or(permission, call.Method), path)}
	}
	switch call.Method {
	case "compute.instances.insert":
		return c.insertNeeds(call, path+"/"+rest.Text(call.Body, "name"))
	case "compute.instances.bulkInsert":
		var needs []need
		for _, body := range compute.BulkBodies(call) {
			one := *call
			one.Body = body
			needs = append(needs, c.insertNeeds(&one, path+"/"+rest.Text(body, "name"))...)
		}
		return needs
	case "compute.instances.setMetadata":
		needs := []need{on(call.Method, path)}
		c.Compute.Do(func() {
			if r := c.Compute.Find(path); r != nil {
				needs = append(needs, c.actAs(r.Body)...)
			}
		})
		return needs
	case "compute.instances.updateNetworkInterface":
		needs := []need{on(call.Method, path)}
		c.Compute.Do(func() {
			if r := c.Compute.Find(path); r != nil {
				for _, nic := range compute.Objects(r.Body["networkInterfaces"]) {
					needs = append(needs, on("compute.subnetworks.use", rest.Text(nic, "subnetwork")))
				}
			}
		})
		return needs
	case "compute.instanceGroups.addInstances", "compute.instanceGroups.removeInstances":
		needs := []need{on("compute.instanceGroups.update", path)}
		for _, reference := range compute.Objects(call.Body["instances"]) {
			needs = append(needs, on("compute.instances.use", rest.Text(reference, "instance")))
		}
		return needs
	}
	return nil
}

// fieldNeeds maps fields of a new instance to the permission on the instance that the caller needs if they are set. The
// permissions are those of "Required permissions" in
// https://cloud.google.com/compute/docs/instances/create-start-instance, of the descriptions of the fields in
// https://cloud.google.com/compute/docs/reference/rest/v1/instances/insert, and of the methods that change the fields
// later.
var fieldNeeds = map[string]string{
	"deletionProtection":         "compute.instances.setDeletionProtection",
	"labels":                     "compute.instances.setLabels",
	"metadata":                   "compute.instances.setMetadata",
	"params.resourceManagerTags": "compute.instances.createTagBinding",
	"resourcePolicies":           "compute.instances.addResourcePolicies",
	"serviceAccounts":            "compute.instances.setServiceAccount",
	"tags":                       "compute.instances.setTags",
}

// diskNeeds is like fieldNeeds for the fields of initializeParams. The permissions are on the new disk.
var diskNeeds = map[string]string{
	"labels":              "compute.disks.setLabels",
	"resourceManagerTags": "compute.disks.createTagBinding",
	"resourcePolicies":    "compute.disks.addResourcePolicies",
}

// named maps fields that name other resources to the permission on these resources.
var named = map[string]string{
	"sourceImage":        "compute.images.useReadOnly",
	"sourceSnapshot":     "compute.snapshots.useReadOnly",
	"sourceMachineImage": "compute.machineImages.useReadOnly",
	"storagePool":        "compute.storagePools.use",
	"resourcePolicies":   "compute.resourcePolicies.use",
}

// insertNeeds returns the permissions to create an instance with the labels, disks and other parts in the request.
func (c *Cloud) insertNeeds(call *rest.Call, path string) []need {
	needs := []need{on("compute.instances.create", path)}
	needs = append(needs, fields(call.Body, fieldNeeds, path)...)
	for i, disk := range compute.Objects(call.Body["disks"]) {
		params, _ := disk["initializeParams"].(map[string]any)
		if source := rest.Text(disk, "source"); source != "" {
			permission := "compute.disks.use"
			if disk["mode"] == "READ_ONLY" {
				permission = "compute.disks.useReadOnly"
			}
			needs = append(needs, on(permission, source))
		}
		if params == nil {
			continue
		}
		name := rest.Text(call.Body, "name")
		if i > 0 {
			name = cmp.Or(rest.Text(params, "diskName"), name+"-disk")
		}
		made := compute.Scope(call) + "/disks/" + name
		needs = append(needs, on("compute.disks.create", made))
		needs = append(needs, fields(params, diskNeeds, made)...)
	}
	for _, nic := range compute.Objects(call.Body["networkInterfaces"]) {
		needs = append(needs, on("compute.subnetworks.use", rest.Text(nic, "subnetwork")))
		external := slices.Concat(compute.Objects(nic["accessConfigs"]), compute.Objects(nic["ipv6AccessConfigs"]))
		if len(external) > 0 {
			needs = append(needs, on("compute.subnetworks.useExternalIp", rest.Text(nic, "subnetwork")))
		}
		for _, config := range external {
			if config["natIP"] != nil || config["externalIpv6"] != nil {
				needs = append(needs, on("compute.addresses.use", "projects/"+Project))
			}
		}
	}
	return slices.Concat(needs, c.actAs(call.Body))
}

// fields returns the permissions for those of the fields that are set in an object. "made" is the resource that is made
// from the object.
func fields(object map[string]any, known map[string]string, made string) (needs []need) {
	for field, permission := range known {
		var value any = object
		for _, name := range strings.Split(field, ".") {
			inner, _ := value.(map[string]any)
			value = inner[name]
		}
		if value != nil && value != false {
			needs = append(needs, on(permission, made))
		}
	}
	for field, permission := range named {
		links, _ := object[field].([]any)
		if link := rest.Text(object, field); link != "" {
			links = append(links, link)
		}
		for _, link := range links {
			needs = append(needs, on(permission, fmt.Sprint(link)))
		}
	}
	for _, value := range tagValues(object) {
		needs = append(needs, on("resourcemanager.tagValueBindings.create", value))
	}
	return needs
}

// tagValues returns the tag values that an object binds to the new resource.
func tagValues(object map[string]any) (values []string) {
	params, _ := object["params"].(map[string]any)
	for _, in := range []map[string]any{object, params} {
		tags, _ := in["resourceManagerTags"].(map[string]any)
		for _, value := range tags {
			values = append(values, fmt.Sprint(value))
		}
	}
	return values
}

// actAs returns the permissions to use the service accounts that a request for an instance contains.
func (c *Cloud) actAs(body map[string]any) (needs []need) {
	for _, account := range compute.Objects(body["serviceAccounts"]) {
		email := rest.Text(account, "email")
		needs = append(needs, need{"iam.serviceAccounts.actAs", policy.Attributes{
			Name: "projects/" + Project + "/serviceAccounts/" + email, Type: "iam.googleapis.com/ServiceAccount"},
			c.IAM.PolicyOf(email)})
	}
	return needs
}
