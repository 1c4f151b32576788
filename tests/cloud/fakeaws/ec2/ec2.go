// Package ec2 is a fake of Amazon EC2 at the level of its query API: networks, network interfaces, images, launch
// templates and instances.
//
// Invariant: the cloud's lock protects all state. Callers of operations, and of the Go methods for other fakes, hold
// that lock. Methods that only tests call take the lock themselves, and say so in their comments. Every operation
// checks the caller's permission before it returns or changes anything, and checks everything before it changes
// anything. So a refused call changes nothing.
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

// Config configures a Service. Region, Account, Zones and Lock are required.
type Config struct {
	Region, Account string
	Zones           []string
	Now             func() time.Time
	Machines        Machines // nil: instances are records only
	Log             *slog.Logger
	Lock            *sync.Mutex // the cloud's lock
	Faults          Faults      // nil: none
	// Attaching is how long a network interface stays in the state "attaching" or "detaching". Zero means that these
	// states are skipped.
	Attaching time.Duration
}

// Faults selects the faults that the fake EC2 simulates itself: resources that are not visible yet, and a lack of
// capacity. Failed, delayed and lost calls are simulated elsewhere. A *fault.Set implements Faults.
type Faults interface {
	// Lag returns how long Describe operations do not find a new resource, because EC2 is eventually consistent.
	Lag() time.Duration
	// Capacity returns the error of a launch if the type has no capacity in the zone or subnet, else nil.
	Capacity(instanceType, zone, subnet string) error
}

// Service is the fake EC2.
type Service struct {
	cfg Config
	mu  *sync.Mutex

	sequence int                          // number of creations so far, for a stable order
	tags     map[string]map[string]string // by resource ID
	kinds    []kind
	signer   identitySigner
	network
	resources
}

// New makes an empty region without a default VPC.
func New(cfg Config) *Service {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Service{cfg: cfg, mu: cfg.Lock, tags: map[string]map[string]string{}}
	s.network = newNetwork()
	s.resources = newResources()
	s.addPrefixLists()
	s.kinds = slices.Concat(s.networkKinds(), s.machineKinds())
	return s
}

// Name returns the service's signing name.
func (s *Service) Name() string { return "ec2" }

func (s *Service) now() time.Time { return s.cfg.Now() }

// Operations returns the handlers by the name of the action.
func (s *Service) Operations() map[string]wire.Handler {
	all := map[string]wire.Handler{}
	maps.Copy(all, s.tagOperations())
	maps.Copy(all, s.networkOperations())
	maps.Copy(all, s.machineOperations())
	return all
}

// resource is the common interface of everything that has an ID and tags.
type resource interface {
	ID() string
	born() time.Time
	serial() int
}

// entity holds the common fields of resources. Every resource embeds it.
type entity struct {
	id      string
	created time.Time
	number  int
}

// ID returns the resource's AWS ID.
func (e *entity) ID() string      { return e.id }
func (e *entity) born() time.Time { return e.created }
func (e *entity) serial() int     { return e.number }

// entity returns the common fields of a new resource. Its ID has AWS's form: a prefix and 17 hexadecimal digits that
// begin with a zero.
func (s *Service) entity(prefix string) entity {
	s.sequence++
	return entity{id: newID(prefix), created: s.now(), number: s.sequence}
}

func newID(prefix string) string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return prefix + "-0" + hex.EncodeToString(b[:])
}

// kind is a kind of resource. The prefix of an ID shows the kind of the resource.
type kind struct {
	prefix string // "vpc"
	name   string // "vpc": the type in ARNs and tag specifications
	noun   string // "vpc ID": name of the ID in AWS's messages
	code   string // "InvalidVpcID.NotFound"
	find   func(id string) (resource, bool)
	// context returns the condition keys that only resources of this kind have. If context is nil, there are none.
	context func(id string) policy.Context
}

// kind returns the kind that an ID belongs to. If several prefixes fit, the longest counts: "eni-attach" is not an
// "eni".
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

// exists returns the documented NotFound error if no resource has the ID.
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

// arn returns the ARN of a resource from its type and ID. An empty ID or "*" means a resource that does not exist yet.
func (s *Service) arn(resourceType, id string) string {
	if id == "" {
		id = "*"
	}
	account := s.cfg.Account
	if resourceType == "image" || resourceType == "prefix-list" || resourceType == "snapshot" {
		account = "" // AWS leaves the account out, because these may belong to others
	}
	return "arn:aws:ec2:" + s.cfg.Region + ":" + account + ":" + resourceType + "/" + id
}

// ARN returns the ARN of a resource by its ID, "" if the form of the ID is unknown.
func (s *Service) ARN(id string) string {
	k, ok := s.kind(id)
	if !ok {
		return ""
	}
	return s.arn(k.name, id)
}

// conditions returns the condition keys of an existing resource: its tags and the keys of its type.
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

// allow checks that the caller may perform an action, such as "AttachNetworkInterface", on each of the resources.
func (s *Service) allow(c *wire.Call, action string, ids ...string) error {
	for _, id := range ids {
		arn := s.ARN(id)
		if arn == "" {
			arn = "*" // unknown form of ID: only a policy for "*" allows it, and the caller then gets the ID's error
		}
		if err := c.Authorize("ec2:"+action, arn, s.conditions(id)); err != nil {
			return err
		}
	}
	return nil
}

// allowAny checks that the caller may perform an action that policies cannot limit to a resource, such as all Describe
// actions.
func (s *Service) allowAny(c *wire.Call, action string) error {
	return c.Authorize("ec2:"+action, "*", policy.Context{"ec2:Region": {s.cfg.Region}})
}

// allowNew checks that the caller may create a resource of a type, and tag it during creation. keys holds additional
// condition keys of the creation.
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

// requestTags returns the condition keys of tags in a request.
func requestTags(tags map[string]string) policy.Context {
	context := policy.Context{}
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		context["aws:RequestTag/"+key] = []string{tags[key]}
		context["aws:TagKeys"] = append(context["aws:TagKeys"], key)
	}
	return context
}

// visible reports whether Describe operations already find a resource.
func (s *Service) visible(r resource) bool {
	if s.cfg.Faults == nil {
		return true
	}
	window := s.cfg.Faults.Lag()
	return window <= 0 || s.now().Sub(r.born()) >= window
}

// sorted returns the resources in a table, in the order in which they were created.
func sorted[T resource](table map[string]T) []T {
	return slices.SortedFunc(maps.Values(table), func(a, b T) int { return cmp.Compare(a.serial(), b.serial()) })
}

// failf returns a client error in EC2's form, with HTTP status 400.
//
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
func failf(code, format string, args ...any) error {
	return wire.Errorf(http.StatusBadRequest, code, format, args...)
}

// missing returns the error for a missing required parameter.
func missing(parameter string) error {
	return failf("MissingParameter", "The request must contain the parameter %s", parameter)
}

// invalid returns the error for an invalid parameter value.
func invalid(parameter string, value any) error {
	return failf("InvalidParameterValue", "Value (%v) for parameter %s is invalid.", value, parameter)
}

// done is the answer of operations that only report success.
type done struct {
	Return bool `xml:"return"`
}

var ok = done{Return: true}

// timestamp formats a time like EC2: UTC with milliseconds.
func timestamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// required returns an error if a parameter is empty. pairs holds names and values alternately.
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
