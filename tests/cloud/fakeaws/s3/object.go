package s3

import (
	"encoding/xml"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

func objectOperations() []operation {
	get := []string{"versionId", "partNumber", "response-cache-control", "response-content-disposition",
		"response-content-encoding", "response-content-language",
		"response-content-type", "response-expires"}
	list := []string{"prefix", "delimiter", "max-keys", "encoding-type"}
	return []operation{
		{name: "GetObject", method: "GET", level: onObject, takes: get, action: "GetObject", serve: read},
		// HeadObject needs the permissions of GetObject. Its errors have no body.
		{name: "HeadObject", method: "HEAD", level: onObject, takes: get, action: "GetObject", serve: read},
		{name: "PutObject", method: "PUT", level: onObject, action: "PutObject", more: extras, serve: write},
		{name: "DeleteObject", method: "DELETE", level: onObject, takes: []string{"versionId"}, action: "DeleteObject",
			serve: deleteObject},
		{name: "DeleteObjects", method: "POST", level: onBucket, needs: []string{"delete"}, serve: deleteObjects},
		{name: "ListObjectsV2", method: "GET", level: onBucket, needs: []string{"list-type"},
			takes:  slices.Concat(list, []string{"continuation-token", "start-after", "fetch-owner"}),
			action: "ListBucket", serve: pass},
		{name: "ListObjectVersions", method: "GET", level: onBucket, needs: []string{"versions"},
			takes: slices.Concat(list, []string{"key-marker", "version-id-marker"}), action: "ListBucketVersions",
			serve: listVersions},
	}
}

// extras returns the permissions that a request to store an object needs because of its headers, in addition to
// s3:PutObject.
func extras(q *request) []string {
	var all []string
	h := q.Request.Header
	if h.Get("X-Amz-Tagging") != "" {
		all = append(all, "s3:PutObjectTagging")
	}
	if h.Get("X-Amz-Acl") != "" {
		all = append(all, "s3:PutObjectAcl")
	}
	return all
}

// headerTags returns the tags of a new object from the request's headers.
func (q *request) headerTags() map[string]string {
	values, err := url.ParseQuery(q.Request.Header.Get("X-Amz-Tagging"))
	if err != nil {
		return nil // the server refuses the request
	}
	tags := map[string]string{}
	for k, v := range values {
		tags[k] = v[0]
	}
	return tags
}

// read forwards a request for an object. A caller that may not list the bucket does not learn whether an object exists.
// Source: API reference, GetObject, "Permissions".
func read(q *request) error {
	answer, err := q.fetch()
	if err != nil {
		return err
	}
	if answer.StatusCode == http.StatusNotFound && !q.may("s3:ListBucket", "arn:aws:s3:::"+q.bucket) {
		drop(answer)
		return denied()
	}
	if answer.StatusCode < http.StatusBadRequest {
		e := q.s.encryptionOf(q.bucket, q.key, answer.Header.Get("X-Amz-Version-Id"))
		if q.Request.Method == http.MethodGet {
			if err := q.useKey("kms:Decrypt", e); err != nil {
				drop(answer)
				return err
			}
		}
		e.setHeaders(answer.Header)
	}
	return q.reply(answer)
}

// fetch gets the requested version of the object from the server. It sets the header X-Amz-Version-Id of the answer.
func (q *request) fetch() (*http.Response, error) {
	l := q.s.locks.of(q.bucket, q.key)
	l.RLock()
	defer l.RUnlock()
	at, err := q.place()
	if err != nil {
		return nil, err
	}
	query := maps.Clone(q.query)
	query.Del("versionId")
	answer, err := q.send(q.Request.Method, at, query, q.headers(), nil)
	if err != nil {
		return nil, err
	}
	if v := q.s.newest(q.config, q.key); v != nil {
		id := q.query.Get("versionId")
		if id == "" {
			id = v.id
			if v.marker {
				answer.Header.Set("X-Amz-Delete-Marker", "true")
			}
		}
		answer.Header.Set("X-Amz-Version-Id", id)
	}
	return answer, nil
}

// write passes PutObject on.
func write(q *request) error {
	if err := q.checkNew(); err != nil {
		return err
	}
	if err := q.useKey("kms:GenerateDataKey", q.encryption()); err != nil {
		return err
	}
	body, err := q.body()
	if err != nil {
		return err
	}
	answer, err := q.publish(int64(len(body)), func() (*http.Response, error) { return q.forward(body) })
	if err != nil {
		return err
	}
	if answer.StatusCode < http.StatusBadRequest {
		q.encrypted(answer.Header)
	}
	return q.reply(answer)
}

// checkNew refuses settings of a new object that this fake does not support.
func (q *request) checkNew() error {
	h := q.Request.Header
	for name := range h {
		if strings.HasPrefix(name, "X-Amz-Server-Side-Encryption-Customer") || strings.HasPrefix(name, "X-Amz-Grant") ||
			strings.HasPrefix(name, "X-Amz-Object-Lock") || strings.HasPrefix(name, "X-Amz-Copy-Source") {
			return wire.Errorf(http.StatusNotImplemented, "NotImplemented", "fakeaws: %s with the header %s", q.op.name,
				name)
		}
	}
	switch h.Get("X-Amz-Server-Side-Encryption") {
	case "", "AES256", "aws:kms":
	default:
		return wire.Errorf(http.StatusBadRequest, "InvalidArgument", "The encryption method specified is not supported")
	}
	if h.Get("X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id") != "" && h.Get(
		"X-Amz-Server-Side-Encryption") != "aws:kms" {
		return wire.Errorf(http.StatusBadRequest, "InvalidArgument",
			"Server Side Encryption with AWS KMS managed key requires HTTP header x-amz-server-side-encryption : "+
				"aws:kms")
	}
	return q.checkedACL(h.Get("X-Amz-Acl"))
}

// deletion is the body of DeleteObjects.
type deletion struct {
	XMLName xml.Name         `xml:"Delete"`
	Quiet   string           `xml:",omitempty"`
	Objects []deletionObject `xml:"Object"`
}

type deletionObject struct {
	Key       string
	VersionId *string
	ETag      *string
}

type deletionAnswer struct {
	XMLName xml.Name          `xml:"http://s3.amazonaws.com/doc/2006-03-01/ DeleteResult"`
	Deleted []deletionSuccess `xml:"Deleted"`
	Errors  []deletionError   `xml:"Error"`
}

type deletionSuccess struct {
	Key                   string
	VersionId             string `xml:",omitempty"`
	DeleteMarker          bool   `xml:",omitempty"`
	DeleteMarkerVersionId string `xml:",omitempty"`
}

type deletionError struct {
	Key       string
	VersionId string `xml:",omitempty"`
	Code      string
	Message   string
}

func deleteObject(q *request) error {
	d, err := q.remove(q.key, q.path, q.query.Get("versionId"), func() (*http.Response, error) {
		return q.send(http.MethodDelete, q.bucket+"/"+q.path, nil, q.headers(), nil)
	})
	switch {
	case err != nil:
		return err
	case d.answer != nil:
		return q.reply(d.answer)
	}
	if d.marker {
		q.w.Header().Set("X-Amz-Delete-Marker", "true")
	}
	if d.id != "" {
		q.w.Header().Set("X-Amz-Version-Id", d.id)
	}
	q.w.WriteHeader(http.StatusNoContent)
	return nil
}

// deleteObjects deletes the objects that the caller may delete, one after the other, and reports the others as errors.
func deleteObjects(q *request) error {
	body, err := q.body()
	if err != nil {
		return err
	}
	h := q.Request.Header
	if !slices.ContainsFunc(checksumHeaders(h), func(name string) bool { return h.Get(name) != "" }) {
		return wire.Errorf(http.StatusBadRequest, "InvalidRequest",
			"Missing required header for this request: Content-MD5 OR x-amz-checksum-*")
	}
	var in deletion
	if err := decode(body, &in); err != nil {
		return err
	}
	if len(in.Objects) == 0 || len(in.Objects) > 1000 {
		return malformed()
	}
	var out deletionAnswer
	for _, object := range in.Objects {
		done, failed := q.deleteOne(object)
		switch {
		case failed != nil:
			out.Errors = append(out.Errors, *failed)
		case in.Quiet != "true":
			out.Deleted = append(out.Deleted, done)
		}
	}
	return q.writeXML(out)
}

func (q *request) deleteOne(object deletionObject) (deletionSuccess, *deletionError) {
	action, id := "s3:DeleteObject", ""
	if object.VersionId != nil {
		action, id = "s3:DeleteObjectVersion", *object.VersionId
	}
	failed := &deletionError{Key: object.Key, VersionId: id, Code: "AccessDenied", Message: "Access Denied"}
	if !q.may(action, "arn:aws:s3:::"+q.bucket+"/"+object.Key) {
		return deletionSuccess{}, failed
	}
	path := escape(object.Key)
	header := http.Header{}
	if object.ETag != nil {
		header.Set("If-Match", *object.ETag)
	}
	d, err := q.remove(object.Key, path, id, func() (*http.Response, error) {
		return q.send(http.MethodDelete, q.bucket+"/"+path, nil, header, nil)
	})
	if d.answer != nil {
		err = serverError(d.answer)
		drop(d.answer)
	}
	if err != nil {
		e := wire.AsError(err)
		failed.Code, failed.Message = e.Code, e.Message
		return deletionSuccess{}, failed
	}
	done := deletionSuccess{Key: object.Key, VersionId: id, DeleteMarker: d.marker}
	if d.marker {
		done.DeleteMarkerVersionId = d.id
	}
	return done, nil
}

// encryption is the reported encryption of an object. The fake encrypts nothing.
type encryption struct{ algorithm, key, bucketKey string }

// encryptionKey identifies a version of an object.
type encryptionKey struct{ bucket, key, version string }

// encryption returns the encryption of a new object: that of the request's headers, or else the bucket's default.
func (q *request) encryption() encryption {
	h := q.Request.Header
	e := encryption{h.Get("X-Amz-Server-Side-Encryption"), h.Get("X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id"),
		h.Get("X-Amz-Server-Side-Encryption-Bucket-Key-Enabled")}
	if e.algorithm == "" {
		q.s.mu.Lock()
		defer q.s.mu.Unlock()
		return q.config.defaultEncryption()
	}
	return e
}

// useKey checks that the caller may use the KMS key of an object. S3 calls KMS with the caller's permissions. Any
// principal of the account may use S3's own keys, and the account's default key for S3.
// https://docs.aws.amazon.com/AmazonS3/latest/userguide/UsingKMSEncryption.html#require-sse-kms
func (q *request) useKey(action string, e encryption) error {
	if !strings.Contains(e.key, ":key/") {
		return nil
	}
	return q.Authorize(action, e.key, policy.Context{"kms:ViaService": {"s3." + q.s.cfg.Region + ".amazonaws.com"}})
}

// encrypted records the encryption that the fake reports for a new object. It also adds that encryption to the answer's
// headers.
func (q *request) encrypted(answer http.Header) {
	e := q.encryption()
	q.s.mu.Lock()
	k := encryptionKey{q.bucket, q.key, answer.Get("X-Amz-Version-Id")}
	q.config.keep(k, e)
	q.s.mu.Unlock()
	e.setHeaders(answer)
}

// keep stores the encryption of an object, unless it is S3's own default.
func (b *bucket) keep(k encryptionKey, e encryption) {
	if e == (encryption{algorithm: "AES256"}) {
		delete(b.kept, k)
		return
	}
	b.kept[k] = e
}

// encryptionOf returns the reported encryption of an object.
func (s *Service) encryptionOf(bucket, key, version string) encryption {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.buckets[bucket]; b != nil {
		if kept, ok := b.kept[encryptionKey{bucket, key, version}]; ok {
			return kept
		}
	}
	return encryption{algorithm: "AES256"}
}

func (e encryption) setHeaders(h http.Header) {
	h.Set("X-Amz-Server-Side-Encryption", e.algorithm)
	if e.algorithm != "aws:kms" {
		return
	}
	if e.key != "" {
		h.Set("X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id", e.key)
	}
	if e.bucketKey == "true" {
		h.Set("X-Amz-Server-Side-Encryption-Bucket-Key-Enabled", "true")
	}
}
