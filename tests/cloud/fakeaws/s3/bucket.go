package s3

import (
	"encoding/xml"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// bucket is the configuration of a bucket. Its fields are read and written under the service's lock. The values that
// they point to never change.
type bucket struct {
	name    string
	created time.Time
	policy  bucketPolicy
	// documents holds the bucket's configurations by name: "versioning", "lifecycle" and so on. An absent configuration
	// was never set, or was deleted.
	documents map[string]any
	// transition is the header X-Amz-Transition-Default-Minimum-Object-Size of the lifecycle configuration.
	transition string
	kept       map[encryptionKey]encryption
	// versions holds all versions of each object, the newest last. It is empty until versioning is enabled for the
	// first time.
	versions map[string][]*version
}

// bucketPolicy is a policy's text and its parsed form. Nil means no policy.
type bucketPolicy struct {
	text     string
	document *policy.Document
}

func bucketOperations() []operation {
	return []operation{
		{name: "ListBuckets", method: "GET", level: onService, takes: []string{"max-buckets", "prefix", "bucket-region",
			"continuation-token"}, action: "ListAllMyBuckets", serve: listBuckets},
		{name: "CreateBucket", method: "PUT", level: onBucket, action: "CreateBucket", more: func(q *request) []string {
			var all []string
			if q.Request.Header.Get("X-Amz-Acl") != "" {
				all = append(all, "s3:PutBucketAcl")
			}
			if q.Request.Header.Get("X-Amz-Object-Ownership") != "" {
				all = append(all, "s3:PutBucketOwnershipControls")
			}
			return all
		}, serve: createBucket},
		{name: "HeadBucket", method: "HEAD", level: onBucket, action: "ListBucket", serve: headBucket},
		{name: "DeleteBucket", method: "DELETE", level: onBucket, action: "DeleteBucket", serve: deleteBucket},
	}
}

// bucketName matches the names of general purpose buckets.
// Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html
var bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)

