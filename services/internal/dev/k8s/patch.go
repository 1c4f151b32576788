package k8s

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	jsonpatch "github.com/evanphx/json-patch/v5"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/scheme"
)

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
