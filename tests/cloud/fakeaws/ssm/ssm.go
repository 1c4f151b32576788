// Package ssm fakes the Parameter Store of AWS Systems Manager, at the level of its JSON API.
//
// Invariant: versions of a parameter count up from 1 without gaps. Only requests with decryption receive the value of a
// SecureString in plain text.
//
// The cloud's lock guards all state. Handlers are called with it held.
//
// https://docs.aws.amazon.com/systems-manager/latest/APIReference/
package ssm

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Service is the fake. The caller must hold the cloud's lock.
type Service struct {
	region, account string
	parameters      map[string]*parameter // by name
}

// New returns an empty Parameter Store.
func New(region, account string) *Service {
	return &Service{region: region, account: account, parameters: map[string]*parameter{}}
}

// Name returns the service's name in the credential scope of a signature.
func (s *Service) Name() string { return "ssm" }

// Operations implements wire.Service.
func (s *Service) Operations() map[string]wire.Handler {
	return map[string]wire.Handler{
		"PutParameter":        s.putParameter,
		"GetParameter":        s.getParameter,
		"DescribeParameters":  s.describeParameters,
		"DeleteParameter":     s.deleteParameter,
		"ListTagsForResource": s.listTags,
	}
}

type parameter struct {
	name, kind, tier, dataType, description, keyID, allowedPattern string
	versions                                                       []version // The last one is current.
	first                                                          int64     // Number of versions[0].
	tags                                                           map[string]string
}

type version struct {
	value string
	at    time.Time
	by    string // ARN
}

func (p *parameter) current() version { return p.versions[len(p.versions)-1] }
func (p *parameter) number() int64    { return p.first + int64(len(p.versions)) - 1 }

// arn returns the ARN of a parameter. A leading slash of the name is not doubled.
func (s *Service) arn(name string) string {
	return "arn:aws:ssm:" + s.region + ":" + s.account + ":parameter/" + strings.TrimPrefix(name, "/")
}

// plain returns the parameter's name for a name or an ARN.
func (s *Service) plain(nameOrARN string) string {
	name, ok := strings.CutPrefix(nameOrARN, "arn:aws:ssm:"+s.region+":"+s.account+":parameter/")
	if ok && strings.Contains(name, "/") {
		return "/" + name
	}
	if ok && s.parameters[name] == nil && s.parameters["/"+name] != nil {
		return "/" + name
	}
	if ok {
		return name
	}
	return nameOrARN
}

// allow evaluates the caller's policies for the call's action on a parameter. The parameter need not exist.
func (s *Service) allow(c *wire.Call, name string, keys policy.Context) error {
	all := policy.Context{}
	if p := s.parameters[name]; p != nil {
		for k, v := range p.tags {
			all["aws:ResourceTag/"+k] = []string{v}
			all["ssm:resourceTag/"+k] = []string{v}
		}
	}
	maps.Copy(all, keys)
	return c.Authorize("ssm:"+c.Action, s.arn(name), all)
}

type tag struct{ Key, Value string }

func tagKeys(tags []tag) policy.Context {
	ctx := policy.Context{}
	for _, t := range tags {
		ctx["aws:RequestTag/"+t.Key] = []string{t.Value}
		ctx["aws:TagKeys"] = append(ctx["aws:TagKeys"], t.Key)
	}
	return ctx
}

// resource is the parameter that a tag operation concerns.
type resource struct{ ResourceType, ResourceId string }

func (s *Service) tagged(c *wire.Call, r resource, keys policy.Context) (*parameter, error) {
	if r.ResourceType != "Parameter" {
		return nil, fail("InvalidResourceType", "The resource type %q is not known here", r.ResourceType)
	}
	name := s.plain(r.ResourceId)
	if err := s.allow(c, name, keys); err != nil {
		return nil, err
	}
	p := s.parameters[name]
	if p == nil {
		return nil,
			fail("InvalidResourceId",
				"The resource ID %q is not valid. Verify that you entered the correct ID and try again.", r.ResourceId)
	}
	return p, nil
}

func (s *Service) listTags(c *wire.Call) (any, error) {
	var in resource
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	p, err := s.tagged(c, in, nil)
	if err != nil {
		return nil, err
	}
	list := []tag{}
	for _, k := range slices.Sorted(maps.Keys(p.tags)) {
		list = append(list, tag{k, p.tags[k]})
	}
	return struct{ TagList []tag }{list}, nil
}

// maxTags is the maximum number of tags on a parameter.
// https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_AddTagsToResource.html
const maxTags = 50

func (p *parameter) tag(tags []tag) error {
	all := maps.Clone(p.tags)
	for _, t := range tags {
		if t.Key == "" || len(t.Key) > 128 || len(t.Value) > 256 {
			return fail("ValidationException", "The tag %q is not valid", t.Key)
		}
		all[t.Key] = t.Value
	}
	if len(all) > maxTags {
		return fail("TooManyTagsError", "A resource can have at most %d tags", maxTags)
	}
	p.tags = all
	return nil
}

func fail(code, format string, args ...any) error {
	return wire.Errorf(http.StatusBadRequest, code, format, args...)
}
