// Package compute fakes the Compute Engine API. A generic core keeps resources and operations; each type of resource is
// a [Kind] with a few hooks.
//
// Invariants:
//
//   - A call that changes something returns a running operation. The change takes effect or fails when the operation
//     ends. The operation ends at the first call after its delay, or in [Compute.Advance].
//   - Numeric IDs are never used twice. Names can be.
//   - For an hour, requests with the same requestId get the same operation, even a failed one. After an hour, the
//     requestId is forgotten.
package compute

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

const (
	base = "https://www.googleapis.com/compute/v1/"
	// requestMemory is the time for which the fake remembers a requestId.
	// https://cloud.google.com/compute/docs/reference/rest/v1/instances/insert
	requestMemory = time.Hour
	// operationMemory is the time for which the fake keeps an operation.
	operationMemory = 14 * 24 * time.Hour
)

// Compute holds resources and operations in memory.
type Compute struct {
	// Now replaces the clock.
	Now func() time.Time
	// Delay is the duration of operations by their type, such as "insert" or "updateNetworkInterface".
	// [Compute.SetDelay] changes it later. An operation of a type without an entry ends at the next call.
	Delay map[string]time.Duration
	// MaxPage is the maximum size of a page.
	MaxPage int
	// Rates are the numbers of calls per minute that the project may make, by quota metric. Metrics without an entry
	// have no limit.
	Rates map[string]int
	// UseKey returns an error if a disk cannot be encrypted with a key of Cloud KMS. If UseKey is nil, no key can be
	// used.
	UseKey func(name string) error
	// Machines boots the machines of instances. If Machines is nil, instances run without machines.
	Machines Machines
	// Healthy answers health checks. forwarded is the address of a load balancer's forwarding rule, or "" for a health
	// check of a managed group. Healthy runs with the lock held. If Healthy is nil, running instances are healthy.
	Healthy func(i Instance, forwarded string) bool

	mu        sync.Mutex
	kinds     map[string]Kind
	handlers  map[string]rest.Handler
	resources map[string]*Resource // by path
	ops       []*Operation         // in the order of their start
	requests  map[string]*Operation
	faults    []*Fault
	lastID    uint64
	lastIP    map[string]uint32            // by subnet
	managed   map[string][]managedInstance // by path of the managed group
	minute    time.Time                    // of charged
	charged   map[string]int               // calls by quota metric
}

// New makes a fake with the instances API, zones, machine types and images, but without networks.
func New() *Compute {
	c := &Compute{Now: time.Now, Delay: map[string]time.Duration{}, MaxPage: 500, kinds: map[string]Kind{},
		handlers: map[string]rest.Handler{}, resources: map[string]*Resource{}, requests: map[string]*Operation{},
		lastID: 4_611_686_018_427_387_903, lastIP: map[string]uint32{},
		managed: map[string][]managedInstance{}}
	c.addOperations()
	c.addInstances()
	c.addCatalogue()
	c.addGroups()
	c.addNetworks()
	c.addBalancers()
	c.addManagedGroups()
	return c
}

// Handlers returns the methods that the fake has.
func (c *Compute) Handlers() map[string]rest.Handler { return c.handlers }

// Handle adds a method. When its handler runs, the lock is held, and the operations that were due have ended.
func (c *Compute) Handle(method string, h rest.Handler) {
	c.handlers[method] = func(call *rest.Call) (any, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if err := c.charge(method); err != nil {
			return nil, err
		}
		c.advance()
		if op := c.repeated(call); op != nil {
			return op.describe(), nil
		}
		Complete(call.Params["project"], call.Body)
		answer, err := h(call)
		if op, ok := answer.(*Operation); ok && err == nil {
			op.user = call.Identity
			if id := call.Query.Get("requestId"); id != "" {
				c.requests[call.Method+" "+id] = op
			}
			return op.describe(), nil
		}
		return clone(answer), err
	}
}

// repeated returns the operation of an earlier request with the same requestId, or nil.
func (c *Compute) repeated(call *rest.Call) *Operation {
	key := call.Method + " " + call.Query.Get("requestId")
	op := c.requests[key]
	if op != nil && c.Now().Sub(op.began) >= requestMemory {
		delete(c.requests, key)
		return nil
	}
	return op
}

