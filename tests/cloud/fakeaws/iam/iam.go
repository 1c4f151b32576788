// Package iam is a fake of AWS Identity and Access Management at the level of its query API. It has roles with their
// policies, and instance profiles.
//
// Invariant: every policy document was parsed before it was stored, so a role's permissions are known exactly. All
// state is protected by the cloud's lock: handlers and methods are called with it held. Nothing in this fake is
// eventually consistent.
// Source: https://docs.aws.amazon.com/IAM/latest/APIReference/
package iam

import (
	"crypto/rand"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Default quotas of an account.
// Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html
const (
	maxTrust  = 2048  // characters of a trust policy, without white space
	maxInline = 10240 // characters of all inline policies of a role together, without white space
	maxTags   = 50
)

// Service is the fake IAM service.
type Service struct {
	account  string
	roles    map[string]*role    // by name
	profiles map[string]*profile // by name
}

// New makes an empty account.
func New(account string) *Service {
	return &Service{account: account, roles: map[string]*role{}, profiles: map[string]*profile{}}
}

// Name returns the service's signing name.
func (s *Service) Name() string { return "iam" }

// Operations returns the handlers of all implemented operations.
func (s *Service) Operations() map[string]wire.Handler {
	all := map[string]wire.Handler{}
	maps.Copy(all, s.roleOperations())
	maps.Copy(all, s.inlineOperations())
	maps.Copy(all, s.profileOperations())
	return all
}

var (
	nameForm = regexp.MustCompile(`^[\w+=,.@-]{1,128}$`)
	pathForm = regexp.MustCompile(`^/([!-~]+/)?$`)
)

// entity holds the common fields of roles and instance profiles.
type entity struct {
	name, path, id, arn string
	created             time.Time
	tags                map[string]string
}

// entity checks a name and a path, and returns the common fields of a new resource. An empty path means "/".
func (s *Service) entity(c *wire.Call, kind, prefix, name, path string, tags []tag) (entity, error) {
	if path == "" {
		path = "/"
	}
	if !nameForm.MatchString(name) || kind == "role" && len(name) > 64 {
		return entity{}, invalid("The specified value for %sName is invalid: %q", kind, name)
	}
	if !pathForm.MatchString(path) || len(path) > 512 {
		return entity{}, invalid("The specified value for path is invalid. It must begin and end with /")
	}
	e := entity{name: name, path: path, id: newID(prefix), created: c.Now, tags: map[string]string{}}
	e.arn = "arn:aws:iam::" + s.account + ":" + kind + path + name
	return e, e.tag(tags)
}

const idAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"

// newID makes a unique ID in AWS's form: a prefix for the kind and 17 characters.
func newID(prefix string) string {
	var b [17]byte
	_, _ = rand.Read(b[:]) // never fails
	for i := range b {
		b[i] = idAlphabet[int(b[i])%len(idAlphabet)]
	}
	return prefix + string(b[:])
}

type tag struct {
	Key   string
	Value string
}

// tag sets tags. Keys that differ only in case are the same key.
func (e *entity) tag(tags []tag) error {
	for _, t := range tags {
		if t.Key == "" || len(t.Key) > 128 || len(t.Value) > 256 || strings.HasPrefix(strings.ToLower(t.Key), "aws:") {
			return wire.Errorf(http.StatusBadRequest, "InvalidInput", "The tag %q is not valid", t.Key)
		}
		for k := range e.tags {
			if strings.EqualFold(k, t.Key) {
				delete(e.tags, k)
			}
		}
		e.tags[t.Key] = t.Value
	}
	if len(e.tags) > maxTags {
		return limit("The number of tags has reached the maximum limit.")
	}
	return nil
}

func (e *entity) tagList() []tag {
	out := make([]tag, 0, len(e.tags))
	for _, k := range slices.Sorted(maps.Keys(e.tags)) {
		out = append(out, tag{k, e.tags[k]})
	}
	return out
}

// keys returns the condition keys of an existing resource.
func (e *entity) keys() policy.Context {
	ctx := policy.Context{}
	for k, v := range e.tags {
		ctx["aws:ResourceTag/"+k] = []string{v}
		ctx["iam:ResourceTag/"+k] = []string{v}
	}
	return ctx
}

// tagKeys returns the condition keys of tags in a request.
func tagKeys(tags []tag) policy.Context {
	ctx := policy.Context{}
	for _, t := range tags {
		ctx["aws:RequestTag/"+t.Key] = []string{t.Value}
		ctx["aws:TagKeys"] = append(ctx["aws:TagKeys"], t.Key)
	}
	return ctx
}

// create checks that the caller may create a resource and, if tags is not empty, tag it.
func (e *entity) create(c *wire.Call, kind string, tags []tag) error {
	all := tagKeys(tags)
	if err := c.Authorize("iam:Create"+kind, e.arn, all); err != nil || len(tags) == 0 {
		return err
	}
	return c.Authorize("iam:Tag"+kind, e.arn, all)
}

// use checks that the caller may perform the call's action on an existing resource.
func (e *entity) use(c *wire.Call, keys ...policy.Context) error {
	all := e.keys()
	for _, k := range keys {
		maps.Copy(all, k)
	}
	return c.Authorize("iam:"+c.Action, e.arn, all)
}

// size returns a document's length as IAM counts it: without white space.
func size(document string) int {
	n := 0
	for _, r := range document {
		if !unicode.IsSpace(r) {
			n++
		}
	}
	return n
}

// encoded returns a document as IAM returns it: percent-encoded according to RFC 3986.
func encoded(document string) string {
	return strings.ReplaceAll(url.QueryEscape(document), "+", "%20")
}

func parse(kind policy.Kind, document string) (*policy.Document, error) {
	doc, err := policy.Parse(kind, document)
	if err != nil {
		return nil, wire.Errorf(http.StatusBadRequest, "MalformedPolicyDocument", "%v", err)
	}
	return doc, nil
}

// pages holds the paging parameters of IAM's lists.
type pages struct {
	Marker   string
	MaxItems int
}

type pageEnd struct {
	IsTruncated bool
	Marker      string `xml:",omitempty"`
}

// cut returns one page of a list: 100 items unless the call sets MaxItems.
func cut[T any](items []T, p pages) ([]T, pageEnd, error) {
	if p.MaxItems == 0 {
		p.MaxItems = 100
	}
	page, next, err := wire.Page(items, p.MaxItems, p.Marker)
	return page, pageEnd{IsTruncated: next != "", Marker: next}, err
}

func invalid(format string, args ...any) error {
	return wire.Errorf(http.StatusBadRequest, "ValidationError", format, args...)
}

func missing(format string, args ...any) error {
	return wire.Errorf(http.StatusNotFound, "NoSuchEntity", format, args...)
}

func exists(format string, args ...any) error {
	return wire.Errorf(http.StatusConflict, "EntityAlreadyExists", format, args...)
}

func conflict(format string, args ...any) error {
	return wire.Errorf(http.StatusConflict, "DeleteConflict", format, args...)
}

func limit(format string, args ...any) error {
	return wire.Errorf(http.StatusConflict, "LimitExceeded", format, args...)
}
