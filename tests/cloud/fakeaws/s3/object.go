package s3

import (
	"encoding/xml"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

func objectOperations() []operation {
	get := []string{"versionId", "partNumber", "response-cache-control", "response-content-disposition",
		"response-content-encoding", "response-content-language",
		"response-content-type", "response-expires"}
	list := []string{"prefix", "delimiter", "max-keys", "encoding-type"}
	const source = "X-Amz-Copy-Source"
	return []operation{
		{name: "GetObject", method: "GET", level: onObject, takes: get, action: "GetObject", serve: read},
		{name: "HeadObject", method: "HEAD", level: onObject, takes: get, action: "GetObject", serve: read},
		{name: "GetObjectTagging", method: "GET", level: onObject, needs: []string{"tagging"},
			takes: []string{"versionId"}, action: "GetObjectTagging", serve: read},
		{name: "GetObjectAttributes", method: "GET", level: onObject, needs: []string{"attributes"},
			takes: []string{"versionId"}, action: "GetObject",
			more: func(q *request) []string {
				if q.query.Has("versionId") {
					return []string{"s3:GetObjectVersionAttributes"}
				}
				return []string{"s3:GetObjectAttributes"}
			}, serve: read},
		{name: "PutObject", method: "PUT", level: onObject, action: "PutObject", more: extras, serve: write},
		{name: "CopyObject", method: "PUT", level: onObject, header: source, action: "PutObject", more: extras,
			serve: copyObject},
		{name: "PutObjectTagging", method: "PUT", level: onObject, needs: []string{"tagging"},
			takes: []string{"versionId"}, action: "PutObjectTagging", serve: tags},
		{name: "DeleteObjectTagging", method: "DELETE", level: onObject, needs: []string{"tagging"},
			takes: []string{"versionId"}, action: "DeleteObjectTagging", serve: tags},
		{name: "DeleteObject", method: "DELETE", level: onObject, takes: []string{"versionId"}, action: "DeleteObject",
			serve: deleteObject},
		{name: "DeleteObjects", method: "POST", level: onBucket, needs: []string{"delete"}, serve: deleteObjects},
		{name: "CreateMultipartUpload", method: "POST", level: onObject, needs: []string{"uploads"},
			action: "PutObject", more: extras, serve: write},
		{name: "UploadPart", method: "PUT", level: onObject, needs: []string{"partNumber", "uploadId"},
			action: "PutObject", serve: write},
		{name: "UploadPartCopy", method: "PUT", level: onObject, needs: []string{"partNumber", "uploadId"},
			header: source, action: "PutObject", serve: copyObject},
		{name: "CompleteMultipartUpload", method: "POST", level: onObject, needs: []string{"uploadId"},
			action: "PutObject", serve: write},
		{name: "AbortMultipartUpload", method: "DELETE", level: onObject, needs: []string{"uploadId"},
			action: "AbortMultipartUpload", serve: pass},
		{name: "ListParts", method: "GET", level: onObject, needs: []string{"uploadId"},
			takes:  []string{"max-parts", "part-number-marker"},
			action: "ListMultipartUploadParts", serve: pass},
		{name: "ListObjects", method: "GET", level: onBucket, takes: slices.Concat(list, []string{"marker"}),
			action: "ListBucket", serve: pass},
		{name: "ListObjectsV2", method: "GET", level: onBucket, needs: []string{"list-type"},
			takes:  slices.Concat(list, []string{"continuation-token", "start-after", "fetch-owner"}),
			action: "ListBucket", serve: pass},
		{name: "ListObjectVersions", method: "GET", level: onBucket, needs: []string{"versions"},
			takes: slices.Concat(list, []string{"key-marker", "version-id-marker"}), action: "ListBucketVersions",
			serve: listVersions},
		{name: "ListMultipartUploads", method: "GET", level: onBucket, needs: []string{"uploads"},
			takes:  slices.Concat(list, []string{"key-marker", "upload-id-marker", "max-uploads"}),
			action: "ListBucketMultipartUploads", serve: pass},
	}
}

// extras are the further permissions that headers of a new object need.
func extras(q *request) []string {
	var all []string
	h := q.Request.Header
	if h.Get("X-Amz-Tagging") != "" || q.op.name == "CopyObject" && h.Get("X-Amz-Tagging-Directive") == "REPLACE" {
		all = append(all, "s3:PutObjectTagging")
	}
	if h.Get("X-Amz-Acl") != "" {
		all = append(all, "s3:PutObjectAcl")
	}
	return all
}

// headerTags are the tags that a new object is to have.
func (q *request) headerTags() map[string]string {
	values, err := url.ParseQuery(q.Request.Header.Get("X-Amz-Tagging"))
	if err != nil {
		return nil // the server refuses it
	}
	tags := map[string]string{}
	for k, v := range values {
		tags[k] = v[0]
	}
	return tags
}

// read passes a request for an object on. Who may not list the bucket is not told that an object does not exist.
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
	if answer.StatusCode < http.StatusBadRequest && (q.op.name == "GetObject" || q.op.name == "HeadObject") {
		q.s.tellEncryption(answer.Header, q.bucket, q.key, answer.Header.Get("X-Amz-Version-Id"))
	}
	return q.reply(answer)
}

