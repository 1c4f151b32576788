package k8s

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// historyLength is the number of recent changes that are kept of one resource. A watch that needs older changes fails,
// and the client must list again.
const historyLength = 1000

// key identifies an object of a resource.
type key struct{ namespace, name string }

// object is a stored object. Its content is immutable; a change replaces it.
type object struct {
	content map[string]any // with its resource version
	version uint64
	file    []byte // Content of the file when it was last read or written.
}

// change is one creation, update or deletion of an object. `before` is nil for a creation, and `after` is nil for a
// deletion. In a deletion, the resource version in `before` is the version of the deletion itself.
type change struct {
	version       uint64
	before, after map[string]any
}

// collection holds all objects of one resource.
type collection struct {
	resource *resource
	objects  map[key]*object
	history  []change
	floor    uint64        // Earliest version from which a watch may start.
	changed  chan struct{} // Closed at the next change.
}

// store keeps the objects in memory and in their files. Its methods are safe for concurrent use.
type store struct {
	log  *slog.Logger
	now  func() time.Time
	root *os.Root // Rejects all paths and symbolic links that lead out of the directory.
	dir  string   // For messages.

	// grown receives a signal when an object may have lost its owners. collect waits for the signal and deletes such
	// objects.
	grown chan struct{}

	mu      sync.RWMutex
	version uint64
	kinds   map[string]*collection // By name of the resource.
	broken  map[string]string      // Unusable files and directories by path, with what was reported of them.
}

// openStore opens the directory and creates it if necessary. Call begin before use.
func openStore(dir string, now func() time.Time, log *slog.Logger) (*store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open directory of objects: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open directory of objects: %w", err)
	}
	// Resource versions start at the current time in microseconds and count up. They grow across restarts without being
	// stored, as long as fewer than a million changes happen per second.
	s := &store{log: log, now: now, root: root, dir: dir, grown: make(chan struct{}, 1),
		version: uint64(max(now().UnixMicro(), 1)),
		kinds:   map[string]*collection{}, broken: map[string]string{}}
	for _, r := range resources {
		if r.stored == "" {
			s.kinds[r.name] = &collection{resource: r, objects: map[key]*object{}, floor: s.version,
				changed: make(chan struct{})}
		}
	}
	return s, nil
}

func (s *store) close() error { return s.root.Close() }

// collectionOf returns the collection that stores the objects of a resource.
func (s *store) collectionOf(r *resource) *collection {
	if r.stored != "" {
		return s.kinds[r.stored]
	}
	return s.kinds[r.name]
}

// get returns an object. The caller must not change it.
func (s *store) get(r *resource, k key) (map[string]any, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	o, ok := s.collectionOf(r).objects[k]
	if !ok {
		return nil, false
	}
	return o.content, true
}

// list returns the objects of a namespace, sorted by name, and the version of the list. An empty namespace means all
// namespaces.
func (s *store) list(r *resource, namespace string) (items []map[string]any, version uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	c := s.collectionOf(r)
	keys := make([]key, 0, len(c.objects))
	for k := range c.objects {
		if namespace == "" || k.namespace == namespace {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b key) int {
		return cmp.Or(strings.Compare(a.namespace, b.namespace), strings.Compare(a.name, b.name))
	})
	for _, k := range keys {
		items = append(items, c.objects[k].content)
	}
	return items, s.version
}

// since returns the changes after a version, the current version, and a channel that is closed at the next change. It
// returns false if the history no longer has all these changes.
func (s *store) since(r *resource, version uint64) (changes []change, now uint64, next <-chan struct{}, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	c := s.collectionOf(r)
	if version < c.floor {
		return nil, 0, nil, false
	}
	i, _ := slices.BinarySearchFunc(c.history, version+1, func(e change, v uint64) int {
		return cmp.Compare(e.version, v)
	})
	return slices.Clone(c.history[i:]), s.version, c.changed, true
}

func (s *store) currentVersion() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.version
}

// editFunc returns the next state of an object, or nil to delete it. current is nil if the object does not exist;
// editFunc may change it in place.
type editFunc func(current map[string]any) (next map[string]any, err error)

// edit changes one object, first in its file and then in memory. It returns the new state. If the object is gone, it
// returns the last state. It writes nothing if nothing changes, if the editFunc fails, or on a dry run. If the change
// removes the last finalizer of an object that is being deleted, edit removes the object.
func (s *store) edit(r *resource, k key, dry bool, edit editFunc) (result map[string]any, removed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.collectionOf(r)
	if err := s.refresh(c, k); err != nil {
		return nil, false, err
	}
	var current, copied map[string]any
	o, exists := c.objects[k]
	if exists {
		current, copied = o.content, runtime.DeepCopyJSON(o.content)
	}
	next, err := edit(copied)
	if err != nil {
		return nil, false, err
	}
	if next != nil {
		if exists {
			setVersion(next, o.version)
			if reflect.DeepEqual(next, current) {
				return current, false, nil
			}
		}
		if finished(next) {
			copied, next = next, nil
		}
	}
	switch {
	case next == nil && !exists:
		return nil, true, nil
	case dry && next == nil:
		return copied, true, nil
	case dry:
		return next, false, nil
	case next == nil:
		if err := s.remove(c, k); err != nil {
			return nil, false, err
		}
		s.commit(c, k, nil, nil)
		return copied, true, nil
	}
	var before []byte
	if exists {
		before = o.file
	}
	file, err := s.write(c, k, next, before)
	if err != nil {
		return nil, false, err
	}
	s.commit(c, k, next, file)
	return c.objects[k].content, false, nil
}