// Do ends the operations that are due and then runs f, with the lock held. f must not call exported methods of Compute,
// except Find, Start and Put.
func (c *Compute) Do(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance()
	f()
}

// Advance ends the operations that are due. Call it regularly if machines must boot while no client calls the API.
func (c *Compute) Advance() { c.Do(func() {}) }

// SetDelay sets the duration of later operations of a type.
func (c *Compute) SetDelay(operationType string, d time.Duration) {
	c.Do(func() { c.Delay[operationType] = d })
}

// Kind describes a type of resource. Its hooks run with the lock held. An error from Check or Removing refuses the call
// and must be a [*rest.Error]. An error from Created fails the operation and should be a [*Failure].
type Kind struct {
	// Collection is the name of the type in paths and methods, such as "instances".
	Collection string
	// Type is the name in the field "kind" of a resource, such as "instance". It is also the name of the path
	// parameter.
	Type string
	// API is the collection's name in the names of methods, such as "regionHealthChecks". If API is empty, Collection
	// is used.
	API string
	// Methods lists the standard methods to serve: insert, get, list, delete, setLabels, patch, update.
	Methods []string
	// Check checks a new or changed resource and fills in defaults. old is the body before the change. Optional.
	Check func(call *rest.Call, r *Resource, old map[string]any) error
	// Created runs at the end of insert. Optional.
	Created func(r *Resource) error
	// Changed runs at the end of patch, update and setLabels. Optional.
	Changed func(r *Resource) error
	// Removing runs when delete is called. Optional.
	Removing func(r *Resource) error
	// Removed runs at the end of delete. Optional.
	Removed func(r *Resource)
}

// Resource is one resource. Body is in the form of the API, without the fields that every resource has. Body may be
// changed only with the lock held.
type Resource struct {
	Path       string // such as projects/p/zones/z/instances/i
	Collection string
	ID         uint64
	Created    time.Time
	Body       map[string]any

	machine   Machine
	removing  bool
	preempted bool
	upcoming  time.Time // when its host gets maintenance; zero: none is announced
	serial    []string  // of earlier boots
	members   []string  // of an instance group
}

// Name returns the last part of the path.
func (r *Resource) Name() string { return r.Path[strings.LastIndexByte(r.Path, '/')+1:] }

// Link returns the URL.
func (r *Resource) Link() string { return base + r.Path }

// scope returns the path of the resource's zone or region, or the path that ends with "global".
func (r *Resource) scope() string { return strings.TrimSuffix(r.Path, "/"+r.Collection+"/"+r.Name()) }

// Scope returns the scope of a call: projects/p/zones/z, projects/p/regions/r or projects/p/global.
func Scope(call *rest.Call) string {
	path := "projects/" + call.Params["project"]
	switch {
	case call.Params["zone"] != "":
		return path + "/zones/" + call.Params["zone"]
	case call.Params["region"] != "":
		return path + "/regions/" + call.Params["region"]
	}
	return path + "/global"
}

// Add adds a type of resource and its methods.
func (c *Compute) Add(k Kind) {
	c.kinds[k.Collection] = k
	methods := map[string]rest.Handler{
		"insert": func(call *rest.Call) (any, error) { return c.insert(k, call) },
		"get": func(call *rest.Call) (any, error) {
			r, err := c.Target(call, k)
			if err != nil {
				return nil, err
			}
			return c.describe(r), nil
		},
		"list":      func(call *rest.Call) (any, error) { return c.list(k, call) },
		"delete":    func(call *rest.Call) (any, error) { return c.remove(k, call) },
		"setLabels": func(call *rest.Call) (any, error) { return c.setLabels(k, call) },
		"patch":     func(call *rest.Call) (any, error) { return c.change(k, call, true) },
		"update":    func(call *rest.Call) (any, error) { return c.change(k, call, false) },
	}
	for _, name := range k.Methods {
		c.Handle("compute."+cmp.Or(k.API, k.Collection)+"."+name, methods[name])
	}
}

// Put stores a resource without an operation, and returns it. Tests call it during their setup, with the lock held.
func (c *Compute) Put(path string, body map[string]any) *Resource {
	parts := strings.Split(path, "/")
	c.lastID += 7919
	r := &Resource{Path: path, Collection: parts[len(parts)-2], ID: c.lastID, Created: c.Now(), Body: body}
	c.resources[path] = r
	return r
}

