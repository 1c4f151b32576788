package compute

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

// Instance is a copy of the state of an instance, for the machine that runs it.
type Instance struct {
	ID         uint64
	Path       string
	Name, Zone string
	Image      string // path of the boot disk's image
	// Body is a copy of the resource in the form of the API: metadata, interfaces with addresses and aliases, labels.
	Body map[string]any
	// Forwarded are the addresses of the load balancers that send packets to the instance.
	Forwarded []string
	// Preempted is set as soon as Compute Engine has decided to preempt the VM.
	Preempted bool
	// Upcoming is when the maintenance of the VM's host begins; zero: none is announced.
	Upcoming time.Time
	// Stopped and Suspended report whether the machine of an instance sleeps or falls asleep.
	Stopped, Suspended bool
}

// Interface returns the first network interface.
func (i Instance) Interface() map[string]any {
	if nics := Objects(i.Body["networkInterfaces"]); len(nics) > 0 {
		return nics[0]
	}
	return nil
}

// Network returns the name of the first interface's network.
func (i Instance) Network() string {
	link := rest.Text(i.Interface(), "network")
	return link[strings.LastIndexByte(link, '/')+1:]
}

// Label returns the value of a label, or "".
func (i Instance) Label(key string) string { return rest.Text(i.Body, "labels", key) }

// Metadata returns the metadata items.
func (i Instance) Metadata() map[string]string {
	items := map[string]string{}
	metadata, _ := i.Body["metadata"].(map[string]any)
	for _, item := range Objects(metadata["items"]) {
		items[rest.Text(item, "key")] = rest.Text(item, "value")
	}
	return items
}

// Objects returns the objects in a field of the body. The field is a JSON array, such as serviceAccounts.
func (i Instance) Objects(field string) []map[string]any { return Objects(i.Body[field]) }

// Aliases returns the alias addresses of an interface.
func Aliases(nic map[string]any) (found []string) {
	for _, alias := range Objects(nic["aliasIpRanges"]) {
		found = append(found, rest.Text(alias, "ipCidrRange"))
	}
	return found
}

// Machines boots machines. Compute does not hold its lock when it calls Start.
type Machines interface {
	Start(Instance) (Machine, error)
}

// Machine is the machine of a running instance. A machine that ends by itself must call [Compute.Ended]. Compute holds
// its lock when it calls Console, but not when it calls the other methods.
type Machine interface {
	// Changed is called after the instance's metadata, labels or interfaces changed, and when its machine is to sleep
	// or to wake. The machine asks for all this with [Compute.Instance].
	Changed()
	// Console returns what the machine has written to serial port 1.
	Console() string
	// Stop powers the machine off.
	Stop()
}

// boot runs at the end of insert and start. It gives the instance its addresses and starts its machine.
func (c *Compute) boot(r *Resource) error {
	if c.resources[r.Path] != r || r.removing {
		return nil // deleted meanwhile
	}
	for _, nic := range Objects(r.Body["networkInterfaces"]) {
		if err := c.assign(r, nic); err != nil {
			return err
		}
	}
	if r.Body["status"] == provisioning {
		c.makeDisks(r)
	}
	r.Body["status"] = running
	r.Body["lastStartTimestamp"] = c.Now().In(pacific).Format("2006-01-02T15:04:05.000-07:00")
	if c.Machines != nil {
		go c.startMachine(r, c.machineView(r))
	}
	return nil
}

// startMachine boots a machine without the lock. When the machine is ready, the instance may be gone or changed.
func (c *Compute) startMachine(r *Resource, view Instance) {
	m, err := c.Machines.Start(view)
	if err != nil {
		c.End(view.byID(), "the machine did not start: "+err.Error())
		return
	}
	c.mu.Lock()
	if c.resources[r.Path] == r && r.Body["status"] == running {
		r.machine = m
		_ = c.changedInstance(r) // Never fails.
		m = nil
	}
	c.mu.Unlock()
	if m != nil {
		m.Stop()
	}
}

