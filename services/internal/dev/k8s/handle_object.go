package k8s

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"time"

	authentication "k8s.io/api/authentication/v1"
	policy "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// handler serves the API.
type handler struct {
	store *store
	log   *slog.Logger
	now   func() time.Time
}

func (h *handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	h.log.Debug("request", "method", req.Method, "url", req.URL.String(), "client", req.UserAgent())
	if (req.Method == http.MethodGet || req.Method == http.MethodHead) && serveDiscovery(w, req) {
		return
	}
	if err := h.serve(w, req); err != nil {
		writeError(w, err)
	}
}

// serve answers a request for objects. If it returns an error, it has not written an answer.
func (h *handler) serve(w http.ResponseWriter, req *http.Request) error {
	t, err := parsePath(req.URL.EscapedPath())
	if err != nil {
		return err
	}
	partial, err := metadataOnly(req)
	if err != nil {
		return err
	}
	switch {
	case t.sub != "":
		return h.serveSub(w, req, t, partial)
	case t.name != "":
		switch req.Method {
		case http.MethodGet, http.MethodHead:
			return h.get(w, req, t, partial)
		case http.MethodPut:
			return h.update(w, req, t, partial)
		case http.MethodPatch:
			return h.patch(w, req, t, partial)
		case http.MethodDelete:
			return h.delete(w, req, t)
		}
	default:
		query, options := req.URL.Query(), metav1.ListOptions{}
		err := metav1.Convert_url_Values_To_v1_ListOptions(&query, &options, nil)
		switch {
		case err != nil:
			return apierrors.NewBadRequest(err.Error())
		case req.Method == http.MethodGet && options.Watch:
			return h.watch(w, req, t, options, partial)
		case req.Method == http.MethodGet || req.Method == http.MethodHead:
			return h.list(w, t, options, partial)
		case req.Method == http.MethodPost:
			return h.create(w, req, t, partial)
		case req.Method == http.MethodDelete:
			return h.deleteCollection(w, req, t, options)
		}
	}
	return apierrors.NewMethodNotSupported(t.resource.groupResource(), req.Method)
}

func (t target) key() key { return key{t.namespace, t.name} }

func (t target) notFound() error {
	return apierrors.NewNotFound(t.resource.groupResource(), t.name)
}

func (h *handler) get(w http.ResponseWriter, req *http.Request, t target, partial bool) error {
	if err := h.fresh(req.URL.Query().Get("resourceVersion")); err != nil {
		return err
	}
	o, ok := h.store.get(t.resource, t.key())
	if !ok {
		return t.notFound()
	}
	writeJSON(w, http.StatusOK, t.form(o, partial))
	return nil
}

// fresh returns an error if the client's resource version is newer than the store's. This happens after the store's
// directory was restored from a backup.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#unavailable-resource-versions
func (h *handler) fresh(version string) error {
	if version == "" {
		return nil
	}
	v, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return invalid("resourceVersion", version, "it is not a number")
	}
	if now := h.store.currentVersion(); v > now {
		e := apierrors.NewTimeoutError("Too large resource version: "+version+", current: "+strconv.FormatUint(now, 10),
			1)
		e.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge,
			Message: "Too large resource version"}}
		return e
	}
	return nil
}

func (h *handler) list(w http.ResponseWriter, t target, options metav1.ListOptions, partial bool) error {
	if options.Continue != "" {
		// dev-k8s never splits a list into pages, so it never issued this continue token. The client must list again.
		return apierrors.NewResourceExpired("start the list again")
	}
	if err := h.fresh(options.ResourceVersion); err != nil {
		return err
	}
	selected, err := selectorOf(options, t)
	if err != nil {
		return err
	}
	items, now := h.store.list(t.resource, t.namespace)
	if options.ResourceVersionMatch == metav1.ResourceVersionMatchExact &&
		options.ResourceVersion != strconv.FormatUint(now, 10) {
		return apierrors.NewResourceExpired("dev-k8s keeps no old states")
	}
	matching := make([]map[string]any, 0, len(items))
	for _, o := range items {
		if selected.matches(o) {
			matching = append(matching, o)
		}
	}
	writeList(w, t.resource, matching, now, partial)
	return nil
}

