package k8s

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes/scheme"
)

// maxBody is the largest request body in bytes, as in a real API server (3 MiB).
const maxBody = 3 << 20

// maxName is less than Kubernetes' 253 bytes, because the name and ".json" must fit into a file name.
const maxName = 250

// target holds the parts of a parsed request path. Its names are valid and safe in a file path.
type target struct {
	resource  *resource
	namespace string // "" for none or all
	name      string // "" for the collection
	sub       string // the subresource
}

// gvk returns the type of the objects at the path.
func (t target) gvk() schema.GroupVersionKind {
	if t.sub == "scale" {
		return scaleGVK
	}
	return t.resource.gvk()
}

// form converts a stored object to the form that the client of the path asked for.
func (t target) form(o map[string]any, partial bool) map[string]any {
	if t.sub == "scale" {
		return scaleOf(o)
	}
	return t.resource.form(o, partial)
}

// errNoPath is the answer to an unknown path: 404 with the message of a real API server.
var errNoPath = refusal(http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested "+
	"resource: dev-k8s serves what services/internal/dev/k8s/handle_discovery.go lists")

// refusal returns an error with the given status.
func refusal(code int32, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason,
		Message: message}}
}

// parsePath parses an escaped path: /api/v1 or /apis/{group}/{version}, then
// [namespaces/{namespace}/]{resource}[/{name}[/{subresource}]].
func parsePath(escaped string) (t target, err error) {
	parts := strings.Split(strings.TrimPrefix(strings.TrimSuffix(escaped, "/"), "/"), "/")
	for i, p := range parts {
		if parts[i], err = url.PathUnescape(p); err != nil {
			return t, apierrors.NewBadRequest(err.Error())
		}
	}
	var group, version string
	switch {
	case len(parts) > 2 && parts[0] == "api":
		version, parts = parts[1], parts[2:]
	case len(parts) > 3 && parts[0] == "apis" && parts[1] != "":
		group, version, parts = parts[1], parts[2], parts[3:]
	default:
		return t, errNoPath
	}
	// In namespaces/{name}/status, status is a subresource of the namespace. In every other path, the word after
	// namespaces/{name}/ is a resource in the namespace.
	if parts[0] == "namespaces" && len(parts) > 2 && (group != "" || parts[2] != "status") {
		t.namespace, parts = parts[1], parts[2:]
		if err := checkNamespace(t.namespace); err != nil {
			return t, err
		}
	}
	if len(parts) > 3 {
		return t, errNoPath
	}
	if t.resource = find(group, version, parts[0]); t.resource == nil || t.resource.cluster && t.namespace != "" {
		return t, errNoPath
	}
	if len(parts) > 1 {
		t.name = parts[1]
		if err := checkName(t.name); err != nil {
			return t, err
		}
		if !t.resource.cluster && t.namespace == "" {
			return t, errNoPath
		}
	}
	if len(parts) > 2 {
		t.sub = parts[2]
	}
	return t, nil
}

// checkName refuses invalid object names. A valid name is one path element and not a hidden file.
func checkName(name string) error {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return invalid("metadata.name", name, problems[0])
	}
	if len(name) > maxName {
		return invalid("metadata.name", name, fmt.Sprintf("dev-k8s keeps names of at most %d bytes", maxName))
	}
	return nil
}

func checkNamespace(name string) error {
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return invalid("metadata.namespace", name, problems[0])
	}
	return nil
}

// invalid returns a 422 error about one field.
func invalid(field string, value any, problem string) *apierrors.StatusError {
	shown, _ := json.Marshal(value)
	message := fmt.Sprintf("%s: Invalid value: %s: %s", field, shown, problem)
	err := refusal(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, message)
	err.ErrStatus.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseTypeFieldValueInvalid,
		Field: field, Message: message}}}
	return err
}

// metadataOnly reports whether the client wants only the metadata of objects. A client that accepts only protobuf,
// CBOR, YAML or tables is refused.
func metadataOnly(req *http.Request) (bool, error) {
	header := strings.Join(req.Header.Values("Accept"), ",")
	if header == "" {
		return false, nil
	}
	for clause := range strings.SplitSeq(header, ",") {
		kind, params, err := mime.ParseMediaType(clause)
		switch {
		case err != nil, kind != "application/json" && kind != "application/*" && kind != "*/*":
		case params["as"] == "":
			return false, nil
		case params["g"] == metav1.GroupName && params["v"] == "v1" &&
			strings.HasPrefix(params["as"], "PartialObjectMetadata"):
			return true, nil
		}
	}
	return false, refusal(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, fmt.Sprintf(
		"dev-k8s speaks application/json only, not %q (NSTANCE_K8S_JSON=true makes nstance-operator use it)", header))
}