// byID returns the instance's path with its numeric ID in place of its name. No other instance ever has this ID.
func (i Instance) byID() string {
	return strings.TrimSuffix(i.Path, i.Name) + strconv.FormatUint(i.ID, 10)
}

// Ended is to be called when the machine of an instance has ended by itself.
func (c *Compute) Ended(i Instance) { c.End(i.byID(), "The guest has shut down.") }

func (c *Compute) stopMachine(r *Resource) {
	if m := r.machine; m != nil {
		r.machine, r.serial = nil, append(r.serial, m.Console())
		go m.Stop()
	}
}

func (c *Compute) machineView(r *Resource) Instance {
	body, _ := clone(c.describe(r)).(map[string]any)
	scope := r.scope()
	view := Instance{ID: r.ID, Path: r.Path, Name: r.Name(), Zone: scope[strings.LastIndexByte(scope, '/')+1:],
		Body: body, Forwarded: c.forwarded(r), Preempted: r.preempted,
		Upcoming: r.upcoming}
	if status := r.Body["status"]; !r.removing {
		view.Stopped = status == stopping || status == terminated
		view.Suspended = status == suspending || status == suspended
	}
	for _, disk := range Objects(body["disks"]) {
		if source := c.Find(rest.Text(disk, "source")); source != nil && disk["boot"] == true {
			if image := c.findImage(rest.Text(source.Body, "sourceImage")); image != nil {
				view.Image = image.Path
			}
		}
	}
	return view
}

// Instance returns the current state of the instance with a numeric ID. ok is false if there is no such instance.
func (c *Compute) Instance(id uint64) (view Instance, ok bool) {
	c.Do(func() {
		for _, r := range c.All("", "instances") {
			if ok = r.ID == id; ok {
				view = c.machineView(r)
				return
			}
		}
	})
	return view, ok
}

// Instances returns all instances, sorted by path.
func (c *Compute) Instances() (all []Instance) {
	c.Do(func() {
		for _, r := range c.All("", "instances") {
			all = append(all, c.machineView(r))
		}
	})
	return all
}

func (c *Compute) changedInstance(r *Resource) error {
	if r.machine != nil {
		go r.machine.Changed()
	}
	return nil
}

// forwarded returns the addresses of the forwarding rules whose backends include an instance.
func (c *Compute) forwarded(instance *Resource) (found []string) {
	for _, rule := range c.All("", "forwardingRules") {
		for _, group := range c.backends(rule) {
			if slices.Contains(group.members, instance.Link()) {
				found = append(found, rest.Text(rule.Body, "IPAddress"))
			}
		}
	}
	return found
}

// backends returns the instance groups behind a forwarding rule.
func (c *Compute) backends(rule *Resource) (groups []*Resource) {
	service := c.Find(rest.Text(rule.Body, "backendService"))
	if service == nil {
		return nil
	}
	for _, backend := range Objects(service.Body["backends"]) {
		if group := c.Find(rest.Text(backend, "group")); group != nil {
			groups = append(groups, group)
		}
	}
	return groups
}

// HealthCheck is a request that Google's health checks send to an instance.
type HealthCheck struct {
	Instance  Instance
	Port      int
	Path      string // of HTTP; "": only a connection
	Forwarded string // the address of the load balancer that the result is for; "": a managed group
}