var (
	addressLike = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+$`)
	reserved    = regexp.MustCompile(`^(xn--|sthree-|amzn-s3-demo-|` + archivePrefix +
		`)|(-s3alias|--ol-s3|\.mrap|--x-s3|--table-s3)$`)
)

func goodName(name string) bool {
	return bucketName.MatchString(name) && !strings.Contains(name, "..") && !addressLike.MatchString(name) &&
		!reserved.MatchString(name)
}

// createBucket makes a bucket with S3's defaults since April 2023: public access is blocked, ACLs are disabled, and
// objects are encrypted with S3's own keys.
func createBucket(q *request) error {
	if !goodName(q.bucket) {
		return wire.Errorf(http.StatusBadRequest, "InvalidBucketName", "The specified bucket is not valid.")
	}
	body, err := q.body()
	if err != nil {
		return err
	}
	var in struct {
		XMLName            xml.Name `xml:"CreateBucketConfiguration"`
		LocationConstraint string   `xml:",omitempty"`
		Tags               *tagSet
	}
	if len(body) > 0 {
		if err := decode(body, &in); err != nil {
			return err
		}
	}
	where := in.LocationConstraint
	switch {
	case where == "" && q.s.cfg.Region != "us-east-1", where != "" && where != q.s.cfg.Region:
		if where == "" {
			where = "unspecified"
		}
		return wire.Errorf(http.StatusBadRequest, "IllegalLocationConstraintException",
			"The %s location constraint is incompatible for the region specific endpoint this request was sent to.",
			where)
	case where == "us-east-1":
		return wire.Errorf(http.StatusBadRequest, "InvalidLocationConstraint",
			"The specified location-constraint is not valid")
	}
	h := q.Request.Header
	if h.Get("X-Amz-Bucket-Object-Lock-Enabled") == "true" {
		return wire.Errorf(http.StatusNotImplemented, "NotImplemented", "fakeaws: buckets with object lock")
	}
	b := &bucket{name: q.bucket, created: q.Now, documents: map[string]any{}, kept: map[encryptionKey]encryption{}}
	ownership := h.Get("X-Amz-Object-Ownership")
	if ownership == "" {
		ownership = ownerEnforced
	}
	controls := &ownershipControls{Rules: []ownershipRule{{ownership}}}
	if err := controls.check(); err != nil {
		return err
	}
	b.documents["ownershipControls"] = controls
	b.documents["publicAccessBlock"] = &publicAccessBlock{BlockPublicAcls: "true", IgnorePublicAcls: "true",
		BlockPublicPolicy: "true", RestrictPublicBuckets: "true"}
	if acl := h.Get("X-Amz-Acl"); acl != "" && acl != "private" {
		if ownership == ownerEnforced {
			return wire.Errorf(http.StatusBadRequest, "InvalidBucketAclWithObjectOwnership",
				"Bucket cannot have ACLs set with ObjectOwnership's BucketOwnerEnforced setting")
		}
		return wire.Errorf(http.StatusNotImplemented, "NotImplemented", "fakeaws: buckets with the ACL %s", acl)
	}
	if in.Tags != nil {
		if err := in.Tags.check(50); err != nil {
			return err
		}
		b.documents["tagging"] = &tagging{TagSet: *in.Tags}
	}
	q.s.mu.Lock()
	if _, taken := q.s.buckets[q.bucket]; taken {
		q.s.mu.Unlock()
		return wire.Errorf(http.StatusConflict, "BucketAlreadyOwnedByYou",
			"Your previous request to create the named bucket succeeded and you already own it.")
	}
	q.s.buckets[q.bucket] = b // before the server has it: only one of two concurrent callers makes it
	q.s.mu.Unlock()
	answer, err := q.send(http.MethodPut, q.bucket, nil, nil, nil)
	if err == nil && answer.StatusCode == http.StatusOK {
		drop(answer)
		q.w.Header().Set("Location", "http://"+q.bucket+".s3.amazonaws.com/")
		q.w.Header().Set("X-Amz-Bucket-Arn", "arn:aws:s3:::"+q.bucket)
		q.w.WriteHeader(http.StatusOK)
		return nil
	}
	q.s.mu.Lock()
	delete(q.s.buckets, q.bucket)
	q.s.mu.Unlock()
	if err != nil {
		return err
	}
	return q.reply(answer)
}

// deleteBucket deletes an empty bucket. It checks for older versions itself, and the S3 server behind the fake checks
// for current objects.
func deleteBucket(q *request) error {
	unlock := q.s.locks.all()
	defer unlock()
	q.s.mu.Lock()
	versions, status := len(q.config.versions), q.config.status()
	q.s.mu.Unlock()
	if versions > 0 {
		return wire.Errorf(http.StatusConflict, "BucketNotEmpty",
			"The bucket you tried to delete is not empty. You must delete all versions in the bucket.")
	}
	if status != "" {
		if err := q.do(http.MethodDelete, archive(q.bucket), nil, nil, http.StatusNoContent,
			http.StatusNotFound); err != nil {
			return err
		}
	}
	answer, err := q.send(http.MethodDelete, q.bucket, nil, nil, nil)
	if err != nil {
		return err
	}
	if answer.StatusCode == http.StatusNoContent {
		q.s.mu.Lock()
		delete(q.s.buckets, q.bucket)
		q.s.mu.Unlock()
	}
	return q.reply(answer)
}

func headBucket(q *request) error {
	q.w.Header().Set("X-Amz-Bucket-Region", q.s.cfg.Region)
	q.w.Header().Set("X-Amz-Access-Point-Alias", "false")
	q.w.Header().Set("X-Amz-Bucket-Arn", "arn:aws:s3:::"+q.bucket)
	q.w.Header().Set("Content-Type", "application/xml")
	q.w.WriteHeader(http.StatusOK)
	return nil
}

// owner is the account's canonical user.
type owner struct {
	ID          string
	DisplayName string `xml:",omitempty"`
}

func (s *Service) owner() owner { return owner{ID: strings.Repeat("0", 52) + s.cfg.Account} }

func listBuckets(q *request) error {
	type item struct {
		Name         string
		CreationDate wire.Time
		BucketRegion string
		BucketArn    string
	}
	var out struct {
		XMLName xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListAllMyBucketsResult"`
		Owner   owner
		Buckets []item `xml:"Buckets>Bucket"`
		Prefix  string `xml:",omitempty"`
	}
	if q.query.Has("continuation-token") || q.query.Has("max-buckets") {
		return wire.Errorf(http.StatusNotImplemented, "NotImplemented", "fakeaws: pages of buckets")
	}
	out.Owner, out.Prefix = q.s.owner(), q.query.Get("prefix")
	q.s.mu.Lock()
	for _, name := range slices.Sorted(maps.Keys(q.s.buckets)) {
		if region := q.query.Get("bucket-region"); strings.HasPrefix(name, out.Prefix) &&
			(region == "" || region == q.s.cfg.Region) {
			out.Buckets = append(out.Buckets, item{name, wire.Time{Time: q.s.buckets[name].created}, q.s.cfg.Region,
				"arn:aws:s3:::" + name})
		}
	}
	q.s.mu.Unlock()
	return q.writeXML(out)
}