// commit records in memory a change that the file already has. A nil content means a deletion. The caller must hold the
// lock.
func (s *store) commit(c *collection, k key, content map[string]any, file []byte) {
	s.version++
	e := change{version: s.version}
	old, existed := c.objects[k]
	if existed {
		e.before = old.content
	}
	if content == nil {
		if !existed {
			return
		}
		e.before = runtime.DeepCopyJSON(old.content)
		setVersion(e.before, s.version)
		delete(c.objects, k)
	} else {
		setVersion(content, s.version)
		e.after = content
		c.objects[k] = &object{content: content, version: s.version, file: file}
	}
	if len(c.history) == historyLength {
		c.floor = c.history[0].version
		c.history = c.history[1:]
	}
	c.history = append(c.history, e)
	close(c.changed)
	c.changed = make(chan struct{})
	if content == nil || len(owners(content)) > 0 {
		select {
		case s.grown <- struct{}{}:
		default:
		}
	}
}

// finished reports whether an object is being deleted and has no finalizers left.
func finished(o map[string]any) bool {
	u := unstructured.Unstructured{Object: o}
	return u.GetDeletionTimestamp() != nil && len(u.GetFinalizers()) == 0
}

func setVersion(o map[string]any, version uint64) {
	meta(o)["resourceVersion"] = strconv.FormatUint(version, 10)
}

// meta returns the metadata of an object. It adds empty metadata if there is none.
func meta(o map[string]any) map[string]any {
	m, ok := o["metadata"].(map[string]any)
	if !ok {
		m = map[string]any{}
		o["metadata"] = m
	}
	return m
}

func keyOf(o map[string]any) key {
	u := &unstructured.Unstructured{Object: o}
	return key{u.GetNamespace(), u.GetName()}
}

func owners(o map[string]any) []metav1.OwnerReference {
	return (&unstructured.Unstructured{Object: o}).GetOwnerReferences()
}

// busy returns the error for a request about an object while a person edits its file. Clients retry the request.
func busy(path, problem string) error {
	err := refusal(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
		fmt.Sprintf("the file %s is being edited, or was left so: %s", path, problem))
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}

const (
	// eventTime is the time for which events are kept, as in a real cluster.
	eventTime = time.Hour
	// collectTime is the time between two complete passes of the garbage collection. A change that may leave an object
	// without an owner triggers a pass immediately.
	collectTime = time.Minute
)

// collect deletes objects whose owners are all gone, and old events, until ctx ends.
// https://kubernetes.io/docs/concepts/architecture/garbage-collection/
func (s *store) collect(ctx context.Context) {
	tick := time.NewTicker(collectTime)
	defer tick.Stop()
	for {
		s.sweep()
		select {
		case <-ctx.Done():
			return
		case <-s.grown:
		case <-tick.C:
		}
	}
}

// sweep makes one pass.
func (s *store) sweep() {
	for _, r := range resources {
		if r.stored != "" {
			continue
		}
		items, _ := s.list(r, "")
		for _, o := range items {
			var why string
			switch {
			case s.orphan(o):
				why = "its owner is gone"
			case r.name == "events" && s.expired(o):
				why = "it is old"
			default:
				continue
			}
			k := keyOf(o)
			_, _, err := s.edit(r, k, false, func(current map[string]any) (map[string]any, error) {
				// collect has read the object without holding the lock. If another writer has changed the object since
				// then, do not delete it.
				if current == nil || meta(current)["resourceVersion"] != meta(o)["resourceVersion"] {
					return current, nil
				}
				return s.deleted(r, current), nil
			})
			if err != nil {
				s.log.Warn("collect object", "resource", r.name, "namespace", k.namespace, "name", k.name, "error", err)
				continue
			}
			s.log.Debug("collected object", "resource", r.name, "namespace", k.namespace, "name", k.name, "reason", why)
		}
	}
}

// orphan reports whether an object has owner references, but none of the owners exists.
func (s *store) orphan(o map[string]any) bool {
	if meta(o)["deletionTimestamp"] != nil {
		return false // already being deleted
	}
	list := owners(o)
	for _, owner := range list {
		if s.owns(owner, keyOf(o).namespace) {
			return false
		}
	}
	return len(list) > 0
}

// owns reports whether an owner exists or may exist: its file may be temporarily unreadable, or its type may not be
// served.
func (s *store) owns(owner metav1.OwnerReference, namespace string) bool {
	gv, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil || checkName(owner.Name) != nil {
		return true
	}
	r := owned(gv.Group, owner.Kind)
	if r == nil {
		return true
	}
	k := key{namespace, owner.Name}
	if r.cluster {
		k.namespace = ""
	}
	if o, ok := s.get(r, k); ok {
		return meta(o)["uid"] == string(owner.UID)
	}
	_, err = s.root.Lstat(pathOf(s.collectionOf(r), k))
	return !errors.Is(err, fs.ErrNotExist)
}

func (s *store) expired(o map[string]any) bool {
	text, _ := meta(o)["creationTimestamp"].(string)
	at, err := time.Parse(time.RFC3339, text)
	return err == nil && s.now().Sub(at) > eventTime
}