// Find returns the resource with a URL or path, or nil. The URL or path may end with the resource's numeric ID instead
// of its name.
func (c *Compute) Find(link string) *Resource {
	if i := strings.Index(link, "projects/"); i > 0 {
		link = link[i:]
	}
	if r := c.resources[link]; r != nil {
		return r
	}
	i := strings.LastIndexByte(link, '/')
	id, err := strconv.ParseUint(link[i+1:], 10, 64)
	if err != nil {
		return nil
	}
	for _, r := range c.resources {
		if r.ID == id && strings.HasPrefix(r.Path, link[:i+1]) {
			return r
		}
	}
	return nil
}

// All returns the resources of a collection whose paths begin with scope, sorted by path.
func (c *Compute) All(scope, collection string) (found []*Resource) {
	for _, path := range slices.Sorted(maps.Keys(c.resources)) {
		if r := c.resources[path]; r.Collection == collection && strings.HasPrefix(path, scope) {
			found = append(found, r)
		}
	}
	return found
}

// Target returns the resource that a call is about.
func (c *Compute) Target(call *rest.Call, k Kind) (*Resource, error) {
	path := Scope(call) + "/" + k.Collection + "/" + call.Params[k.Type]
	if r := c.Find(path); r != nil {
		return r, nil
	}
	return nil, rest.NotFound("The resource '%s' was not found", path)
}

// describe returns a resource in the form of the API.
func (c *Compute) describe(r *Resource) map[string]any {
	out := maps.Clone(r.Body)
	out["kind"], out["id"] = "compute#"+c.kinds[r.Collection].Type, strconv.FormatUint(r.ID, 10)
	out["name"], out["selfLink"] = r.Name(), r.Link()
	out["creationTimestamp"] = r.Created.In(pacific).Format("2006-01-02T15:04:05.000-07:00")
	if _, labelled := r.Body["labels"]; labelled {
		out["labelFingerprint"] = Fingerprint(r.Body["labels"])
	}
	scope := r.scope()
	for _, level := range []string{"zones", "regions"} {
		if strings.Contains(scope, "/"+level+"/") {
			out[strings.TrimSuffix(level, "s")] = base + scope
		}
	}
	return out
}

// pacific is the time zone of the API's time stamps.
var pacific = time.FixedZone("", -8*60*60)

var resourceName = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)

func (c *Compute) insert(k Kind, call *rest.Call) (*Operation, error) {
	name := rest.Text(call.Body, "name")
	if !resourceName.MatchString(name) {
		return nil, Invalid("Invalid value for field 'resource.name': '%s'. Must be a match of regex "+
			"'(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'", name)
	}
	body, _ := clone(call.Body).(map[string]any)
	for _, readOnly := range []string{"name", "kind", "id", "selfLink", "creationTimestamp", "labelFingerprint"} {
		delete(body, readOnly)
	}
	path := Scope(call) + "/" + k.Collection + "/" + name
	r := &Resource{Path: path, Collection: k.Collection, Created: c.Now(), Body: body}
	if err := checkLabels(body); err != nil {
		return nil, err
	}
	if k.Check != nil {
		if err := k.Check(call, r, nil); err != nil {
			return nil, err
		}
	}
	if c.resources[path] != nil {
		return nil, &rest.Error{Code: http.StatusConflict, Reason: "alreadyExists", Status: "ALREADY_EXISTS",
			Message: "The resource '" + path + "' already exists"}
	}
	c.lastID += 7919
	r.ID = c.lastID
	c.resources[path] = r
	return c.Start(call.Method, r, func() error {
		if k.Created != nil {
			if err := k.Created(r); err != nil {
				delete(c.resources, path)
				return err
			}
		}
		return nil
	}, func() { delete(c.resources, path) }), nil
}

func (c *Compute) remove(k Kind, call *rest.Call) (any, error) {
	r, err := c.Target(call, k)
	if err != nil {
		return nil, err
	}
	if k.Removing != nil {
		if err := k.Removing(r); err != nil {
			return nil, err
		}
	}
	return c.Start(call.Method, r, func() error {
		if c.resources[r.Path] == r {
			delete(c.resources, r.Path)
			if k.Removed != nil {
				k.Removed(r)
			}
		}
		return nil
	}, nil), nil
}

