package k8s

import "maps"

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
