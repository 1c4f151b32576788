// Package ec2 is a fake of Amazon EC2: networks, network interfaces, images, launch templates and instances, at the
// level of its query API.
//
// Invariant: all state lies under one lock, which is the cloud's. Operations and the Go methods for other fakes are
// called with that lock held and never take it; the levers for tests take it themselves and say so. Every operation
// asks for permission before it tells or changes anything, and checks everything before it changes anything: a refused
// call leaves no trace.
package ec2

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Config is what a Service is made of. Region, Account, Zones and Lock are required.
type Config struct {
	Region, Account string
	Zones           []string
	Now             func() time.Time
	Machines        Machines // nil: instances are records only
	Log             *slog.Logger
	Lock            *sync.Mutex // the cloud's
	Faults          Faults      // nil: none
	// Attaching is how long a network interface stays attaching or detaching. Zero: it is attached or gone at once.
	Attaching time.Duration
}

// Faults are what tests make go wrong inside EC2. Failed, delayed and lost calls are the business of the cloud around
// it. A *fault.Set is one.
type Faults interface {
	// Lag is how long after its creation a resource is not found by Describe operations: EC2 is eventually consistent.
	Lag() time.Duration
	// Capacity is the error of a launch when instances of the type cannot be had there, else nil.
	Capacity(instanceType, zone, subnet string) error
}

// Service is the fake.
type Service struct {
	cfg Config
	mu  *sync.Mutex

	sequence int                          // counts creations, for a stable order
	tags     map[string]map[string]string // by resource ID
	kinds    []kind
	network
	machinery
}

// New makes an empty region: a region without a default VPC.
func New(cfg Config) *Service {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Service{cfg: cfg, mu: cfg.Lock, tags: map[string]map[string]string{}}
	s.network = newNetwork()
	s.machinery = newMachinery()
	s.addPrefixLists()
	s.kinds = slices.Concat(s.networkKinds(), s.machineKinds())
	return s
}

// Name is the service's name in the scope of a signature.
func (s *Service) Name() string { return "ec2" }

func (s *Service) now() time.Time { return s.cfg.Now() }

// Operations are the handlers by the name of the action.
func (s *Service) Operations() map[string]wire.Handler {
	all := map[string]wire.Handler{}
	maps.Copy(all, s.tagOperations())
	maps.Copy(all, s.networkOperations())
	maps.Copy(all, s.machineOperations())
	return all
}

// resource is what every kind of thing that has an ID and tags looks like to this package.
type resource interface {
	ID() string
	born() time.Time
	serial() int
}

// entity is embedded by every resource.
type entity struct {
	id      string
	created time.Time
	number  int
}

// ID is the resource's AWS ID.
func (e *entity) ID() string      { return e.id }
func (e *entity) born() time.Time { return e.created }
func (e *entity) serial() int     { return e.number }

// entity makes the identity of a new resource: an ID like AWS's, a prefix and 17 hexadecimal digits that begin with a
// zero.
func (s *Service) entity(prefix string) entity {
	s.sequence++
	return entity{id: newID(prefix), created: s.now(), number: s.sequence}
}

func newID(prefix string) string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return prefix + "-0" + hex.EncodeToString(b[:])
}

// kind is a kind of resource, known by the prefix of its IDs.
type kind struct {
	prefix string // "vpc"
	name   string // "vpc": the type in ARNs and tag specifications
	noun   string // "vpc ID": how AWS's messages call the ID
	code   string // "InvalidVpcID.NotFound"
	find   func(id string) (resource, bool)
	// context are the condition keys that the type adds to those of every resource. nil: none.
	context func(id string) policy.Context
}

// kind finds the kind that an ID belongs to. The longest prefix wins: "eni" is no "eni-attach".
func (s *Service) kind(id string) (kind, bool) {
	var best kind
	for _, k := range s.kinds {
		if len(id) > len(k.prefix) && id[:len(k.prefix)] == k.prefix && id[len(k.prefix)] == '-' &&
			len(k.prefix) > len(best.prefix) {
			best = k
		}
	}
	return best, best.prefix != ""
}

// exists returns the documented NotFound error for an ID that nothing has.
func (s *Service) exists(id string) error {
	k, ok := s.kind(id)
	if !ok {
		return failf("InvalidID", "The ID '%s' is not valid", id)
	}
	if _, ok := k.find(id); !ok {
		return failf(k.code, "The %s '%s' does not exist", k.noun, id)
	}
	return nil
}

