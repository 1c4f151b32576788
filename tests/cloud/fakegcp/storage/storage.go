// Package storage fakes the buckets and objects of Google Cloud Storage. Every method checks the generation conditions
// of its request.
package storage

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

// pageSize is the maximum number of objects in one answer.
const pageSize = 1000

// Storage holds buckets in memory.
type Storage struct {
	// If OneWriteASecond is true, the fake refuses to write an object that was written less than a second before. The
	// real service does the same. https://cloud.google.com/storage/quotas#objects
	OneWriteASecond bool
	// UseKey returns an error if the service cannot use a key of Cloud KMS. The fake calls it before it encrypts or
	// decrypts an object with the key. If UseKey is nil, the service can use no key.
	UseKey func(name string) error
	// Agent is the service account that uses keys.
	Agent string

	mu         sync.Mutex
	buckets    map[string]map[string]object
	settings   map[string]*settings // by bucket
	written    map[string]time.Time // by bucket and name
	generation int64
}

type object struct {
	name       string
	generation int64
	body       []byte
	mime       string
	key        string // of Cloud KMS; "": Google's own
	created    time.Time
}

// New makes a service that has empty buckets with the given names.
func New(buckets ...string) *Storage {
	s := &Storage{buckets: map[string]map[string]object{}, written: map[string]time.Time{},
		settings: map[string]*settings{}, generation: time.Now().UnixMicro()}
	for _, name := range buckets {
		s.buckets[name], s.settings[name] = map[string]object{}, newSettings()
	}
	return s
}

// Handlers returns the methods that the fake has.
func (s *Storage) Handlers() map[string]rest.Handler {
	out := s.bucketHandlers()
	for id, handler := range map[string]func(*rest.Call, map[string]object) (any, error){
		"storage.objects.get": s.get, "storage.objects.insert": s.insert, "storage.objects.delete": s.remove,
		"storage.objects.list": s.list,
	} {
		out[id] = func(c *rest.Call) (any, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			bucket, ok := s.buckets[c.Params["bucket"]]
			if !ok {
				return nil, s.answer404(c, "The specified bucket does not exist.")
			}
			return handler(c, bucket)
		}
	}
	return out
}

// answer404 returns the error for a missing object or bucket. For a download, the error is plain text.
func (s *Storage) answer404(c *rest.Call, message string) error {
	err := rest.NotFound("%s", message)
	err.PlainText = c.Query.Get("alt") == "media"
	return err
}

func (s *Storage) get(c *rest.Call, bucket map[string]object) (any, error) {
	o, ok := bucket[c.Params["object"]]
	if !ok {
		return nil, s.answer404(c, "No such object: "+c.Params["bucket"]+"/"+c.Params["object"])
	}
	if err := checkConditions(c, o); err != nil {
		return nil, err
	}
	if c.Query.Get("alt") != "media" {
		return describe(c, o), nil
	}
	if err := s.useKey(o.key); err != nil {
		return nil, err
	}
	return rest.Media{Body: o.body, Header: http.Header{"Content-Type": {o.mime},
		"X-Goog-Generation": {strconv.FormatInt(o.generation, 10)}}}, nil
}

func (s *Storage) insert(c *rest.Call, bucket map[string]object) (any, error) {
	name := rest.Text(c.Body, "name")
	if name == "" {
		name = c.Query.Get("name")
	}
	if err := checkConditions(c, bucket[name]); err != nil {
		return nil, err
	}
	if err := s.checkRate(c, name); err != nil {
		return nil, err
	}
	key := s.settings[c.Params["bucket"]].key()
	if err := s.useKey(key); err != nil {
		return nil, err
	}
	s.generation++
	o := object{name, s.generation, c.Media, rest.Text(c.Body, "contentType"), key, time.Now().UTC()}
	bucket[name] = o
	return describe(c, o), nil
}

// useKey checks that the service can use a key. An empty name stands for a key that Google manages.
func (s *Storage) useKey(name string) error {
	switch {
	case name == "":
		return nil
	case s.UseKey == nil:
		return &rest.Error{Code: http.StatusBadRequest, Reason: "invalid", Message: "Cloud KMS is not available"}
	}
	return s.UseKey(name)
}

// checkRate refuses a write to an object within a second after the object's previous write.
func (s *Storage) checkRate(c *rest.Call, name string) error {
	key := c.Params["bucket"] + "/" + name
	if s.OneWriteASecond && time.Since(s.written[key]) < time.Second {
		return &rest.Error{Code: http.StatusTooManyRequests, Reason: "rateLimitExceeded", Message: "The object " + key +
			" exceeded the rate limit for object mutation operations (create, update, and delete). Please reduce " +
			"your request rate."}
	}
	s.written[key] = time.Now()
	return nil
}

func (s *Storage) remove(c *rest.Call, bucket map[string]object) (any, error) {
	o, ok := bucket[c.Params["object"]]
	if !ok {
		return nil, s.answer404(c, "No such object: "+c.Params["bucket"]+"/"+c.Params["object"])
	}
	if err := checkConditions(c, o); err != nil {
		return nil, err
	}
	if err := s.checkRate(c, o.name); err != nil {
		return nil, err
	}
	delete(bucket, o.name)
	return nil, nil //nolint:nilnil // the answer is empty
}

func (s *Storage) list(c *rest.Call, bucket map[string]object) (any, error) {
	var names []string
	for name := range bucket {
		if strings.HasPrefix(name, c.Query.Get("prefix")) && name > c.Query.Get("pageToken") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	answer := map[string]any{}
	if len(names) > pageSize {
		names = names[:pageSize]
		answer["nextPageToken"] = names[pageSize-1]
	}
	items := []any{}
	for _, name := range names {
		items = append(items, describe(c, bucket[name]))
	}
	answer["items"] = items
	return answer, nil
}

// checkConditions returns an error unless the object's generation meets the conditions in the request. A missing object
// has generation 0.
func checkConditions(c *rest.Call, o object) error {
	if want := c.Query.Get("generation"); want != "" && want != strconv.FormatInt(o.generation, 10) {
		return rest.NotFound("No such object: %s/%s#%s", c.Params["bucket"], c.Params["object"], want)
	}
	have := strconv.FormatInt(o.generation, 10)
	match, not := c.Query.Get("ifGenerationMatch"), c.Query.Get("ifGenerationNotMatch")
	if match != "" && match != have || not != "" && not == have {
		return &rest.Error{Code: http.StatusPreconditionFailed, Reason: "conditionNotMet",
			Message: "At least one of the pre-conditions you specified did not hold."}
	}
	for _, name := range []string{"ifMetagenerationMatch", "ifMetagenerationNotMatch"} {
		if c.Query.Has(name) {
			return &rest.Error{Code: http.StatusNotImplemented, Reason: "notImplemented",
				Message: "the fake cloud has no " + name}
		}
	}
	return nil
}

func describe(c *rest.Call, o object) map[string]any {
	at := o.created.Format("2006-01-02T15:04:05.000Z")
	generation := strconv.FormatInt(o.generation, 10)
	return map[string]any{"kind": "storage#object", "bucket": c.Params["bucket"], "name": o.name,
		"id": fmt.Sprintf("%s/%s/%s", c.Params["bucket"], o.name, generation), "generation": generation,
		"metageneration": "1", "size": strconv.Itoa(len(o.body)), "contentType": o.mime, "timeCreated": at,
		"updated": at}
}