// readBody reads a body with one of the given content types.
func readBody(req *http.Request, kinds ...string) (body []byte, kind string, err error) {
	kind, _, err = mime.ParseMediaType(req.Header.Get("Content-Type"))
	if req.Header.Get("Content-Type") == "" {
		kind, err = kinds[0], nil
	}
	if err != nil || !slices.Contains(kinds, kind) {
		return nil, "", unsupported(fmt.Sprintf(
			"dev-k8s takes %s here, not %q (NSTANCE_K8S_JSON=true makes nstance-operator use JSON)",
			strings.Join(kinds, ", "), req.Header.Get("Content-Type")))
	}
	body, err = io.ReadAll(io.LimitReader(req.Body, maxBody+1))
	if err != nil {
		return nil, "", apierrors.NewBadRequest("read body: " + err.Error())
	}
	if len(body) > maxBody {
		return nil, "", apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
	}
	return body, kind, nil
}

// readObject reads an object from a body. It also accepts protobuf, which `kubectl create` and typed clients send.
// Answers are JSON, which all of them accept.
func readObject(req *http.Request) ([]byte, error) {
	body, kind, err := readBody(req, "application/json", runtime.ContentTypeProtobuf)
	if err != nil || kind == "application/json" || len(body) == 0 {
		return body, err
	}
	o, _, err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Decode(body, nil, nil)
	if err != nil {
		return nil, apierrors.NewBadRequest("the body is not an object: " + err.Error())
	}
	return json.Marshal(o)
}

// readFields is like readObject, and decodes the object.
func readFields(req *http.Request) (map[string]any, error) {
	body, err := readObject(req)
	if err != nil {
		return nil, err
	}
	return decodeBody(body)
}

// readInto is like readObject, and decodes the object into a typed one.
func readInto(req *http.Request, object any) error {
	body, err := readObject(req)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, object); err != nil {
		return apierrors.NewBadRequest("the body: " + err.Error())
	}
	return nil
}

func unsupported(message string) *apierrors.StatusError {
	return refusal(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType, message)
}

// decode decodes one JSON object. Integers stay integers.
func decode(body []byte) (map[string]any, error) {
	var v map[string]any
	if err := utiljson.Unmarshal(body, &v); err != nil {
		return nil, err
	}
	if v == nil {
		return nil, errors.New("no JSON object")
	}
	return v, nil
}

// decodeBody is like decode, but returns errors in the form of the Kubernetes API, with status 400.
func decodeBody(body []byte) (map[string]any, error) {
	v, err := decode(body)
	if err != nil {
		return nil, apierrors.NewBadRequest("the body is not a JSON object: " + err.Error())
	}
	return v, nil
}

// dryRun reads the parameter dryRun.
func dryRun(req *http.Request) (bool, error) {
	switch values := req.URL.Query()["dryRun"]; {
	case len(values) == 0:
		return false, nil
	case len(values) == 1 && values[0] == metav1.DryRunAll:
		return true, nil
	default:
		return false, apierrors.NewBadRequest(fmt.Sprintf("dryRun may be All, not %q", values))
	}
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		code, body = http.StatusInternalServerError,
			[]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":500}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(body, '\n')) // fails only if the client has disconnected
}

// writeError answers with the Status of err, or with 500.
func writeError(w http.ResponseWriter, err error) {
	status := statusOf(err)
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
	writeJSON(w, int(status.Code), status)
}

func statusOf(err error) metav1.Status {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		known = apierrors.NewInternalError(err)
	}
	status := known.Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	return status
}

// The content types of patches.
const (
	jsonPatch  = "application/json-patch+json"  // RFC 6902
	mergePatch = "application/merge-patch+json" // RFC 7396
	// https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/
	strategicPatch = "application/strategic-merge-patch+json"
)

// copyLimit limits the data that the copy operations of one JSON patch may add, in bytes.
const copyLimit = 3 << 20

// patched returns the result of applying a patch to the object `current`. It does not change that object.
func patched(gvk schema.GroupVersionKind, current map[string]any, kind string, patch []byte) (map[string]any, error) {
	document, err := json.Marshal(current)
	if err != nil {
		return nil, err
	}
	switch kind {
	case mergePatch:
		if _, err := decodeBody(patch); err != nil {
			return nil, err // it would replace the object by something else
		}
		document, err = jsonpatch.MergePatch(document, patch)
	case jsonPatch:
		var operations jsonpatch.Patch
		if operations, err = jsonpatch.DecodePatch(patch); err != nil {
			break
		}
		options := jsonpatch.NewApplyOptions()
		options.AccumulatedCopySizeLimit = copyLimit
		if document, err = operations.ApplyWithOptions(document, options); err != nil {
			// The patch is well-formed but does not fit the object.
			return nil, refusal(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid,
				"the server rejected our request due to an error in our request: "+err.Error())
		}
	case strategicPatch:
		typed, known := scheme.Scheme.New(gvk)
		if known != nil {
			return nil, unsupported(fmt.Sprintf("%s has no strategic merge patch, as all types of CRDs: use %s or %s",
				gvk.Kind, mergePatch, jsonPatch))
		}
		if _, err := decodeBody(patch); err != nil {
			return nil, err
		}
		document, err = strategicpatch.StrategicMergePatch(document, patch, typed)
	default:
		err = errors.New("no such patch")
	}
	if err != nil {
		return nil, apierrors.NewBadRequest("patch: " + err.Error())
	}
	next, err := decode(document)
	if err != nil {
		return nil, apierrors.NewBadRequest("the patch leaves no object: " + err.Error())
	}
	return next, nil
}
