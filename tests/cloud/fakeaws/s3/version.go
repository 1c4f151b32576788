package s3

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// The front keeps versions itself, although the S3 server behind it, versitygw, can keep them. If versitygw 1.8.0 keeps
// versions, it treats a delete marker as an object in a conditional put. After the deletion of "a/b", it also refuses
// writes to "a". So the front uses two of the server's buckets for a bucket that keeps versions. The first holds the
// newest version of each object. The second holds older versions under their IDs.
// Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/Versioning.html

// nullID is the ID of versions that were written while the bucket did not keep versions.
const nullID = "null"

// version is one version of an object, or a delete marker.
type version struct {
	id       string
	marker   bool
	etag     string
	size     int64
	modified time.Time
	aside    string // the server's path of the version if it is not the newest
}

// stripes are the locks of objects. An object's lock is held while its newest version changes. In buckets without
// versions, writers share the lock, so that the S3 server behind the fake decides the order of concurrent writes.
type stripes [64]sync.RWMutex

func (l *stripes) of(bucket, key string) *sync.RWMutex {
	h := fnv.New32a()
	_, _ = io.WriteString(h, bucket+"/"+key) // never fails
	return &l[h.Sum32()%uint32(len(l))]
}

func (l *stripes) all() (unlock func()) {
	for i := range l {
		l[i].Lock()
	}
	return func() {
		for i := range l {
			l[i].Unlock()
		}
	}
}

// status returns Enabled, Suspended or "". The caller holds the service's lock.
func (b *bucket) status() string {
	v, _ := b.documents["versioning"].(*versioning)
	if v == nil {
		return ""
	}
	return v.Status
}

// change locks an object before a change and returns the bucket's versioning status. In a bucket without versions,
// several changes can share the lock.
func (s *Service) change(b *bucket, key string) (status string, unlock func()) {
	l := s.locks.of(b.name, key)
	read := func() string {
		s.mu.Lock()
		defer s.mu.Unlock()
		return b.status()
	}
	l.RLock()
	if status = read(); status == "" {
		return "", l.RUnlock
	}
	l.RUnlock()
	l.Lock()
	return read(), l.Unlock
}

// archive returns the name of the bucket in which the S3 server behind the fake keeps older versions.
func archive(bucket string) string {
	sum := sha256.Sum256([]byte(bucket))
	return archivePrefix + hex.EncodeToString(sum[:16])
}

const archivePrefix = "fakeaws-versions-"

// newest returns the last version of an object, nil if it has none.
func (s *Service) newest(b *bucket, key string) *version {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := b.versions[key]
	if len(all) == 0 {
		return nil
	}
	return all[len(all)-1]
}

// do sends the S3 server behind the fake a request that no client has made. If the status of the answer is not in
// wanted, do returns an error.
func (q *request) do(method, path string, query url.Values, header http.Header, wanted ...int) error {
	answer, err := q.send(method, path, query, header, nil)
	if err != nil {
		return err
	}
	drop(answer)
	if !slices.Contains(wanted, answer.StatusCode) {
		return fmt.Errorf("%s %s of the server: status %d", method, path, answer.StatusCode)
	}
	return nil
}

func (q *request) copy(from, to string) error {
	return q.do(http.MethodPut, to, nil, http.Header{"X-Amz-Copy-Source": {"/" + from}}, http.StatusOK)
}

// putAside copies the newest version to the bucket for older versions.
func (q *request) putAside(path string, v *version) error {
	v.aside = archive(q.bucket) + "/" + rand.Text()
	return q.copy(q.bucket+"/"+path, v.aside)
}

// forget deletes the copy of a version that putAside made.
func (q *request) forget(v *version) error {
	if v.aside == "" {
		return nil
	}
	err := q.do(http.MethodDelete, v.aside, nil, nil, http.StatusNoContent)
	v.aside = ""
	return err
}

// publish calls send, which writes the request's object, and returns send's answer. If the bucket keeps versions,
// publish records the object as the newest version. size is the size of the object in bytes, -1 if it is unknown.
func (q *request) publish(size int64, send func() (*http.Response, error)) (*http.Response, error) {
	status, unlock := q.s.change(q.config, q.key)
	defer unlock()
	if status == "" {
		return send()
	}
	answer, err := q.replace(q.path, status, q.s.newest(q.config, q.key), send)
	if err != nil || answer.StatusCode >= http.StatusBadRequest {
		return answer, err
	}
	v := &version{id: nullID, etag: answer.Header.Get("Etag"), size: size, modified: q.Now}
	if status == "Enabled" {
		v.id = rand.Text()
	}
	if size < 0 {
		head, err := q.send(http.MethodHead, q.bucket+"/"+q.path, nil, nil, nil)
		if err != nil {
			drop(answer)
			return nil, err
		}
		drop(head)
		v.etag, v.size = head.Header.Get("Etag"), head.ContentLength
	}
	if err := q.add(q.key, v); err != nil {
		drop(answer)
		return nil, err
	}
	answer.Header.Set("X-Amz-Version-Id", v.id)
	return answer, nil
}