// fetch asks the server for the version wanted, and says in the answer which it is.
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

// tags changes the tags of one version of an object.
func tags(q *request) error {
	body, err := q.body()
	if err != nil {
		return err
	}
	l := q.s.locks.of(q.bucket, q.key)
	l.RLock()
	defer l.RUnlock()
	at, err := q.place()
	if err != nil {
		return err
	}
	query := maps.Clone(q.query)
	query.Del("versionId")
	answer, err := q.send(q.Request.Method, at, query, q.headers(), body)
	if err != nil {
		return err
	}
	return q.reply(answer)
}

// write passes a request on that makes an object, or a part of one.
func write(q *request) error {
	if err := q.checkNew(); err != nil {
		return err
	}
	body, err := q.body()
	if err != nil {
		return err
	}
	answer, err := q.make(body)
	if err != nil {
		return err
	}
	if answer.StatusCode < http.StatusBadRequest {
		q.encrypted(answer.Header)
	}
	return q.reply(answer)
}

// make has the server make the object or the part.
func (q *request) make(body []byte) (*http.Response, error) {
	send := func() (*http.Response, error) { return q.forward(body) }
	switch q.op.name {
	case "PutObject":
		return q.publish(int64(len(body)), send)
	case "CopyObject", "CompleteMultipartUpload":
		return q.publish(-1, send)
	}
	return send()
}

