package compute

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

// managedInstance is one instance of a managed group: the name that the group chose for it, and its template. A repair
// keeps the name.
type managedInstance struct {
	name, template string
	began          time.Time
	leaving        bool
	insert         *Operation // runs, or has ended since the last pass
	failure        *Failure   // of the last insert
	retry          time.Time  // of the next insert after a failure
}

// managedRetry is the pause of a managed group after a failed insert. The pause of the real service grows.
const managedRetry = 2 * time.Second

var managers = Kind{Collection: "instanceGroupManagers", Type: "instanceGroupManager"}

// addManagedGroups adds regional instance templates and zonal managed instance groups.
func (c *Compute) addManagedGroups() {
	c.addReferring(Kind{Collection: "instanceTemplates", API: "regionInstanceTemplates", Type: "instanceTemplate",
		Methods: []string{"insert", "get", "list", "delete"},
		Check: func(_ *rest.Call, r *Resource, _ map[string]any) error {
			properties, _ := r.Body["properties"].(map[string]any)
			if len(Objects(properties["disks"])) == 0 || len(Objects(properties["networkInterfaces"])) == 0 {
				return Invalid("Invalid value for field 'resource.properties': needs disks and " +
					"network interfaces.")
			}
			for i, disk := range Objects(properties["disks"]) {
				disk["kind"], disk["index"] = "compute#attachedDisk", i
				setDefaults(disk, map[string]any{"deviceName": fmt.Sprintf("persistent-disk-%d", i)})
			}
			for i, nic := range Objects(properties["networkInterfaces"]) {
				nic["name"] = fmt.Sprintf("nic%d", i)
				if subnet := c.Find(rest.Text(nic, "subnetwork")); subnet != nil {
					nic["network"] = subnet.Body["network"]
				}
			}
			return checkMetadata(properties)
		}})
	k := managers
	k.Methods = []string{"insert", "get", "list", "delete", "patch"}
	k.Check = c.checkManager
	// The group's instances are deleted before the group.
	k.Removing = func(r *Resource) error {
		group := c.groupOf(r)
		for path, other := range c.resources {
			if other != r && other.Collection == "backendServices" && refers(other.Body, group.Link()) {
				return &rest.Error{Code: http.StatusBadRequest, Reason: "resourceInUseByAnotherResource",
					Message: "The instance_group_manager resource '" + r.Path + "' is already being used by '" +
						path + "'"}
			}
		}
		r.Body["targetSize"] = json.Number("0")
		return nil
	}
	k.Removed = func(r *Resource) {
		for _, m := range c.managed[r.Path] {
			if i := c.Find(r.scope() + "/instances/" + m.name); i != nil {
				c.stopMachine(i)
				delete(c.resources, i.Path)
				c.kinds["instances"].Removed(i)
			}
		}
		delete(c.managed, r.Path)
		delete(c.resources, c.groupOf(r).Path)
	}
	c.addReferring(k)
	c.Handle("compute.instanceGroupManagers.resize", func(call *rest.Call) (any, error) {
		r, err := c.Target(call, k)
		if err != nil {
			return nil, err
		}
		size, err := strconv.Atoi(call.Query.Get("size"))
		if err != nil || size < 0 {
			return nil, Invalid("Invalid value for field 'size': '%s'.", call.Query.Get("size"))
		}
		return c.Start(call.Method, r, func() error {
			r.Body["targetSize"] = json.Number(strconv.Itoa(size))
			return nil
		}, nil), nil
	})
	c.Handle("compute.instanceGroupManagers.listManagedInstances", func(call *rest.Call) (any, error) {
		r, err := c.Target(call, k)
		if err != nil {
			return nil, err
		}
		list := []any{}
		for _, m := range c.managed[r.Path] {
			instance := map[string]any{"name": m.name, "instance": base + r.scope() + "/instances/" + m.name,
				"currentAction": "CREATING", "version": map[string]any{"instanceTemplate": m.template}}
			if f := m.failure; f != nil {
				instance["lastAttempt"] = map[string]any{"errors": map[string]any{"errors": []any{
					map[string]any{"code": f.Code, "message": f.Message}}}}
			}
			if i := c.Find(r.scope() + "/instances/" + m.name); i != nil {
				instance["instanceStatus"], instance["id"] = i.Body["status"], strconv.FormatUint(i.ID, 10)
				if i.Body["status"] == running {
					instance["currentAction"] = "NONE"
					if !c.healthyInstance(r, i) {
						instance["currentAction"] = "VERIFYING"
					}
				}
			}
			if m.leaving {
				instance["currentAction"] = "DELETING"
				delete(instance, "version")
			}
			list = append(list, instance)
		}
		return map[string]any{"managedInstances": list}, nil
	})
}

