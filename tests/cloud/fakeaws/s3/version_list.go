package s3

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// index is called when versioning is enabled for the first time. It records the current object of each key as the first
// version of that key. The caller holds the locks of all objects.
func (q *request) index() error {
	if err := q.do(http.MethodPut, archive(q.bucket), nil, nil, http.StatusOK); err != nil {
		return err
	}
	versions, err := q.objects("")
	if err != nil {
		return err
	}
	q.s.mu.Lock()
	q.config.versions = versions
	q.s.mu.Unlock()
	return nil
}

// objects returns the server's objects as null versions.
func (q *request) objects(prefix string) (map[string][]*version, error) {
	all, token := map[string][]*version{}, ""
	for {
		query := url.Values{"list-type": {"2"}, "prefix": {prefix}}
		if token != "" {
			query.Set("continuation-token", token)
		}
		answer, err := q.send(http.MethodGet, q.bucket, query, nil, nil)
		if err != nil {
			return nil, err
		}
		var page struct {
			Contents []struct {
				Key, ETag    string
				Size         int64
				LastModified time.Time
			}
			IsTruncated           bool
			NextContinuationToken string
		}
		err = xml.NewDecoder(answer.Body).Decode(&page)
		drop(answer)
		if err != nil || answer.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("list objects of the server: status %d: %w", answer.StatusCode,
				cmp.Or(err, errAnswer))
		}
		for _, o := range page.Contents {
			all[o.Key] = []*version{{id: nullID, etag: o.ETag, size: o.Size, modified: o.LastModified}}
		}
		if token = page.NextContinuationToken; !page.IsTruncated || token == "" {
			return all, nil
		}
	}
}

type listedVersion struct {
	XMLName      xml.Name // Version or DeleteMarker
	Key          string
	VersionId    string
	IsLatest     bool
	LastModified wire.Time
	ETag         string `xml:",omitempty"`
	Size         *int64 `xml:",omitempty"`
	StorageClass string `xml:",omitempty"`
	Owner        owner
}

type versionsAnswer struct {
	XMLName             xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListVersionsResult"`
	Name                string
	Prefix              string
	KeyMarker           string
	VersionIdMarker     string
	NextKeyMarker       string `xml:",omitempty"`
	NextVersionIdMarker string `xml:",omitempty"`
	MaxKeys             int
	Delimiter           string `xml:",omitempty"`
	EncodingType        string `xml:",omitempty"`
	IsTruncated         bool
	Versions            []listedVersion
	CommonPrefixes      []struct{ Prefix string }
}

// listVersions returns all versions and delete markers, sorted by key, the newest first. In a bucket that never kept
// versions, each object is one version.
func listVersions(q *request) error {
	out := versionsAnswer{
		Name: q.bucket, Prefix: q.query.Get("prefix"), KeyMarker: q.query.Get("key-marker"),
		VersionIdMarker: q.query.Get("version-id-marker"),
		Delimiter:       q.query.Get("delimiter"), EncodingType: q.query.Get("encoding-type"), MaxKeys: 1000,
	}
	if text := q.query.Get("max-keys"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return invalidArgument("Argument max-keys must be an integer between 0 and 2147483647")
		}
		out.MaxKeys = min(n, 1000)
	}
	q.s.mu.Lock()
	all, status := maps.Clone(q.config.versions), q.config.status()
	q.s.mu.Unlock()
	if status == "" {
		var err error
		if all, err = q.objects(out.Prefix); err != nil {
			return err
		}
	}
	out.fill(all, q.s.owner())
	if out.EncodingType == "url" {
		out.escape()
	}
	return q.writeXML(out)
}

// fill adds versions to the page until the page is full. It begins with the first version after the request's markers.
func (out *versionsAnswer) fill(all map[string][]*version, owner owner) {
	last, lastID, n := "", "", 0
	full := func() bool {
		if n < out.MaxKeys {
			n++
			return false
		}
		out.IsTruncated, out.NextKeyMarker, out.NextVersionIdMarker = out.MaxKeys > 0, last, lastID
		return true
	}
	common := ""
	for _, key := range slices.Sorted(maps.Keys(all)) {
		rest, ok := strings.CutPrefix(key, out.Prefix)
		if !ok || key < out.KeyMarker || key == out.KeyMarker && out.VersionIdMarker == "" {
			continue
		}
		if dir, _, ok := strings.Cut(rest, out.Delimiter); ok && out.Delimiter != "" {
			dir = out.Prefix + dir + out.Delimiter
			if dir == common || dir == out.KeyMarker || strings.HasPrefix(out.KeyMarker, dir) {
				continue
			}
			if full() {
				return
			}
			common, last, lastID = dir, dir, ""
			out.CommonPrefixes = append(out.CommonPrefixes, struct{ Prefix string }{dir})
			continue
		}
		after := key == out.KeyMarker
		for i, v := range slices.Backward(all[key]) {
			if after {
				after = v.id != out.VersionIdMarker
				continue
			}
			if full() {
				return
			}
			last, lastID = key, v.id
			out.Versions = append(out.Versions, v.list(key, i == len(all[key])-1, owner))
		}
	}
}

func (v *version) list(key string, latest bool, owner owner) listedVersion {
	l := listedVersion{Key: key, VersionId: v.id, IsLatest: latest, LastModified: wire.Time{Time: v.modified},
		Owner: owner}
	l.XMLName.Local = "DeleteMarker"
	if !v.marker {
		size := v.size
		l.XMLName.Local, l.ETag, l.Size, l.StorageClass = "Version", v.etag, &size, "STANDARD"
	}
	return l
}

// escape encodes names if the client asked for it: XML cannot represent every key.
func (out *versionsAnswer) escape() {
	for _, text := range []*string{&out.Prefix, &out.KeyMarker, &out.NextKeyMarker, &out.Delimiter} {
		*text = escaped(*text)
	}
	for i := range out.Versions {
		out.Versions[i].Key = escaped(out.Versions[i].Key)
	}
	for i := range out.CommonPrefixes {
		out.CommonPrefixes[i].Prefix = escaped(out.CommonPrefixes[i].Prefix)
	}
}

func escaped(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "%2F", "/") }
