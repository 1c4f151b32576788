package k8s

import (
	"context"
	"errors"
	"io/fs"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

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
			m := meta(o)
			namespace, _ := m["namespace"].(string)
			name, _ := m["name"].(string)
			k := key{namespace, name}
			_, _, err := s.edit(r, k, false, func(current map[string]any) (map[string]any, error) {
				// collect has read the object without holding the lock. If another writer has changed the object since
				// then, do not delete it.
				if current == nil || meta(current)["resourceVersion"] != m["resourceVersion"] {
					return current, nil
				}
				return s.deleted(r, current), nil
			})
			if err != nil {
				s.log.Warn("collect object", "resource", r.name, "namespace", namespace, "name", name, "error", err)
				continue
			}
			s.log.Debug("collected object", "resource", r.name, "namespace", namespace, "name", name, "reason", why)
		}
	}
}

// orphan reports whether an object has owner references, but none of the owners exists.
func (s *store) orphan(o map[string]any) bool {
	if meta(o)["deletionTimestamp"] != nil {
		return false // already being deleted
	}
	namespace, _ := meta(o)["namespace"].(string)
	list := owners(o)
	for _, owner := range list {
		if s.owns(owner, namespace) {
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