// change serves patch and update. A patch keeps the fields that the body does not name.
func (c *Compute) change(k Kind, call *rest.Call, patch bool) (any, error) {
	r, err := c.Target(call, k)
	if err != nil {
		return nil, err
	}
	if given := rest.Text(call.Body, "fingerprint"); given != "" && given != rest.Text(r.Body, "fingerprint") {
		return nil, Stale("fingerprint")
	}
	next := map[string]any{}
	if patch {
		next = maps.Clone(r.Body)
	}
	for field, value := range call.Body {
		if value = clone(value); value == nil {
			delete(next, field)
		} else if !slices.Contains([]string{"name", "kind", "id", "selfLink", "creationTimestamp", "fingerprint",
			"labelFingerprint"}, field) {
			next[field] = value
		}
	}
	changed := &Resource{Path: r.Path, Collection: r.Collection, ID: r.ID, Created: r.Created, Body: next}
	if k.Check != nil {
		if err := k.Check(call, changed, r.Body); err != nil {
			return nil, err
		}
	}
	return c.Start(call.Method, r, func() error { r.Body = next; return k.changed(r) }, nil), nil
}

func (k Kind) changed(r *Resource) error {
	if k.Changed == nil {
		return nil
	}
	return k.Changed(r)
}

func (c *Compute) setLabels(k Kind, call *rest.Call) (any, error) {
	r, err := c.Target(call, k)
	if err != nil {
		return nil, err
	}
	if err := checkLabels(call.Body); err != nil {
		return nil, err
	}
	if rest.Text(call.Body, "labelFingerprint") != Fingerprint(r.Body["labels"]) {
		return nil, Stale("labelFingerprint")
	}
	labels := clone(call.Body["labels"])
	return c.Start(call.Method, r, func() error { r.Body["labels"] = labels; return k.changed(r) }, nil), nil
}

func (c *Compute) list(k Kind, call *rest.Call) (any, error) {
	var items []map[string]any
	scope := Scope(call) + "/"
	if k.Collection == "zones" || k.Collection == "regions" {
		scope = "projects/" + call.Params["project"] + "/" + k.Collection + "/"
	}
	for _, r := range c.All(scope, k.Collection) {
		items = append(items, c.describe(r))
	}
	return c.Page(call, "compute#"+k.Type+"List", items)
}

// Page answers a call of a list method with one page of the items that pass the call's filter.
func (c *Compute) Page(call *rest.Call, kind string, items []map[string]any) (any, error) {
	matches, err := parseFilter(call.Query.Get("filter"))
	if err != nil {
		return nil, err
	}
	items = slices.DeleteFunc(items, func(item map[string]any) bool { return !matches(item) })
	size := c.MaxPage
	if text := call.Query.Get("maxResults"); text != "" {
		asked, err := strconv.Atoi(text)
		if err != nil || asked < 0 || asked > 500 {
			return nil, Invalid("Invalid value for field 'maxResults': '%s'. Must be from 0 to 500", text)
		}
		size = min(size, cmp.Or(asked, size))
	}
	from, _ := strconv.Atoi(call.Query.Get("pageToken"))
	from = min(from, len(items))
	out := map[string]any{"kind": kind, "id": Scope(call), "selfLink": base + Scope(call)}
	if rest := items[from:]; len(rest) > size {
		items, out["nextPageToken"] = rest[:size], strconv.Itoa(from+size)
	} else {
		items = rest
	}
	if len(items) > 0 { // An empty list is left out.
		out["items"] = items
	}
	return out, nil
}

// clone copies a JSON value.
func clone(value any) any {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.UseNumber()
	var out any
	if err := decoder.Decode(&out); err != nil {
		panic(err)
	}
	return out
}

// Invalid returns the error about a wrong value.
func Invalid(format string, args ...any) *rest.Error {
	return &rest.Error{Code: http.StatusBadRequest, Reason: "invalid", Status: "INVALID_ARGUMENT",
		Message: fmt.Sprintf(format, args...)}
}

// Stale returns the error for a request whose fingerprint is not the current one.
func Stale(field string) *rest.Error {
	return &rest.Error{Code: http.StatusPreconditionFailed, Reason: "conditionNotMet", Status: "FAILED_PRECONDITION",
		Message: "Supplied " + field + " does not match current fingerprint."}
}
