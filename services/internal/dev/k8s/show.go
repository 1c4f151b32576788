package k8s

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// selector selects the objects of a list or a watch.
type selector struct {
	resource  *resource
	namespace string
	labels    labels.Selector
	fields    fields.Selector
}

// selectorOf reads the selector from the query. Like a real server, it rejects unsupported field selectors.
func selectorOf(req *http.Request, t target) (s selector, err error) {
	s = selector{resource: t.resource, namespace: t.namespace}
	if s.labels, err = labels.Parse(req.URL.Query().Get("labelSelector")); err != nil {
		return s, apierrors.NewBadRequest("labelSelector: " + err.Error())
	}
	if s.fields, err = fields.ParseSelector(req.URL.Query().Get("fieldSelector")); err != nil {
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
	m := meta(o)
	if s.namespace != "" && m["namespace"] != s.namespace {
		return false
	}
	if !s.labels.Empty() {
		set := labels.Set{}
		all, _ := m["labels"].(map[string]any)
		for name, v := range all {
			set[name], _ = v.(string)
		}
		if !s.labels.Matches(set) {
			return false
		}
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
