package s3

import (
	"encoding/xml"
	"net/http"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

func policyOperations() []operation {
	part := func(name, method, sub string, serve func(*request) error) operation {
		return operation{name: name, method: method, level: onBucket, needs: []string{sub}, action: name, serve: serve}
	}
	return []operation{
		part("GetBucketPolicy", "GET", "policy", getPolicy),
		part("PutBucketPolicy", "PUT", "policy", putPolicy),
		part("DeleteBucketPolicy", "DELETE", "policy", deletePolicy),
		part("GetBucketAcl", "GET", "acl", getACL),
	}
}

// maxPolicy is the largest bucket policy.
const maxPolicy = 20 << 10

func getPolicy(q *request) error {
	q.s.mu.Lock()
	text := q.config.policy.text
	q.s.mu.Unlock()
	if text == "" {
		return wire.Errorf(http.StatusNotFound, "NoSuchBucketPolicy", "The bucket policy does not exist")
	}
	q.w.Header().Set("Content-Type", "application/json")
	_, _ = q.w.Write([]byte(text)) // the client may be gone and then needs no answer
	return nil
}

func putPolicy(q *request) error {
	body, err := q.body()
	if err != nil {
		return err
	}
	if len(body) > maxPolicy {
		return wire.Errorf(http.StatusBadRequest, "PolicyTooLarge", "Policy exceeds the maximum allowed document size")
	}
	document, err := policy.Parse(policy.Resource, string(body))
	if err != nil {
		return wire.Errorf(http.StatusBadRequest, "MalformedPolicy", "%v", err)
	}
	for _, s := range document.Statements {
		if err := q.checkStatement(s); err != nil {
			return err
		}
	}
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	block, _ := q.config.documents["publicAccessBlock"].(*publicAccessBlock)
	if block != nil && block.BlockPublicPolicy == "true" && public(document) {
		return wire.Errorf(http.StatusForbidden, "AccessDenied",
			"User: %s is not authorized to perform: s3:PutBucketPolicy on resource: \"arn:aws:s3:::%s\" because "+
				"public policies are prevented by the BlockPublicPolicy setting in S3 Block Public Access.",
			q.Principal.ARN, q.bucket)
	}
	q.config.policy = bucketPolicy{text: string(body), document: document}
	q.w.WriteHeader(http.StatusNoContent)
	return nil
}

// checkStatement refuses statements about other buckets, and about actions of other services.
func (q *request) checkStatement(s policy.Statement) error {
	arn := "arn:aws:s3:::" + q.bucket
	for _, r := range slices.Concat(s.Resources, s.NotResources) {
		if r != arn && !strings.HasPrefix(r, arn+"/") && r != arn+"*" {
			return wire.Errorf(http.StatusBadRequest, "MalformedPolicy", "Policy has invalid resource")
		}
	}
	for _, a := range slices.Concat(s.Actions, s.NotActions) {
		if a != "*" && !strings.HasPrefix(strings.ToLower(a), "s3:") {
			return wire.Errorf(http.StatusBadRequest, "MalformedPolicy", "Policy has invalid action")
		}
	}
	return nil
}

// narrowing are condition keys that can keep a statement from being public. A statement for all principals is not
// public if a condition requires fixed values for one of these keys.
// Source:
// https://docs.aws.amazon.com/AmazonS3/latest/userguide/access-control-block-public-access.html#access-control-block-public-access-policy-status
var narrowing = []string{
	"aws:principalarn", "aws:principalorgid", "aws:principalorgpaths", "aws:principalaccount", "aws:sourcearn",
	"aws:sourceaccount", "aws:sourcevpc", "aws:sourcevpce", "aws:sourceip",
	"aws:userid", "aws:sourceowner", "s3:dataaccesspointaccount", "s3:dataaccesspointarn",
	"s3:x-amz-server-side-encryption-aws-kms-key-id",
}

// public reports whether a policy grants access to all principals.
func public(d *policy.Document) bool {
	return slices.ContainsFunc(d.Statements, func(s policy.Statement) bool {
		everybody := s.Principals != nil && (s.Principals.Any || slices.Contains(s.Principals.AWS, "*"))
		return !s.Deny && everybody && !slices.ContainsFunc(s.Conditions, func(c policy.Condition) bool {
			fixed := !slices.ContainsFunc(c.Values, func(v string) bool {
				return strings.ContainsAny(v, "*?$") || v == "0.0.0.0/0" || v == "::/0"
			})
			return fixed && slices.Contains(narrowing, strings.ToLower(c.Key)) &&
				!strings.Contains(c.Operator, "Not") && !c.IfExists
		})
	})
}

func deletePolicy(q *request) error {
	q.s.mu.Lock()
	q.config.policy = bucketPolicy{}
	q.s.mu.Unlock()
	q.w.WriteHeader(http.StatusNoContent)
	return nil
}

// acl is an access control list. Every list of this fake gives the owner full control and nobody else anything.
type acl struct {
	XMLName xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ AccessControlPolicy"`
	Owner   owner
	Grants  []grant `xml:"AccessControlList>Grant"`
}

type grant struct {
	Grantee struct {
		XSI  string `xml:"xmlns:xsi,attr"`
		Type string `xml:"xsi:type,attr"`
		owner
	}
	Permission string
}

func getACL(q *request) error {
	out := acl{Owner: q.s.owner()}
	g := grant{Permission: "FULL_CONTROL"}
	g.Grantee.owner, g.Grantee.XSI, g.Grantee.Type = out.Owner, "http://www.w3.org/2001/XMLSchema-instance",
		"CanonicalUser"
	out.Grants = []grant{g}
	return q.writeXML(out)
}

func aclsDisabled() error {
	return wire.Errorf(http.StatusBadRequest, "AccessControlListNotSupported", "The bucket does not allow ACLs")
}

func (q *request) checkedACL(canned string) error {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	return q.config.checkACL(canned)
}

// enforced reports whether ACLs are disabled.
func (b *bucket) enforced() bool {
	o, ok := b.documents["ownershipControls"].(*ownershipControls)
	return ok && o.Rules[0].ObjectOwnership == ownerEnforced
}

// checkACL refuses canned ACLs that a new object cannot have.
func (b *bucket) checkACL(canned string) error {
	switch {
	case canned == "", canned == "bucket-owner-full-control", canned == "private" && !b.enforced():
		return nil
	case b.enforced():
		return aclsDisabled()
	}
	return wire.Errorf(http.StatusNotImplemented, "NotImplemented", "fakeaws: the ACL %s", canned)
}