// replace calls send, which replaces the newest version in the S3 server behind the fake. If the bucket keeps the old
// version, replace first copies it to the bucket for older versions. If send fails, replace deletes the copy.
func (q *request) replace(path, status string, old *version, send func() (*http.Response, error)) (*http.Response,
	error) {
	keep := old != nil && !old.marker && (status == "Enabled" || old.id != nullID) && q.expected(old)
	if keep {
		if err := q.putAside(path, old); err != nil {
			return nil, err
		}
	}
	answer, err := send()
	if keep && (err != nil || answer.StatusCode >= http.StatusBadRequest) {
		if err := q.forget(old); err != nil {
			return nil, err
		}
	}
	return answer, err
}

// expected reports whether the request's If-None-Match and If-Match hold for the newest version. It must agree with the
// check of the S3 server behind the fake.
func (q *request) expected(newest *version) bool {
	h := q.Request.Header
	if h.Get("If-None-Match") != "" {
		return false
	}
	want := h.Get("If-Match")
	return want == "" || want == "*" || unquoted(want) == unquoted(newest.etag)
}

func unquoted(etag string) string {
	if text, err := strconv.Unquote(etag); err == nil {
		return text
	}
	return etag
}

// add makes a version the newest. An object has at most one null version, so an older one is removed.
func (q *request) add(key string, v *version) error {
	var replaced *version
	q.s.mu.Lock()
	all := q.config.versions[key]
	if i := slices.IndexFunc(all, func(v *version) bool { return v.id == nullID }); v.id == nullID && i >= 0 {
		replaced = all[i]
		all = slices.Delete(slices.Clone(all), i, i+1)
	}
	q.config.versions[key] = append(all, v)
	q.s.mu.Unlock()
	if replaced != nil {
		return q.forget(replaced)
	}
	return nil
}

// deleted is the result of a deletion.
type deleted struct {
	answer  *http.Response // the server's answer, if it refused
	id      string         // of the removed version, or of the new marker
	marker  bool
	created bool // a delete marker was made
}

// remove deletes an object, or one of its versions, depending on the bucket's versioning. send deletes the newest
// version in the S3 server behind the fake, if the conditions of the client's request hold.
func (q *request) remove(key, path, id string, send func() (*http.Response, error)) (deleted, error) {
	status, unlock := q.s.change(q.config, key)
	defer unlock()
	switch {
	case status == "" && (id == "" || id == nullID):
		answer, err := send() //nolint:bodyclose // refusal drops it or hands it on
		return refusal(answer, deleted{}), err
	case status == "":
		return deleted{id: id}, nil // "deleting a version that does not exist" is a success
	case id != "":
		return q.removeVersion(key, path, id)
	}
	answer, err := q.replace(path, status, q.s.newest(q.config, key), send)
	if err != nil || answer.StatusCode >= http.StatusBadRequest {
		return refusal(answer, deleted{}), err
	}
	drop(answer)
	marker := &version{id: nullID, marker: true, modified: q.Now}
	if status == "Enabled" {
		marker.id = rand.Text()
	}
	return deleted{id: marker.id, marker: true, created: true}, q.add(key, marker)
}

// refusal adds the S3 server's answer to the result if the server refused the deletion.
func refusal(answer *http.Response, d deleted) deleted {
	if answer != nil && answer.StatusCode >= http.StatusBadRequest {
		d.answer = answer
	} else if answer != nil {
		drop(answer)
	}
	return d
}

// removeVersion removes one version permanently. If it was the newest, the previous one becomes the newest.
func (q *request) removeVersion(key, path, id string) (deleted, error) {
	q.s.mu.Lock()
	all := q.config.versions[key]
	i := slices.IndexFunc(all, func(v *version) bool { return v.id == id })
	q.s.mu.Unlock()
	if i < 0 {
		return deleted{id: id}, nil
	}
	v := all[i]
	var before *version
	if i == len(all)-1 && i > 0 {
		before = all[i-1]
	}
	var err error
	switch {
	case i < len(all)-1:
		err = q.forget(v)
	case before != nil && !before.marker:
		if err = q.copy(before.aside, q.bucket+"/"+path); err == nil {
			err = q.forget(before)
		}
	case !v.marker:
		err = q.do(http.MethodDelete, q.bucket+"/"+path, nil, nil, http.StatusNoContent)
	}
	if err != nil {
		return deleted{}, err
	}
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	if all = slices.Delete(slices.Clone(all), i, i+1); len(all) == 0 {
		delete(q.config.versions, key)
	} else {
		q.config.versions[key] = all
	}
	delete(q.config.kept, encryptionKey{q.bucket, key, id})
	return deleted{id: id, marker: v.marker}, nil
}

// place finds the path of the requested version in the S3 server behind the fake. The caller holds the object's lock.
func (q *request) place() (at string, err error) {
	id := q.query.Get("versionId")
	newest := q.s.newest(q.config, q.key)
	if id == "" || id == nullID && newest == nil {
		return q.bucket + "/" + q.path, nil
	}
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	all := q.config.versions[q.key]
	i := slices.IndexFunc(all, func(v *version) bool { return v.id == id })
	switch {
	case i < 0:
		return "", wire.Errorf(http.StatusNotFound, "NoSuchVersion", "The specified version does not exist.")
	case all[i].marker:
		q.w.Header().Set("X-Amz-Delete-Marker", "true")
		q.w.Header().Set("X-Amz-Version-Id", id)
		return "", wire.Errorf(http.StatusMethodNotAllowed, "MethodNotAllowed",
			"The specified method is not allowed against this resource.")
	case i == len(all)-1:
		return q.bucket + "/" + q.path, nil
	}
	return all[i].aside, nil
}
