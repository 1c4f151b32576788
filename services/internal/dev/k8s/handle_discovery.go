package k8s

import (
	"net/http"
	"slices"
	"strings"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

// resource is one line of the table below: a type of object that is served. To add a type, add a line; all other code
// is generic.
type resource struct {
	group, version string
	name           string // plural, lower case: the path of the API and the directory
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
	sub        []subresource
	fields     []string // Field selectors in addition to metadata.name and metadata.namespace.
	columns    []column // Columns of `kubectl get` between name and age.
	// stored is the name of the resource whose collection stores the objects. It is "" if this resource has its own
	// collection.
	stored string
}

// subresource is a subresource that clients can only POST to, such as the eviction of a pod.
type subresource struct {
	name string
	gvk  schema.GroupVersionKind // of its body
}

// column is a JSON path as in a CRD's additionalPrinterColumns.
type column struct {
	name, path string
	wide       bool // only with -o wide
}

const (
	capi  = "cluster.x-k8s.io"
	infra = "infrastructure.cluster.x-k8s.io"
)

var capiCategory = []string{"cluster-api"}

func ready(kind string) string { return `.status.conditions[?(@.type=="` + kind + `")].status` }

// resources are all types that dev-k8s serves.
var resources = []*resource{
	{version: "v1", name: "namespaces", kind: "Namespace", short: []string{"ns"}, cluster: true, status: true,
		fields:  []string{"status.phase"},
		columns: []column{{name: "Status", path: ".status.phase"}}},
	{version: "v1", name: "nodes", kind: "Node", short: []string{"no"}, cluster: true, status: true,
		// A real cluster has no field selector for the provider ID.
		fields: []string{"spec.unschedulable", "spec.providerID"},
		columns: []column{{name: "Ready", path: ready("Ready")}, {name: "Unschedulable", path: ".spec.unschedulable"},
			{name: "ProviderID", path: ".spec.providerID"}, {name: "Internal-IP",
				path: `.status.addresses[?(@.type=="InternalIP")].address`, wide: true}}},
	{version: "v1", name: "pods", kind: "Pod", short: []string{"po"}, categories: []string{"all"}, status: true,
		sub: []subresource{{"eviction", schema.GroupVersionKind{Group: "policy", Version: "v1", Kind: "Eviction"}}},
		fields: []string{"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
			"status.phase", "status.podIP"},
		columns: []column{{name: "Status", path: ".status.phase"}, {name: "Node", path: ".spec.nodeName"}}},
	{version: "v1", name: "secrets", kind: "Secret", fields: []string{"type"},
		columns: []column{{name: "Type", path: ".type"}}},
	{version: "v1", name: "configmaps", kind: "ConfigMap", short: []string{"cm"}},
	{version: "v1", name: "serviceaccounts", kind: "ServiceAccount", short: []string{"sa"},
		sub: []subresource{{"token", schema.GroupVersionKind{Group: "authentication.k8s.io", Version: "v1",
			Kind: "TokenRequest"}}}},
	{version: "v1", name: "events", kind: "Event", short: []string{"ev"},
		fields: []string{"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
			"involvedObject.apiVersion",
			"involvedObject.resourceVersion", "involvedObject.fieldPath", "reason", "reportingComponent", "source",
			"type"},
		columns: []column{{name: "Type", path: ".type"}, {name: "Reason", path: ".reason"},
			{name: "Object", path: ".involvedObject.name"},
			{name: "Message", path: ".message"}}},
	{group: "events.k8s.io", version: "v1", name: "events", kind: "Event", short: []string{"ev"}, stored: "events",
		fields: []string{"regarding.kind", "regarding.namespace", "regarding.name", "regarding.uid", "reason",
			"reportingController", "type"},
		columns: []column{{name: "Type", path: ".type"}, {name: "Reason", path: ".reason"},
			{name: "Object", path: ".regarding.name"},
			{name: "Message", path: ".note"}}},
	{group: "coordination.k8s.io", version: "v1", name: "leases", kind: "Lease",
		columns: []column{{name: "Holder", path: ".spec.holderIdentity"}}},
	{group: "policy", version: "v1", name: "poddisruptionbudgets", kind: "PodDisruptionBudget", short: []string{"pdb"},
		status: true, generation: true,
		columns: []column{{name: "Min available", path: ".spec.minAvailable"},
			{name: "Max unavailable", path: ".spec.maxUnavailable"}}},
	{group: "apps", version: "v1", name: "daemonsets", kind: "DaemonSet", short: []string{"ds"},
		categories: []string{"all"}, status: true, generation: true,
		columns: []column{{name: "Desired", path: ".status.desiredNumberScheduled"}}},
	{group: "apiextensions.k8s.io", version: "v1", name: "customresourcedefinitions", kind: "CustomResourceDefinition",
		short:   []string{"crd", "crds"},
		cluster: true, status: true, generation: true},

	{group: capi, version: "v1beta2", name: "clusters", kind: "Cluster", short: []string{"cl"},
		categories: capiCategory, custom: true, status: true, generation: true,
		columns: []column{{name: "Available", path: ready("Available")}, {name: "Phase", path: ".status.phase"}}},
	{group: capi, version: "v1beta2", name: "machines", kind: "Machine", short: []string{"ma"},
		categories: capiCategory, custom: true, status: true, generation: true,
		columns: []column{{name: "Cluster", path: ".spec.clusterName"},
			{name: "Node name", path: ".status.nodeRef.name"}, {name: "Ready", path: ready("Ready")},
			{name: "Phase", path: ".status.phase"}, {name: "Provider ID", path: ".spec.providerID", wide: true}}},
	{group: capi, version: "v1beta2", name: "machinepools", kind: "MachinePool", short: []string{"mp"},
		categories: capiCategory, custom: true, status: true,
		generation: true, scale: true,
		columns: []column{{name: "Cluster", path: ".spec.clusterName"}, {name: "Desired", path: ".spec.replicas"},
			{name: "Current", path: ".status.replicas"},
			{name: "Ready", path: ".status.readyReplicas"}, {name: "Phase", path: ".status.phase"}}},

	{group: infra, version: "v1beta1", name: "nstanceclusters", kind: "NstanceCluster", short: []string{"nc"},
		categories: capiCategory, custom: true,
		status: true, generation: true,
		columns: []column{{name: "Cluster", path: `.metadata.labels['cluster\.x-k8s\.io/cluster-name']`},
			{name: "Endpoint", path: ".spec.controlPlaneEndpoint.host"},
			{name: "Ready", path: ready("Ready")}, {name: "Provisioned", path: ".status.initialization.provisioned"}}},
	{group: infra, version: "v1beta1", name: "nstancemachines", kind: "NstanceMachine", short: []string{"nm"},
		categories: capiCategory, custom: true,
		status: true, generation: true,
		columns: []column{{name: "Group", path: ".spec.groupRef.name"}, {name: "Shard", path: ".spec.shard"},
			{name: "Instance", path: ".spec.instanceID"},
			{name: "ProviderID", path: ".spec.providerID", wide: true}, {name: "State", path: ".status.state"},
			{name: "Ready", path: ".status.ready"}}},
	{group: infra, version: "v1beta1", name: "nstancemachinetemplates", kind: "NstanceMachineTemplate",
		short: []string{"nmt"}, categories: capiCategory, custom: true,
		status: true, generation: true,
		columns: []column{{name: "Group", path: ".spec.template.spec.groupRef.name"},
			{name: "Shard", path: ".spec.template.spec.shard"},
			{name: "Type", path: ".spec.template.spec.instanceType"}}},
	{group: infra, version: "v1beta1", name: "nstancemachinepools", kind: "NstanceMachinePool", short: []string{"nmp"},
		categories: capiCategory, custom: true,
		status: true, generation: true,
		columns: []column{{name: "Group", path: ".spec.group"}, {name: "Shards", path: ".spec.shards", wide: true},
			{name: "Template", path: ".spec.config.template"},
			{name: "Replicas", path: ".status.replicas"}, {name: "Healthy", path: ".status.readyReplicas"},
			{name: "Static", path: ".status.isStatic"},
			{name: "Ready", path: ready("Ready")}}},
	{group: infra, version: "v1beta1", name: "nstanceshardgroups", kind: "NstanceShardGroup", short: []string{"nsg"},
		categories: capiCategory, custom: true,
		status: true, generation: true,
		columns: []column{{name: "Group", path: ".spec.group"}, {name: "Shard", path: ".spec.shard"},
			{name: "Size", path: ".spec.size"},
			{name: "Actual", path: ".status.actualSize"}, {name: "Healthy", path: ".status.healthy"},
			{name: "Reachable", path: ready("ShardReachable")},
			{name: "Ready", path: ready("Ready")}}},
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
	i := slices.IndexFunc(resources, func(r *resource) bool {
		return r.group == group && r.version == version && r.name == name
	})
	if i < 0 {
		return nil
	}
	return resources[i]
}

// owned returns the resource that has the given API group and kind, in any version. It returns nil if there is none.
func owned(group, kind string) *resource {
	i := slices.IndexFunc(resources, func(r *resource) bool {
		return r.group == group && r.kind == kind && r.stored == ""
	})
	if i < 0 {
		return nil
	}
	return resources[i]
}

var (
	allVerbs    = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	changeVerbs = []string{"get", "patch", "update"}
	createVerb  = []string{"create"}
	scaleGVK    = schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}
)