// groupOf returns the instance group of a managed group.
func (c *Compute) groupOf(r *Resource) *Resource {
	return c.resources[r.scope()+"/instanceGroups/"+r.Name()]
}

func (c *Compute) checkManager(_ *rest.Call, r *Resource, old map[string]any) error {
	if versions := Objects(r.Body["versions"]); len(versions) == 1 {
		r.Body["instanceTemplate"] = versions[0]["instanceTemplate"]
	}
	template := c.Find(rest.Text(r.Body, "instanceTemplate"))
	if template == nil || template.Collection != "instanceTemplates" {
		return Invalid("Invalid value for field 'resource.versions': '%s'. The template does not exist.",
			rest.Text(r.Body, "instanceTemplate"))
	}
	if old == nil {
		path := r.scope() + "/instanceGroups/" + r.Name()
		if c.resources[path] != nil {
			return &rest.Error{Code: http.StatusConflict, Reason: "alreadyExists", Status: "ALREADY_EXISTS",
				Message: "The resource '" + path + "' already exists"}
		}
		group := c.Put(path, map[string]any{"size": 0, "fingerprint": Fingerprint(path)})
		r.Body["instanceGroup"] = group.Link()
	}
	setDefaults(r.Body, map[string]any{"updatePolicy": map[string]any{"type": "OPPORTUNISTIC",
		"minimalAction": "REPLACE"}})
	delete(r.Body, "fingerprint")
	delete(r.Body, "status")
	delete(r.Body, "currentActions")
	r.Body["fingerprint"] = Fingerprint(r.Body)
	c.describeManager(r)
	return nil
}

// describeManager sets the fields that show whether a managed group has reached its size and template.
func (c *Compute) describeManager(r *Resource) {
	stable := len(c.managed[r.Path]) == targetSize(r)
	for _, m := range c.managed[r.Path] {
		i := c.Find(r.scope() + "/instances/" + m.name)
		stable = stable && !m.leaving && m.template == r.Body["instanceTemplate"] && i != nil &&
			i.Body["status"] == running && c.healthyInstance(r, i)
	}
	r.Body["status"] = map[string]any{"isStable": stable, "versionTarget": map[string]any{"isReached": stable},
		"allInstancesConfig": map[string]any{"effective": true},
		"stateful": map[string]any{"hasStatefulConfig": false,
			"perInstanceConfigs": map[string]any{"allEffective": true}}}
}

func targetSize(r *Resource) int {
	size, _ := strconv.Atoi(rest.Text(r.Body, "targetSize"))
	return size
}

// reconcileGroups brings the managed groups one step closer to their size and template. It runs before every API call.
func (c *Compute) reconcileGroups() {
	for _, r := range c.All("", managers.Collection) {
		c.reconcileGroup(r)
		c.describeManager(r)
	}
}

func (c *Compute) reconcileGroup(r *Resource) {
	template, size := rest.Text(r.Body, "instanceTemplate"), targetSize(r)
	list := c.managed[r.Path]
	current, healthy := 0, 0
	for i := range list {
		if list[i].template == template && !list[i].leaving {
			if current++; current > size {
				list[i].leaving = true
			} else if instance := c.Find(r.scope() + "/instances/" + list[i].name); instance != nil &&
				instance.Body["status"] == running && c.healthyInstance(r, instance) {
				healthy++
			}
		}
	}
	for n := current; n < size; n++ { // max_surge: the new ones come first
		list = append(list, managedInstance{name: c.freeName(r, list), template: template, began: c.Now()})
	}
	if healthy >= size { // max_unavailable 0: the old ones go last
		for i := range list {
			list[i].leaving = list[i].leaving || list[i].template != template
		}
	}
	group := c.groupOf(r)
	group.members = nil
	kept := list[:0]
	for _, m := range list {
		instance := c.Find(r.scope() + "/instances/" + m.name)
		if m.insert != nil && !m.insert.ended.IsZero() {
			if m.failure = m.insert.failure; m.failure != nil {
				m.retry = c.Now().Add(managedRetry)
			}
			m.insert = nil
		}
		switch {
		case m.leaving && instance == nil:
			continue
		case m.leaving:
			if instance.Body["status"] != stopping {
				c.deleteManaged(instance)
			}
		case instance == nil && c.Now().Before(m.retry):
		case instance == nil: // a repair keeps the name
			c.createManaged(r, &m)
		case instance.Body["status"] == terminated,
			c.Now().Sub(m.began) > healDelay(r) && !c.healthyInstance(r, instance):
			c.deleteManaged(instance)
		}
		if instance != nil {
			group.members = append(group.members, instance.Link())
		}
		kept = append(kept, m)
	}
	group.Body["size"] = len(group.members)
	c.managed[r.Path] = kept
}

