package k8s

import (
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

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
