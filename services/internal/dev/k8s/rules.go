package k8s

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
)

// These rules are from the Kubernetes API conventions. They determine what a request may change.
// https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md

// checkType returns an error if an object has another type or name than its path. It may leave them out.
func checkType(gvk schema.GroupVersionKind, k key, o map[string]any) error {
	if err := checkMeta(o); err != nil {
		return err
	}
	m := meta(o)
	for _, f := range []struct {
		in          map[string]any
		field, want string
	}{{o, "apiVersion", gvk.GroupVersion().String()}, {o, "kind", gvk.Kind}, {m, "name", cmp.Or(k.name, keyOf(o).name)},
		{m, "namespace", k.namespace}} {
		if got, ok := f.in[f.field]; ok && got != "" && got != f.want {
			return fmt.Errorf("%s is %v, the path says %q", f.field, got, f.want)
		}
	}
	delete(m, "managedFields") // server-side apply is not supported
	return nil
}

// checkMeta refuses metadata that typed clients cannot decode.
func checkMeta(o map[string]any) error {
	switch m := o["metadata"].(type) {
	case nil:
		return nil
	case map[string]any:
		var typed metav1.ObjectMeta
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(m, &typed); err != nil {
			return fmt.Errorf("metadata: %w", err)
		}
		return nil
	}
	return errors.New("metadata is not a JSON object")
}

// nameOf returns the name of a new object. It generates one if only generateName is set.
func nameOf(o map[string]any) (string, error) {
	m, name := meta(o), keyOf(o).name
	if name == "" {
		base, _ := m["generateName"].(string)
		if base == "" {
			return "", invalid("metadata.name", "", "name or generateName is required")
		}
		name = base + rand.String(5)
	}
	m["name"] = name
	return name, checkName(name)
}

// created turns the object that a client sent in a create request into the object that the store keeps.
func (s *store) created(r *resource, k key, o map[string]any) error {
	m := meta(o)
	if v, _ := m["resourceVersion"].(string); v != "" {
		return apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
	}
	for _, field := range []string{"uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds",
		"generation"} {
		delete(m, field)
	}
	// A new object has no status, except for Nodes, which kubelets register with their status.
	if r.status && r.name != "nodes" {
		delete(o, "status")
	}
	if r.name == "namespaces" && r.group == "" {
		o["status"] = map[string]any{"phase": "Active"}
	}
	s.complete(s.collectionOf(r), k, o, nil)
	return nil
}

// updated returns the next state of an object after an update. An update through a subresource changes only the part
// that belongs to the subresource.
func (s *store) updated(r *resource, k key, sub string, current, wanted map[string]any) (map[string]any, error) {
	have, want := meta(current), meta(wanted)
	version, _ := want["resourceVersion"].(string)
	if version == "" && r.custom {
		return nil, invalid("metadata.resourceVersion", 0, "must be specified for an update")
	}
	if version != "" && version != have["resourceVersion"] {
		return nil, conflict(r, k, modified)
	}
	if uid, _ := want["uid"].(string); uid != "" && uid != have["uid"] {
		return nil, conflict(r, k, fmt.Sprintf("Precondition failed: UID in precondition: %s, UID in object meta: %s",
			uid, have["uid"]))
	}
	if sub == "status" {
		next := without(current, "status")
		if status, ok := wanted["status"]; ok {
			next["status"] = status
		}
		return next, nil
	}
	next := wanted
	if r.status {
		next = without(wanted, "status")
		if status, ok := current["status"]; ok {
			next["status"] = status
		}
	}
	if have["deletionTimestamp"] != nil {
		before := (&unstructured.Unstructured{Object: current}).GetFinalizers()
		for _, f := range (&unstructured.Unstructured{Object: next}).GetFinalizers() {
			if !slices.Contains(before, f) {
				return nil,
					invalid("metadata.finalizers", f, "no new finalizers can be added if the object is being deleted")
			}
		}
	}
	s.complete(s.collectionOf(r), k, next, current)
	return next, nil
}

const modified = "the object has been modified; please apply your changes to the latest version and try again"

func conflict(r *resource, k key, why string) error {
	return apierrors.NewConflict(r.groupResource(), k.name, fmt.Errorf("%s", why))
}

// deleted returns the state of an object after a delete request: nil unless it has finalizers.
func (s *store) deleted(r *resource, o map[string]any) map[string]any {
	u := &unstructured.Unstructured{Object: o}
	if len(u.GetFinalizers()) == 0 {
		return nil
	}
	if u.GetDeletionTimestamp() != nil {
		return o
	}
	m := meta(o)
	m["deletionTimestamp"], m["deletionGracePeriodSeconds"] = s.timestamp(), int64(0)
	if g, ok := m["generation"].(int64); ok && r.generation {
		m["generation"] = g + 1
	}
	return o
}