func (h *handler) create(w http.ResponseWriter, req *http.Request, t target, partial bool) error {
	r := t.resource
	if !r.cluster && t.namespace == "" {
		return apierrors.NewMethodNotSupported(r.groupResource(), req.Method)
	}
	o, err := readFields(req)
	if err != nil {
		return err
	}
	dry, err := dryRun(req)
	if err != nil {
		return err
	}
	if err := checkType(r.gvk(), key{namespace: t.namespace}, o); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if t.name, err = nameOf(o); err != nil {
		return err
	}
	result, _, err := h.store.edit(r, t.key(), dry, func(current map[string]any) (map[string]any, error) {
		if current != nil {
			return nil, apierrors.NewAlreadyExists(r.groupResource(), t.name)
		}
		o = r.stores(o)
		return o, h.store.created(r, t.key(), o)
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, r.form(result, partial))
	return nil
}

func (h *handler) update(w http.ResponseWriter, req *http.Request, t target, partial bool) error {
	wanted, err := readFields(req)
	if err != nil {
		return err
	}
	return h.change(w, req, t, partial, func(map[string]any) (map[string]any, error) { return wanted, nil })
}

func (h *handler) patch(w http.ResponseWriter, req *http.Request, t target, partial bool) error {
	patch, kind, err := readPatch(req)
	if err != nil {
		return err
	}
	return h.change(w, req, t, partial, func(current map[string]any) (map[string]any, error) {
		wanted, err := patched(t.gvk(), t.form(current, false), kind, patch)
		m, ok := wanted["metadata"].(map[string]any)
		if ok && (m["resourceVersion"] == nil || m["resourceVersion"] == "") {
			m["resourceVersion"] = meta(current)["resourceVersion"]
		}
		return wanted, err
	})
}

func readPatch(req *http.Request) (patch []byte, kind string, err error) {
	if patch, kind, err = readBody(req, jsonPatch, mergePatch, strategicPatch,
		string(types.ApplyYAMLPatchType)); err != nil {
		return nil, "", err
	}
	if kind == string(types.ApplyYAMLPatchType) {
		return nil, "",
			unsupported(
				"dev-k8s has no server-side apply: use `kubectl apply` without --server-side, or a patch of another " +
					"type")
	}
	return patch, kind, nil
}

// change edits an existing object, as the function `edit` wants it to be, and answers with the result.
func (h *handler) change(w http.ResponseWriter, req *http.Request, t target, partial bool, edit editFunc) error {
	dry, err := dryRun(req)
	if err != nil {
		return err
	}
	result, _, err := h.store.edit(t.resource, t.key(), dry, func(current map[string]any) (map[string]any, error) {
		if current == nil {
			return nil, t.notFound()
		}
		wanted, err := edit(current)
		if err != nil {
			return nil, err
		}
		if err := checkType(t.gvk(), t.key(), wanted); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		if t.sub == "scale" {
			wanted, err = scaled(current, wanted)
		} else {
			wanted = t.resource.stores(wanted)
		}
		if err != nil {
			return nil, err
		}
		return h.store.updated(t.resource, t.key(), t.sub, current, wanted)
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, t.form(result, partial))
	return nil
}

// deleteOptions reads the options from the body, or from the query if there is no body.
func deleteOptions(req *http.Request) (o metav1.DeleteOptions, err error) {
	body, err := readObject(req)
	if err != nil {
		return o, err
	}
	if len(body) == 0 {
		query := req.URL.Query()
		err = metav1.Convert_url_Values_To_v1_DeleteOptions(&query, &o, nil)
	} else {
		err = json.Unmarshal(body, &o)
	}
	if err != nil {
		return o, apierrors.NewBadRequest("the options: " + err.Error())
	}
	if wrong := validation.ValidateDeleteOptions(&o); len(wrong) > 0 {
		return o, apierrors.NewInvalid(schema.GroupKind{Kind: "DeleteOptions"}, "", wrong)
	}
	// Foreground and background deletion have the same result in dev-k8s. Orphaning is not supported.
	orphan := o.OrphanDependents //nolint:staticcheck // old clients
	if p := o.PropagationPolicy; p != nil && *p == metav1.DeletePropagationOrphan || orphan != nil && *orphan {
		return o, invalid("propagationPolicy", metav1.DeletePropagationOrphan,
			"dev-k8s always collects what an object owns")
	}
	return o, nil
}

func (h *handler) delete(w http.ResponseWriter, req *http.Request, t target) error {
	options, err := deleteOptions(req)
	if err != nil {
		return err
	}
	result, removed, err := h.remove(t, options)
	if err != nil {
		return err
	}
	if !removed {
		writeJSON(w, http.StatusOK, t.resource.shows(result))
		return nil
	}
	uid, _ := meta(result)["uid"].(string)
	writeJSON(w, http.StatusOK, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Name: t.name, Group: t.resource.group, Kind: t.resource.name,
			UID: types.UID(uid)},
	})
	return nil
}

