package fakepve

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
)

// apiError is an answer that is not 200. Its text is the reason phrase of the status line.
type apiError struct {
	status int
	text   string
	wrong  map[string]string // parameters
}

// die returns an error with status 500, as the real API does when its Perl code dies.
func die(format string, args ...any) *apiError {
	return &apiError{status: http.StatusInternalServerError, text: fmt.Sprintf(format, args...)}
}

// request is a call that was accepted. The cluster's mutex is held while the call runs.
type request struct {
	url.Values
	tokenID string
	fault   Fault
	content []byte // of an uploaded file
}

// serve answers a request. It writes an error to the connection itself, because the reason phrase in the status line is
// the error's text. net/http can write only the standard phrases.
func (c *Cluster) serve(w http.ResponseWriter, r *http.Request) {
	data, fault, failed := c.handle(r)
	if fault.Then != nil {
		fault.Then()
	}
	if fault.AnswerLost || fault.RequestLost {
		panic(http.ErrAbortHandler)
	}
	if failed == nil {
		w.Header().Set("Content-Type", "application/json;charset=UTF-8")
		_ = json.NewEncoder(w).Encode(map[string]any{"data": data}) // the client may be gone
		return
	}
	body, err := json.Marshal(map[string]any{"data": nil, "errors": failed.wrong})
	if err != nil {
		panic(err)
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 %d %s\r\nContent-Type: application/json;charset=UTF-8\r\nContent-Length: %d\r\n"+
		"Connection: close\r\n\r\n%s", failed.status, strings.ReplaceAll(failed.text, "\n", " "), len(body), body)
}

func (c *Cluster) handle(r *http.Request) (any, Fault, *apiError) {
	in := request{}
	apiPath, ok := strings.CutPrefix(r.URL.EscapedPath(), "/api2/json")
	name, op, inPath := findOperation(r.Method, apiPath)
	if !ok || inPath == nil {
		return nil, Fault{}, &apiError{status: http.StatusNotImplemented, text: "Method '" + r.Method + " " + apiPath +
			"' not implemented"}
	}
	if in.fault = c.takeFault(name); in.fault.Before != nil {
		in.fault.Before()
	}
	switch {
	case in.fault.RequestLost:
		return nil, in.fault, nil
	case in.fault.Status != 0:
		return nil, in.fault, &apiError{status: in.fault.Status, text: in.fault.Text}
	}
	if r.ContentLength > 0 && r.Method != http.MethodPost && r.Method != http.MethodPut {
		return nil, in.fault, &apiError{status: http.StatusNotImplemented, text: "Unexpected content for method '" +
			r.Method + "'"}
	}
	var err error
	if in.Values, in.content, err = readParams(r); err != nil {
		return nil, in.fault, &apiError{status: http.StatusBadRequest, text: err.Error()}
	}
	for key := range inPath {
		in.Set(key, inPath.Get(key))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, name)
	if in.tokenID, ok = c.authenticate(r); !ok {
		return nil, in.fault, &apiError{status: http.StatusUnauthorized, text: "invalid token value!"}
	}
	data, failed := c.call(op, in)
	return data, in.fault, failed
}

// readParams returns the parameters in the query or the body of a request, and the file if the request is an upload.
func readParams(r *http.Request) (url.Values, []byte, error) {
	kind, params, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind != "multipart/form-data" {
		err := r.ParseForm()
		return r.Form, nil, err
	}
	if params["boundary"] == "" || r.ContentLength < 0 {
		return nil, nil, fmt.Errorf("upload without boundary or content length")
	}
	form, err := r.MultipartReader()
	if err != nil {
		return nil, nil, err
	}
	values := url.Values{}
	for {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			return values, nil, fmt.Errorf("upload without file")
		}
		if err != nil {
			return nil, nil, err
		}
		content, err := io.ReadAll(part)
		if err != nil {
			return nil, nil, err
		}
		if part.FormName() == "filename" && part.FileName() != "" {
			values.Set("filename", part.FileName())
			return values, content, nil // the real server expects the file last
		}
		values.Add(part.FormName(), string(content))
	}
}

func (c *Cluster) authenticate(r *http.Request) (tokenID string, ok bool) {
	text, ok := strings.CutPrefix(r.Header.Get("Authorization"), "PVEAPIToken=")
	id, secret, _ := strings.Cut(text, "=")
	t := c.tokens[id]
	return id, ok && t != nil && subtle.ConstantTimeCompare([]byte(t.secret), []byte(secret)) == 1
}