// deleteManaged deletes an instance on behalf of its group.
func (c *Compute) deleteManaged(r *Resource) {
	r.Body["status"], r.removing = stopping, true
	c.stopMachine(r)
	op := c.Start("compute.instances.delete", r, func() error {
		if c.resources[r.Path] == r {
			delete(c.resources, r.Path)
			c.kinds["instances"].Removed(r)
		}
		return nil
	}, nil)
	op.user = "system"
}

// healDelay is how long a managed group does not replace a new instance, even if it is unhealthy.
func healDelay(r *Resource) time.Duration {
	for _, policy := range Objects(r.Body["autoHealingPolicies"]) {
		seconds, _ := strconv.Atoi(rest.Text(policy, "initialDelaySec"))
		return time.Duration(seconds) * time.Second
	}
	return 0
}

// healthyInstance calls the hook Healthy for an instance of a managed group. If the group has no health check, the
// instance is healthy.
func (c *Compute) healthyInstance(r, instance *Resource) bool {
	policies := Objects(r.Body["autoHealingPolicies"])
	if c.Healthy == nil || len(policies) == 0 {
		return true
	}
	return c.Healthy(c.machineView(instance), "")
}

func (c *Compute) freeName(r *Resource, list []managedInstance) string {
	for {
		c.lastID += 7919
		suffix := strconv.FormatUint(c.lastID%(36*36*36*36), 36)
		name := rest.Text(r.Body, "baseInstanceName") + "-" + strings.Repeat("0", 4-len(suffix)) + suffix
		if !slices.ContainsFunc(list, func(m managedInstance) bool { return m.name == name }) {
			return name
		}
	}
}

// createManaged makes an instance from its template.
func (c *Compute) createManaged(r *Resource, m *managedInstance) {
	template := c.Find(m.template)
	if template == nil {
		return
	}
	body, _ := clone(template.Body["properties"]).(map[string]any)
	parts := strings.Split(r.Path, "/")
	body["name"] = m.name
	body["machineType"] = r.scope() + "/machineTypes/" + rest.Text(body, "machineType")
	for _, disk := range Objects(body["disks"]) {
		if params, _ := disk["initializeParams"].(map[string]any); params["diskType"] != nil {
			params["diskType"] = r.scope() + "/diskTypes/" + rest.Text(params, "diskType")
		}
	}
	metadata, _ := body["metadata"].(map[string]any)
	items, _ := metadata["items"].([]any)
	metadata["items"] = append(items, map[string]any{"key": "created-by", "value": r.Link()},
		map[string]any{"key": "instance-template", "value": template.Link()})
	call := &rest.Call{Method: "compute.instances.insert", Body: body, Identity: "system",
		Params: map[string]string{"project": parts[1], "zone": parts[3]}}
	op, err := c.insert(c.kinds["instances"], call)
	if err != nil {
		m.failure, m.retry = &Failure{Code: "CONDITION_NOT_MET", Message: err.Error()}, c.Now().Add(managedRetry)
		return
	}
	m.insert, m.began = op, c.Now()
}

// Inventory returns all resources except those that every project has.
func (c *Compute) Inventory() (found []string) {
	c.Do(func() {
		for path, r := range c.resources {
			if !slices.Contains([]string{"zones", "regions", "machineTypes", "images"}, r.Collection) {
				found = append(found, path)
			}
		}
	})
	slices.Sort(found)
	return found
}