// remove deletes an object. Deleting a namespace deletes everything in it.
func (h *handler) remove(t target, options metav1.DeleteOptions) (result map[string]any, removed bool, err error) {
	dry := len(options.DryRun) > 0
	result, removed, err = h.store.edit(t.resource, t.key(), dry, func(current map[string]any) (map[string]any, error) {
		if current == nil {
			return nil, t.notFound()
		}
		if p := options.Preconditions; p != nil {
			if p.UID != nil && string(*p.UID) != meta(current)["uid"] {
				return nil, conflict(t.resource, t.key(), "Precondition failed: UID in precondition: "+string(*p.UID))
			}
			if p.ResourceVersion != nil && *p.ResourceVersion != meta(current)["resourceVersion"] {
				return nil, conflict(t.resource, t.key(), "Precondition failed: ResourceVersion in precondition: "+
					*p.ResourceVersion)
			}
		}
		return h.store.deleted(t.resource, current), nil
	})
	if err != nil || dry || t.resource.group != "" || t.resource.name != "namespaces" {
		return result, removed, err
	}
	for _, r := range resources {
		if r.cluster || r.stored != "" {
			continue
		}
		items, _ := h.store.list(r, t.name)
		for _, o := range items {
			inside := target{resource: r, namespace: t.name, name: keyOf(o).name}
			if _, _, err := h.remove(inside, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return nil, false, err
			}
		}
	}
	return result, removed, nil
}

func (h *handler) deleteCollection(w http.ResponseWriter, req *http.Request, t target, which metav1.ListOptions) error {
	options, err := deleteOptions(req)
	if err != nil {
		return err
	}
	selected, err := selectorOf(which, t)
	if err != nil {
		return err
	}
	items, now := h.store.list(t.resource, t.namespace)
	deleted := []map[string]any{}
	for _, o := range items {
		if !selected.matches(o) {
			continue
		}
		one := t
		one.name, one.namespace = keyOf(o).name, keyOf(o).namespace
		if _, _, err := h.remove(one, options); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		deleted = append(deleted, o)
	}
	writeList(w, t.resource, deleted, now, false)
	return nil
}

// serveSub answers requests for a subresource.
func (h *handler) serveSub(w http.ResponseWriter, req *http.Request, t target, partial bool) error {
	i := slices.IndexFunc(t.resource.subresources(), func(sub subresource) bool { return sub.name == t.sub })
	if i < 0 {
		return errNoPath
	}
	posts := t.resource.post != nil && t.sub == t.resource.post.name
	switch {
	case posts && req.Method == http.MethodPost && t.sub == "eviction":
		return h.evict(w, req, t)
	case posts && req.Method == http.MethodPost && t.sub == "token":
		return h.token(w, req, t)
	case posts:
	case req.Method == http.MethodGet:
		return h.get(w, req, t, partial)
	case req.Method == http.MethodPut:
		return h.update(w, req, t, partial)
	case req.Method == http.MethodPatch:
		return h.patch(w, req, t, partial)
	}
	return apierrors.NewMethodNotSupported(t.resource.groupResource(), req.Method)
}