// normalise changes objects of some types as a real server does. Clients rely on these changes.
func normalise(r *resource, o map[string]any) {
	if r.group != "" {
		return
	}
	switch r.name {
	case "secrets":
		if _, ok := o["type"]; !ok {
			o["type"] = "Opaque"
		}
		texts, ok := o["stringData"].(map[string]any)
		if !ok {
			return
		}
		delete(o, "stringData")
		data, ok := o["data"].(map[string]any)
		if !ok {
			data = map[string]any{}
			o["data"] = data
		}
		for name, v := range texts {
			if text, ok := v.(string); ok {
				data[name] = base64.StdEncoding.EncodeToString([]byte(text))
			}
		}
	case "pods":
		if _, ok := o["status"].(map[string]any); !ok {
			o["status"] = map[string]any{"phase": "Pending"} // nothing runs it
		}
	}
}

// Two API groups serve the same events, but with different field names. The store uses the names of the core group.
// https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/
var eventFields = map[string]string{ // Field names of events.k8s.io and their names in the core group.
	"note":                     "message",
	"regarding":                "involvedObject",
	"reportingController":      "reportingComponent",
	"deprecatedSource":         "source",
	"deprecatedFirstTimestamp": "firstTimestamp",
	"deprecatedLastTimestamp":  "lastTimestamp",
	"deprecatedCount":          "count",
}

// shows converts a stored object to the form that clients of resource r see. The result shares nested values with the
// stored object.
func (r *resource) shows(o map[string]any) map[string]any {
	if r.stored == "" {
		return o
	}
	shown := maps.Clone(o)
	shown["apiVersion"], shown["kind"] = r.apiVersion(), r.kind
	for theirs, ours := range eventFields {
		rename(shown, ours, theirs)
	}
	return shown
}

// stores converts an object of this resource to its stored form. The result shares nested values with the given object.
func (r *resource) stores(o map[string]any) map[string]any {
	if r.stored == "" {
		return o
	}
	stored := maps.Clone(o)
	for theirs, ours := range eventFields {
		rename(stored, theirs, ours)
	}
	return stored
}

func rename(o map[string]any, from, to string) {
	if v, ok := o[from]; ok {
		o[to] = v
		delete(o, from)
	}
}

// selector selects the objects of a list or a watch.
type selector struct {
	resource  *resource
	namespace string
	labels    labels.Selector
	fields    fields.Selector
}

// selectorOf returns the selector in the options of a request. Like a real server, it rejects unsupported field
// selectors.
func selectorOf(options metav1.ListOptions, t target) (s selector, err error) {
	s = selector{resource: t.resource, namespace: t.namespace}
	if s.labels, err = labels.Parse(options.LabelSelector); err != nil {
		return s, apierrors.NewBadRequest("labelSelector: " + err.Error())
	}
	if s.fields, err = fields.ParseSelector(options.FieldSelector); err != nil {
		return s, apierrors.NewBadRequest("fieldSelector: " + err.Error())
	}
	for _, one := range s.fields.Requirements() {
		if !t.resource.selectable(one.Field) {
			return s, apierrors.NewBadRequest("field label not supported: " + one.Field)
		}
	}
	return s, nil
}

func (r *resource) selectable(field string) bool {
	return field == "metadata.name" || field == "metadata.namespace" || slices.Contains(r.fields, field)
}

func (s selector) matches(o map[string]any) bool {
	if s.namespace != "" && keyOf(o).namespace != s.namespace ||
		!s.labels.Matches(labels.Set((&unstructured.Unstructured{Object: o}).GetLabels())) {
		return false
	}
	return s.fields.Empty() || s.fields.Matches(fieldsOf(s.resource.shows(o)))
}

// fieldsOf implements fields.Fields for an object.
type fieldsOf map[string]any

func (f fieldsOf) Has(field string) bool { return f.Get(field) != "" }

func (f fieldsOf) Get(field string) string {
	var v any = map[string]any(f)
	for part := range strings.SplitSeq(field, ".") {
		o, ok := v.(map[string]any)
		if !ok {
			return ""
		}
		v = o[part]
	}
	switch v := v.(type) {
	case string:
		return v
	case bool:
		return strconv.FormatBool(v)
	case nil:
		if field == "spec.unschedulable" {
			return "false"
		}
		return ""
	case map[string]any: // Field selectors match the source of an event by its component.
		text, _ := v["component"].(string)
		return text
	}
	return fmt.Sprint(v)
}

func writeList(w http.ResponseWriter, r *resource, items []map[string]any, version uint64, partial bool) {
	list := make([]any, len(items))
	for i, o := range items {
		list[i] = r.form(o, partial)
	}
	v := map[string]any{"apiVersion": r.apiVersion(), "kind": r.kind + "List", "items": list,
		"metadata": map[string]any{"resourceVersion": strconv.FormatUint(version, 10)}}
	if partial {
		v["apiVersion"], v["kind"] = "meta.k8s.io/v1", "PartialObjectMetadataList"
	}
	writeJSON(w, http.StatusOK, v)
}

// form converts a stored object to the form that the client asked for.
func (r *resource) form(o map[string]any, partial bool) map[string]any {
	if partial {
		return map[string]any{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
			"metadata": o["metadata"]}
	}
	return r.shows(o)
}