// call checks parameters, permissions and the node, in the order of the real API, and runs the call.
func (c *Cluster) call(op operation, in request) (any, *apiError) {
	if n := in.Get("node"); n != "" && !op.anyNode && !strings.HasSuffix(n, ".") {
		switch node := c.nodes[n]; {
		case node == nil:
			return nil, die("hostname lookup '%s' failed - failed to get address info for: %s: Name or service not "+
				"known", n, n)
		case !node.online:
			return nil, &apiError{status: 595, text: "No route to host"}
		}
	}
	if wrong := op.checkParams(in.Values); len(wrong) > 0 {
		return nil, &apiError{http.StatusBadRequest, "Parameter verification failed.", wrong}
	}
	expand := func(text string) string {
		for key := range in.Values {
			text = strings.ReplaceAll(text, "{"+key+"}", in.Get(key))
		}
		return text
	}
	for _, n := range op.needs {
		if err := c.need(in, expand(n.path), n.privilege); err != nil {
			return nil, err
		}
	}
	if len(op.oneOf) > 0 && !slices.ContainsFunc(op.oneOf, func(n need) bool {
		p := expand(n.path)
		return !strings.Contains(p, "{") && c.allowed(in.tokenID, p, n.privilege)
	}) {
		return nil, &apiError{status: http.StatusForbidden, text: "Permission check failed"}
	}
	return op.run(c, in)
}

// allowed reports whether a token has a privilege on a path, and records it for [Cluster.Used] if so.
func (c *Cluster) allowed(tokenID, on, privilege string) bool {
	path, ok := c.granted(tokenID, on, privilege)
	if ok {
		used := c.tokens[tokenID].used
		used[path] = append(used[path], privilege)
	}
	return ok
}

// granted returns the path on which a token was granted the privilege that it has on a path. A token has the privileges
// that were granted on the path, or else on the nearest parent path. On a VM, it also has those that were granted on
// the VM's pool.
func (c *Cluster) granted(tokenID, on, privilege string) (grantedOn string, ok bool) {
	t := c.tokens[tokenID]
	var id int
	if _, err := fmt.Sscanf(on, "/vms/%d", &id); err == nil {
		if v := c.vms[id]; v != nil && v.pool != "" && slices.Contains(t.acl["/pool/"+v.pool], privilege) {
			return "/pool/" + v.pool, true
		}
	}
	for {
		if privileges, set := t.acl[on]; set {
			return on, slices.Contains(privileges, privilege)
		}
		if on == "/" {
			return "", false
		}
		on = path.Dir(on)
	}
}

func (c *Cluster) need(in request, on, privilege string) *apiError {
	if c.allowed(in.tokenID, on, privilege) {
		return nil
	}
	return &apiError{status: http.StatusForbidden, text: "Permission check failed (" + on + ", " + privilege + ")"}
}

func (c *Cluster) version(request) (any, *apiError) {
	return map[string]any{"version": "9.0.3", "release": "9.0", "repoid": "025864202ebb6109"}, nil
}

func (c *Cluster) permissions(in request) (any, *apiError) {
	on := in.Get("path")
	found := map[string]int{}
	for _, privileges := range c.tokens[in.tokenID].acl {
		for _, p := range privileges {
			if _, ok := c.granted(in.tokenID, on, p); ok {
				found[p] = 1
			}
		}
	}
	return map[string]any{on: found}, nil
}

func (c *Cluster) clusterStatus(request) (any, *apiError) {
	flag := map[bool]int{true: 1}
	all := []map[string]any{{"type": "cluster", "id": "cluster", "name": "test", "nodes": len(c.nodes), "version": 2,
		"quorate": flag[!c.inquor]}}
	for name, n := range c.nodes {
		all = append(all, map[string]any{"type": "node", "id": "node/" + name, "name": name, "online": flag[n.online]})
	}
	return all, nil
}

// resources lists the VMs that the token may audit. The list of VMs, with their nodes, tags and locks, is up to date,
// because it comes from the file system of the cluster. Names and statuses are as old as the last broadcast.
func (c *Cluster) resources(in request) (any, *apiError) {
	all := []map[string]any{}
	for id, v := range c.vms {
		if !c.allowed(in.tokenID, fmt.Sprintf("/vms/%d", id), "VM.Audit") {
			continue
		}
		entry := map[string]any{"id": fmt.Sprintf("qemu/%d", id), "type": "qemu", "vmid": id, "node": v.node,
			"status": "unknown"}
		if v.seenStatus != "" {
			entry["status"], entry["name"] = v.seenStatus, v.seenName
		}
		for _, setting := range []string{"tags", "lock"} {
			if value := v.conf[setting]; value != "" {
				entry[setting] = value
			}
		}
		if v.conf["template"] != "" {
			entry["template"] = 1
		}
		if v.pool != "" {
			entry["pool"] = v.pool
		}
		all = append(all, entry)
	}
	return all, nil
}

func (c *Cluster) listNetworks(in request) (any, *apiError) {
	all := []map[string]any{}
	for _, name := range c.nodes[in.Get("node")].bridges {
		if c.allowed(in.tokenID, "/sdn/zones/localnetwork/"+name, "SDN.Use") {
			all = append(all, map[string]any{"iface": name, "type": "bridge", "active": 1})
		}
	}
	return all, nil
}