// subresources returns the subresources of r, each with the type of its request bodies, and the verbs of each
// subresource.
func (r *resource) subresources() (list []subresource, verbs [][]string) {
	if r.status {
		list, verbs = append(list, subresource{"status", r.gvk()}), append(verbs, changeVerbs)
	}
	if r.scale {
		list, verbs = append(list, subresource{"scale", scaleGVK}), append(verbs, changeVerbs)
	}
	for _, sub := range r.sub {
		list, verbs = append(list, sub), append(verbs, createVerb)
	}
	return list, verbs
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
		if aggregated(req) {
			writeAggregated(w, []schema.GroupVersion{{Version: "v1"}})
			return true
		}
		writeJSON(w, http.StatusOK, metav1.APIVersions{
			TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"},
			ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0",
				ServerAddress: req.Host}},
		})
	case len(path) == 1 && path[0] == "apis":
		if aggregated(req) {
			writeAggregated(w, groups())
			return true
		}
		list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		for _, gv := range groups() {
			list.Groups = append(list.Groups, apiGroup(gv))
		}
		writeJSON(w, http.StatusOK, list)
	case len(path) == 2 && path[0] == "api" && path[1] == "v1":
		writeJSON(w, http.StatusOK, resourceList(schema.GroupVersion{Version: "v1"}))
	case len(path) == 2 && path[0] == "apis":
		i := slices.IndexFunc(groups(), func(gv schema.GroupVersion) bool { return gv.Group == path[1] })
		if i < 0 {
			return false
		}
		group := apiGroup(groups()[i])
		group.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
		writeJSON(w, http.StatusOK, group)
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

