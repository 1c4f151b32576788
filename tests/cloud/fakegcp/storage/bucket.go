package storage

import (
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

// settings are all data of a bucket except its objects.
type settings struct {
	body    map[string]any
	policy  policy.Policy
	created time.Time
	changes int
}

var bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$`)

// bucketHandlers returns the methods of buckets.
func (s *Storage) bucketHandlers() map[string]rest.Handler {
	out := map[string]rest.Handler{}
	for id, handler := range map[string]rest.Handler{
		"storage.buckets.insert": s.insertBucket,
		"storage.projects.serviceAccount.get": func(*rest.Call) (any, error) {
			return map[string]any{"kind": "storage#serviceAccount", "email_address": s.Agent}, nil
		},
		"storage.buckets.get": s.onBucket(func(c *rest.Call, b *settings) (any, error) {
			return b.describe(c.Params["bucket"]), nil
		}),
		"storage.buckets.list": func(*rest.Call) (any, error) {
			all := []any{}
			for _, name := range slices.Sorted(maps.Keys(s.settings)) {
				all = append(all, s.settings[name].describe(name))
			}
			return map[string]any{"kind": "storage#buckets", "items": all}, nil
		},
		"storage.buckets.patch":  s.onBucket(s.changeBucket),
		"storage.buckets.update": s.onBucket(s.changeBucket),
		"storage.buckets.delete": s.onBucket(func(c *rest.Call, _ *settings) (any, error) {
			name := c.Params["bucket"]
			if len(s.buckets[name]) > 0 {
				return nil, &rest.Error{Code: http.StatusConflict, Reason: "conflict",
					Message: "The bucket you tried to delete is not empty."}
			}
			delete(s.buckets, name)
			delete(s.settings, name)
			return nil, nil //nolint:nilnil // the answer is empty
		}),
		"storage.buckets.getIamPolicy": s.onBucket(func(c *rest.Call, b *settings) (any, error) {
			version, _ := strconv.Atoi(c.Query.Get("optionsRequestedPolicyVersion"))
			return b.policyOf(c.Params["bucket"], b.policy.Get(version)), nil
		}),
		"storage.buckets.setIamPolicy": s.onBucket(func(c *rest.Call, b *settings) (any, error) {
			answer, err := b.policy.Set(c.Body)
			if err != nil {
				return nil, err
			}
			return b.policyOf(c.Params["bucket"], answer), nil
		}),
	} {
		out[id] = func(c *rest.Call) (any, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return handler(c)
		}
	}
	return out
}

func (s *Storage) onBucket(f func(*rest.Call, *settings) (any, error)) rest.Handler {
	return func(c *rest.Call) (any, error) {
		b := s.settings[c.Params["bucket"]]
		if b == nil {
			return nil, s.answer404(c, "The specified bucket does not exist.")
		}
		return f(c, b)
	}
}

func (s *Storage) insertBucket(c *rest.Call) (any, error) {
	name := rest.Text(c.Body, "name")
	switch {
	case !bucketName.MatchString(name) || c.Query.Get("project") == "":
		return nil, &rest.Error{Code: http.StatusBadRequest, Reason: "invalid",
			Message: "Invalid bucket name: '" + name + "'"}
	case s.settings[name] != nil:
		return nil, &rest.Error{Code: http.StatusConflict, Reason: "conflict",
			Message: "Your previous request to create the named bucket succeeded and you already own it."}
	}
	if err := s.useKey(rest.Text(c.Body, "encryption", "defaultKmsKeyName")); err != nil {
		return nil, err
	}
	b := newSettings()
	s.buckets[name], s.settings[name] = map[string]object{}, b
	return b.change(name, c.Body)
}

func (s *Storage) changeBucket(c *rest.Call, b *settings) (any, error) {
	if err := s.useKey(rest.Text(c.Body, "encryption", "defaultKmsKeyName")); err != nil {
		return nil, err
	}
	return b.change(c.Params["bucket"], c.Body)
}

// key returns the key of Cloud KMS that encrypts new objects, or "".
func (b *settings) key() string { return rest.Text(b.body, "encryption", "defaultKmsKeyName") }

func newSettings() *settings {
	return &settings{created: time.Now().UTC(), body: map[string]any{"location": "US", "storageClass": "STANDARD",
		"locationType": "multi-region", "rpo": "DEFAULT", "iamConfiguration": map[string]any{}}}
}

// change merges fields into the bucket's settings. A field with the value null is removed from the settings.
func (b *settings) change(name string, fields map[string]any) (any, error) {
	for field, value := range fields {
		if value == nil {
			delete(b.body, field)
		} else if field != "name" {
			b.body[field] = value
		}
	}
	location, _ := b.body["location"].(string)
	b.body["location"] = strings.ToUpper(location)
	if strings.Contains(location, "-") {
		b.body["locationType"] = "region"
		delete(b.body, "rpo")
	}
	b.changes++
	return b.describe(name), nil
}

func (b *settings) describe(name string) map[string]any {
	out := maps.Clone(b.body)
	at := b.created.Format("2006-01-02T15:04:05.000Z")
	out["kind"], out["id"], out["name"] = "storage#bucket", name, name
	out["selfLink"] = "https://www.googleapis.com/storage/v1/b/" + name
	out["timeCreated"], out["updated"], out["projectNumber"] = at, at, "123456789012"
	out["metageneration"], out["etag"] = strconv.Itoa(b.changes), fmt.Sprintf("CA%03d", b.changes)
	return out
}

func (b *settings) policyOf(name string, answer map[string]any) map[string]any {
	answer["kind"], answer["resourceId"] = "storage#policy", "projects/_/buckets/"+name
	return answer
}

// Inventory returns the buckets.
func (s *Storage) Inventory() (found []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.settings {
		found = append(found, "bucket "+name)
	}
	slices.Sort(found)
	return found
}

// PolicyOf returns a copy of the policy of a bucket, or nil if the bucket does not exist.
func (s *Storage) PolicyOf(bucket string) *policy.Policy {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.settings[bucket]
	if b == nil {
		return nil
	}
	of := b.policy
	return &of
}

// Has reports whether a bucket has an object with the given name.
func (s *Storage) Has(bucket, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.buckets[bucket][name]
	return ok
}