// checkNew refuses what a new object cannot have here.
func (q *request) checkNew() error {
	h := q.Request.Header
	for name := range h {
		if strings.HasPrefix(name, "X-Amz-Server-Side-Encryption-Customer") || strings.HasPrefix(name, "X-Amz-Grant") ||
			strings.HasPrefix(name, "X-Amz-Object-Lock") {
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

// copySource is the object that is copied: bucket, key and version.
func (q *request) copySource() (bucket, key, version string, err error) {
	wrong := wire.Errorf(http.StatusBadRequest, "InvalidArgument",
		"Copy Source must mention the source bucket and key: sourcebucket/sourcekey")
	text, rest, _ := strings.Cut(q.Request.Header.Get("X-Amz-Copy-Source"), "?")
	if text, err = url.PathUnescape(strings.TrimPrefix(text, "/")); err != nil {
		return "", "", "", wrong
	}
	bucket, key, _ = strings.Cut(text, "/")
	if bucket == "" || key == "" {
		return "", "", "", wrong
	}
	if rest != "" {
		values, err := url.ParseQuery(rest)
		if err != nil || len(values) != 1 || !values.Has("versionId") {
			return "", "", "", wrong
		}
		version = values.Get("versionId")
	}
	return bucket, key, version, nil
}

// copyObject also asks whether the source may be read, by the policies of its own bucket.
func copyObject(q *request) error {
	bucket, key, version, err := q.copySource()
	if err != nil {
		return err
	}
	q.s.mu.Lock()
	source := q.s.buckets[bucket]
	if source != nil {
		q.ResourcePolicy = source.policy.document
	}
	q.s.mu.Unlock()
	if source == nil {
		return wire.Errorf(http.StatusNotFound, "NoSuchBucket", "The specified bucket does not exist")
	}
	action := "s3:GetObject"
	if version != "" {
		action = "s3:GetObjectVersion"
	}
	if err := q.allow(action, "arn:aws:s3:::"+bucket+"/"+key); err != nil {
		return err
	}
	if version != "" {
		at, err := source.find(q.s, key, version)
		if err != nil {
			return err
		}
		q.Request.Header.Set("X-Amz-Copy-Source", at)
	}
	return write(q)
}

// find is where the server has a version to copy.
func (b *bucket) find(s *Service, key, id string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := b.versions[key]
	i := slices.IndexFunc(all, func(v *version) bool { return v.id == id })
	newest := "/" + b.name + "/" + escape(key)
	switch {
	case i < 0 && (id != nullID || b.status() != ""):
		return "", wire.Errorf(http.StatusNotFound, "NoSuchVersion", "The specified version does not exist.")
	case i < 0, i == len(all)-1 && !all[i].marker:
		return newest, nil
	case all[i].marker:
		return "", wire.Errorf(http.StatusBadRequest, "InvalidRequest",
			"The source of a copy request may not specifically refer to a delete marker by version id.")
	}
	return "/" + all[i].aside, nil
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

// deleteObjects deletes those that the caller may delete, one after the other, and tells of the others.
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
	return q.tell(out)
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

// encryption is how an object is said to be kept: nothing is encrypted here.
type encryption struct{ algorithm, key, bucketKey string }

// encryptionKey tells versions of objects apart.
type encryptionKey struct{ bucket, key, version string }

// encrypted remembers how a new object is said to be kept, and says so in the answer.
func (q *request) encrypted(answer http.Header) {
	h := q.Request.Header
	e := encryption{h.Get("X-Amz-Server-Side-Encryption"), h.Get("X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id"),
		h.Get("X-Amz-Server-Side-Encryption-Bucket-Key-Enabled")}
	q.s.mu.Lock()
	if e.algorithm == "" {
		e = q.config.defaultEncryption()
	}
	k := encryptionKey{q.bucket, q.key, answer.Get("X-Amz-Version-Id")}
	switch q.op.name {
	case "PutObject", "CopyObject":
		q.config.keep(k, e)
	case "CreateMultipartUpload":
		q.config.keep(encryptionKey{q.bucket, q.key, "upload"}, e)
	default: // the others follow what their upload began with
		if begun, ok := q.config.kept[encryptionKey{q.bucket, q.key, "upload"}]; ok {
			e = begun
		} else {
			e = encryption{algorithm: "AES256"}
		}
		if q.op.name == "CompleteMultipartUpload" {
			q.config.keep(k, e)
		}
	}
	q.s.mu.Unlock()
	e.tell(answer)
}

// keep remembers what is not S3's own default.
func (b *bucket) keep(k encryptionKey, e encryption) {
	if e == (encryption{algorithm: "AES256"}) {
		delete(b.kept, k)
		return
	}
	b.kept[k] = e
}

// tellEncryption says how an object is kept in an answer.
func (s *Service) tellEncryption(answer http.Header, bucket, key, version string) {
	e := encryption{algorithm: "AES256"}
	s.mu.Lock()
	if b := s.buckets[bucket]; b != nil {
		if kept, ok := b.kept[encryptionKey{bucket, key, version}]; ok {
			e = kept
		}
	}
	s.mu.Unlock()
	e.tell(answer)
}

func (e encryption) tell(h http.Header) {
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
