package s3

import (
	"net/http"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// level is the kind of resource that an operation concerns.
type level int

const (
	onService level = iota
	onBucket
	onObject
)

// operation is one operation of S3.
type operation struct {
	name   string
	method string
	level  level
	needs  []string // parameters that identify this operation
	header string   // header that identifies it
	takes  []string // optional parameters
	action string   // IAM action without "s3:". Operations that need more permissions list them in more
	more   func(*request) []string
	serve  func(*request) error
}

// actions returns the IAM actions that an operation always needs on its resource.
func (o operation) actions(q *request) []string {
	var all []string
	if o.action != "" {
		action := o.action
		// The permissions for a version of an object have other names: s3:GetObjectVersion, s3:PutObjectVersionTagging
		// and so on.
		if q.query.Has("versionId") && o.level == onObject {
			action = strings.Replace(action, "Object", "ObjectVersion", 1)
		}
		all = append(all, "s3:"+action)
	}
	if o.more != nil {
		all = append(all, o.more(q)...)
	}
	return all
}

// operations returns all operations. Those that need the most query parameters and headers come first: find returns the
// first operation that fits, and that must be the most specific one.
func operations() []operation {
	all := slices.Concat(objectOperations(), bucketOperations(), configurationOperations())
	slices.SortStableFunc(all, func(a, b operation) int { return b.special() - a.special() })
	return all
}

func (o operation) special() int {
	n := 2 * len(o.needs)
	if o.header != "" {
		n++
	}
	return n
}

var table = operations()

// Operations returns the names of all operations.
func Operations() []string {
	names := make([]string, len(table))
	for i, o := range table {
		names[i] = o.name
	}
	return names
}

// unknownParts are query parameters for features of S3 that this fake lacks. Without this list, a request with such a
// parameter would match an operation on the whole bucket or object.
var unknownParts = []string{
	"analytics", "intelligent-tiering", "inventory", "metrics", "metadataTable", "metadataConfiguration", "torrent",
	"restore", "select", "renameObject",
	"encryptionConfiguration", "abac", "append", "session",
}

// find returns the operation that a request asks for.
func find(r *http.Request, q *request) (operation, error) {
	at := onObject
	switch {
	case q.bucket == "":
		at = onService
	case q.key == "":
		at = onBucket
	}
	for _, part := range unknownParts {
		if q.query.Has(part) {
			return operation{}, wire.Errorf(http.StatusNotImplemented, "NotImplemented", "fakeaws: %s ?%s", r.Method,
				part)
		}
	}
	for _, o := range table {
		missing := slices.ContainsFunc(o.needs, func(name string) bool { return !q.query.Has(name) })
		if o.method == r.Method && o.level == at && !missing && (o.header == "" || r.Header.Get(o.header) != "") {
			return o, nil
		}
	}
	return operation{}, wire.Errorf(http.StatusMethodNotAllowed, "MethodNotAllowed",
		"The specified method is not allowed against this resource")
}

// knows reports whether the operation takes a parameter.
func knows(o operation, name string) bool {
	return slices.Contains(o.needs, name) || slices.Contains(o.takes, name)
}

// resource returns the ARN of the request's resource.
func (q *request) resource() string {
	switch q.op.level {
	case onObject:
		return "arn:aws:s3:::" + q.bucket + "/" + q.key
	case onBucket:
		return "arn:aws:s3:::" + q.bucket
	default:
		return "*"
	}
}

// allow evaluates the caller's policies and the bucket's policy.
func (q *request) allow(action, resource string) error {
	return q.Authorize(action, resource, q.conditions())
}

// may reports whether allow permits an action. It is for checks where a denial does not end the request.
func (q *request) may(action, resource string) bool { return q.allow(action, resource) == nil }

// conditionHeaders are the headers that IAM policies can use as condition keys of the same name.
var conditionHeaders = []string{
	"x-amz-acl", "x-amz-content-sha256", "x-amz-copy-source", "x-amz-metadata-directive",
	"x-amz-server-side-encryption",
	"x-amz-server-side-encryption-aws-kms-key-id", "x-amz-storage-class", "x-amz-website-redirect-location",
	"x-amz-object-ownership", "if-match", "if-none-match",
}

// conditions returns the condition keys of the request. A key that the request does not contain is absent.
func (q *request) conditions() policy.Context {
	c := policy.Context{
		"aws:SecureTransport": {"true"}, // for policies only: clients connect over plain HTTP
		"aws:ResourceAccount": {q.s.cfg.Account}, "s3:ResourceAccount": {q.s.cfg.Account},
		"s3:signatureversion": {"AWS4-HMAC-SHA256"}, "s3:authType": {"REST-HEADER"}, "s3:TlsVersion": {"1.3"},
	}
	if q.Request.URL.Query().Has("X-Amz-Signature") {
		c["s3:authType"] = []string{"REST-QUERY-STRING"}
	}
	for _, name := range conditionHeaders {
		if v := q.Request.Header.Get(name); v != "" {
			c["s3:"+name] = []string{v}
		}
	}
	if q.op.level == onBucket {
		for _, name := range []string{"prefix", "delimiter", "max-keys"} {
			if q.query.Has(name) {
				c["s3:"+name] = []string{q.query.Get(name)}
			}
		}
	}
	if q.query.Has("versionId") {
		c["s3:VersionId"] = []string{q.query.Get("versionId")}
	}
	if q.op.name == "PutObject" {
		c["s3:ObjectCreationOperation"] = []string{"true"}
	}
	for key, value := range q.headerTags() {
		c["s3:RequestObjectTag/"+key] = []string{value}
		c["s3:RequestObjectTagKeys"] = append(c["s3:RequestObjectTagKeys"], key)
	}
	return c
}