// HealthChecks returns the health checks of managed groups and of internal load balancers.
func (c *Compute) HealthChecks() (checks []HealthCheck) {
	add := func(link string, members []string, forwarded string) {
		check := c.Find(link)
		if check == nil {
			return
		}
		one := HealthCheck{Forwarded: forwarded}
		for _, kind := range []string{"httpHealthCheck", "tcpHealthCheck"} {
			if options, ok := check.Body[kind].(map[string]any); ok {
				one.Port, _ = strconv.Atoi(rest.Text(options, "port"))
				one.Path = rest.Text(options, "requestPath")
			}
		}
		for _, link := range members {
			if i := c.Find(link); i != nil && i.machine != nil {
				one.Instance = c.machineView(i)
				checks = append(checks, one)
			}
		}
	}
	c.Do(func() {
		for _, manager := range c.All("", managers.Collection) {
			for _, policy := range Objects(manager.Body["autoHealingPolicies"]) {
				add(rest.Text(policy, "healthCheck"), c.groupOf(manager).members, "")
			}
		}
		for _, rule := range c.All("", "forwardingRules") {
			service := c.Find(rest.Text(rule.Body, "backendService"))
			for _, group := range c.backends(rule) {
				list, _ := service.Body["healthChecks"].([]any)
				for _, link := range list {
					add(fmt.Sprint(link), group.members, rest.Text(rule.Body, "IPAddress"))
				}
			}
		}
	})
	return checks
}

func (c *Compute) serialPort(call *rest.Call) (any, error) {
	r, err := c.Target(call, instances)
	if err != nil {
		return nil, err
	}
	text := strings.Join(r.serial, "")
	if r.machine != nil {
		text += r.machine.Console()
	}
	var start int
	_, _ = fmt.Sscan(call.Query.Get("start"), &start)
	start = min(max(start, 0), len(text))
	return map[string]any{"kind": "compute#serialPortOutput", "contents": text[start:], "selfLink": r.Link() +
		"/serialPort", "start": fmt.Sprint(start), "next": fmt.Sprint(len(text))}, nil
}

// End stops an instance in the way that a crash or a shutdown inside the VM does. The instance keeps its addresses and
// disks.
func (c *Compute) End(path, reason string) {
	c.system(path, "compute.instances.guestTerminate", reason, 0, func(r *Resource) { r.Body["status"] = terminated })
}

// Preempt notifies a Spot VM of its preemption, and stops it after the grace period. If its termination action is
// DELETE, the VM is then also deleted.
func (c *Compute) Preempt(path string, grace time.Duration) {
	c.Do(func() {
		if r := c.Find(path); r != nil {
			r.preempted = true
			_ = c.changedInstance(r) // Never fails.
		}
	})
	c.system(path, "compute.instances.preempted", "Instance was preempted.", grace, func(r *Resource) {
		scheduling, _ := r.Body["scheduling"].(map[string]any)
		if r.Body["status"] = terminated; scheduling["instanceTerminationAction"] == "DELETE" {
			delete(c.resources, r.Path)
			c.kinds["instances"].Removed(r)
		}
	})
}

// Maintain announces maintenance of a VM's host, which begins at the given time. The zero time withdraws it.
func (c *Compute) Maintain(path string, begins time.Time) {
	c.Do(func() {
		if r := c.Find(path); r != nil {
			r.upcoming = begins
			_ = c.changedInstance(r) // Never fails.
		}
	})
}

// Vanish deletes an instance although its owner has not called delete. The owner gets no notice.
func (c *Compute) Vanish(path string) {
	c.system(path, "compute.instances.repair.deleteInstance", "", 0, func(r *Resource) {
		delete(c.resources, r.Path)
		c.kinds["instances"].Removed(r)
	})
}

// system starts an operation of the cloud itself on an instance. The operation changes the instance after the given
// duration.
func (c *Compute) system(path, method, reason string, after time.Duration, change func(*Resource)) {
	c.Do(func() {
		r := c.Find(path)
		if r == nil {
			return
		}
		op := c.Start(method, r, func() error {
			if c.resources[r.Path] == r {
				c.stopMachine(r)
				change(r)
			}
			return nil
		}, nil)
		op.kind, op.user, op.message, op.due = method, "system", reason, c.Now().Add(after)
		c.advance()
	})
}

// Boot starts the machine of an instance that [Compute.Put] made.
func (c *Compute) Boot(path string) error {
	var err error
	c.Do(func() {
		r := c.Find(path)
		r.machine, err = c.Machines.Start(c.machineView(r))
	})
	return err
}