// arn is the ARN of a resource of a type; an empty or "*" ID stands for one that does not exist yet.
func (s *Service) arn(resourceType, id string) string {
	if id == "" {
		id = "*"
	}
	account := s.cfg.Account
	if resourceType == "image" || resourceType == "prefix-list" {
		account = "" // these may be others', and AWS leaves the account out
	}
	return "arn:aws:ec2:" + s.cfg.Region + ":" + account + ":" + resourceType + "/" + id
}

// ARN is the ARN of a resource by its ID, "" for an ID of no known form.
func (s *Service) ARN(id string) string {
	k, ok := s.kind(id)
	if !ok {
		return ""
	}
	return s.arn(k.name, id)
}

// conditions are the condition keys of a resource that exists: its tags, and what its type has.
//
// https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html
func (s *Service) conditions(id string) policy.Context {
	c := policy.Context{"ec2:Region": {s.cfg.Region}}
	for key, value := range s.tags[id] {
		c["aws:ResourceTag/"+key] = []string{value}
		c["ec2:ResourceTag/"+key] = []string{value}
	}
	if k, ok := s.kind(id); ok && k.context != nil {
		if _, ok := k.find(id); ok {
			maps.Copy(c, k.context(id))
		}
	}
	return c
}

// allow asks for permission of an action ("AttachNetworkInterface") on each of the resources.
func (s *Service) allow(c *wire.Call, action string, ids ...string) error {
	for _, id := range ids {
		arn := s.ARN(id)
		if arn == "" {
			arn = "*" // an ID of no known form: a policy for "*" lets it through to the error that says so
		}
		if err := c.Authorize("ec2:"+action, arn, s.conditions(id)); err != nil {
			return err
		}
	}
	return nil
}

// allowAny asks for permission of an action that has no resource level, as all Describe actions.
func (s *Service) allowAny(c *wire.Call, action string) error {
	return c.Authorize("ec2:"+action, "*", policy.Context{"ec2:Region": {s.cfg.Region}})
}

// allowNew asks for permission to create a resource of a type with the tags, and to tag it while it is created. keys
// are the further condition keys.
//
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/supported-iam-actions-tagging.html
func (s *Service) allowNew(c *wire.Call, action, resourceType string, tags map[string]string,
	keys policy.Context) error {
	context := policy.Context{"ec2:Region": {s.cfg.Region}}
	maps.Copy(context, keys)
	maps.Copy(context, requestTags(tags))
	if err := c.Authorize("ec2:"+action, s.arn(resourceType, "*"), context); err != nil {
		return err
	}
	if len(tags) == 0 {
		return nil
	}
	context = maps.Clone(context)
	context["ec2:CreateAction"] = []string{action}
	return c.Authorize("ec2:CreateTags", s.arn(resourceType, "*"), context)
}

// requestTags are the condition keys of tags in a request.
func requestTags(tags map[string]string) policy.Context {
	context := policy.Context{}
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		context["aws:RequestTag/"+key] = []string{tags[key]}
		context["aws:TagKeys"] = append(context["aws:TagKeys"], key)
	}
	return context
}

// visible tells whether Describe operations see a resource already.
func (s *Service) visible(r resource) bool {
	if s.cfg.Faults == nil {
		return true
	}
	window := s.cfg.Faults.Lag()
	return window <= 0 || s.now().Sub(r.born()) >= window
}

// sorted are the values of a table in the order of their creation.
func sorted[T resource](table map[string]T) []T {
	return slices.SortedFunc(maps.Values(table), func(a, b T) int { return cmp.Compare(a.serial(), b.serial()) })
}

// failf is a client error in EC2's form: HTTP status 400.
//
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
func failf(code, format string, args ...any) error {
	return wire.Errorf(http.StatusBadRequest, code, format, args...)
}

// missing refuses a request without a required parameter.
func missing(parameter string) error {
	return failf("MissingParameter", "The request must contain the parameter %s", parameter)
}

// invalid refuses a parameter's value.
func invalid(parameter string, value any) error {
	return failf("InvalidParameterValue", "Value (%v) for parameter %s is invalid.", value, parameter)
}

// done is the answer of operations that only say that they worked.
type done struct {
	Return bool `xml:"return"`
}

var ok = done{Return: true}

// timestamp is a time as EC2 writes it: UTC with milliseconds.
func timestamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// required refuses an empty parameter; pairs are names and values.
func required(pairs ...string) error {
	if len(pairs)%2 != 0 {
		panic(fmt.Sprintf("ec2: odd list of parameters: %q", pairs))
	}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			return missing(pairs[i])
		}
	}
	return nil
}
