package k8s

import (
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

// resource is one line of the table below: a type of object that is served. To add a type, add a line; all other code
// is generic.
type resource struct {
	group, version string
	name           string // plural, lower case: the path of the API and the directory; by default, kind with an s
	kind           string
	short          []string
	categories     []string
	cluster        bool // cluster-scoped
	// custom is true for a type that a CRD defines in a real cluster. Updates of such a type need a resource version.
	// Strategic merge patches are not supported.
	custom     bool
	status     bool // status is a subresource and can only be written through it
	generation bool // metadata.generation counts changes of the spec
	scale      bool // spec.replicas, status.replicas and status.selector are a subresource too
	post       *subresource
	fields     []string // Field selectors in addition to metadata.name and metadata.namespace.
	// stored is the name of the resource whose collection stores the objects. It is "" if this resource has its own
	// collection.
	stored string
}

// subresource is a subresource of a resource, with the type of its request bodies. Clients can only POST to the
// subresource "post" of a resource, such as the eviction of a pod.
type subresource struct {
	name  string
	gvk   schema.GroupVersionKind
	verbs []string
}

const (
	capi  = "cluster.x-k8s.io"
	infra = "infrastructure.cluster.x-k8s.io"
)

// resources are all types that dev-k8s serves.
var resources = named([]*resource{
	{version: "v1", kind: "Namespace", short: []string{"ns"}, cluster: true, status: true,
		fields: []string{"status.phase"}},
	{version: "v1", kind: "Node", short: []string{"no"}, cluster: true, status: true,
		// A real cluster has no field selector for the provider ID.
		fields: []string{"spec.unschedulable", "spec.providerID"}},
	{version: "v1", kind: "Pod", short: []string{"po"}, categories: []string{"all"}, status: true,
		post: &subresource{"eviction", schema.GroupVersionKind{Group: "policy", Version: "v1", Kind: "Eviction"},
			createVerb},
		fields: []string{"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
			"status.phase", "status.podIP"}},
	{version: "v1", kind: "Secret", fields: []string{"type"}},
	{version: "v1", kind: "ConfigMap", short: []string{"cm"}},
	{version: "v1", kind: "ServiceAccount", short: []string{"sa"},
		post: &subresource{"token", schema.GroupVersionKind{Group: "authentication.k8s.io", Version: "v1",
			Kind: "TokenRequest"}, createVerb}},
	{version: "v1", kind: "Event", short: []string{"ev"},
		fields: []string{"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
			"involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason",
			"reportingComponent", "source", "type"}},
	{group: "events.k8s.io", version: "v1", kind: "Event", short: []string{"ev"}, stored: "events",
		fields: []string{"regarding.kind", "regarding.namespace", "regarding.name", "regarding.uid", "reason",
			"reportingController", "type"}},
	{group: "coordination.k8s.io", version: "v1", kind: "Lease"},
	{group: "policy", version: "v1", kind: "PodDisruptionBudget", short: []string{"pdb"}, status: true,
		generation: true},
	{group: "apps", version: "v1", kind: "DaemonSet", short: []string{"ds"}, categories: []string{"all"}, status: true,
		generation: true},
	{group: "apiextensions.k8s.io", version: "v1", kind: "CustomResourceDefinition", short: []string{"crd", "crds"},
		cluster: true, status: true, generation: true},

	custom(capi, "v1beta2", "Cluster", "cl"), custom(capi, "v1beta2", "Machine", "ma"), machinePools,
	custom(infra, "v1beta1", "NstanceCluster", "nc"), custom(infra, "v1beta1", "NstanceMachine", "nm"),
	custom(infra, "v1beta1", "NstanceMachineTemplate", "nmt"), custom(infra, "v1beta1", "NstanceMachinePool", "nmp"),
	custom(infra, "v1beta1", "NstanceShardGroup", "nsg"),
})

var machinePools = &resource{group: capi, version: "v1beta2", kind: "MachinePool", short: []string{"mp"},
	categories: []string{"cluster-api"}, custom: true, status: true, generation: true, scale: true}

// custom returns a type of Cluster API or of Nstance.
func custom(group, version, kind, short string) *resource {
	return &resource{group: group, version: version, kind: kind, short: []string{short},
		categories: []string{"cluster-api"}, custom: true, status: true, generation: true}
}

// named fills in the names.
func named(all []*resource) []*resource {
	for _, r := range all {
		r.name = strings.ToLower(r.kind) + "s"
	}
	return all
}

func (r *resource) apiVersion() string {
	return schema.GroupVersion{Group: r.group, Version: r.version}.String()
}

func (r *resource) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.group, Resource: r.name}
}

func (r *resource) gvk() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: r.group, Version: r.version, Kind: r.kind}
}

// find returns the resource of the table, nil if there is none.
func find(group, version, name string) *resource {
	for _, r := range resources {
		if r.group == group && r.version == version && r.name == name {
			return r
		}
	}
	return nil
}

// owned returns the resource that has the given API group and kind, in any version. It returns nil if there is none.
func owned(group, kind string) *resource {
	for _, r := range resources {
		if r.group == group && r.kind == kind && r.stored == "" {
			return r
		}
	}
	return nil
}

var (
	allVerbs    = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	changeVerbs = []string{"get", "patch", "update"}
	createVerb  = []string{"create"}
	scaleGVK    = schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}
)