func apiGroup(gv schema.GroupVersion) metav1.APIGroup {
	v := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
	return metav1.APIGroup{Name: gv.Group, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v}
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
		subs, verbs := r.subresources()
		for i, sub := range subs {
			entry := metav1.APIResource{Name: r.name + "/" + sub.name, Namespaced: !r.cluster, Kind: sub.gvk.Kind,
				Verbs: verbs[i]}
			if sub.gvk.Group != r.group {
				entry.Group, entry.Version = sub.gvk.Group, sub.gvk.Version
			}
			list.APIResources = append(list.APIResources, entry)
		}
	}
	return list
}

// aggregated reports whether the client accepts aggregated discovery.
func aggregated(req *http.Request) bool {
	return slices.ContainsFunc(accepted(req), func(m media) bool {
		return m.as == "APIGroupDiscoveryList" && m.group == apidiscovery.GroupName && m.version == "v2"
	})
}

func writeAggregated(w http.ResponseWriter, of []schema.GroupVersion) {
	list := apidiscovery.APIGroupDiscoveryList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList",
		APIVersion: apidiscovery.GroupName + "/v2"}}
	for _, gv := range of {
		v := apidiscovery.APIVersionDiscovery{Version: gv.Version, Freshness: apidiscovery.DiscoveryFreshnessCurrent}
		for _, r := range resources {
			if r.group == gv.Group && r.version == gv.Version {
				v.Resources = append(v.Resources, discovered(r))
			}
		}
		list.Items = append(list.Items, apidiscovery.APIGroupDiscovery{
			ObjectMeta: metav1.ObjectMeta{Name: gv.Group}, Versions: []apidiscovery.APIVersionDiscovery{v},
		})
	}
	writeAs(w, http.StatusOK, "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", list)
}

func discovered(r *resource) apidiscovery.APIResourceDiscovery {
	kind := func(k schema.GroupVersionKind) *metav1.GroupVersionKind {
		return &metav1.GroupVersionKind{Group: k.Group, Version: k.Version, Kind: k.Kind}
	}
	d := apidiscovery.APIResourceDiscovery{
		Resource: r.name, ResponseKind: kind(r.gvk()), Scope: apidiscovery.ScopeNamespace,
		SingularResource: strings.ToLower(r.kind), Verbs: allVerbs,
		ShortNames: r.short, Categories: r.categories,
	}
	if r.cluster {
		d.Scope = apidiscovery.ScopeCluster
	}
	subs, verbs := r.subresources()
	for i, sub := range subs {
		d.Subresources = append(d.Subresources, apidiscovery.APISubresourceDiscovery{Subresource: sub.name,
			ResponseKind: kind(sub.gvk), Verbs: verbs[i]})
	}
	return d
}