// scaleOf returns the scale of an object.
// https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#scale-subresource
func scaleOf(o map[string]any) map[string]any {
	number := func(fields ...string) int64 {
		n, _, _ := unstructured.NestedInt64(o, fields...)
		return n
	}
	m := map[string]any{}
	for _, field := range []string{"name", "namespace", "uid", "resourceVersion", "creationTimestamp"} {
		if v, ok := meta(o)[field]; ok {
			m[field] = v
		}
	}
	status := map[string]any{"replicas": number("status", "replicas")}
	if text, _, _ := unstructured.NestedString(o, "status", "selector"); text != "" {
		status["selector"] = text
	}
	return map[string]any{
		"apiVersion": scaleGVK.GroupVersion().String(), "kind": scaleGVK.Kind, "metadata": m,
		"spec": map[string]any{"replicas": number("spec", "replicas")}, "status": status,
	}
}

// scaled returns an object with the number of replicas in a scale.
func scaled(current, scale map[string]any) (map[string]any, error) {
	replicas, _, err := unstructured.NestedInt64(scale, "spec", "replicas") // left out: 0, as in the type
	if err != nil || replicas < 0 || replicas > 1<<31-1 {
		return nil, invalid("spec.replicas", scale["spec"], "it must be a number of 0 or more")
	}
	next := runtime.DeepCopyJSON(current)
	if version := meta(scale)["resourceVersion"]; version != nil {
		meta(next)["resourceVersion"] = version
	}
	return next, unstructured.SetNestedField(next, replicas, "spec", "replicas")
}

// token issues a token, which dev-k8s never verifies.
func (h *handler) token(w http.ResponseWriter, req *http.Request, t target) error {
	var r authentication.TokenRequest
	if err := readInto(req, &r); err != nil {
		return err
	}
	if _, ok := h.store.get(t.resource, t.key()); !ok {
		return t.notFound()
	}
	seconds := int64(3600)
	if r.Spec.ExpirationSeconds != nil {
		seconds = *r.Spec.ExpirationSeconds
	}
	if seconds < 600 || seconds > 1<<32 {
		return invalid("spec.expirationSeconds", seconds, "it must be from 10 minutes to 2^32 seconds")
	}
	r.TypeMeta = metav1.TypeMeta{Kind: "TokenRequest", APIVersion: "authentication.k8s.io/v1"}
	r.Name, r.Namespace, r.CreationTimestamp = t.name, t.namespace, metav1.NewTime(h.now())
	r.Spec.ExpirationSeconds = &seconds
	r.Status = authentication.TokenRequestStatus{
		Token:               fmt.Sprintf("dev-k8s.%s.%s.%s", t.namespace, t.name, rand.Text()),
		ExpirationTimestamp: metav1.NewTime(h.now().Add(time.Duration(seconds) * time.Second)),
	}
	writeJSON(w, http.StatusCreated, r)
	return nil
}

// evict deletes a pod. No PodDisruptionBudget forbids it, because nothing runs the pods.
// https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/
func (h *handler) evict(w http.ResponseWriter, req *http.Request, t target) error {
	var eviction policy.Eviction
	if err := readInto(req, &eviction); err != nil {
		return err
	}
	if eviction.Name != "" && eviction.Name != t.name {
		return apierrors.NewBadRequest("the name of the eviction is not the name in the path")
	}
	dry, err := dryRun(req)
	if err != nil {
		return err
	}
	options := metav1.DeleteOptions{}
	if eviction.DeleteOptions != nil {
		options = *eviction.DeleteOptions
	}
	if dry {
		options.DryRun = []string{metav1.DryRunAll}
	}
	if _, _, err := h.remove(t, options); err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status: metav1.StatusSuccess})
	return nil
}