// subresources returns the subresources of r.
func (r *resource) subresources() (list []subresource) {
	if r.status {
		list = append(list, subresource{"status", r.gvk(), changeVerbs})
	}
	if r.scale {
		list = append(list, subresource{"scale", scaleGVK, changeVerbs})
	}
	if r.post != nil {
		list = append(list, *r.post)
	}
	return list
}

// groups returns the API groups of the table except the core group, in order. Each has one version.
func groups() (list []schema.GroupVersion) {
	for _, r := range resources {
		gv := schema.GroupVersion{Group: r.group, Version: r.version}
		if r.group != "" && !slices.Contains(list, gv) {
			list = append(list, gv)
		}
	}
	return list
}

// serveDiscovery answers discovery requests. It returns false for other paths.
// https://kubernetes.io/docs/concepts/overview/kubernetes-api/#discovery-api
func serveDiscovery(w http.ResponseWriter, req *http.Request) bool {
	path := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	switch {
	case len(path) == 1 && (path[0] == "healthz" || path[0] == "livez" || path[0] == "readyz"):
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok"))
	case len(path) == 1 && path[0] == "version":
		// dev-k8s imitates this version of Kubernetes. Cluster API refuses old versions of Kubernetes.
		writeJSON(w, http.StatusOK, version.Info{Major: "1", Minor: "36", GitVersion: "v1.36.3+dev-k8s",
			Platform: "dev-k8s"})
	case len(path) == 1 && path[0] == "api":
		writeJSON(w, http.StatusOK, metav1.APIVersions{
			TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"},
			ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0",
				ServerAddress: req.Host}},
		})
	case len(path) == 1 && path[0] == "apis":
		list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		for _, gv := range groups() {
			v := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
			list.Groups = append(list.Groups, metav1.APIGroup{Name: gv.Group, PreferredVersion: v,
				Versions: []metav1.GroupVersionForDiscovery{v}})
		}
		writeJSON(w, http.StatusOK, list)
	case len(path) == 2 && path[0] == "api" && path[1] == "v1":
		writeJSON(w, http.StatusOK, resourceList(schema.GroupVersion{Version: "v1"}))
	case len(path) == 3 && path[0] == "apis":
		gv := schema.GroupVersion{Group: path[1], Version: path[2]}
		if !slices.Contains(groups(), gv) {
			return false
		}
		writeJSON(w, http.StatusOK, resourceList(gv))
	case path[0] == "openapi":
		return serveOpenAPI(w, path[1:])
	default:
		return false
	}
	return true
}

func resourceList(gv schema.GroupVersion) metav1.APIResourceList {
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
		GroupVersion: gv.String()}
	for _, r := range resources {
		if r.group != gv.Group || r.version != gv.Version {
			continue
		}
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: r.name, SingularName: strings.ToLower(r.kind), Namespaced: !r.cluster, Kind: r.kind, Verbs: allVerbs,
			ShortNames: r.short, Categories: r.categories,
		})
		for _, sub := range r.subresources() {
			entry := metav1.APIResource{Name: r.name + "/" + sub.name, Namespaced: !r.cluster, Kind: sub.gvk.Kind,
				Verbs: sub.verbs}
			if sub.gvk.Group != r.group {
				entry.Group, entry.Version = sub.gvk.Group, sub.gvk.Version
			}
			list.APIResources = append(list.APIResources, entry)
		}
	}
	return list
}

// serveOpenAPI answers requests for OpenAPI documents. The documents say that patches of every kind take the parameter
// fieldValidation. So `kubectl apply` and `kubectl create` leave validation to the server. There are no schemas, so
// `kubectl explain` shows nothing.
func serveOpenAPI(w http.ResponseWriter, path []string) bool {
	if len(path) == 0 || path[0] != "v3" {
		return false // without version 2, clients use the types that they were built with
	}
	all := append([]schema.GroupVersion{{Version: "v1"}}, groups()...)
	if len(path) == 1 {
		paths := map[string]any{}
		for _, gv := range all {
			paths[prefix(gv)] = map[string]any{"serverRelativeURL": "/openapi/v3/" + prefix(gv)}
		}
		writeJSON(w, http.StatusOK, map[string]any{"paths": paths})
		return true
	}
	i := slices.IndexFunc(all, func(gv schema.GroupVersion) bool { return prefix(gv) == strings.Join(path[1:], "/") })
	if i < 0 {
		return false
	}
	gv, paths := all[i], map[string]any{}
	parameter := []any{map[string]any{"name": "fieldValidation", "in": "query",
		"schema": map[string]any{"type": "string"}}}
	for _, r := range resources {
		if r.group != gv.Group || r.version != gv.Version {
			continue
		}
		kind := map[string]any{"group": r.group, "version": r.version, "kind": r.kind}
		// The strategic merge patch is not among these content types. That makes kubectl compute such patches from its
		// built-in types instead of from a schema.
		content := map[string]any{mergePatch: map[string]any{}, jsonPatch: map[string]any{}}
		paths["/"+prefix(gv)+"/"+r.name+"/{name}"] = map[string]any{"patch": map[string]any{
			"x-kubernetes-group-version-kind": kind, "parameters": parameter,
			"requestBody": map[string]any{"content": content},
			"responses":   map[string]any{},
		}}
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"openapi": "3.0.0", "info": map[string]any{"title": "dev-k8s", "version": "v0"}, "paths": paths,
	})
	return true
}

// prefix returns the path of a group and version without the leading slash.
func prefix(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "api/" + gv.Version
	}
	return "apis/" + gv.Group + "/" + gv.Version
}
