package compute

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

// maxBulk is the largest number of instances that one zonal bulkInsert may make.
// https://cloud.google.com/compute/docs/instances/multiple/about-bulk-creation
const maxBulk = 1000

// bulk is the operation of a bulkInsert. All its inserts have the same group.
type bulk struct {
	group   string
	inserts []*Operation
	count   int
}

// bulkInsert makes instances whose names the request lists. Each is made by an insert operation of its own. If fewer
// than minCount inserts succeed, all instances are deleted again.
// https://cloud.google.com/compute/docs/reference/rest/v1/instances/bulkInsert
func (c *Compute) bulkInsert(call *rest.Call) (any, error) {
	names, _ := call.Body["perInstanceProperties"].(map[string]any)
	count, err := strconv.Atoi(rest.Text(call.Body, "count"))
	switch {
	case err != nil || count < 1 || count > maxBulk:
		return nil, Invalid("Invalid value for field 'resource.count': '%s'. Must be from 1 to %d.",
			rest.Text(call.Body, "count"), maxBulk)
	case (call.Body["namePattern"] != nil) == (len(names) > 0):
		return nil, Invalid("Exactly one of namePattern and perInstanceProperties must be specified.")
	case call.Body["namePattern"] != nil:
		return nil, Invalid("The fake does not know name patterns.")
	case len(names) != count:
		return nil, Invalid("The size of perInstanceProperties %d must be equal to count %d.", len(names), count)
	}
	minCount := count
	if text := rest.Text(call.Body, "minCount"); text != "" {
		if minCount, err = strconv.Atoi(text); err != nil || minCount < 1 || minCount > count {
			return nil, Invalid("Invalid value for field 'resource.minCount': '%s'.", text)
		}
	}
	target := &Resource{Path: Scope(call) + "/instances/bulk", Collection: "instances"}
	if link := rest.Text(call.Body, "instanceProperties", "machineType"); strings.Contains(link, "/") {
		return c.Start(call.Method, target, func() error {
			return &Failure{"INTERNAL_ERROR", "Internal error. Please try again or contact Google Support.",
				http.StatusInternalServerError}
		}, nil), nil
	}
	bodies := BulkBodies(call)
	for _, body := range bodies { // no instance is made if one of them is refused
		if err := c.checkBulk(call, body); err != nil {
			return nil, err
		}
	}
	return c.startBulk(call, target, bodies, minCount), nil
}

func (c *Compute) checkBulk(call *rest.Call, body map[string]any) error {
	name := rest.Text(body, "name")
	if !resourceName.MatchString(name) {
		return Invalid("Invalid value for field 'resource.perInstanceProperties': '%s'.", name)
	}
	copied, _ := clone(body).(map[string]any)
	if err := checkLabels(copied); err != nil {
		return err
	}
	return c.checkInstance(call, &Resource{Path: Scope(call) + "/instances/" + name, Collection: "instances",
		Body: copied}, nil)
}

// startBulk starts the inserts of checked instances, and the operation that ends after them.
func (c *Compute) startBulk(call *rest.Call, target *Resource, bodies []map[string]any, minCount int) *Operation {
	c.lastID += 7919
	b := &bulk{group: fmt.Sprintf("group-%d", c.lastID), count: len(bodies)}
	due := c.Now()
	for _, body := range bodies {
		op, err := c.insert(c.kinds["instances"], &rest.Call{Method: "compute.instances.insert", Params: call.Params,
			Body: body})
		if err != nil { // the name is taken
			op = c.Start("compute.instances.insert", &Resource{Path: Scope(call) + "/instances/" +
				rest.Text(body, "name"), Collection: "instances"}, func() error {
				return &Failure{"RESOURCE_ALREADY_EXISTS", err.Error(), http.StatusConflict}
			}, nil)
		}
		op.user, op.group = call.Identity, b.group
		b.inserts = append(b.inserts, op)
		if op.due.After(due) {
			due = op.due
		}
	}
	op := c.Start(call.Method, target, func() error {
		made := slices.DeleteFunc(slices.Clone(b.inserts), func(op *Operation) bool { return op.failure != nil })
		if len(made) >= minCount {
			return nil
		}
		for _, op := range made {
			if r := op.target; c.resources[r.Path] == r {
				c.stopMachine(r)
				delete(c.resources, r.Path)
				c.kinds["instances"].Removed(r)
			}
		}
		return &Failure{"VM_MIN_COUNT_NOT_REACHED", fmt.Sprintf("Requested minimum count of %d VMs could not be "+
			"created.", minCount), http.StatusServiceUnavailable}
	}, nil)
	op.due = due.Add(c.Delay["bulkInsert"])
	op.group, op.bulk = b.group, b
	return op
}

// describe returns the progress of a bulkInsert in the form of the API.
func (b *bulk) describe() map[string]any {
	created, failed := 0, 0
	for _, op := range b.inserts {
		switch {
		case op.failure != nil:
			failed++
		case !op.ended.IsZero():
			created++
		}
	}
	scope := b.inserts[0].target.scope()
	return map[string]any{"perLocationStatus": map[string]any{scope[strings.Index(scope, "zones/"):]: map[string]any{
		"targetVmCount": b.count, "createdVmCount": created, "failedToCreateVmCount": failed}}}
}

// BulkBodies returns the bodies of the inserts that a bulkInsert makes, in the order of the names.
func BulkBodies(call *rest.Call) (bodies []map[string]any) {
	scope := Scope(call)
	region := scope[:strings.Index(scope, "/zones/")] + "/regions/"
	zone := call.Params["zone"]
	region += zone[:max(0, strings.LastIndexByte(zone, '-'))]
	names, _ := call.Body["perInstanceProperties"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		body, _ := clone(call.Body["instanceProperties"]).(map[string]any)
		if body == nil {
			body = map[string]any{}
		}
		body["name"] = name
		complete(body, map[string]string{"machineType": scope + "/machineTypes/", "diskType": scope + "/diskTypes/",
			"acceleratorType": scope + "/acceleratorTypes/", "source": scope + "/disks/",
			"resourcePolicies": region + "/resourcePolicies/"})
		if tags := body["resourceManagerTags"]; tags != nil {
			delete(body, "resourceManagerTags")
			body["params"] = map[string]any{"resourceManagerTags": tags}
		}
		if properties, _ := names[name].(map[string]any); properties["hostname"] != nil {
			body["hostname"] = properties["hostname"]
		}
		bodies = append(bodies, body)
	}
	return bodies
}

// complete adds prefixes to the names in some fields, in place. Fields that have URLs stay as they are.
func complete(value any, prefixes map[string]string) {
	long := func(field, name string) string {
		if prefix, ok := prefixes[field]; ok && !strings.Contains(name, "/") {
			return prefix + name
		}
		return name
	}
	switch value := value.(type) {
	case map[string]any:
		for field, inner := range value {
			switch inner := inner.(type) {
			case string:
				value[field] = long(field, inner)
			case []any:
				for i, element := range inner {
					if name, ok := element.(string); ok {
						inner[i] = long(field, name)
					}
				}
			}
			if field != "labels" && field != "metadata" {
				complete(inner, prefixes)
			}
		}
	case []any:
		for _, element := range value {
			complete(element, prefixes)
		}
	}
}
