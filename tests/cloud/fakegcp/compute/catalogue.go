package compute

import (
	"net/http"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

// machineTypes are the machine types that [Compute.AddZone] adds to a zone. The two numbers are CPUs and memory in MB.
var machineTypes = map[string][2]int{"e2-micro": {2, 1024}, "e2-small": {2, 2048}, "e2-medium": {2, 4096},
	"e2-standard-2": {2, 8192}, "n2-standard-2": {2, 8192}, "t2a-standard-1": {1, 4096}}

// addCatalogue adds what every project can use: zones, machine types and images.
func (c *Compute) addCatalogue() {
	for _, k := range []Kind{{Collection: "zones", Type: "zone"}, {Collection: "regions", Type: "region"}} {
		k.Methods = []string{"list"}
		c.Add(k)
		c.Handle("compute."+k.Collection+".get", func(call *rest.Call) (any, error) {
			path := "projects/" + call.Params["project"] + "/" + k.Collection + "/" + call.Params[k.Type]
			if r := c.Find(path); r != nil {
				return c.describe(r), nil
			}
			return nil, rest.NotFound("The resource '%s' was not found", path)
		})
	}
	c.Add(Kind{Collection: "machineTypes", Type: "machineType", Methods: []string{"get", "list"}})
	c.Add(Kind{Collection: "images", Type: "image", Methods: []string{"get", "list", "delete"}})
	c.Handle("compute.images.getFromFamily", func(call *rest.Call) (any, error) {
		path := Scope(call) + "/images/family/" + call.Params["family"]
		if r := c.findImage(path); r != nil {
			return c.describe(r), nil
		}
		return nil, rest.NotFound("The resource '%s' was not found", path)
	})
}

// AddZone adds a zone of a project, such as us-central1-a, with its region and machine types.
func (c *Compute) AddZone(project, zone string) {
	c.Do(func() {
		path := "projects/" + project + "/zones/" + zone
		region := zone[:strings.LastIndexByte(zone, '-')]
		regionPath := "projects/" + project + "/regions/" + region
		if c.Find(regionPath) == nil {
			c.Put(regionPath, map[string]any{"status": "UP"})
		}
		c.Put(path, map[string]any{"status": "UP", "region": base + regionPath})
		for name, size := range machineTypes {
			c.Put(path+"/machineTypes/"+name, map[string]any{"guestCpus": size[0], "memoryMb": size[1]})
		}
	})
}

// AddImage adds an image of a project. Its family may be empty.
func (c *Compute) AddImage(project, name, family string) {
	c.Do(func() {
		body := map[string]any{"status": "READY", "diskSizeGb": "10", "architecture": "X86_64"}
		if family != "" {
			body["family"] = family
		}
		c.Put("projects/"+project+"/global/images/"+name, body)
	})
}

// findImage returns the image with a URL or path. For the URL or path of a family, it returns the newest image that is
// not deprecated.
func (c *Compute) findImage(link string) *Resource {
	scope, family, isFamily := strings.Cut(link, "/images/family/")
	if !isFamily {
		if r := c.Find(link); r != nil && r.Collection == "images" {
			return r
		}
		return nil
	}
	if i := strings.Index(scope, "projects/"); i > 0 {
		scope = scope[i:]
	}
	found := slices.DeleteFunc(c.All(scope+"/", "images"), func(r *Resource) bool {
		return rest.Text(r.Body, "family") != family || rest.Text(r.Body, "deprecated", "state") != ""
	})
	if len(found) == 0 {
		return nil
	}
	return slices.MaxFunc(found, func(a, b *Resource) int {
		if order := a.Created.Compare(b.Created); order != 0 {
			return order
		}
		return int(a.ID) - int(b.ID)
	})
}

// addGroups adds unmanaged instance groups.
func (c *Compute) addGroups() {
	k := Kind{Collection: "instanceGroups", Type: "instanceGroup", Methods: []string{"insert", "get", "list", "delete"}}
	k.Check = func(_ *rest.Call, r *Resource, _ map[string]any) error {
		r.Body["size"], r.Body["fingerprint"] = 0, Fingerprint(r.Path)
		return nil
	}
	c.Add(k)
	c.Handle("compute.instanceGroups.setNamedPorts", func(call *rest.Call) (any, error) {
		r, err := c.Target(call, k)
		if err != nil {
			return nil, err
		}
		ports := clone(call.Body["namedPorts"])
		return c.Start(call.Method, r, func() error { r.Body["namedPorts"] = ports; return nil }, nil), nil
	})
	c.Handle("compute.instanceGroups.listInstances", func(call *rest.Call) (any, error) {
		r, err := c.Target(call, k)
		if err != nil {
			return nil, err
		}
		var items []map[string]any
		for _, link := range r.members {
			if i := c.Find(link); i != nil && (rest.Text(call.Body, "instanceState") != "RUNNING" ||
				i.Body["status"] == running) {
				items = append(items, map[string]any{"instance": link, "status": i.Body["status"]})
			}
		}
		return c.Page(call, "compute#instanceGroupsListInstances", items)
	})
	c.Handle("compute.instanceGroups.addInstances", c.changeMembers(k, true))
	c.Handle("compute.instanceGroups.removeInstances", c.changeMembers(k, false))
}

// changeMembers returns the handler of addInstances or removeInstances.
func (c *Compute) changeMembers(k Kind, adding bool) rest.Handler {
	return func(call *rest.Call) (any, error) {
		group, err := c.Target(call, k)
		if err != nil {
			return nil, err
		}
		var links []string
		for _, reference := range Objects(call.Body["instances"]) {
			r := c.Find(rest.Text(reference, "instance"))
			if r == nil || r.Collection != "instances" || r.scope() != group.scope() {
				return nil, rest.NotFound("The resource '%s' was not found", rest.Text(reference, "instance"))
			}
			member := slices.Contains(group.members, r.Link())
			switch {
			case adding && r.Body["status"] == stopping:
				return nil, &rest.Error{Code: http.StatusBadRequest, Reason: "resourceNotReady",
					Message: "The resource '" + r.Path + "' is not ready"}
			case adding && member:
				return nil, &rest.Error{Code: http.StatusBadRequest, Reason: "memberAlreadyExists",
					Message: "Resource '" + r.Path + "' is already a member of '" + group.Path + "'."}
			case !adding && !member:
				return nil, &rest.Error{Code: http.StatusBadRequest, Reason: "memberNotFound",
					Message: "Resource '" + r.Path + "' is not a member of '" + group.Path + "'."}
			}
			links = append(links, r.Link())
		}
		return c.Start(call.Method, group, func() error {
			for _, link := range links {
				removeMember(group, link)
				if r := c.Find(link); r != nil && adding {
					group.members = append(group.members, link)
				}
			}
			group.Body["size"] = len(group.members)
			return nil
		}, nil), nil
	}
}

// removeMember removes an instance from a group.
func removeMember(group *Resource, link string) {
	group.members = slices.DeleteFunc(group.members, func(l string) bool { return l == link })
	group.Body["size"] = len(group.members)
}
