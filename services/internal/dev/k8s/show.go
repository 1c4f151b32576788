package k8s

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/util/jsonpath"
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
	for _, f := range append([]string{"metadata.name", "metadata.namespace"}, r.fields...) {
		if f == field {
			return true
		}
	}
	return false
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

func writeObject(w http.ResponseWriter, req *http.Request, code int, r *resource, o map[string]any, shown form,
	now time.Time) error {
	v, err := render(req, r, o, shown, true, now)
	if err != nil {
		return err
	}
	writeJSON(w, code, v)
	return nil
}

func writeList(w http.ResponseWriter, req *http.Request, r *resource, items []map[string]any, version uint64,
	shown form, now time.Time) error {
	head := map[string]any{"resourceVersion": strconv.FormatUint(version, 10)}
	if shown == table {
		t, err := tableOf(req, r, items, true, now)
		if err != nil {
			return err
		}
		t["metadata"] = head
		writeJSON(w, http.StatusOK, t)
		return nil
	}
	list := make([]any, len(items))
	for i, o := range items {
		v, err := render(req, r, o, shown, true, now)
		if err != nil {
			return err
		}
		list[i] = v
	}
	v := map[string]any{"apiVersion": r.apiVersion(), "kind": r.kind + "List", "metadata": head, "items": list}
	if shown == partial {
		v["apiVersion"], v["kind"] = "meta.k8s.io/v1", "PartialObjectMetadataList"
	}
	writeJSON(w, http.StatusOK, v)
	return nil
}

// render converts a stored object to the form that the client asked for.
func render(req *http.Request, r *resource, o map[string]any, shown form, columns bool, now time.Time) (map[string]any,
	error) {
	switch shown {
	case partial:
		return metadataOf(o), nil
	case table:
		t, err := tableOf(req, r, []map[string]any{o}, columns, now)
		if err == nil {
			t["metadata"] = map[string]any{"resourceVersion": meta(o)["resourceVersion"]}
		}
		return t, err
	}
	return r.shows(o), nil
}

func metadataOf(o map[string]any) map[string]any {
	return map[string]any{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": o["metadata"]}
}

// tableOf returns the table that `kubectl get` prints. See
// https://kubernetes.io/docs/reference/using-api/api-concepts/#receiving-resources-as-tables.
func tableOf(req *http.Request, r *resource, items []map[string]any, columns bool, now time.Time) (map[string]any,
	error) {
	definitions := []any{}
	define := func(name, format string, wide bool) {
		priority := 0
		if wide {
			priority = 1
		}
		definitions = append(definitions, map[string]any{"name": name, "type": "string", "format": format,
			"description": "", "priority": priority})
	}
	define("Name", "name", false)
	paths := make([]*jsonpath.JSONPath, len(r.columns))
	for i, c := range r.columns {
		define(c.name, "", c.wide)
		paths[i] = jsonpath.New(c.name).AllowMissingKeys(true)
		if err := paths[i].Parse("{" + c.path + "}"); err != nil {
			return nil, fmt.Errorf("column %s of %s: %w", c.name, r.name, err)
		}
	}
	define("Age", "", false)
	if !columns {
		definitions = []any{}
	}
	include := req.URL.Query().Get("includeObject")
	rows := make([]any, len(items))
	for i, o := range items {
		o = r.shows(o)
		cells := []any{meta(o)["name"]}
		for _, p := range paths {
			cells = append(cells, cell(p, o))
		}
		row := map[string]any{"cells": append(cells, age(o, now))}
		switch include {
		case string(metav1.IncludeNone):
		case string(metav1.IncludeObject):
			row["object"] = o
		default:
			row["object"] = metadataOf(o)
		}
		rows[i] = row
	}
	return map[string]any{"apiVersion": "meta.k8s.io/v1", "kind": "Table", "columnDefinitions": definitions,
		"rows": rows}, nil
}

func cell(p *jsonpath.JSONPath, o map[string]any) string {
	found, err := p.FindResults(o)
	if err != nil {
		return ""
	}
	var texts []string
	for _, results := range found {
		for _, v := range results {
			if v.CanInterface() && v.Interface() != nil {
				texts = append(texts, fmt.Sprint(v.Interface()))
			}
		}
	}
	return strings.Join(texts, ",")
}

func age(o map[string]any, now time.Time) string {
	text, _ := meta(o)["creationTimestamp"].(string)
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(at))
}
